"""Methods that label the data between epochs, in whole runs: continued exactly, told what is left out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import iecl
from iecl.methods.contract import Method
from iecl.methods.deepcluster import DeepCluster
from iecl.methods.deepcluster_v2 import DeepClusterV2
from iecl.methods.dino import DINO
from iecl.methods.swav import SwAV
from iecl.runs.checkpoint import latest_checkpoint
from iecl.runs.directory import RunDirectory

HEADS = {"hidden_dim": 16, "out_dim": 8}
CASES: dict[str, tuple[type[Method], dict[str, Any]]] = {
    "deepcluster": (DeepCluster, {"num_clusters": 12, "components": 16}),
    "deepcluster-v2": (DeepClusterV2, {**HEADS, "num_clusters": 12}),
    "swav": (SwAV, {**HEADS, "num_prototypes": 12, "local_crops": 1, "queue_size": 512, "queue_start_epoch": 0}),
    "dino": (DINO, {**HEADS, "num_prototypes": 12, "teacher_warmup_epochs": 2, "teacher_temperature_start": 0.02}),
}
STEPS_PER_EPOCH = 5  # of 256 of the 1,437 digits; 157 are left out of each epoch


class Cut(Exception):  # noqa: N818, it is no error
    """The power fails."""


@contextmanager
def power_fails_in_step(step: int, cls: type[Method], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop a run in the middle of a step; the checkpoint of the step before is on the disk."""
    after = cls.after_backward

    def cut(self: Method, clock: Any) -> None:
        if clock.step == step:
            raise Cut
        after(self, clock)

    with monkeypatch.context() as patch:
        patch.setattr(cls, "after_backward", cut)
        with pytest.raises(Cut):
            yield


def pretrain(name: str, out: Path) -> RunDirectory:
    """Two epochs on digits at half their size, with a checkpoint at each step."""
    settings = {"method": CASES[name][1]}
    quick = ["data.image_size=8", "training.online_eval_epochs=0", "training.loggers=[]", "training.log_steps=1"]
    quick.append("training.precision=32-true")  # where runs are equal bit for bit
    sets = [*quick, "training.checkpoint_steps=1"]
    iecl.pretrain(
        "digits",
        out,
        method=name,
        backbone="resnet10-w16",
        epochs=2,
        batch_size=256,
        settings=settings,
        sets=sets,
        quiet=True,
    )
    return RunDirectory(out)


def curve(run: RunDirectory) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in run.read_metrics() if "loss" in row]


def state_of(run: RunDirectory) -> dict[str, Any]:
    state = latest_checkpoint(run.checkpoints)
    assert state is not None
    return state


@pytest.fixture(scope="module", params=CASES)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, RunDirectory]:
    """A method and its run from start to end."""
    return request.param, pretrain(request.param, tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize("step", [2, 7], ids=["in the first epoch", "in the second epoch"])
def test_a_run_cut_in_the_middle_of_an_epoch_continues_exactly(
    step: int, whole: tuple[str, RunDirectory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, straight = whole
    with power_fails_in_step(step, CASES[name][0], monkeypatch):
        pretrain(name, tmp_path / "cut")
    cut = RunDirectory(tmp_path / "cut")
    assert state_of(cut)["step"] == step
    iecl.pretrain(out=cut.path, resume=True, quiet=True)
    assert curve(cut) == curve(straight)
    assert len(curve(straight)) == 2 * STEPS_PER_EPOCH
    expected, found = state_of(straight)["method"], state_of(cut)["method"]
    assert [n for n, value in expected.items() if not torch.equal(value, found[n])] == []


@pytest.mark.parametrize("whole", ["deepcluster"], indirect=True)
def test_a_new_head_starts_without_momentum(whole: tuple[str, RunDirectory]) -> None:
    _, run = whole
    moments = state_of(run)["optimizer"]["state"]
    assert sorted({int(row["step"]) for row in moments.values()}) == [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH]
    young = [row for row in moments.values() if int(row["step"]) == STEPS_PER_EPOCH]
    assert sorted(tuple(row["exp_avg"].shape) for row in young) == [(12,), (12, 128)]


@pytest.mark.parametrize("whole", ["deepcluster-v2"], indirect=True)
def test_images_that_an_epoch_left_out_have_no_label_in_the_next(whole: tuple[str, RunDirectory]) -> None:
    _, run = whole
    state = state_of(run)["method"]
    assert (state["assigned"] == -100).sum(1).tolist() == [1437 - STEPS_PER_EPOCH * 256] * 3
    assert state["seen"].sum() == STEPS_PER_EPOCH * 256


@pytest.mark.parametrize("name", ["deepcluster", "deepcluster-v2"])
def test_a_run_with_more_clusters_than_images_says_so_in_its_log(
    name: str, image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    run = iecl.pretrain(
        image_folder,
        tmp_path / "run",
        method=name,
        backbone="resnet10-w16",
        epochs=1,
        batch_size=8,
        sets=[*tiny, "method.num_clusters=3000"],
        quiet=True,
    )
    assert run.summary["finished"]
    assert "3000 clusters are too many for 40 images: making 20" in (run.path / "log.txt").read_text()
