"""Features of images under a frozen backbone: one pass, no gradient, nothing in the backbone changes."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from iecl.backbones.factory import width_of
from iecl.data.batch import Batch
from iecl.data.loader import in_order
from iecl.data.source import OnBad, Progress, Source
from iecl.errors import UserError
from iecl.evaluation.compute import FULL, arithmetic
from iecl.transfer import send
from iecl.views.pipeline import make_plain, make_views
from iecl.views.policies import POLICIES, ViewSpec

LAYOUT = torch.channels_last
"""The order in memory that convolutions are fastest in."""
CROPS = POLICIES["crop"]
"""What an augmented probe sees: random crops and mirror images, colors as they are."""


@dataclass(frozen=True)
class Features:
    """One row for each readable image of a source, in the order of the source."""

    values: Float[Tensor, "n width"]
    labels: Int64[Tensor, " n"]
    """Class numbers, or -1 where there is none."""
    index: Int64[Tensor, " n"]
    """Which sample of the source each row is."""

    def __len__(self) -> int:
        return len(self.values)

    def labeled(self, name: str) -> "Features":
        """The rows that have a label.

        Raises:
            UserError: there are none, or a feature is not finite; `name` says whose features these are.
        """
        if not len(self) or not (self.labels >= 0).any():
            raise no_labels(name)
        if not self.values.sum().isfinite():  # one number that is not finite is enough, and a sum is quick
            rows = int((~self.values.isfinite().all(dim=1)).sum())
            if rows:  # and not only too large for their sum
                raise UserError(
                    f"{rows} of {len(self)} features of the {name} images are not finite",
                    where="weights",
                    do="the training diverged: take an earlier checkpoint",
                )
        (kept,) = (self.labels >= 0).nonzero(as_tuple=True)
        return self if len(kept) == len(self) else self.rows(kept)

    def rows(self, numbers: Int64[Tensor, " part"]) -> "Features":
        """Some of the rows."""
        return Features(self.values[numbers], self.labels[numbers], self.index[numbers])


def no_labels(name: str) -> UserError:
    """What to say when nothing can be measured."""
    return UserError(
        f"the {name} images have no labels",
        where="--data",
        do="give a folder with one sub-folder for each class, or a labeled dataset",
    )


def refuse_one_class(labels: Int64[Tensor, " n"]) -> None:
    """Images of one class teach a classifier nothing.

    Raises:
        UserError: all labels are equal.
    """
    if (labels == labels[0]).all():
        raise UserError("the train images are all of one class", where="--data", do="give images of two or more")


def extract(
    backbone: nn.Module,
    source: Source,
    *,
    image_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    share: float,
    device: torch.device | str = "cpu",
    precision: str = FULL,
    batch: int = 256,
    workers: int = 0,
    progress: Progress | None = None,
    on_bad: OnBad | None = None,
) -> Features:
    """The features of every readable image, each seen once and whole or in its middle square.

    Args:
        backbone: maps normalized images to features; comes back in the mode and with the buffers it came with.
        source: the images.
        image_size: side of the view.
        mean: mean of each channel on the scale 0 to 1, as in training.
        std: standard deviation of each channel, as in training.
        share: side of the middle square as a share of the image's shorter side; 1 for small images.
        device: where the backbone is and computes.
        precision: its arithmetic, a row of `iecl.evaluation.compute.PRECISIONS`.
        batch: images in one forward pass; changes no number beyond rounding.
        workers: processes that decode.
        progress: called with how many images are done, of how many.
        on_bad: called with each file that is left out; by default it is logged.
    """
    where = torch.device(device)

    def view(images: Batch) -> Tensor:
        return make_plain(send(images.images, where), images.sizes, image_size, mean, std, share, LAYOUT)

    how = arithmetic(where, precision)
    return _fill(backbone, in_order(source, batch, workers, on_bad), view, how, len(source), progress)


def extract_crops(
    backbone: nn.Module,
    source: Source,
    *,
    image_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    seed: int,
    epoch: int,
    device: torch.device | str = "cpu",
    precision: str = FULL,
    batch: int = 256,
    workers: int = 0,
) -> Features:
    """The features of one random crop of every readable image; seed and epoch decide which crop."""

    def view(images: Batch) -> Tensor:
        how: dict[str, Any] = {"size": image_size, "mean": mean, "std": std, "layout": LAYOUT}
        how["device"] = torch.device(device)
        return make_views(images, CROPS, ViewSpec(global_crops=1), seed=seed, epoch=epoch, **how).global_crops[0]

    batches = in_order(source, batch, workers, on_bad=lambda path, reason: None)  # the plain pass has named them
    return _fill(backbone, batches, view, arithmetic(torch.device(device), precision), len(source), None)


def _fill(
    backbone: nn.Module,
    batches: Iterator[Batch],
    view: Callable[[Batch], Tensor],
    how: AbstractContextManager[None],
    total: int,
    progress: Progress | None,
) -> Features:
    """Features of all batches in arrays that are made once: a list of parts would need the memory twice."""
    values = torch.empty(total, width_of(backbone))
    labels, index = torch.empty(total, dtype=torch.int64), torch.empty(total, dtype=torch.int64)
    filled = 0
    with evaluating(backbone), torch.inference_mode(), how:
        for images in batches:
            x = view(images)
            rows = slice(filled, filled + len(x))
            values[rows] = backbone(x).float()
            labels[rows], index[rows] = images.labels, images.index
            filled = rows.stop
            if progress is not None:
                progress(filled, total)
    return Features(values[:filled], labels[:filled], index[:filled])


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; afterwards every part is in the mode it was in, frozen parts too."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
