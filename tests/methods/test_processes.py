"""Two processes with half a batch each take the step of one process with the whole, for each method here."""

from pathlib import Path
from typing import Any

import pytest
import torch
from stepping import run_in_two_processes, unlike_one_process
from torch import nn

from iecl import parallel
from iecl.backbones.factory import make_backbone
from iecl.methods import METHODS
from iecl.methods.contract import Method
from iecl.schedule import Clock
from iecl.views.pipeline import Views

CLOCK = Clock(seed=0, step=0, steps=10, epoch=0, epochs=1)
HEADS = {"hidden_dim": 16, "out_dim": 8}
PREDICTED = {**HEADS, "predictor_hidden_dim": 16}
CASES: dict[str, dict[str, Any]] = {
    "simclr": HEADS,
    "moco-v3": PREDICTED,
    "byol": PREDICTED,
    "simsiam": PREDICTED,
    "nnclr": {**PREDICTED, "queue_size": 16},
    "all4one": {**PREDICTED, "queue_size": 16, "heads": 2},
    "light-moco": {**HEADS, "queue_size": 16, "symmetric": True, "plain_epochs": 0, "num_neighbors": 3},
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


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run_in_two_processes(state_after_a_step, list(CASES), folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_and_queue_equal_those_of_one_process(name: str, two_processes: Path) -> None:
    assert not unlike_one_process(state_after_a_step(name), two_processes, name, rtol=1e-3, atol=1e-5)
