"""What no machine without a GPU can tell: `make test-gpu`, five minutes on one that has some."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import iecl
from iecl.methods import METHODS
from iecl.training import trial
from iecl.training.config import RunConfig, make_config, with_data
from iecl.training.step_cost import count_step
from iecl.views.params import draw
from iecl.views.policies import POLICIES
from iecl.views.transform import apply_by_tensors
from made_images import TINY

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs here")
SMALL = {"backbone": "resnet10-w16", "epochs": 1, "batch_size": 8, "quiet": True}


def planned(method: str, *sets: str) -> RunConfig:
    flags = {"data": {"name": "shapes", "image_size": 32, "decode_size": 32}, "backbone": {"name": "resnet18-small"}}
    sets = ("training.accelerator=cuda", "training.log_steps=1000", "training.meter_steps=1000", *sets)
    config = make_config(method=method, flags=flags, sets=sets)
    return with_data(config, replace(config.data, mean=(0.5,) * 3, std=(0.25,) * 3, num_workers=0))


@pytest.mark.parametrize("method", METHODS)
def test_torch_sees_no_wait_in_a_step(method: str, tmp_path: Path) -> None:
    config = planned(method, "training.precision=bf16-mixed")
    steps = trial.Steps(config, 64, tmp_path / "run")
    steps.loop.optimize(steps.batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps.loop.optimize(steps.batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("layout", ["true", "false"])
def test_a_run_ends_in_every_precision_and_layout(
    precision: str, layout: str, image_folder: Path, tmp_path: Path
) -> None:
    sets = [*TINY, f"training.precision={precision}", f"training.channels_last={layout}"]
    run = iecl.pretrain(str(image_folder), tmp_path / "run", method="simclr", accelerator="cuda", sets=sets, **SMALL)
    assert run.summary["finished"]
    again = iecl.pretrain("", tmp_path / "run", resume=True, quiet=True)
    assert again.summary["finished"]


def test_a_deterministic_run_gives_the_same_bits_twice(image_folder: Path, tmp_path: Path) -> None:
    sets = [*TINY, "training.deterministic=true"]
    runs = [
        iecl.pretrain(str(image_folder), tmp_path / name, method="simclr", accelerator="cuda", sets=sets, **SMALL)
        for name in ("one", "two")
    ]
    one, two = (run.backbone.state_dict() for run in runs)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_views_are_those_of_the_cpu() -> None:
    images = torch.randint(256, (32, 3, 40, 40), dtype=torch.uint8)
    sizes, positions = torch.full((32, 2), 40), torch.arange(32)
    drawn = draw(POLICIES["simclr"][0], sizes, positions, seed=0, epoch=0, view=0)
    here = apply_by_tensors(images, drawn, 32, (0.5,) * 3, (0.25,) * 3)
    there = apply_by_tensors(images.cuda(), drawn, 32, (0.5,) * 3, (0.25,) * 3).cpu()
    torch.testing.assert_close(here, there, rtol=0, atol=1e-3)


def test_features_are_those_of_the_cpu_up_to_rounding(image_folder: Path) -> None:
    own = {"backbone": "resnet10-w16", "image_size": 16, "data": str(image_folder)}
    cpu, gpu = (iecl.evaluate("knn", "random", device=device, **own) for device in ("cpu", "cuda"))
    assert cpu["protocol_hash"] == gpu["protocol_hash"]
    assert abs(cpu["top1"] - gpu["top1"]) <= 0.05


def test_memory_is_what_the_cost_model_says(tmp_path: Path) -> None:
    config = planned("simclr", "training.precision=32-true")
    counted, held = count_step(config), []
    for batch in (64, 128):
        steps = trial.Steps(config, batch, tmp_path / str(batch))
        steps.loop.optimize(steps.batches)
        torch.cuda.reset_peak_memory_stats()
        steps.loop.optimize(steps.batches)
        held.append(torch.cuda.max_memory_allocated())
        del steps
    said = counted.saved.at(128, 128) - counted.saved.at(64, 64)
    assert said == pytest.approx(held[1] - held[0], rel=0.35)


@TWO
def test_two_gpus_train_and_measure(image_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["pretrain", "--data", str(image_folder), "--out", str(out), "--method", "moco-v2", "--devices", "2"]
    words += ["--accelerator", "cuda", "--batch-size", "8", "--epochs", "1", "--backbone", "resnet10-w16"]
    sets = [word for text in TINY for word in ("--set", text)]
    done = subprocess.run([sys.executable, "-m", "iecl", *words, *sets], check=False, env=os.environ | {"CI": ""})
    assert done.returncode == 0
    one, two = (iecl.evaluate("knn", out, device="cuda", devices=count) for count in (1, 2))
    assert one["top1"] == two["top1"]
