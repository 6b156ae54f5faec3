"""Small methods on small images, for tests of one method."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

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


def without_batch_norm(method: nn.Module) -> None:
    """Batch norm sees the rows of one process; tests of several processes do without."""
    for name, part in list(method.named_modules()):
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            parent, _, leaf = name.rpartition(".")
            other = nn.GroupNorm(4, part.num_features) if isinstance(part, nn.BatchNorm2d) else nn.Identity()
            setattr(method.get_submodule(parent), leaf, other)


StateOf = Callable[[str, int, int], dict[str, Tensor]]
"""What a case comes to on process `rank` of `world`."""


def run_in_two_processes(state_of: StateOf, cases: Sequence[str], folder: Path) -> None:
    """The state of every case in two processes, each with its half of the batch."""
    torch.multiprocessing.spawn(_work, args=(state_of, list(cases), str(folder)), nprocs=2)


def _work(rank: int, state_of: StateOf, cases: list[str], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for case in cases:
        torch.save(state_of(case, rank, 2), Path(folder) / f"{case}-{rank}.pt")
    torch.distributed.destroy_process_group()


def unlike_one_process(whole: dict[str, Tensor], folder: Path, case: str, rtol: float, atol: float) -> set[str]:
    """Names of what either process has otherwise than one process with the whole batch."""
    wrong = set()
    for rank in (0, 1):
        half = torch.load(folder / f"{case}-{rank}.pt", weights_only=True)
        assert half.keys() == whole.keys()
        wrong |= {n for n, value in whole.items() if not torch.allclose(half[n], value, rtol=rtol, atol=atol)}
    return wrong
