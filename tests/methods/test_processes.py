"""N processes with a share of the batch each take the steps of one process with all of it, for every method.

Norms are synchronized (or in groups), arithmetic has 64 bits, and everything is compared: losses, gradients as DDP
averages them, and after two optimizer steps all weights, momentum copies, statistics, queues, banks and centers.
"""

import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from iecl import parallel
from iecl.backbones import BACKBONES
from iecl.methods import METHODS
from iecl.methods.contract import Method
from iecl.parts.sync_norm import SyncNorm
from iecl.registry import Entry
from iecl.saib.printed import SAIB
from iecl.schedule import Clock
from iecl.training.config import make_config, with_data
from iecl.training.factory import build_method
from iecl.views.pipeline import Views

SIDE, BATCH, STEPS, SAMPLES, CLASSES = 16, 8, 2, 24, 3
IMAGES = torch.randn(SAMPLES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
HEADS = "hidden_dim=16 out_dim=8"
PREDICTED = f"{HEADS} predictor_hidden_dim=16"
QUEUED = f"{HEADS} queue_size=16"
BLOCK = "symmetric=true queue_size=0 saib.weights=learned saib.hidden_dim=4 saib.budget_kind=rms"
CASES = {
    "simclr": f"simclr {HEADS} norm=true",
    "moco-v2": f"moco-v2 {QUEUED}",
    "moco-v2, groups": f"moco-v2 {QUEUED} norm_groups=4",
    "moco-v2, groups, symmetric": f"moco-v2 {QUEUED} norm_groups=4 symmetric=true",
    "moco-v2, groups, no queue": f"moco-v2 {HEADS} queue_size=0 norm_groups=4",
    "moco-v3": f"moco-v3 {PREDICTED} predictor_norm=true",
    "byol": f"byol {PREDICTED}",
    "simsiam": f"simsiam {PREDICTED}",
    "swav": f"swav {HEADS} num_prototypes=6 local_crops=2 freeze_epochs=0",
    "swav, queue": f"swav {QUEUED} num_prototypes=6 queue_start_epoch=0",
    "nnclr": f"nnclr {PREDICTED} queue_size=16",
    "all4one": f"all4one {PREDICTED} queue_size=16 heads=2 transformer_layers=1",
    "matrix-ssl": f"matrix-ssl {PREDICTED}",
    "w-mse": "w-mse hidden_dim=16 out_dim=2 whitening_size=4",
    "w-mse, whole batch": "w-mse hidden_dim=16 out_dim=4 num_views=3",
    "deepcluster": "deepcluster num_clusters=5 components=8",
    "deepcluster-v2": f"deepcluster-v2 {HEADS} num_clusters=5 local_crops=1",
    "minent": "minent hidden_dim=16 heads=[8,6]",
    "s3oc": "s3oc num_clusters=[8,6]",
    "light-moco": f"light-moco {QUEUED} plain_epochs=0 num_neighbors=3",
    "light-moco, groups": f"light-moco {QUEUED} plain_epochs=0 num_neighbors=3 norm_groups=4",
    "barlow-twins": f"barlow-twins {HEADS}",
    "vicreg": f"vicreg {HEADS}",
    "dino": f"dino {HEADS} num_prototypes=6 norm=true local_crops=1 freeze_epochs=0",
    "viewmaker": "viewmaker out_dim=8 width=4 blocks=1",
    "supervised": "supervised",
    "random": "random",
    "ie-cl": f"ie-cl {HEADS}",
    "ie-cl, learned block": f"ie-cl {HEADS} {BLOCK} saib.probability=0.5 saib.strength=auto "
    "objective.kl=gaussian-diag objective.kl_gradient=both objective.encoder=spectral-norm",
    "ie-cl, expansion": f"ie-cl {HEADS} {BLOCK} saib.cascade=2 saib.side=both objective.expansion=rest "
    "objective.expansion_images=3",
    "ie-cl, total expansion": f"ie-cl {HEADS} {BLOCK} objective.expansion=total objective.expansion_images=6",
    "ie-cl, mixed": f"ie-cl {HEADS} {BLOCK} saib.mix=0.5",
    "ie-cl, printed block": f"ie-cl {HEADS} symmetric=true saib.form=sample",
}
"""A method and its settings, those of [method] without their section."""
OWN_NORMS = {
    "moco-v2": CASES["moco-v2"],
    "moco-v2, symmetric": f"moco-v2 {HEADS} queue_size=0 symmetric=true",
    "light-moco": CASES["light-moco"],
}
"""Without synchronized norms, keys shuffled over N processes are those of one process with norms in N groups."""


class Tiny(nn.Sequential):
    """Two convolutions, each with its batch norm."""

    num_features = 12

    def __init__(self) -> None:
        first, last = nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.Conv2d(8, 12, 3, stride=2, bias=False)
        norms = nn.BatchNorm2d(8), nn.BatchNorm2d(12)
        super().__init__(first, norms[0], nn.ReLU(), last, norms[1], nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@patch.dict(BACKBONES, tiny=Entry(f"{__name__}:Tiny", "a network that is quick"))
def build(case: str, world: int, *more: str) -> Method:
    name, *words = case.split()
    sets = [word if "." in word.partition("=")[0] else f"method.{word}" for word in (*words, *more)]
    flags = {"data": {"name": "shapes"}, "backbone": {"name": "tiny"}, "training": {"batch_size": BATCH}}
    config = make_config(method=name, flags=flags, sets=sets)
    data = replace(config.data, image_size=SIDE, decode_size=SIDE, mean=(0.5,) * 3, std=(0.25,) * 3)
    made = build_method(with_data(config, data), world, samples=SAMPLES, classes=CLASSES)
    return made.double().to(memory_format=torch.channels_last)


def views_of(step: int, method: Method, rank: int, world: int) -> Views:
    """The share of a process in noisy views of some images."""
    noise, rows = torch.Generator().manual_seed(step), torch.arange(BATCH) + BATCH * step
    images, mine = IMAGES[rows], slice(rank * BATCH // world, (rank + 1) * BATCH // world)

    def noisy(x: Tensor) -> Tensor:
        made = x + 0.1 * torch.randn(x.shape, generator=noise, dtype=x.dtype)
        return made[mine].contiguous(memory_format=torch.channels_last)

    full = tuple(noisy(images) for _ in range(method.views.global_crops))
    small = tuple(noisy(images[..., :8, :8]) for _ in range(method.views.local_crops))
    return Views(full, rows[mine], rows[mine] % CLASSES, rows[mine], small)


@torch.no_grad()
def survey(encode: object) -> Tensor:
    return torch.cat([encode(some) for some in IMAGES.split(10)])


@patch.object(Tensor, "float", Tensor.double)  # what is widened to 32 bits is widened to 64 here
def after_two_steps(method: Method, rank: int, world: int) -> dict[str, Tensor]:
    """Losses and gradients of each step, what meters read, and all state in the end."""
    found: dict[str, Tensor] = {}
    method.before_epoch(survey, Clock(0, 0, STEPS, 0, 1))
    for step in range(STEPS):
        clock = Clock(0, step, STEPS, 0, 1)
        made = method.step(views_of(step, method, rank, world), clock)
        sum(made.losses.values()).backward()
        weights = {name: p for name, p in method.named_parameters() if p.grad is not None}
        for p in weights.values():
            p.grad = parallel.average(p.grad)  # as DDP does
        method.after_backward(clock)
        found |= {f"{step} loss {name}": parallel.average(value) for name, value in made.losses.items()}
        found |= {f"{step} grad {name}": p.grad for name, p in weights.items() if p.grad is not None}
        with torch.no_grad():
            for p in weights.values():
                if p.grad is not None:
                    p -= 0.1 * p.grad / p.grad.norm().clamp_min(1e-3)  # far enough for every weight to matter
                p.grad = None
        method.after_step(replace(clock, step=step + 1))
    return found | {f"meter {name}": value for name, value in method.meters().items()} | method.state_dict()


def own_norms(case: str, rank: int, world: int, groups: int) -> dict[str, Tensor]:
    """As above; running statistics are those of each process, and of all groups of one."""
    how = f"norm_groups={groups}" if world == 1 else "training.sync_batch_norm=off"
    found = after_two_steps(build(OWN_NORMS[case], world, how), rank, world)
    return {name: value for name, value in found.items() if "running_" not in name}


def work(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    found = {case: after_two_steps(build(words, world), rank, world) for case, words in CASES.items()}
    found |= {f"{case}, own norms": own_norms(case, rank, world, world) for case in OWN_NORMS}
    torch.save(found, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


Found = list[dict[str, dict[str, Tensor]]]


def found_by(world: int, folder: Path) -> Found:
    """What each of `world` processes found in every case; they are started once for all of them."""
    torch.multiprocessing.spawn(work, args=(world, str(folder)), nprocs=world)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return found_by(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return found_by(4, tmp_path_factory.mktemp("four"))


def check(found: Found, case: str, whole: dict[str, Tensor]) -> None:
    for one in found:
        assert one[case].keys() == whole.keys()
        unlike = {n: (one[case][n].double() - value.double()).abs().max().item() for n, value in whole.items()}
        assert {name: gap for name, gap in unlike.items() if not gap <= 1e-6} == {}


def test_every_method_is_in_the_table() -> None:
    assert {words.split()[0] for words in CASES.values()} == set(METHODS)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_take_the_steps_of_one(case: str, two: Found) -> None:
    check(two, case, after_two_steps(build(CASES[case], 1), 0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_four_processes_take_the_steps_of_one(case: str, four: Found) -> None:
    check(four, case, after_two_steps(build(CASES[case], 1), 0, 1))


@pytest.mark.parametrize("case", OWN_NORMS)
def test_keys_shuffled_over_processes_are_those_of_norms_in_groups(case: str, two: Found) -> None:
    check(two, f"{case}, own norms", own_norms(case, 0, 1, groups=2))


def test_the_printed_block_of_half_a_batch_is_another_block() -> None:
    # Why its batch form is not in the table: its weights grow with the images of a process.
    shapes = [{n: p.shape for n, p in SAIB(image_size=SIDE, batch=b).named_parameters()} for b in (BATCH, BATCH // 2)]
    assert shapes[0].keys() == shapes[1].keys()
    assert shapes[0] != shapes[1]


def test_norms_of_the_printed_block_are_synchronized_where_channels_are_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iecl.parallel.is_on", lambda: True)
    for form, are_synchronized in (("batch", False), ("sample", True)):
        method = build(f"ie-cl {HEADS} saib.form={form}", 1)
        assert any(isinstance(part, SyncNorm) for part in method.saib.modules()) == are_synchronized
        assert any(isinstance(part, SyncNorm) for part in method.host.momentum.modules())
