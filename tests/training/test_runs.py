"""Whole runs on tiny images: what is written, how they stop, that they continue exactly."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

import iecl
from iecl.errors import TrainingError, UserError
from iecl.meters.label_free import SCORES
from iecl.runs.checkpoint import latest_checkpoint, load_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.training.signals import StopFlag

SMALL = {"method": {"hidden_dim": 16, "out_dim": 8}}
RUN = {"backbone": "resnet10-w16", "epochs": 3, "batch_size": 8, "settings": SMALL, "quiet": True}


def weights(run: Path) -> dict[str, torch.Tensor]:
    state = latest_checkpoint(run / "checkpoints")
    assert state is not None
    found: dict[str, torch.Tensor] = state["method"]
    return found


def curve(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in RunDirectory(run).read_metrics() if "loss" in row]


def test_a_run_leaves_a_directory_that_explains_itself(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=[*tiny, "training.loggers=['tensorboard']"], **RUN)
    names = {path.name for path in run.path.iterdir()}
    assert {
        "settings.toml",
        "environment.json",
        "metrics.jsonl",
        "log.txt",
        "weights.safetensors",
        "summary.json",
    } <= names
    assert {path.name for path in (run.path / "checkpoints").iterdir()} == {"last.ckpt", "previous.ckpt", "best.ckpt"}
    assert list((run.path / "tensorboard").glob("events.*"))
    assert (
        json.loads((run.path / "environment.json").read_text())["packages"]["torch"] == torch.__version__.split("+")[0]
    )
    assert run.summary["finished"]
    assert run.summary["steps"] == 15
    row = run.metrics[3]
    assert {
        "loss",
        "loss/contrast",
        "loss/iecl/entropy",
        "iecl/entropy",
        "lr",
        "meter/effective_rank",
    } <= row.keys() | run.metrics[4].keys()
    assert any("knn" in row for row in run.metrics)
    assert run.settings["data"]["image_size"] == 16


def test_the_loss_curve_does_not_depend_on_workers_or_memory(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    curves = []
    for number, workers in enumerate((0, 2)):
        sets = [*tiny, "data.cache_megabytes=0", f"data.num_workers={workers}"]
        run = iecl.pretrain(image_folder, tmp_path / str(number), sets=sets, **RUN)
        curves.append(curve(run.path))
    in_memory = iecl.pretrain(image_folder, tmp_path / "memory", sets=tiny, **RUN)
    assert curves[0] == curves[1] == curve(in_memory.path)


@pytest.mark.parametrize(("accumulate", "starts"), [(1, 1), (2, 3)])  # 5 batches: one is left over where 2 make a step
def test_workers_outlive_an_epoch_that_uses_all_batches(
    accumulate: int, starts: int, image_folder: Path, tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from iecl.data.loader import _Pool

    made, make = [], _Pool._make_loader
    monkeypatch.setattr(_Pool, "_make_loader", lambda self: (made.append(self), make(self))[1])
    sets = [*tiny, "data.cache_megabytes=0", "data.num_workers=1", f"training.grad_accumulation={accumulate}"]
    iecl.pretrain(image_folder, tmp_path / "run", sets=sets, **RUN)
    assert len(made) == starts


@pytest.mark.parametrize(
    "extra",
    [
        ["saib.weights=learned"],
        pytest.param(["method.queue_size=32", "method.symmetric=false"], marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_killed_continues_exactly(
    extra: list[str], image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    sets = [*tiny, *extra, "training.checkpoint_steps=1"]
    whole = iecl.pretrain(image_folder, tmp_path / "whole", sets=sets, **RUN)
    program = (
        "import sys, torch, iecl; torch.set_num_threads(1)\n"
        "iecl.pretrain(sys.argv[1], sys.argv[2], backbone='resnet10-w16', epochs=3, batch_size=8,"
        f" settings={SMALL!r}, sets=sys.argv[3:], quiet=True)"
    )
    cut = tmp_path / "cut"
    child = subprocess.Popen([sys.executable, "-c", program, str(image_folder), str(cut), *sets])
    kill_at = 6
    while child.poll() is None:
        if len(curve(cut)) >= kill_at:
            child.kill()  # SIGKILL: nothing can be saved any more
        time.sleep(0.01)
    child.wait()
    state = latest_checkpoint(cut / "checkpoints")
    assert state is not None
    assert child.returncode == -signal.SIGKILL
    assert 0 < state["step"] < 15
    iecl.pretrain(out=cut, resume=True, quiet=True)
    assert curve(cut) == curve(whole.path)
    expected = weights(whole.path)
    assert all(torch.equal(value, expected[name]) for name, value in weights(cut).items())


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_anew(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    whole = iecl.pretrain(image_folder, tmp_path / "whole", sets=tiny, **RUN)
    cut = tmp_path / "cut"
    shutil.copytree(whole.path, cut)
    for file in [*(cut / "checkpoints").iterdir(), cut / "summary.json", cut / "weights.safetensors"]:
        file.unlink()  # as after a kill in the first epoch: rows of metrics, and nothing to go on from
    iecl.pretrain(out=cut, resume=True, quiet=True)
    assert RunDirectory(cut).metrics.read_text().count('"step": 1,') == 1
    assert curve(cut) == curve(whole.path)


def test_the_untrained_network_is_measured_first_and_left_as_it_is(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    sets = [text for text in tiny if "online_eval_epochs" not in text]
    measured = iecl.pretrain(image_folder, tmp_path / "measured", sets=sets, **RUN)
    silent = iecl.pretrain(image_folder, tmp_path / "silent", sets=[*sets, "training.online_eval_epochs=0"], **RUN)
    assert measured.metrics[0].keys() == {"step", "epoch", "knn", *(f"score/{name}" for name in SCORES)}
    assert measured.metrics[0]["step"] == 0
    assert not any("knn" in row for row in silent.metrics)
    assert curve(measured.path) == curve(silent.path)


@pytest.mark.parametrize("looks", [0, 1])
def test_without_labels_the_mean_loss_decides_on_the_best_checkpoint(
    looks: int, image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    sets = [*tiny, "data.labels=none", f"training.online_eval_epochs={looks}"]
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=sets, **RUN)
    assert len([row for row in run.metrics if "score/rank_me" in row and row["step"]]) == looks * RUN["epochs"]
    assert not any("knn" in row for row in run.metrics)
    rows = [(row["epoch"], row["loss"]) for row in run.metrics if "loss" in row]
    means = [fmean(loss for epoch, loss in rows if epoch == number) for number in range(RUN["epochs"])]
    best = load_checkpoint(run.path / "checkpoints" / "best.ckpt")
    assert best["best"] == pytest.approx(-min(means))
    assert best["step"] == (means.index(min(means)) + 1) * best["steps"] // RUN["epochs"]


def begun(image_folder: Path, run: Path, tiny: list[str], *words: str, **how: Any) -> subprocess.Popen[str]:
    """A long run in a process of its own, some steps after its start."""
    command = [sys.executable, "-m", "iecl", "pretrain", "--data", str(image_folder), "--out", str(run), *words]
    command += ["--backbone", "resnet10-w16", "--epochs", "500", "--batch-size", "8"]
    for text in [*tiny, "method.hidden_dim=16", "method.out_dim=8"]:
        command += ["--set", text]
    child = subprocess.Popen(command, text=True, **how)
    while child.poll() is None and len(curve(run)) < 3:
        time.sleep(0.02)
    return child


def test_a_signal_ends_the_step_saves_and_leaves(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    child = begun(image_folder, tmp_path / "run", tiny, "--quiet", stderr=subprocess.PIPE)
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 128 + signal.SIGTERM
    assert "continue with: iecl pretrain --out" in errors
    state = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert state["step"] >= 3


def test_a_run_whose_terminal_is_closed_saves_and_leaves(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    ours, its = os.openpty()

    def take_terminal() -> None:  # in a session of its own, as a window has
        fcntl.ioctl(its, termios.TIOCSCTTY, 0)

    outputs = {"stdin": its, "stdout": its, "stderr": its}
    child = begun(image_folder, tmp_path / "run", tiny, start_new_session=True, preexec_fn=take_terminal, **outputs)
    os.close(its)
    os.close(ours)
    assert child.wait(60) == 128 + signal.SIGHUP
    state = latest_checkpoint(tmp_path / "run" / "checkpoints")
    assert state is not None
    assert state["step"] >= 3
    assert "Traceback" not in (tmp_path / "run" / "log.txt").read_text()


def test_a_closed_terminal_does_not_matter_where_nohup_said_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.signal
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with StopFlag() as stop:
            stop.is_polled = True
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal == signal.SIGHUP
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    sets = [
        *tiny,
        "optimizer.name=sgd",
        "optimizer.lr=1e30",
        "optimizer.warmup_epochs=0",
        "training.checkpoint_steps=1",
    ]
    with pytest.raises(TrainingError) as caught:
        iecl.pretrain(image_folder, tmp_path / "run", sets=sets, **RUN)
    message = str(caught.value)
    assert "loss/contrast" in message
    assert "at step 2" in message
    assert "last good checkpoint" in message
    run = tmp_path / "run"
    again = f"iecl pretrain --recipe {run} --out {run}-again --set optimizer.lr=1e+29 --init-from {run}"
    assert again in message
    assert f"iecl replay {tmp_path / 'run'} --step 2" in message
    kept = load_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")
    assert kept["step"] == 1
    broken = load_checkpoint(tmp_path / "run" / "checkpoints" / "broken.ckpt")
    assert (broken["step"], len(broken["samples"]["index"])) == (1, 8)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["verdict"] == "diverged"
    assert not summary["finished"]


def test_resuming_with_another_setting_is_refused_with_both_values(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    iecl.pretrain(image_folder, tmp_path / "run", sets=tiny, **RUN)
    with pytest.raises(UserError, match=r"training.batch_size was 8, now 16"):
        iecl.pretrain(out=tmp_path / "run", batch_size=16, resume=True, quiet=True)


def test_a_finished_run_is_not_trained_again(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=tiny, **RUN)
    before = (run.path / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    iecl.pretrain(out=run.path, resume=True, quiet=True)
    assert (run.path / "checkpoints" / "last.ckpt").stat().st_mtime_ns == before


def test_a_directory_that_holds_a_run_is_not_overwritten(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    iecl.pretrain(image_folder, tmp_path / "run", sets=tiny, **RUN)
    with pytest.raises(UserError, match=r"already holds a run .*resume=True .*overwrite=True"):
        iecl.pretrain(image_folder, tmp_path / "run", sets=tiny, **RUN)


def test_accumulated_batches_make_one_optimizer_step(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=[*tiny, "training.grad_accumulation=2"], **RUN)
    assert run.summary["steps"] == 6  # 40 images, 5 batches of 8, 2 optimizer steps in each of 3 epochs


def test_the_momentum_copy_moves_once_for_each_optimizer_step(
    image_folder: Path, tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from iecl.parts.momentum_copy import MomentumCopy

    calls = []
    follow = MomentumCopy.follow
    monkeypatch.setattr(MomentumCopy, "follow", lambda *a, **k: (calls.append(1), follow(*a, **k))[1])
    iecl.pretrain(image_folder, tmp_path / "run", sets=[*tiny, "training.grad_accumulation=2"], **RUN)
    assert len(calls) == 6


def test_bad_files_are_named_once_skipped_and_counted(
    image_folder: Path, tmp_path: Path, tiny: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    (image_folder / "red" / "broken.png").write_bytes(b"no image")
    (image_folder / "red" / "empty.jpg").write_bytes(b"")
    for number, megabytes in enumerate((4096, 0)):
        run = iecl.pretrain(
            image_folder, tmp_path / str(number), sets=[*tiny, f"data.cache_megabytes={megabytes}"], **RUN
        )
        assert run.summary["skipped"] == 2
        lines = (run.path / "skipped.txt").read_text().splitlines()
        assert sorted(line.split("\t")[0].rsplit("/", 1)[-1] for line in lines) == ["broken.png", "empty.jpg"]
        assert capfd.readouterr().err.count("broken.png") == 1


def test_a_block_that_nothing_moves_is_refused_before_the_first_step(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    sets = [*tiny, "saib.weights=learned", "saib.side=query", "objective.entropy=none", "method.symmetric=false"]
    with pytest.raises(UserError, match="nothing trains the block on the query side"):
        iecl.pretrain(image_folder, tmp_path / "run", sets=sets, **RUN)
    assert not (tmp_path / "run").exists()


def test_the_printed_block_trains_with_the_paper_preset_at_a_sane_rate(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    run = iecl.pretrain(image_folder, tmp_path / "run", recipe="ie-cl/paper", sets=[*tiny, "optimizer.lr=1e-3"], **RUN)
    assert run.summary["finished"]
    assert {"loss/iecl/kl", "loss/iecl/entropy"} <= run.summary["last"].keys()


def test_groups_need_not_divide_the_sample_that_is_looked_at(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    sets = [*tiny, "method.norm_groups=3"]  # of 12 images in a batch, and 40 in the sample
    run = iecl.pretrain(
        image_folder, tmp_path / "run", method="moco-v2", sets=sets, **(RUN | {"batch_size": 12, "epochs": 1})
    )
    assert run.summary["finished"]


@pytest.mark.slow
def test_an_error_that_every_process_meets_reaches_the_user_as_one_line(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    sets = [*tiny, "method.norm_groups=3", "training.devices=2", "training.online_eval_epochs=0"]
    with pytest.raises(UserError, match="3 groups cannot be shared by 2 processes") as caught:
        iecl.pretrain(image_folder, tmp_path / "run", method="moco-v2", sets=sets, **(RUN | {"batch_size": 12}))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that can start worker processes quickly")
def test_two_processes_train_like_one(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    # Norms are synchronized; later steps of AdamW tell of every rounding.
    one = iecl.pretrain(image_folder, tmp_path / "one", sets=tiny, **RUN)
    two = iecl.pretrain(image_folder, tmp_path / "two", sets=[*tiny, "training.devices=2"], **RUN)
    assert two.summary["finished"]
    assert two.summary["steps"] == one.summary["steps"]
    (_, first), (_, other) = (curve(run.path)[0] for run in (one, two))
    assert first == pytest.approx(other, abs=1e-4)
    assert weights(one.path).keys() == weights(two.path).keys()
    assert 'sync_batch_norm = "on"' in (two.path / "settings.toml").read_text()
