"""Run directories have one writer, and a start that fails leaves them as they were."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iecl.errors import TrainingError, UserError
from iecl.files import lock
from iecl.runs import claim as claiming
from iecl.runs.claim import claim
from iecl.runs.directory import RunDirectory

OLD = {
    "settings.toml": "old",
    "metrics.jsonl": '{"step": 9}\n',
    "weights.safetensors": "weights",
    "forecast.json": "{}",
    "checkpoints/last.ckpt": "state",
    "evaluations/knn.json": "{}",
    "evaluations/images/knn.json": "{}",
    "tensorboard/events.out.tfevents.1": "",
    "notes of the user.txt": "mine",
}
MOVES = len(OLD)
"""Renames until a run is put aside: each of its files (not the user's), and the folder that they are in then."""


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A finished run, and a file of the user beside it."""
    return written(tmp_path / "run", OLD)


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def content(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def in_child(work: Callable[[], None]) -> int:
    """Call something in a fork of this process, which ends without cleaning up; returns its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fail(error: BaseException, path: Path, new: dict[str, str], **options: Any) -> None:
    """A start that writes some files and then fails."""
    before = options.pop("steps_before", 0)
    with claim(path, **options) as claimed:
        claimed.steps_before = before
        written(path, new)
        raise error


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    with claim(tmp_path / "run"), pytest.raises(UserError, match=f"is being written by process {os.getpid()} on "):
        claim(tmp_path / "run").__enter__()
    with claim(tmp_path / "run"):  # and afterwards it is free
        pass


def test_of_many_starts_at_one_instant_one_is_let_in(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom iecl.runs.claim import claim\nfrom iecl.errors import UserError\n"
        "while time.time() < float(sys.argv[2]): pass\n"
        "try:\n    with claim(sys.argv[1]) as c: c.run.settings.write_text(''); time.sleep(2)\n"
        "except UserError as problem: sys.exit(str(problem))\n"
    )
    at = str(time.time() + 1.5)
    words = [sys.executable, "-c", program, str(tmp_path / "run"), at]
    starts = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    said = [start.communicate()[1] for start in starts]
    assert sorted(start.returncode for start in starts) == [0, 1, 1, 1, 1, 1]
    assert all("is being written by" in text or "already holds a run" in text for text in said if text)


def test_the_lock_ends_with_a_killed_owner_but_not_before_the_processes_it_started(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\nfrom iecl.runs.claim import claim\n"
        "with claim(sys.argv[1]):\n    if os.fork() == 0: time.sleep(float(sys.argv[2])); os._exit(0)\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "run"), "1.5"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        began = time.monotonic()
        owner.kill()
    with pytest.raises(UserError, match=f"processes that were started by process {owner.pid}"):
        os.close(claiming.lock_file(RunDirectory(tmp_path / "run").lock, patience=0.2))
    with claim(tmp_path / "run"):  # waits until the last of them is gone
        assert time.monotonic() - began > 1


@pytest.mark.parametrize("error", [UserError("wrong use"), KeyboardInterrupt()])
def test_a_start_in_which_nothing_was_trained_leaves_nothing(error: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        fail(error, tmp_path / "run", {"settings.toml": "", "log.txt": "", "metrics.jsonl": '{"step": 0}\n'})
    assert not (tmp_path / "run").exists()


def test_files_that_were_there_before_survive_a_start_that_fails(tmp_path: Path) -> None:
    mine = written(tmp_path / "run", {"notes.txt": "mine", "forecast.json": "{}"})
    with pytest.raises(UserError):
        fail(UserError("wrong use"), mine, {"settings.toml": ""})
    assert content(mine) == {"notes.txt": "mine", "forecast.json": "{}"}


@pytest.mark.parametrize("name", ["log.txt", "weights.safetensors", "checkpoints/last.ckpt"])
def test_what_a_run_would_write_over_is_refused_even_without_settings(name: str, tmp_path: Path) -> None:
    remains = written(tmp_path / "run", {name: "precious"})
    with pytest.raises(UserError, match=f"holds {name}, which a run would write over"):
        claim(remains).__enter__()
    assert content(remains) == {name: "precious"}


@pytest.mark.parametrize("error", [UserError("data are gone"), TrainingError("NaN"), KeyboardInterrupt(), OSError()])
def test_nothing_is_removed_once_a_step_was_taken(error: BaseException, tmp_path: Path) -> None:
    files = {"settings.toml": "", "metrics.jsonl": '{"step": 1}\n', "checkpoints/last.ckpt": ""}
    with pytest.raises(type(error)):
        fail(error, tmp_path / "run", files)
    assert content(tmp_path / "run") == files


def test_steps_that_came_from_another_run_were_not_taken_here(tmp_path: Path) -> None:
    copied = {"metrics.jsonl": '{"step": 9}\n', "checkpoints/last.ckpt": ""}
    with pytest.raises(UserError):
        fail(UserError("wrong use"), tmp_path / "run", copied, steps_before=9)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("error", [UserError("wrong use"), KeyboardInterrupt()])
def test_an_overwritten_run_comes_back_if_the_new_one_does_not_start(error: BaseException, old_run: Path) -> None:
    with pytest.raises(type(error)):
        fail(error, old_run, {"settings.toml": "new", "log.txt": "new"}, overwrite=True)
    assert content(old_run) == OLD


def test_a_new_run_that_fails_before_its_first_checkpoint_is_kept_beside_the_old_one(old_run: Path) -> None:
    new = {"settings.toml": "new", "metrics.jsonl": '{"step": 1}\n', "checkpoints/broken.ckpt": "to look at"}
    with pytest.raises(TrainingError):
        fail(TrainingError("NaN"), old_run, new, overwrite=True)
    assert content(old_run) == OLD | {f"failed-1/{name}": text for name, text in new.items()}


def test_an_overwritten_run_is_gone_with_the_first_checkpoint_of_the_new_one(old_run: Path) -> None:
    new = {"settings.toml": "new", "metrics.jsonl": '{"step": 1}\n', "checkpoints/last.ckpt": "new"}
    with claim(old_run, overwrite=True) as claimed:
        assert content(old_run)["notes of the user.txt"] == "mine"
        assert not claimed.run.files()
        written(old_run, new)
        claimed.run.drop_overwritten()  # as the loop does when it has saved
    assert content(old_run) == new | {"notes of the user.txt": "mine"}


@pytest.mark.parametrize("moves", range(MOVES + 3))
def test_an_overwritten_run_survives_a_kill_at_any_moment(moves: int, old_run: Path) -> None:
    def killed_while_moving() -> None:
        left, replace = [moves], Path.replace

        def counted(self: Path, target: Path) -> Path:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return replace(self, target)

        Path.replace = counted
        new = {"settings.toml": "new", "environment.json": "new"}
        fail(UserError("wrong use"), old_run, new, overwrite=True)  # puts it back, which may be killed as well

    assert in_child(killed_while_moving) == -signal.SIGKILL
    run = RunDirectory.existing(old_run)  # any look at the run is enough
    assert run.settings.read_text() == "old"
    assert content(old_run) == OLD


def test_a_reader_leaves_an_overwritten_run_alone_while_the_new_one_starts(old_run: Path) -> None:
    with claim(old_run, overwrite=True) as claimed:
        written(old_run, {"settings.toml": "new"})
        assert RunDirectory.existing(old_run).settings.read_text() == "new"
        assert claimed.run.overwritten.exists()


def test_half_written_files_of_killed_processes_are_removed_at_the_next_start(tmp_path: Path) -> None:
    dead, alive = f".last.ckpt.{os.getpid()}.part", ".knn.json.1.part"
    run = written(tmp_path / "run", {"settings.toml": "", f"checkpoints/{dead}": "", f"evaluations/{alive}": ""})
    with (run / "evaluations" / alive).open("rb") as held:
        assert lock(held.fileno())
        with claim(run, resume=True):
            pass
    assert content(run) == {"settings.toml": "", f"evaluations/{alive}": ""}


def test_a_lock_that_says_nonsense_still_locks(tmp_path: Path) -> None:
    with claim(tmp_path / "run") as claimed:
        claimed.run.lock.write_text("[" * 10_000)
        with pytest.raises(UserError, match="is being written by another process"):
            claim(tmp_path / "run").__enter__()
        claimed.run.lock.write_text(json.dumps({"process": 10**30, "host": "elsewhere"}))
        with pytest.raises(UserError, match="on elsewhere"):
            claim(tmp_path / "run").__enter__()
