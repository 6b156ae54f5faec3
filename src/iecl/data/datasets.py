"""Datasets that have a name: what is known about each, and where its reader lives. Imports nothing heavy."""

from dataclasses import dataclass

from iecl.errors import UserError
from iecl.registry import Entry

DATASETS: dict[str, Entry] = {
    "shapes": Entry("iecl.data.shapes:open_shapes", "10 classes of drawn objects, 32 px, generated in seconds"),
    "digits": Entry("iecl.data.digits:open_digits", "1,797 scanned digits that come with scikit-learn, 16 px"),
    "cifar10": Entry("iecl.data.torchvision_sets:open_cifar10", "60,000 photos of 10 classes, 32 px"),
    "cifar100": Entry("iecl.data.torchvision_sets:open_cifar100", "60,000 photos of 100 classes, 32 px"),
    "stl10": Entry("iecl.data.torchvision_sets:open_stl10", "13,000 labeled and 100,000 unlabeled photos, 96 px"),
    "imagenet": Entry("iecl.data.imagenet:open_imagenet", "ILSVRC 2012: 1.28 million photos of 1,000 classes"),
    "imagenet100": Entry("iecl.data.imagenet:open_imagenet100", "100 of ImageNet's classes, as chosen for CMC"),
}
"""Each target is a function of (settings, split) that returns a source."""


@dataclass(frozen=True)
class Facts:
    """What a user need not measure again."""

    image_size: int
    """Side of a view in pixels."""
    decode_size: int
    """Side at which images are kept: larger than a view where the originals are, to leave room for crops."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    classes: int
    train: int
    test: int
    origin: str
    splits: tuple[str, ...] = ("train", "test", "pretrain")
    """`pretrain` is what a pretraining run should see: `train`, and what there is without labels."""
    unlabeled: int = 0
    are_files: bool = False
    """Whether images are read from files in each epoch; those of the other datasets are in memory."""

    @property
    def pretrain(self) -> int:
        """How many images a pretraining run sees."""
        return self.train + self.unlabeled


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

FACTS: dict[str, Facts] = {
    "shapes": Facts(
        32, 32, (0.5001, 0.5003, 0.5002), (0.1456, 0.1441, 0.1466), 10, 10_000, 2_000, "drawn by iecl from a fixed seed"
    ),
    "digits": Facts(
        16, 16, (0.3054, 0.3054, 0.3054), (0.3187, 0.3187, 0.3187), 10, 1_437, 360,
        "Alpaydin and Kaynak 1998, UCI optical recognition of handwritten digits, as in scikit-learn",
    ),
    "cifar10": Facts(
        32, 32, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 10, 50_000, 10_000, "Krizhevsky 2009"
    ),
    "cifar100": Facts(
        32, 32, (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762), 100, 50_000, 10_000, "Krizhevsky 2009"
    ),
    "stl10": Facts(
        96, 96, (0.4467, 0.4398, 0.4066), (0.2603, 0.2566, 0.2713), 10, 5_000, 8_000,
        "Coates, Ng and Lee 2011; 100,000 more images have no label",
        splits=("train", "test", "pretrain", "unlabeled"), unlabeled=100_000,
    ),
    "imagenet": Facts(
        224, 375, IMAGENET_MEAN, IMAGENET_STD, 1_000, 1_281_167, 50_000, "Russakovsky et al. 2015; test is `val`",
        are_files=True,
    ),
    "imagenet100": Facts(
        224, 375, IMAGENET_MEAN, IMAGENET_STD, 100, 126_689, 5_000,
        "classes chosen by Tian, Krishnan and Isola 2020; test is `val`", are_files=True,
    ),
}  # fmt: skip


def check_split(name: str, split: str) -> None:
    """Refuse a split that a dataset does not have.

    Raises:
        UserError: there is no such split.
    """
    splits = FACTS[name].splits
    if split not in splits:
        raise UserError(f"{name} has no split {split!r}", where="split", do=f"one of: {', '.join(splits)}")
