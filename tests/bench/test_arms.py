"""Arms in processes of their own: they answer, stand still between turns, and end with their workers."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from benchmarks.bench import pipeline_arm, training_arm
from benchmarks.bench.processes import Companion, companions
from torch.optim.optimizer import register_optimizer_step_post_hook

from iecl.errors import UserError

pytestmark = pytest.mark.skipif(not hasattr(os, "killpg"), reason="this system cannot let processes stand still")


@pytest.fixture(autouse=True)
def _handler_of_ended_children() -> Iterator[None]:
    """Loaders of torch put a handler of their own in its place, and leave it there."""
    before = signal.getsignal(signal.SIGCHLD)
    yield
    signal.signal(signal.SIGCHLD, before)


def group(leader: int) -> dict[int, str]:
    """State of each process of a group."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            own = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(own[2]) == leader:
            found[int(path.parent.name)] = own[0]
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="states of processes are read as Linux tells them")
def test_a_companion_stands_still_with_its_workers_until_it_is_asked_and_ends_with_them(image_folder: Path) -> None:
    request = pipeline_arm.Request(pipeline_arm.OURS, str(image_folder), batch=4, side=16, workers=1)
    with companions("pipeline_arm", {"ours": asdict(request)}) as started:
        companion = started["ours"]
        assert companion.ready == {}
        for _ in range(2):
            found = companion.ask("")
            assert found["images"] == 40
            assert found["seconds"] > 0
            assert found["processor_seconds"] > 0
            deadline = time.monotonic() + 20
            while set(group(companion._process.pid).values()) != {"T"} and time.monotonic() < deadline:
                time.sleep(0.01)
            states = group(companion._process.pid)
            assert len(states) >= 2  # the process and a worker
            assert set(states.values()) == {"T"}
    deadline = time.monotonic() + 20
    while set(group(companion._process.pid).values()) - {"Z"} and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(group(companion._process.pid).values()) - {"Z"}


def test_an_arm_that_dies_says_why() -> None:
    companion = Companion("pipeline_arm", {"arm": "nobody"})
    try:
        with pytest.raises(UserError, match=r"an arm ended with code 1: TypeError.*missing"):
            companion.hear()
    finally:
        companion.close()


@pytest.mark.parametrize("arm", [pipeline_arm.ON_TENSORS, pipeline_arm.ON_PIL, pipeline_arm.OURS])
def test_every_arm_of_the_pipeline_gives_floats_for_a_network(arm: str, image_folder: Path) -> None:
    request = pipeline_arm.Request(arm, str(image_folder), batch=8, side=16, workers=1)
    batches = list(pipeline_arm.make_arm(request)(0))
    assert len(batches) == 5
    for batch in batches:
        views = batch if isinstance(batch, torch.Tensor) else batch[0]
        assert views.shape == (8, 3, 16, 16)
        assert views.dtype == torch.float32
        assert -6 < views.min() < 0 < views.max() < 6


@pytest.mark.parametrize("arm", [training_arm.OURS, training_arm.BARE])
def test_our_arms_of_training_take_steps(arm: str, image_folder: Path, tmp_path: Path) -> None:
    request = training_arm.Request(arm, "simclr", "resnet10-w16", "memory", str(image_folder), batch=8)
    take, steps = training_arm.make_arm(request, tmp_path), list[object]()
    watch = register_optimizer_step_post_hook(lambda optimizer, *_: steps.append(optimizer))
    try:
        take()
        take()
    finally:
        watch.remove()
    assert len(steps) == 2


def test_a_peer_that_is_absent_is_an_import_error(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightly", None)
    request = training_arm.Request("lightly", "simclr", "resnet10-w16", "memory", str(image_folder), batch=8)
    with pytest.raises(ImportError):
        training_arm.make_arm(request, tmp_path)
