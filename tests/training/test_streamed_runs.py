"""Runs on shards: the same as from memory, whatever is killed and however many processes go on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_kills import (
    HEADS,
    PROGRAM,
    STEPS,
    TOLERANCE,
    assert_equal_runs,
    curve,
    difference,
    drawn,
    killed_like_whole,
    trained,
)

import iecl
from iecl.errors import UserError
from iecl.runs.checkpoint import latest_checkpoint
from iecl.studies.cell import content_of
from made_shards import make_shards


@pytest.fixture
def shards(image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IECL_CACHE", str(tmp_path / "cache"))
    return make_shards(image_folder, tmp_path / "shards")


def test_a_run_on_shards_is_that_from_memory_and_can_be_looked_at(
    shards: Path, image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    words = {
        "method": "simclr",
        "backbone": "resnet10-w16",
        "epochs": 1,
        "batch_size": 8,
        "settings": {"method": HEADS},
    }
    for megabytes in (0, 4096):
        sets = [*tiny, f"data.cache_megabytes={megabytes}"]
        iecl.pretrain(shards, out=tmp_path / f"run-{megabytes}", **words, sets=sets, quiet=True)
    one, other = (latest_checkpoint(tmp_path / f"run-{megabytes}" / "checkpoints") for megabytes in (0, 4096))
    assert all((tensor == other["method"][name]).all() for name, tensor in one["method"].items())
    measured = iecl.evaluate("knn", tmp_path / "run-0")
    assert (measured["n_train"], measured["n_test"]) == (32, 8)
    found = iecl.embed(tmp_path / "run-0")
    names = {str(path).removeprefix(str(shards)) for path in found["paths"]}
    assert names == {str(path).removeprefix(str(image_folder)) for path in image_folder.rglob("*.png")}
    assert np.isfinite(found["features"]).all()


def test_the_doctor_asks_for_the_files(shards: Path) -> None:
    with pytest.raises(UserError, match="no folder of files"):
        iecl.doctor(shards)


def test_shards_are_known_by_what_is_in_them(shards: Path, image_folder: Path, tmp_path: Path) -> None:
    copy = (tmp_path / "elsewhere").joinpath("shards")
    copy.parent.mkdir()
    make_shards(image_folder, copy)
    assert content_of(str(copy)) == content_of(str(shards))
    (image_folder / "red" / "00.png").unlink()
    (tmp_path / "more").mkdir()
    make_shards(image_folder, tmp_path / "more" / "shards")
    assert content_of(str(tmp_path / "more" / "shards")) != content_of(str(shards))


@pytest.mark.slow
def test_kills_of_a_streamed_run_leave_no_trace(shards: Path, tmp_path: Path, tiny: list[str]) -> None:
    killed_like_whole("ie-cl", shards, tmp_path, tiny, drawn("ie-cl", 5))


@pytest.mark.slow
def test_a_streamed_run_is_that_of_any_number_of_workers(shards: Path, tmp_path: Path, tiny: list[str]) -> None:
    sets = [*tiny, "data.cache_megabytes=0"]
    for workers in (0, 1, 3):
        trained(shards, tmp_path / str(workers), "simclr", [], [*sets, f"data.num_workers={workers}"])
    assert_equal_runs(tmp_path / "0", tmp_path / "1")
    assert_equal_runs(tmp_path / "0", tmp_path / "3")


@pytest.mark.slow
def test_processes_of_changing_number_that_are_killed_end_like_one_that_is_left_alone(
    shards: Path, tmp_path: Path, tiny: list[str]
) -> None:
    # Without batch norm, which would see a part of a batch in each process; with SGD, which does not blow up rounding.
    sets = [*tiny, "training.checkpoint_steps=1", "method.norm=false", "optimizer.name=sgd", "optimizer.lr=0.05"]
    sets += ["data.cache_megabytes=0"]
    words = {"method": "simclr", "backbone": "groups", "epochs": 3, "batch_size": 8, "settings": {"method": HEADS}}
    trained(shards, tmp_path / "one", "simclr", [], sets, words={"backbone": "groups"})
    out, worlds = tmp_path / "many", np.random.default_rng(3).choice([1, 2, 4], 3).tolist()
    done = 0
    for number, world in enumerate([2, *worlds]):
        request = {"data": str(shards), "out": str(out), "kills": [], "resumed": [f"training.devices={world}"]}
        request["words"] = words | {"sets": [*sets, f"training.devices={world}"]}
        script = tmp_path / f"part-{number}.py"
        script.write_text(f"import killing\nif __name__ == '__main__':\n    killing.train({request!r})\n")
        paths = os.pathsep.join([str(PROGRAM.parent), *sys.path])
        child = subprocess.Popen(
            [sys.executable, str(script)], start_new_session=True, env=os.environ | {"PYTHONPATH": paths}
        )
        while child.poll() is None and max((step for step, _ in curve(out)), default=0) < min(STEPS - 1, done + 3):
            time.sleep(0.02)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        state = latest_checkpoint(out / "checkpoints")
        assert state is not None
        assert state["step"] > done
        done = state["step"]
    assert trained(shards, out, "simclr", [], sets, words={"backbone": "groups"}, resumed=["training.devices=1"]) == [0]
    one, many = (latest_checkpoint(run / "checkpoints") for run in (tmp_path / "one", out))
    assert one is not None
    assert many is not None
    assert many["step"] == STEPS
    apart = {name: difference(tensor, many["method"][name]) for name, tensor in one["method"].items()}
    assert max(apart.values()) <= TOLERANCE, apart
