"""The same training from other libraries: their modules, transforms and datasets, put together as they show it.

Nothing of theirs is imported before it is asked for; what is not installed raises ImportError, and is left out.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

from iecl.backbones.factory import width_of

HIDDEN, OUT, QUEUE = 512, 128, 256
_SIZES = [f"method.hidden_dim={HIDDEN}", f"method.out_dim={OUT}"]
_KEEPS = ["method.ema_momentum={start=0.9, end=0.99, shape='linear'}"]
_PREDICTS = ["method.predictor_hidden_dim=512"]
OUR_SETS: dict[str, list[str]] = {
    "simclr": [*_SIZES, "method.temperature=0.2"],
    "moco-v2": [*_SIZES, "method.temperature=0.2", f"method.queue_size={QUEUE}"],
    "byol": [*_SIZES, *_KEEPS, *_PREDICTS],
    "simsiam": [*_SIZES, *_PREDICTS, "method.num_layers=3", "method.constant_predictor=false"],
}
"""Settings with which our methods have the sizes and temperatures of `FromLightly`."""


class FromLightly(nn.Module):
    """A method as lightly's examples put it together."""

    def __init__(self, name: str, backbone: nn.Module) -> None:
        from lightly import loss
        from lightly.models.modules import heads

        super().__init__()
        width = width_of(backbone)
        self.name, self.backbone, self.slow = name, backbone, nn.ModuleList()
        if name == "simclr":
            self.head = heads.SimCLRProjectionHead(width, HIDDEN, OUT)
            self.criterion = loss.NTXentLoss(temperature=0.2)
        elif name == "moco-v2":
            # The norm of our short recipe: without one the projections of such a run come together, on both sides.
            layers = [(width, HIDDEN, nn.BatchNorm1d(HIDDEN), nn.ReLU()), (HIDDEN, OUT, None, None)]
            self.head = heads.ProjectionHead(layers)
            self.criterion = loss.NTXentLoss(temperature=0.2, memory_bank_size=(QUEUE, OUT))
        elif name == "byol":
            self.head = heads.BYOLProjectionHead(width, HIDDEN, OUT)
            self.predictor = heads.BYOLPredictionHead(OUT, HIDDEN, OUT)
            self.criterion = loss.NegativeCosineSimilarity()
        else:
            self.head = heads.SimSiamProjectionHead(width, HIDDEN, OUT)
            self.predictor = heads.SimSiamPredictionHead(OUT, 512, OUT)
            self.criterion = loss.NegativeCosineSimilarity()
        if name in ("moco-v2", "byol"):
            self.slow = nn.ModuleList([deepcopy(backbone), deepcopy(self.head)]).requires_grad_(False)

    def keys(self, x: Tensor) -> Tensor:
        """Projections of the momentum copy."""
        with torch.no_grad():
            made: Tensor = self.slow[1](self.slow[0](x))
            return made.detach()

    def forward(self, anchor: Tensor, query: Tensor) -> Tensor:
        """The loss of two views."""
        made: Tensor
        if self.name == "moco-v2":
            made = self.criterion(self.head(self.backbone(anchor)), self.keys(query))
            return made
        z0, z1 = self.head(self.backbone(anchor)), self.head(self.backbone(query))
        if self.name == "simclr":
            made = self.criterion(z0, z1)
            return made
        t0, t1 = (self.keys(anchor), self.keys(query)) if self.name == "byol" else (z0.detach(), z1.detach())
        made = self.criterion(self.predictor(z0), t1) + self.criterion(self.predictor(z1), t0)
        return made

    def follow(self, keep: float) -> None:
        """Move the momentum copy."""
        from lightly.models.utils import update_momentum

        for fast, slow in zip((self.backbone, self.head), self.slow, strict=False):
            update_momentum(fast, slow, m=keep)


def peer_stepper(method: FromLightly) -> Callable[[Tensor, Tensor], float]:
    """A function of two views that takes one step of theirs in a plain loop and returns the loss."""
    optimizer = torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=1e-3)

    def step(one: Tensor, other: Tensor) -> float:
        views = (x.contiguous(memory_format=torch.channels_last) for x in (one, other))
        loss = method(*views)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if len(method.slow):
            method.follow(0.99)
        return float(loss.item())

    return step


class InMemory(Dataset[tuple[Any, int]]):
    """Decoded images, as torchvision's CIFAR class gives them."""

    def __init__(self, images: Path) -> None:
        self.pairs = [(image.copy(), label) for image, label in ImageFolder(str(images))]
        self.transform: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self.pairs[index]
        return (image if self.transform is None else self.transform(image)), label


def lightly_input(images: Path, source: str, side: int) -> Any:
    """Lightly's SimCLR views of a folder, or of decoded images."""
    from lightly.data import LightlyDataset
    from lightly.transforms import SimCLRTransform

    colors = {"cj_bright": 0.4, "cj_contrast": 0.4, "cj_sat": 0.4, "cj_hue": 0.1, "cj_strength": 1.0}
    transform = SimCLRTransform(input_size=side, cj_prob=0.8, random_gray_scale=0.2, gaussian_blur=0.0, **colors)
    if source == "memory":
        return LightlyDataset.from_torch_dataset(InMemory(images), transform=transform)
    return LightlyDataset(str(images), transform=transform)


def stable_input(images: Path, source: str, side: int) -> Any:
    """The same views from stable-pretraining's transforms."""
    with _root_logger_left_alone():
        from stable_pretraining.data import FromTorchDataset, transforms

    view = transforms.Compose(
        transforms.RGB(),
        transforms.RandomResizedCrop((side, side), scale=(0.08, 1.0)),
        transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.RandomHorizontalFlip(p=0.5),
        transforms.ToImage(mean=(0.5,) * 3, std=(0.25,) * 3),
    )
    pair = transforms.MultiViewTransform([view, view])
    base = InMemory(images) if source == "memory" else ImageFolder(str(images))
    return FromTorchDataset(base, names=["image", "label"], transform=pair)


@contextmanager
def _root_logger_left_alone() -> Iterator[None]:
    """Undo what a library does to everyone's logging on import: each of our lines would come twice."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def first_two(batch: Any) -> tuple[Tensor, Tensor]:
    """The two views of a peer's batch."""
    if isinstance(batch, dict):
        one, other = (view["image"] for view in batch["views"])
        return one, other
    (one, other), *_ = batch
    return one, other


INPUTS: dict[str, Callable[[Path, str, int], Any]] = {"lightly": lightly_input, "stable-pretraining": stable_input}
"""Who makes the views, and how."""
