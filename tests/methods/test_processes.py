"""Two processes with half a batch each take the step of one process with the whole, for each method here."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from iecl import parallel
from iecl.backbones.making import make_backbone
from iecl.methods import METHODS
from iecl.methods.contract import Method
from iecl.schedule import Clock
from iecl.views.making import Views

CLOCK = Clock(seed=0, step=0, steps=10, epoch=0, epochs=1)
HEADS = {"hidden": 16, "out": 8}
PREDICTED = {**HEADS, "predictor_hidden": 16}
CASES: dict[str, dict[str, Any]] = {
    "simclr": HEADS,
    "moco-v3": PREDICTED,
    "byol": PREDICTED,
    "simsiam": PREDICTED,
    "nnclr": {**PREDICTED, "queue": 16},
    "all4one": {**PREDICTED, "queue": 16, "heads": 2},
    "light-moco": {**HEADS, "queue": 16, "symmetric": True, "plain_epochs": 0, "neighbours": 3},
}


def without_batch_statistics(module: nn.Module) -> None:
    """Group norm for batch norm: statistics of half a batch are meant to differ, and would hide what is not."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                setattr(parent, name, nn.GroupNorm(4, child.num_features, affine=child.affine))


def build(name: str) -> Method:
    torch.manual_seed(0)
    cls = METHODS[name].load()
    made: Method = cls(make_backbone("resnet10-w16", 0), cls.Settings(**CASES[name]))
    without_batch_statistics(made)
    return made


def views(rank: int, world: int) -> Views:
    noise = torch.Generator().manual_seed(0)
    full = tuple(torch.randn(8, 3, 16, 16, generator=noise) for _ in range(2))
    rows = slice(rank * 8 // world, (rank + 1) * 8 // world)
    return Views(tuple(x[rows] for x in full), torch.arange(8)[rows], torch.full((8,), -1)[rows], torch.arange(8)[rows])


def state_after_a_step(name: str, rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """Losses, gradients (averaged over processes, as DDP does) and the queue that follows."""
    method = build(name)
    losses = method.step(views(rank, world), CLOCK).losses
    sum(losses.values()).backward()
    found = {f"loss {term}": parallel.average(value) for term, value in losses.items()}
    found |= {n: parallel.average(p.grad) for n, p in method.named_parameters() if p.grad is not None}
    return found | {n: value for n, value in method.named_buffers() if "queue" in n}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for name in CASES:
        torch.save(state_after_a_step(name, rank, 2), Path(folder) / f"{name}-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    torch.multiprocessing.spawn(work, args=(str(folder),), nprocs=2)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_and_queue_equal_those_of_one_process(name: str, two_processes: Path) -> None:
    whole = state_after_a_step(name)
    for rank in (0, 1):
        half = torch.load(two_processes / f"{name}-{rank}.pt", weights_only=True)
        assert half.keys() == whole.keys()
        wrong = {n for n, value in whole.items() if not torch.allclose(half[n], value, rtol=1e-3, atol=1e-5)}
        assert not wrong
