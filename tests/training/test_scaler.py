"""16-bit gradients and the scaler that keeps them in range, on torch's CPU scaler: what a GPU does in 16-mixed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision

from iecl.errors import UserError
from iecl.training import trial
from iecl.training.config import make_config, with_data
from iecl.training.machine import choose_precision


def steps(folder: Path, monkeypatch: pytest.MonkeyPatch, scale: float, *sets: str) -> trial.Steps:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    monkeypatch.setattr(
        trial, "make_fabric", lambda *_: Fabric(accelerator="cpu", devices=1, plugins=[plugin], loggers=[])
    )
    flags = {"data": {"name": "shapes", "image_size": 16, "decode_size": 16}, "backbone": {"name": "resnet10-w16"}}
    config = make_config(method="simclr", flags=flags, sets=["method.hidden_dim=16", "method.out_dim=8", *sets])
    config = with_data(config, replace(config.data, mean=(0.5,) * 3, std=(0.25,) * 3, num_workers=0))
    return trial.Steps(config, 8, folder)


@pytest.mark.parametrize("sets", [(), ("optimizer.grad_clip=1.0",), ("optimizer.name=lars",)])
def test_a_step_whose_gradients_overflow_is_left_out_and_the_scale_falls(
    sets: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = steps(tmp_path / "run", monkeypatch, 2.0**40, *sets)
    before = [weight.clone() for weight in made.loop.method.parameters()]
    made.loop.optimize(made.batches)
    assert all(map(torch.equal, before, made.loop.method.parameters()))
    assert made.loop._state()["precision"]["scale"] == 2.0**39


def test_a_step_within_range_moves_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = steps(tmp_path / "run", monkeypatch, 2.0**8)
    before = [weight.clone() for weight in made.loop.method.parameters()]
    made.loop.optimize(made.batches)
    assert not all(map(torch.equal, before, made.loop.method.parameters()))
    assert made.loop._state()["precision"]["scale"] == 2.0**8


def test_16_bits_without_a_gpu_are_refused_and_not_replaced() -> None:
    with pytest.raises(UserError, match="on GPUs only"):
        choose_precision("16-mixed", "cpu")
