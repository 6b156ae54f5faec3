"""The cost model: what it counts is what two processes really send and hold, and what it says of GPUs is arithmetic."""

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from iecl.cli.command import main
from iecl.errors import UserError
from iecl.methods import METHODS
from iecl.schedule import Clock
from iecl.training.config import RunConfig, make_config, with_data
from iecl.training.cost import views_of
from iecl.training.factory import assemble_method
from iecl.training.loop import Trainee, take_step
from iecl.training.scale import GPUS, Assumed, Counted, Growth, estimate
from iecl.training.step_cost import CLASSES, SAMPLES, _counts, count_step
from iecl.training.trial import try_steps

CLOCK = Clock(seed=0, step=0, steps=10, epoch=0, epochs=1)
SOME = ("simclr", "moco-v2", "dino")


def planned(method: str, *sets: str) -> RunConfig:
    flags = {"data": {"name": "shapes", "image_size": 16, "decode_size": 16}, "backbone": {"name": "resnet10-w16"}}
    config = make_config(method=method, flags=flags, sets=["training.batch_size=64", *sets])
    return with_data(config, replace(config.data, mean=(0.5,) * 3, std=(0.25,) * 3, num_workers=0))


class Talk(TorchDispatchMode):
    """Bytes that this process gives to each kind of collective."""

    def __init__(self) -> None:
        super().__init__()
        self.given = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name.startswith("c10d::"):
            tensors = args[1] if "gather" in name else args[0]
            self.given[name] += sum(t.numel() * t.element_size() for t in tensors)
        return func(*args, **(kwargs or {}))


def talk(rank: int, folder: str, names: list[str]) -> None:
    """One of two processes: a step of each method, forward and backward, as a run takes it."""
    torch.set_num_threads(1)
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"})
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    told = {}
    for name in names:
        config = planned(name)
        method = assemble_method(config, 2, samples=SAMPLES, classes=CLASSES)
        images = max(2, method.min_batch)
        views = views_of(method.views, images, 16)
        views = replace(views, global_crops=tuple(x.roll(rank, 3) for x in views.global_crops))  # each has its own
        trainee = DistributedDataParallel(Trainee(method))
        with Talk() as heard:
            made = take_step(trainee, views, CLOCK)
            torch.stack([value.float() for value in made.losses.values()]).sum().backward()
        told[name] = {"images": images, **heard.given}
    if rank == 0:
        (Path(folder) / "told.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def check_talk(folder: Path, names: list[str]) -> None:
    multiprocessing.spawn(talk, (str(folder), names), nprocs=2)
    for name, heard in json.loads((folder / "told.json").read_text()).items():
        n, counted = heard["images"], count_step(planned(name))
        back, forth = (growth.at(n, 2 * n) for growth in (counted.gathered_with_gradient, counted.gathered))
        expected = {
            "c10d::allgather_": back + forth,
            "c10d::allreduce_": 2 * back + counted.summed.at(n, 2 * n) + counted.trained,
            "c10d::broadcast_": counted.broadcast + SAMPLES * counted.per_sample,
        }
        assert {key: heard.get(key, 0) for key in expected} == expected, name


def test_two_processes_send_what_the_formula_says(tmp_path: Path) -> None:
    check_talk(tmp_path, list(SOME))


@pytest.mark.slow
def test_two_processes_send_what_the_formula_says_with_every_method(tmp_path: Path) -> None:
    check_talk(tmp_path, [name for name in METHODS if name not in (*SOME, "random")])


def test_what_was_fitted_to_five_steps_holds_for_a_sixth() -> None:
    config = planned("simclr")
    counted = count_step(config)
    fitted = (counted.flops, counted.saved, counted.gathered_with_gradient, counted.gathered, counted.summed)
    assert [growth.at(12, 60) for growth in fitted] == pytest.approx(_counts(config, 12, 5), rel=1e-12)


def test_a_line_by_hand() -> None:
    """SimCLR's rows: two projections of 128 numbers, with gradient; its matrix: all against all.

    Its norms show mean and variance of 720 channels of the backbone and 640 of the head.
    """
    counted = count_step(planned("simclr", "method.out_dim=128"))
    assert counted.gathered_with_gradient == Growth(0.0, 2 * 128 * 4, 0.0, 0.0, 0.0)
    assert counted.gathered == Growth(1360 * 2 * 4, 0.0, 0.0, 0.0, 0.0)
    assert counted.saved.e > 0
    assert counted.saved.d == 0
    sent = counted.sent(images=32, world=64)
    assert sent["gradients"] == pytest.approx(2 * 63 / 64 * counted.trained)
    assert sent["rows"] == 3 * 63 * 32 * 1024 + 63 * 1360 * 2 * 4


@pytest.mark.parametrize("method", ["simclr", "byol"])
def test_bytes_of_an_image_are_near_those_that_a_step_really_holds(method: str) -> None:
    config = planned(method, "training.accelerator=cpu", "training.precision=32-true")
    counted, tried = count_step(config), try_steps(replace(config, training=replace(config.training, batch_size=16)))
    assert counted.saved.at(16, 16) - counted.saved.at(8, 8) == pytest.approx(8 * tried.image, rel=0.35)


@pytest.mark.slow
def test_what_is_computed_again_is_held_a_chunk_or_a_block_at_a_time() -> None:
    whole = count_step(planned("simclr"))
    few, more, all_of_it = (count_step(planned("simclr", f"training.grad_cache={n}")) for n in (4, 16, 1000))
    for counted in (few, more, all_of_it):
        assert counted.touched(16, 1) == whole.touched(16, 1)
    assert all_of_it.held(16, 1) == pytest.approx(whole.held(16, 1), rel=0.03)  # a chunk of 32 views has all
    assert more.held(16, 1) - few.held(16, 1) == pytest.approx(12 * few.again / 2)
    blocks = count_step(planned("simclr", "training.gradient_checkpointing=true"))
    assert blocks.saved.in_16_bits().at(16, 16) < blocks.held(16, 1) < 0.8 * whole.held(16, 1)
    assert count_step(planned("byol", "training.grad_cache=1000")).pass_views == 1  # which takes view after view


@pytest.mark.parametrize("images", [-5, 0.5, 63, float("nan"), float("inf")])
def test_images_that_fill_no_batch_are_refused(images: float) -> None:
    with pytest.raises(UserError, match=r"cannot be trained on in batches of 64 \(--images\); give 64 to 1e\+15"):
        estimate(MADE, gpu="a100", devices=1, batch=64, images=images, epochs=1)


FLAT = Growth(0, 0, 0, 0, 0)
MADE = Counted(2, Growth(0, 1e12, 0, 0, 0), Growth(0, 1e8, 0, 0, 0), FLAT, FLAT, FLAT, 10**8, 10**8, 2 * 10**8, 0, 0)


def test_time_is_operations_over_speed_where_nothing_else_limits() -> None:
    assumed = Assumed(utilization=0.5, decode=1e9)
    made = estimate(MADE, gpu="a100", devices=1, batch=64, images=6400, epochs=10, assumed=assumed)
    assert made["seconds"] == pytest.approx(10 * 100 * 64 * 1e12 / (0.5 * GPUS["a100"].flops))
    assert made["memory_bytes"] == 4e8 + 64 * 1e8 / 2
    assert (made["network_share"], made["ends_first"]) == (0, "arithmetic of a GPU")


@pytest.mark.parametrize(
    ("changes", "devices", "first"),
    [
        ({"saved": Growth(0, 4e9, 0, 0, 0)}, 8, "memory of a GPU"),
        ({"saved": Growth(0, 1e8, 0, 0, 100)}, 512, "memory of a GPU"),
        ({"trained": 2 * 10**10, "weights": 10**9}, 64, "network"),
        ({"saved": Growth(0, 1e9, 0, 0, 0), "flops": Growth(0, 1e9, 0, 0, 0)}, 8, "bandwidth of a GPU's memory"),
        ({"flops": Growth(0, 1e9, 0, 0, 0), "saved": FLAT}, 1, "reading of images"),
    ],
)
def test_what_ends_first(changes: dict[str, Any], devices: int, first: str) -> None:
    made = estimate(replace(MADE, **changes), gpu="a100", devices=devices, batch=64 * devices, images=1e9, epochs=1)
    assert made["ends_first"] == first
    assert made["moved_by"]


def test_a_gpu_that_nobody_knows_is_refused_before_torch_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--gpu", "a1000", "--devices", "64"]) == 2
    said = capsys.readouterr().err
    assert "no GPU is called 'a1000'" in said
    assert "h100" in said
    with pytest.raises(UserError, match="a batch of 100 cannot be shared by 64 GPUs"):
        estimate(MADE, gpu="a100", devices=64, batch=100, images=1e6, epochs=1)


def test_the_command_prints_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--gpu", "a100", "--devices", "64", "--method", "simclr", "--backbone", "resnet10-w16"]
    assert main([*words, "--image-size", "32", "--batch-size", "4096", "--images", "1e9", "--epochs", "1"]) == 0
    said = capsys.readouterr().out
    for part in ("64 × a100, 1,000,000,000 images", "ends first:", "moved by:", "assumed:", "GPU hours"):
        assert part in said
