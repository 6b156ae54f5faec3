"""Whole runs that meet a fault: what was trained stays, the user reads one line, and the run goes on from there."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.faults.__main__ import all_faults
from benchmarks.result import RESULTS

import iecl
from iecl.errors import TrainingError, UserError
from iecl.runs import checkpoint
from iecl.runs.claim import claim
from iecl.runs.directory import RunDirectory
from iecl.training import run as training_run
from iecl.training.signals import StopFlag

RUN = {
    "backbone": "resnet10-w16",
    "epochs": 3,
    "batch_size": 8,
    "settings": {"method": {"hidden_dim": 16, "out_dim": 8}},
}
KEPT = {"settings.toml", "metrics.jsonl", "log.txt", "history.jsonl"}


def steps(run: Path) -> list[int]:
    return [row["step"] for row in RunDirectory(run).read_metrics() if "loss" in row]


def is_kept(run: Path) -> bool:
    return {path.name for path in run.iterdir()} >= KEPT and (run / "checkpoints" / "last.ckpt").is_file()


def full_disk_at_the_third_checkpoint(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    writes, usage = [0], shutil.disk_usage

    def counted(path: Path) -> Any:
        writes[0] += 1
        return usage(path)._replace(free=0) if writes[0] == 3 else usage(path)

    monkeypatch.setattr(checkpoint.shutil, "disk_usage", counted)


def full_disk_at_a_line_of_metrics(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    append = RunDirectory.append_metrics

    def failing(self: RunDirectory, row: dict[str, Any]) -> None:
        if row["step"] == 8:
            raise OSError(errno.ENOSPC, "No space left on device", str(self.metrics))
        append(self, row)

    monkeypatch.setattr(RunDirectory, "append_metrics", failing)


def weights_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    def failing(*args: Any) -> None:
        raise UserError("cannot write weights")

    monkeypatch.setattr(training_run, "save_model", failing)


@pytest.mark.parametrize(
    "fault",
    [full_disk_at_the_third_checkpoint, full_disk_at_a_line_of_metrics, weights_that_cannot_be_written],
    ids=lambda fault: fault.__name__,
)
def test_a_run_survives(
    fault: Callable[[pytest.MonkeyPatch, Path], None], image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    whole = iecl.pretrain(image_folder, tmp_path / "whole", sets=tiny, quiet=True, **RUN)
    run, sets = tmp_path / "run", [*tiny, "training.checkpoint_steps=3"]
    with pytest.MonkeyPatch.context() as patch:
        fault(patch, run)
        with pytest.raises(TrainingError):
            iecl.pretrain(image_folder, run, sets=sets, quiet=True, **RUN)
    assert is_kept(run)
    assert iecl.load(run).summary["finished"] is False
    assert "ERROR" in (run / "log.txt").read_text()
    iecl.pretrain(out=run, resume=True, quiet=True)
    assert iecl.load(run).summary["finished"]
    assert steps(run) == steps(whole.path)


def test_a_run_directory_that_is_gone_is_one_line(
    image_folder: Path, tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, append = tmp_path / "run", RunDirectory.append_metrics

    def removing(self: RunDirectory, row: dict[str, Any]) -> None:
        if row["step"] == 7:
            shutil.rmtree(run)
        append(self, row)

    monkeypatch.setattr(RunDirectory, "append_metrics", removing)
    with pytest.raises(TrainingError, match=r"no such file or directory, .*run is gone"):
        iecl.pretrain(image_folder, run, sets=tiny, quiet=True, **RUN)


def test_a_run_that_took_the_place_of_a_removed_one_is_left_as_it_is(
    image_folder: Path, tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, append = tmp_path / "run", RunDirectory.append_metrics
    other = {"settings.toml": "another", "metrics.jsonl": '{"step": 1}\n'}

    def replacing(self: RunDirectory, row: dict[str, Any]) -> None:
        if row["step"] == 7:
            shutil.rmtree(run)
            with claim(run):  # somebody else starts here, and ends before we look
                for name, text in other.items():
                    (run / name).write_text(text)
        append(self, row)

    monkeypatch.setattr(RunDirectory, "append_metrics", replacing)
    with pytest.raises(TrainingError, match="was removed, and another run has taken its place"):
        iecl.pretrain(image_folder, run, sets=tiny, quiet=True, **RUN)
    assert {path.name: path.read_text() for path in run.iterdir() if path.is_file() and path.name != ".lock"} == other
    assert not list((run / "checkpoints").iterdir())


@pytest.mark.parametrize("with_folders", [True, False])
def test_images_that_are_deleted_while_a_run_reads_them_are_one_line(
    with_folders: bool, image_folder: Path, tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RunDirectory.append_metrics

    def deleting(self: RunDirectory, row: dict[str, Any]) -> None:
        if row["step"] == 7:
            for folder in list(image_folder.iterdir()):
                shutil.rmtree(folder)
                if not with_folders:
                    folder.mkdir()
        append(self, row)

    monkeypatch.setattr(RunDirectory, "append_metrics", deleting)
    monkeypatch.setattr("iecl.data.folder.PATIENCE", 0.1)
    words = "is gone: there is nothing in it" if with_folders else "cannot be read|can be read"
    with pytest.raises(TrainingError, match=words) as caught:
        iecl.pretrain(image_folder, tmp_path / "run", sets=[*tiny, "data.cache_megabytes=0"], quiet=True, **RUN)
    assert "\n" not in str(caught.value)
    assert is_kept(tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch_size": 1000}, "do not fill a batch"),
        ({"settings": {"training": {"accelerator": "cuda"}}}, "no cuda device"),
        ({"settings": {"training": {"strategy": "magic"}}}, "training.strategy"),
        ({"settings": {"optimizer": {"lr": 1e30, "name": "sgd"}}}, "became NaN"),
    ],
)
def test_an_overwrite_that_cannot_start_leaves_the_old_run_as_it_was(
    wrong: dict[str, Any], words: str, image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    run = tmp_path / "run"
    iecl.pretrain(image_folder, run, sets=tiny, quiet=True, **RUN | {"epochs": 1})
    (run / "evaluations" / "knn.json").write_text("{}")

    def content() -> dict[str, bytes]:
        files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
        return {str(path.relative_to(run)): path.read_bytes() for path in files if "failed-1" not in path.parts}

    before = content()
    with pytest.raises(UserError, match=words):
        iecl.pretrain(image_folder, run, sets=tiny, quiet=True, overwrite=True, **RUN | wrong)
    assert content() == before
    assert (run / "failed-1").exists() == (words == "became NaN")  # it took steps: what it wrote can be looked at
    iecl.pretrain(image_folder, run, sets=tiny, quiet=True, overwrite=True, **RUN | {"epochs": 2})
    assert steps(run) == list(range(1, 11))
    assert not (run / "evaluations" / "knn.json").exists()


def test_a_stop_before_the_first_step_leaves_no_run_behind(
    image_folder: Path, tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr("iecl.training.loop.open_source", stopped)
    with pytest.raises(iecl.errors.Interrupted, match="before the first step") as caught:
        iecl.pretrain(image_folder, tmp_path / "run", sets=tiny, quiet=True, **RUN)
    assert caught.value.signal == signal.SIGTERM
    assert not (tmp_path / "run").exists()


def test_a_request_that_comes_twice_to_a_process_of_several_does_not_end_it_before_it_has_saved() -> None:
    with StopFlag(is_launched=True) as stop:
        stop.is_polled = True
        os.kill(os.getpid(), signal.SIGTERM)  # from the terminal
        stop._since -= 60
        os.kill(os.getpid(), signal.SIGTERM)  # from the parent, late
        assert stop.signal == signal.SIGTERM


class Command:
    """`iecl pretrain` as a process of its own, with a long run."""

    def __init__(self, folder: Path, run: Path, sets: list[str], *words: str, launcher: tuple[str, ...] = ()) -> None:
        self.run = run
        settings = [*sets, "method.hidden_dim=16", "method.out_dim=8", "training.checkpoint_steps=3"]
        assigned = [word for text in settings for word in ("--set", text)]
        flags = ["--data", str(folder), "--out", str(run), "--backbone", "resnet10-w16", "--batch-size", "8"]
        command = [sys.executable, *launcher, "-m", "iecl", "pretrain", *flags, *assigned, *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)

    def wait_for_step(self, step: int) -> None:
        while step not in steps(self.run):
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def end(self) -> tuple[int, str]:
        """Exit code and what was said."""
        _, said = self.process.communicate()
        return self.process.returncode, said

    def ranks(self) -> list[int]:
        number = self.process.pid
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for processes where Linux lists them")
def test_two_processes_stop_with_their_parent_and_die_with_one_line(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    run = tmp_path / "run"
    command = Command(image_folder, run, tiny, "--devices", "2", "--epochs", "100000")
    command.wait_for_step(4)
    os.kill(command.process.pid, signal.SIGINT)  # to the parent alone
    code, said = command.end()
    assert (code, "Traceback" in said) == (128 + signal.SIGINT, False)
    assert "all of it saved" in said
    done = max(steps(run))

    command = Command(image_folder, run, [], "--devices", "2", "--epochs", "100000", "--resume")
    command.wait_for_step(done + 4)
    os.kill(command.ranks()[1], signal.SIGKILL)
    code, said = command.end()
    assert (code, "Traceback" in said) == (1, False)
    assert "process 1 was ended by SIGKILL" in said.splitlines()[-1]
    assert "process 1 was ended by SIGKILL" in (run / "log.txt").read_text()
    assert is_kept(run)


@pytest.mark.slow
def test_torchrun_alone_says_how_many_processes_there_are(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc_per_node", "2")
    code, said = Command(image_folder, tmp_path / "run", tiny, "--epochs", "2", launcher=launcher).end()
    assert code == 0, said
    run = iecl.load(tmp_path / "run")
    assert run.settings["training"]["devices"] == 2
    assert steps(run.path) == list(range(1, 11))  # one run, not two into one directory


def test_the_table_of_faults_has_a_row_for_each_and_none_that_was_lost(tmp_path: Path) -> None:
    (file,) = (RESULTS / "faults").glob("*.json")
    found = json.loads(file.read_text(encoding="utf-8"))["faults"]
    assert [row["fault"] for row in found] == list(all_faults(tmp_path))
    assert all(row["tried"] == row["survived"] > 0 == row["lost"] for row in found)
