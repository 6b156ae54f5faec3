"""Runs that are killed again and again end with the weights of one that was left alone, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from iecl import counter
from iecl.runs.checkpoint import latest_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.weights.file import load_weights

PROGRAM = Path(__file__).with_name("killing.py")
HEADS = {"hidden_dim": 16, "out_dim": 8}
METHODS: dict[str, dict[str, Any]] = {
    "ie-cl": {"method": HEADS, "saib": {"form": "certified"}},
    "moco-v2": {"method": {**HEADS, "queue_size": 32}},
    "byol": {"method": {**HEADS, "predictor_hidden_dim": 16}},
    "deepcluster-v2": {"method": {**HEADS, "num_clusters": 6}},
}
ANY_STEP = (
    "before_the_momentum_update",
    "with_half_a_checkpoint_written",
    "with_a_checkpoint_written_and_not_renamed",
    "between_two_renames",
    "with_half_a_line_of_metrics",
    "at_any_time",
)
STEPS = 15
TOLERANCE = 1e-4
"""Two processes add up in another order than one: how far weights may end apart, as a share of their size."""


def drawn(method: str, count: int) -> list[tuple[str, int]]:
    """The first step, then any moments: which, and at which call of the process, is drawn, the same in each test."""
    draws = counter.bits(counter.key(7, f"kills/{method}"), torch.arange(count), 2).tolist()
    kills = []
    for moment, call in draws:
        name = ANY_STEP[moment % len(ANY_STEP)]
        kills.append((name, call % 30 if name == "at_any_time" else 1 + call % 3))
    return [("in_the_first_step", 1), *kills[1:]]


def trained(
    folder: Path, out: Path, method: str, kills: list[tuple[str, int]], sets: list[str], **extra: Any
) -> list[int]:
    """Train with these kills; returns how each process ended."""
    words = {"method": method, "backbone": "resnet10-w16", "epochs": 3, "batch_size": 8, "sets": sets}
    words |= {"settings": METHODS.get(method, {"method": HEADS})} | extra.pop("words", {})
    request = {"data": str(folder), "out": str(out), "words": words, "kills": kills, "resumed": [], **extra}
    command = [sys.executable, str(PROGRAM)]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends: list[int] = json.loads(done.stdout.splitlines()[-1])
    assert ends[-1] == 0, done.stderr
    return ends


def difference(first: Tensor, second: Tensor) -> float:
    """The largest difference of two tensors, as a share of the typical size of the first."""
    scale = first.double().square().mean().sqrt().clamp_min(1e-12)
    return float((first.double() - second.double()).abs().max() / scale)


def curve(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in RunDirectory(run).read_metrics() if "loss" in row]


def assert_equal_runs(one: Path, other: Path) -> None:
    """Weights, optimizer, losses and the exported backbone, bit for bit."""
    first, second = (latest_checkpoint(run / "checkpoints") for run in (one, other))
    assert first is not None
    assert second is not None
    assert (first["step"], second["step"]) == (STEPS, STEPS)
    assert all(torch.equal(tensor, second["method"][name]) for name, tensor in first["method"].items())
    for number, moments in first["optimizer"]["state"].items():
        assert all(torch.equal(value, second["optimizer"]["state"][number][key]) for key, value in moments.items())
    assert curve(one) == curve(other)
    states = [load_weights(run / "weights.safetensors")[0] for run in (one, other)]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def killed_like_whole(method: str, folder: Path, tmp_path: Path, sets: list[str], kills: list[tuple[str, int]]) -> None:
    sets = [*sets, "training.checkpoint_steps=1", "data.cache_megabytes=0"]
    assert trained(folder, tmp_path / "whole", method, [], sets) == [0]
    ends = trained(folder, tmp_path / "killed", method, kills, sets, resumed=["data.num_workers=1"])
    assert ends == [signal.SIGKILL] * len(kills) + [0]
    assert_equal_runs(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed" / "checkpoints").glob("fresh.ckpt"))
    history = (tmp_path / "killed" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in history].count("resume") >= 1


@pytest.mark.slow
def test_three_kills_leave_no_trace(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    kills = [("in_the_first_step", 1), ("between_two_renames", 2), ("before_the_momentum_update", 2)]
    killed_like_whole("ie-cl", image_folder, tmp_path, tiny, kills)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_twenty_kills_leave_no_trace(method: str, image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    killed_like_whole(method, image_folder, tmp_path, tiny, drawn(method, 20 // len(METHODS)))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ANY_STEP)
def test_each_moment_leaves_no_trace_by_itself(
    moment: str, image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    killed_like_whole("moco-v2", image_folder, tmp_path, tiny, [(moment, 20 if moment == "at_any_time" else 3)])


@pytest.mark.slow
def test_two_processes_and_then_one_end_like_one(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    # Without batch norm, which would see half a batch in each process; with SGD, which does not blow up rounding.
    sets = [*tiny, "training.checkpoint_steps=1", "method.norm=false", "optimizer.name=sgd", "optimizer.lr=0.05"]
    trained(image_folder, tmp_path / "one", "simclr", [], sets, words={"backbone": "groups"})
    out = tmp_path / "two"
    words = {"method": "simclr", "backbone": "groups", "epochs": 3, "batch_size": 8, "settings": {"method": HEADS}}
    words["sets"] = [*sets, "training.devices=2"]
    request = {"data": str(image_folder), "out": str(out), "words": words, "kills": [], "resumed": []}
    program = f"import killing\nif __name__ == '__main__':\n    killing.train({request!r})\n"
    script = tmp_path / "two.py"
    script.write_text(program)
    paths = os.pathsep.join([str(PROGRAM.parent), *sys.path])
    child = subprocess.Popen(
        [sys.executable, str(script)], start_new_session=True, env=os.environ | {"PYTHONPATH": paths}
    )
    while child.poll() is None and len(curve(out)) < 6:
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    state = latest_checkpoint(out / "checkpoints")
    assert state is not None
    assert 0 < state["step"] < STEPS
    ends = trained(image_folder, out, "simclr", [], sets, words={"backbone": "groups"}, resumed=["training.devices=1"])
    assert ends == [0]
    one, two = (latest_checkpoint(run / "checkpoints") for run in (tmp_path / "one", out))
    assert one is not None
    assert two is not None
    assert two["step"] == STEPS
    apart = {name: difference(tensor, two["method"][name]) for name, tensor in one["method"].items()}
    assert max(apart.values()) <= TOLERANCE, apart
    before, after = (RunDirectory(out).history.read_text().splitlines()[number] for number in (0, -1))
    assert json.loads(before)["kind"] == "start"
    assert json.loads(after)["changed"] == ["training.devices was 2, now 1"]
