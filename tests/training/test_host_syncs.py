"""A training step never waits for its device: steps are taken on torch's meta device, which has nothing to tell.

Whatever asks a tensor there for a number, or for rows that fulfil a condition, fails. What CUDA waits for without being
asked is counted: copies from ordinary memory, and decompositions that report whether they succeeded.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.accelerators import CPUAccelerator
from lightning_fabric.strategies import SingleDeviceStrategy
from torch.utils._python_dispatch import TorchDispatchMode

from iecl.methods import METHODS, load_method
from iecl.training import trial
from iecl.training.config import RunConfig, make_config, with_data
from iecl.training.factory import assemble_method

META = torch.device("meta")
SILENT = {"linalg_vector_norm", "linalg_cholesky_ex", "linalg_solve_triangular", "_linalg_slogdet", "linalg_lu_solve"}
"""Linear algebra that leaves word of a failure in a tensor; all other waits in order to raise."""
SOME = ("ie-cl", "moco-v2", "swav", "w-mse", "supervised")
"""Methods of the default tests: each second of them is torch's own, on this device."""


class Anywhere(CPUAccelerator):
    """Lets Lightning take any device."""

    def setup_device(self, device: torch.device) -> None: ...


class Waits(TorchDispatchMode):
    """Counts operations that would wait for a GPU although they return nothing that was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.found = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.name()
        plain = name.removeprefix("aten::").partition(".")[0]
        self.found[plain] += "linalg" in plain and (plain not in SILENT or kwargs.get("check_errors", False))
        if name == "aten::_to_copy" and args[0].device != kwargs.get("device", args[0].device):
            self.found["a copy"] += not kwargs.get("non_blocking")
        if name == "aten::copy_" and args[0].device != args[1].device:
            self.found["a copy"] += not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def _on_meta(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs that are built here are on the meta device; their weights keep their identity."""
    swapped = torch.__future__.get_swap_module_params_on_conversion()
    strategy = SingleDeviceStrategy(device=META, accelerator=Anywhere())
    monkeypatch.setattr(trial, "make_fabric", lambda *_: Fabric(strategy=strategy, precision="32-true"))
    # Lightning asks for weights that are somewhere; these are what the test is about.
    monkeypatch.setattr(Fabric, "_validate_setup_optimizers", lambda *_: None)
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(swapped)


def waits(config: RunConfig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What a step between two rows of the log would wait for; one that asks for a number fails."""
    monkeypatch.setattr(load_method(config.host_name), "before_epoch", lambda *_: ())  # once an epoch it may wait
    steps = trial.Steps(config, max(8, assemble_method(config, samples=64, classes=2).min_batch), folder)
    steps.loop.step = 1  # the first step writes a row
    with Waits() as counted:
        steps.loop.optimize(steps.batches)
    return +counted.found


def planned(method: str, *sets: str) -> RunConfig:
    flags = {"data": {"name": "shapes", "image_size": 16, "decode_size": 16}, "backbone": {"name": "resnet10-w16"}}
    config = make_config(method=method, flags=flags, sets=["optimizer.name=sgd", "training.log_steps=1000", *sets])
    config = with_data(config, replace(config.data, mean=(0.5,) * 3, std=(0.25,) * 3, num_workers=0))
    return replace(config, training=replace(config.training, meter_steps=1000))


@pytest.mark.parametrize(
    "method", [name if name in SOME else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_a_step_of_every_method_asks_its_device_for_nothing(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert waits(planned(method), tmp_path / "run", monkeypatch) == {}


def test_a_question_to_the_device_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from iecl.methods.simclr import SimCLR

    def curious(self: SimCLR, *given: Any) -> Any:
        made = step(self, *given)
        return made if made.losses["contrast"] > 0 else None

    step = SimCLR.step
    monkeypatch.setattr(SimCLR, "step", curious)
    with pytest.raises(RuntimeError, match="meta"):
        waits(planned("simclr"), tmp_path / "run", monkeypatch)


@pytest.mark.parametrize("sets", [("optimizer.name=lars",), ("optimizer.grad_clip=1.0",)])
def test_no_optimizer_and_no_clipping_asks_either(
    sets: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert waits(planned("simclr", *sets), tmp_path / "run", monkeypatch) == {}
