"""torchrun and SLURM start a run, warn it, start it again: the same command, and the numbers of a run left alone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iecl.launch import attempts, requeue, slurm_job
from iecl.pretraining import Asked, _begun_before
from iecl.runs.directory import RunDirectory

FLAGS = ["--method", "simclr", "--backbone", "resnet10-w16", "--batch-size", "8"]
SETS = ["method.hidden_dim=16", "method.out_dim=8", "training.checkpoint_steps=3", "data.cache_megabytes=0"]


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in RunDirectory(run).read_metrics() if "loss" in row]


def fake_scontrol(folder: Path, code: int = 0) -> Path:
    """A scontrol that writes down what it was asked for; returns the file."""
    file = folder / "bin" / "scontrol"
    file.parent.mkdir()
    file.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\necho no such job >&2\nexit {code}\n')
    file.chmod(0o755)
    return folder / "asked"


def test_a_job_of_an_array_has_two_numbers() -> None:
    assert slurm_job({"SLURM_JOB_ID": "12", "SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "2"}) == "10_2"
    assert slurm_job({"SLURM_JOB_ID": "12"}) == "12"


def test_scontrol_is_asked_and_what_it_refuses_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert requeue({}) == "this is no SLURM job"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "scontrol requeue 12" in requeue({"SLURM_JOB_ID": "12"})
    asked = fake_scontrol(tmp_path, code=1)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert requeue({"SLURM_JOB_ID": "12"}) == "scontrol requeue 12: no such job"
    assert asked.read_text() == "requeue 12\n"


@pytest.mark.parametrize(
    ("restarts", "launch", "goes_on"),
    [
        ("1", ["SLURM job 7"], True),
        ("0", ["SLURM job 7"], False),  # the first start of the job: whatever is there is of another one
        ("1", ["SLURM job 8"], False),
        ("1", None, False),
        ("1", "SLURM job 7", False),
    ],
)
def test_only_a_job_that_is_started_again_goes_on_with_the_run_that_it_began(
    restarts: str, launch: object, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    run = RunDirectory.fresh(tmp_path / "run")
    run.settings.write_text("")
    run.append_history({"kind": "start"} | ({} if launch is None else {"launch": launch}))
    asked = Asked(run.path, "simclr", "", {"data": {"name": "shapes"}}, ("training.seed=1",), overwrite=True)
    found = _begun_before(asked)
    assert found == (Asked(run.path, "", "", {}, (), overwrite=False) if goes_on else None)


def test_restarts_of_torchrun_are_told_apart_by_the_process_that_makes_them() -> None:
    ((name, count),) = attempts({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "3"}).items()
    assert count == 3
    assert str(os.getppid()) in name


class Started:
    """`iecl pretrain` in processes that something else has started."""

    def __init__(self, folder: Path, out: Path, sets: list[str], epochs: int) -> None:
        self.out = out
        assigned = [word for text in [*sets, *SETS] for word in ("--set", text)]
        self.words = ["-m", "iecl", "pretrain", "--data", str(folder), "--out", str(out), *FLAGS, *assigned]
        self.words += ["--epochs", str(epochs)]
        self.ranks: list[subprocess.Popen[str]] = []

    def _start(self, words: list[str], **said: str) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | said
        return subprocess.Popen([sys.executable, *words], env=environment, start_new_session=True, **pipes)

    def by_slurm(self, *words: str, **said: str) -> "Started":
        """As `srun --ntasks 2` does."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            said["MASTER_PORT"] = str(listener.getsockname()[1])
        said |= {"SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_JOB_ID": "4711", "SLURM_NODELIST": "127.0.0.1"}
        self.ranks = [
            self._start([*self.words, *words], **said, SLURM_PROCID=str(n), SLURM_LOCALID=str(n)) for n in range(2)
        ]
        return self

    def by_torchrun(self, *options: str) -> "Started":
        run = ["-m", "torch.distributed.run", "--nproc-per-node", "2", *options]
        self.ranks = [self._start([*run, *self.words])]
        return self

    def wait_for_steps(self, count: int) -> None:
        while len(losses(self.out)) < count:
            assert all(rank.poll() is None for rank in self.ranks), [rank.communicate() for rank in self.ranks]
            time.sleep(0.05)

    def ends(self) -> list[tuple[int, str]]:
        """How each ended, and what it said."""
        try:
            said = [rank.communicate(timeout=600)[1] for rank in self.ranks]
        finally:
            for rank in self.ranks:
                rank.kill()
        return [(rank.returncode, words) for rank, words in zip(self.ranks, said, strict=True)]


@pytest.mark.slow
def test_a_slurm_job_is_warned_saved_requeued_and_ends_like_one_left_alone(
    image_folder: Path, tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fake_scontrol(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    whole = Started(image_folder, tmp_path / "whole", tiny, 12).by_slurm()
    assert [code for code, _ in whole.ends()] == [0, 0]

    job = Started(image_folder, tmp_path / "run", [*tiny, "training.requeue=true"], 12).by_slurm()
    job.wait_for_steps(4)
    job.ranks[1].send_signal(signal.SIGUSR1)  # one of them: all save
    ends = job.ends()
    assert [code for code, _ in ends] == [128 + signal.SIGUSR1] * 2, ends
    assert not any("Traceback" in said for _, said in ends)
    assert asked.read_text() == "requeue 4711\n"  # once, by the first
    assert 4 <= len(losses(job.out)) < 60

    ends = job.by_slurm(SLURM_RESTART_COUNT="1").ends()  # the same command
    assert [code for code, _ in ends] == [0, 0], ends
    assert losses(job.out) == losses(whole.out)
    kinds = [json.loads(line)["kind"] for line in RunDirectory(job.out).history.read_text().splitlines()]
    assert kinds == ["start", "resume"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_whoever_is_left_of_a_slurm_job_names_the_process_that_was_killed(
    victim: int, image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    job = Started(image_folder, tmp_path / "run", tiny, 100000).by_slurm()
    job.wait_for_steps(4)
    job.ranks[victim].kill()
    code, said = job.ends()[1 - victim]
    assert (code, "Traceback" in said, "frame #" in said) == (1, False, False), said
    assert f"process {victim} has ended without a word" in said.splitlines()[-1]


def children(number: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for processes where Linux lists them")
def test_torchrun_starts_a_run_again_whose_process_was_killed(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    whole = Started(image_folder, tmp_path / "whole", tiny, 12).by_torchrun()
    assert [code for code, _ in whole.ends()] == [0]
    job = Started(image_folder, tmp_path / "run", tiny, 12).by_torchrun("--standalone", "--max-restarts", "1")
    job.wait_for_steps(5)
    os.kill(children(job.ranks[0].pid)[1], signal.SIGKILL)
    [(code, said)] = job.ends()
    assert code == 0, said
    assert "process 1 has ended without a word" in said
    assert losses(job.out) == losses(whole.out)
