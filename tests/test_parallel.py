"""Two processes with half a batch each give the losses and gradients of one process with the whole."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from iecl import parallel
from iecl.backbones.factory import make_backbone
from iecl.entropy import streamed
from iecl.meters.streaming import MOMENTS, SAMPLED
from iecl.methods.ie_cl import IECL
from iecl.methods.moco_v2 import MoCoV2, MoCoV2Settings
from iecl.objective.settings import ObjectiveSettings
from iecl.saib.certified import CertifiedSAIB
from iecl.schedule import Clock
from iecl.views.pipeline import Views

CLOCK = Clock(seed=0, step=0, steps=10, epoch=0, epochs=1)
CASES = {
    "in-batch": {"queue_size": 0, "symmetric": False},
    "symmetric": {"queue_size": 0, "symmetric": True},
    "queue_size": {"queue_size": 16, "symmetric": True},
}


def method(choices: dict[str, object]) -> IECL:
    torch.manual_seed(0)
    backbone = make_backbone("resnet10-w16", 0)
    for name, part in list(backbone.named_modules()):  # statistics of half a batch are meant to differ
        if isinstance(part, nn.BatchNorm2d):
            parent, _, leaf = name.rpartition(".")
            setattr(backbone.get_submodule(parent), leaf, nn.GroupNorm(4, part.num_features))
    host = MoCoV2(backbone, MoCoV2Settings(hidden_dim=16, out_dim=8, norm=False, **choices))
    block = CertifiedSAIB(image_size=16, hidden_dim=4)
    settings = ObjectiveSettings(
        entropy="coding-rate", entropy_on="both", kl="gaussian-diag", kl_gradient="both", encoder="spectral-norm"
    )
    return IECL(host, block, settings)


def views(rank: int, world: int) -> Views:
    noise = torch.Generator().manual_seed(0)
    full = tuple(torch.randn(8, 3, 16, 16, generator=noise) for _ in range(2))
    rows = slice(rank * 8 // world, (rank + 1) * 8 // world)
    return Views(tuple(x[rows] for x in full), torch.arange(8)[rows], torch.full((8,), -1)[rows], torch.arange(8)[rows])


def state_after_a_step(choices: dict[str, object], rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """Losses, gradients (averaged over processes, as DDP does) and the buffers that follow."""
    made = method(choices)
    losses = made.step(views(rank, world), CLOCK).losses
    sum(losses.values()).backward()
    found = {f"loss {name}": parallel.average(value) for name, value in losses.items()}
    found |= {name: parallel.average(p.grad) for name, p in made.named_parameters() if p.grad is not None}
    found |= {name: value for name, value in made.named_buffers() if "queue" in name or "gain" in name}
    return found


def merged_entropies(rank: int = 0, world: int = 1) -> dict[str, float]:
    """Every entropy that can be accumulated, each process with every second row."""
    rows = torch.arange(40)[rank::world]
    z = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = {}
    for name in (*MOMENTS, *SAMPLED):
        meter = streamed(name, 6, capacity=30)
        meter.update(z[rows], rows)
        meter.merge_processes()
        found[name] = meter.value().item()
    return found


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for name, choices in CASES.items():
        found = state_after_a_step(choices, rank, 2)
        torch.save(found, Path(folder) / f"{name}-{rank}.pt")
    torch.save(merged_entropies(rank, 2), Path(folder) / f"entropies-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    torch.multiprocessing.spawn(work, args=(str(folder),), nprocs=2)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_loss_gradient_and_queue_equal_those_of_one_process(case: str, two_processes: Path) -> None:
    whole = state_after_a_step(CASES[case])
    for rank in (0, 1):
        half = torch.load(two_processes / f"{case}-{rank}.pt", weights_only=True)
        assert half.keys() == whole.keys()
        wrong = {name for name, value in whole.items() if not torch.allclose(half[name], value, rtol=1e-4, atol=1e-6)}
        assert not wrong


def test_meters_that_merge_over_processes_have_the_value_of_one_that_saw_all(two_processes: Path) -> None:
    for rank in (0, 1):
        found = torch.load(two_processes / f"entropies-{rank}.pt", weights_only=True)
        assert found == pytest.approx(merged_entropies(), abs=1e-9)
