"""Small methods on small images, for tests of one method."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from iecl.backbones.factory import make_backbone
from iecl.methods.contract import DataFacts, Method
from iecl.schedule import Clock
from iecl.views.pipeline import Views

SAMPLES = 24
FACTS = DataFacts(SAMPLES, 0, 16, (0.5,) * 3, (0.25,) * 3)
IMAGES = torch.randn(SAMPLES, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def make(
    cls: type[Method], *, facts: DataFacts = FACTS, backbone: nn.Module | None = None, **settings: object
) -> Method:
    """A method with the same weights each time."""
    torch.manual_seed(0)
    backbone = make_backbone("resnet10-w16", 0) if backbone is None else backbone
    return cls(backbone, cls.Settings(**settings), *([facts] if cls.needs_facts else []))


def clock(step: int = 0, epoch: int = 0) -> Clock:
    return Clock(seed=0, step=step, steps=100, epoch=epoch, epochs=10)


def views_of(index: list[int], small: int = 0, seed: int = 1) -> Views:
    """Noisy views of some of the images."""
    noise, rows = torch.Generator().manual_seed(seed), torch.tensor(index)
    full = tuple(IMAGES[rows] + 0.1 * torch.randn(len(rows), 3, 16, 16, generator=noise) for _ in range(2))
    parts = tuple(IMAGES[rows][..., :7, :7] + 0.1 * part for part in range(small))
    return Views(full, rows, torch.full_like(rows, -1), rows, parts)


def survey(encode: Callable[[Tensor], Tensor]) -> Tensor:
    """Every image through a function, as training does it."""
    with torch.no_grad():
        return torch.cat([encode(some) for some in IMAGES.split(10)])


def gradients(method: Method) -> set[str]:
    """The parts whose weights have a gradient."""
    return {name.split(".")[0] for name, p in method.named_parameters() if p.grad is not None and p.grad.any()}
