"""Cells in processes: they fail alone, survive kills, are shared by runners, and are never done twice."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from iecl import counter
from iecl.errors import Interrupted, UserError
from iecl.runs.directory import RunDirectory
from iecl.studies.cell import Cell, Measurement
from iecl.studies.engine import Found, look_at_cells, run_cells, seconds_left
from iecl.studies.folder import StudyFolder

SETTINGS = {
    "method": {"name": "simclr", "hidden_dim": 16, "out_dim": 8},
    "backbone": {"name": "resnet10-w16"},
    "data": {"image_size": 16},
    "training": {"epochs": 2, "batch_size": 8, "precision": "32-true", "meter_steps": 2, "log_steps": 1},
}


def cell(data: Path | str, seed: int = 0, evaluations: tuple[str, ...] = ("knn",), **training: Any) -> Cell:
    settings = SETTINGS | {"training": {**SETTINGS["training"], **training}}
    asked = tuple(Measurement(name=name) for name in evaluations)
    return Cell(data=str(data), seed=seed, settings=settings, evaluations=asked)


def scores(one: Found) -> list[Any]:
    assert one.state == "done", one.record
    return [[part["numbers"], part["hits"], part["protocol_hash"]] for part in one.record["evaluations"].values()]


def starts(folder: Path) -> dict[str, list[str]]:
    """How often each run was started or resumed."""
    histories = (folder / "runs").glob("*/history.jsonl")
    return {file.parent.name: [json.loads(line)["kind"] for line in file.read_text().splitlines()] for file in histories}


def workers_of(process: int) -> list[int]:
    """The processes that a process has started for cells."""
    found = []
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            if "iecl.studies.worker" in Path(f"/proc/{child}/cmdline").read_text():
                found.append(child)
    return found


def wait_for(what: Any, seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)
    return found


def test_one_failing_cell_leaves_the_others_and_is_run_again_on_request(image_folder: Path, tmp_path: Path) -> None:
    cells = [cell(image_folder, lr) for lr in (0, 1)]
    broken = Cell(data=str(image_folder), settings=SETTINGS | {"optimizer": {"name": "sgd", "lr": 1e30}})
    first = run_cells([broken, *cells], tmp_path / "study", workers=2)
    assert [one.state for one in first] == ["failed", "done", "done"]
    assert "became NaN or infinite" in first[0].record["error"]
    assert not first[1].record["evaluations"][first[1].names.evaluations[0]]["numbers"].get("top5")  # of two classes
    before = first[0].record["time"]
    assert run_cells([broken], tmp_path / "study")[0].record["time"] == before
    again = run_cells([broken], tmp_path / "study", retry=True)[0]
    assert again.state == "failed"
    assert again.record["time"] > before
    assert [one.state for one in look_at_cells([broken, *cells], tmp_path / "study")] == ["failed", "done", "done"]


def test_a_record_is_small_and_says_what_a_number_rests_on(image_folder: Path, tmp_path: Path) -> None:
    (one,) = run_cells([cell(image_folder)], tmp_path / "study", threads=2)
    (file,) = (tmp_path / "study" / "cells").glob("*.json")
    assert file.stat().st_size < 8000
    assert str(tmp_path) not in file.read_text()  # what was trained on, not where it lay
    record = one.record
    assert record["settings"]["method.hidden_dim"] == 16
    assert record["environment"] | {"processor": "", "torch": ""} == {
        **{"device": "cpu", "precision": "32-true", "threads": 2},
        **{"processor": "", "torch": ""},
    }
    assert record["code"]["iecl"]
    assert record["training"]["images"] == 40
    assert record["training"]["seconds"] > 0
    assert record["training"]["verdict"]
    (measured,) = record["evaluations"].values()
    assert measured["protocol_id"].startswith("knn/1 k=20")
    assert len(measured["hits"]) == 2  # eight test images
    assert seconds_left([one], 1) == 0


def test_another_evaluation_trains_nothing_and_folders_are_packed_once(image_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    (first,) = run_cells([cell(image_folder)], folder)
    (packed,) = (folder / "data").glob("*.iecl")
    made = packed.stat().st_mtime_ns
    assert look_at_cells([cell(image_folder, evaluations=("knn", "fewshot"))], folder)[0].state == "waiting"
    (second,) = run_cells([cell(image_folder, evaluations=("knn", "fewshot"))], folder)
    assert second.state == "done"
    assert second.names.training == first.names.training
    assert list(starts(folder).values()) == [["start"]]
    assert packed.stat().st_mtime_ns == made
    kept = {key: second.record["evaluations"][key] for key in first.names.evaluations}
    assert kept == first.record["evaluations"]


@pytest.mark.parametrize(("keep", "left"), [("none", set()), ("weights", {"weights"}), ("all", {"weights", "last"})])
def test_a_finished_run_keeps_what_was_asked_for(image_folder: Path, tmp_path: Path, keep: str, left: set[str]) -> None:
    (one,) = run_cells([cell(image_folder)], tmp_path / "study", keep=keep)
    run = RunDirectory(tmp_path / "study" / "runs" / one.names.training)
    files = {"weights": run.weights, "last": run.checkpoints / "last.ckpt"}
    assert {name for name, file in files.items() if file.exists()} == left
    assert run_cells([cell(image_folder)], tmp_path / "study")[0].record == one.record
    assert StudyFolder(tmp_path / "study").megabytes() > 0


def test_cells_of_a_validation_run_are_measured_on_images_it_never_saw(image_folder: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"data": {"image_size": 16, "validation": True}}
    asked = (Measurement(name="knn"), Measurement(name="knn", part="test"))
    (one,) = run_cells([Cell(data=str(image_folder), settings=settings, evaluations=asked)], tmp_path / "study")
    on_tenth, on_fifth = (one.record["evaluations"][key] for key in one.names.evaluations)
    assert one.record["training"]["images"] == on_tenth["n_train"]  # of the four fifths that are not for testing
    assert on_tenth["n_train"] + on_tenth["n_test"] == on_fifth["n_train"] == 32
    assert on_fifth["n_test"] == 8
    assert on_tenth["protocol_hash"] != on_fifth["protocol_hash"]


@pytest.mark.skipif(sys.platform != "linux", reason="children are found as Linux lists them")
def test_a_cell_that_is_killed_again_and_again_gives_the_scores_of_one_left_alone(
    image_folder: Path, tmp_path: Path
) -> None:
    asked = [cell(image_folder, evaluations=("knn", "linear"), epochs=24)]
    (undisturbed,) = run_cells(asked, tmp_path / "calm")
    run = RunDirectory(tmp_path / "killed" / "runs" / undisturbed.names.training)
    states = []
    for delay in counter.uniform(counter.key(5, "kills"), torch.arange(4)).flatten().tolist():
        call = threading.Thread(target=run_cells, args=(asked, tmp_path / "killed"), kwargs={"retry": True})
        call.start()
        (worker,) = wait_for(lambda: workers_of(os.getpid()))
        size = run.log.stat().st_size if run.log.exists() else 0
        wait_for(lambda before=size: run.log.exists() and run.log.stat().st_size > before)
        time.sleep(1.5 * delay)
        os.kill(worker, signal.SIGKILL)
        call.join()
        states += [one.state for one in look_at_cells(asked, tmp_path / "killed")]
    assert "failed" in states
    (disturbed,) = run_cells(asked, tmp_path / "killed", retry=True)
    assert scores(disturbed) == scores(undisturbed)
    assert "resume" in starts(tmp_path / "killed")[undisturbed.names.training]


PROGRAM = """
import json, sys
from iecl.studies.cell import Cell
from iecl.studies.engine import run_cells
from iecl.errors import Interrupted
cells = [Cell(data=sys.argv[1], seed=seed, settings=json.loads(sys.argv[3])) for seed in json.loads(sys.argv[4])]
try:
    print([one.state for one in run_cells(cells, sys.argv[2], workers=int(sys.argv[5]))])
except Interrupted as problem:
    print(problem)
    sys.exit(128 + problem.signal)
"""


def runner(data: Path, folder: Path, seeds: list[int], workers: int, **training: Any) -> "subprocess.Popen[str]":
    settings = SETTINGS | {"training": {**SETTINGS["training"], **training}}
    words = [sys.executable, "-c", PROGRAM, str(data), str(folder), json.dumps(settings), json.dumps(seeds), str(workers)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_runners_share_the_cells_and_never_run_one_twice(image_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    both = [runner(image_folder, folder, seeds, 1) for seeds in ([0, 1, 2], [2, 1, 0])]
    said = [one.communicate() for one in both]
    assert [one[0].strip() for one in said] == [str(["done"] * 3)] * 2, said
    assert sorted(starts(folder).values()) == [["start"]] * 3
    logs = [file.stat().st_mtime_ns for file in (folder / "runs").glob("*.log")]
    assert len(logs) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="children are found as Linux lists them")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_runner_that_is_stopped_leaves_no_process_and_the_same_call_goes_on(
    image_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "study"
    stopped = runner(image_folder, folder, [0], 1, epochs=400)
    wait_for(lambda: [file for file in (folder / "runs").glob("*/metrics.jsonl") if file.stat().st_size > 2000])
    (worker,) = workers_of(stopped.pid)
    stopped.send_signal(number)
    said, _ = stopped.communicate(timeout=60)
    wait_for(lambda: not Path(f"/proc/{worker}").exists(), 60)
    assert stopped.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert ("0 of 1 cell ended" in said) == (number != signal.SIGKILL)
    assert not list((folder / "cells").glob("*.json"))
    (run,) = (folder / "runs").glob("*/metrics.jsonl")
    steps = [row["step"] for row in RunDirectory(run.parent).read_metrics()]
    assert (run.parent / "checkpoints" / "last.ckpt").exists()
    assert max(steps) < 2000
    if number == signal.SIGKILL:
        goes_on = runner(image_folder, folder, [0], 1, epochs=400)
        wait_for(lambda: len(starts(folder)[run.parent.name]) == 2)
        goes_on.terminate()
        goes_on.communicate(timeout=60)
        assert starts(folder)[run.parent.name] == ["start", "resume"]


def test_a_stop_in_this_process_is_an_exception(image_folder: Path, tmp_path: Path) -> None:
    timer = threading.Timer(2, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(Interrupted, match="0 of 1 cell ended, the others saved; go on with the same words"):
        run_cells([cell(image_folder, epochs=400)], tmp_path / "study")


def test_two_cells_that_are_the_same_run_are_run_once(image_folder: Path, tmp_path: Path) -> None:
    pair = [cell(image_folder), cell(image_folder, evaluations=("fewshot",), checkpoint_steps=3)]
    first, second = run_cells(pair, tmp_path / "study", workers=2)
    assert first.names.training == second.names.training
    assert first.state == second.state == "done"
    assert list(starts(tmp_path / "study").values()) == [["start"]]


def test_progress_is_told_where_nothing_is_a_terminal(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cells([cell(image_folder)], tmp_path / "study", quiet=False)
    told = capsys.readouterr().err
    assert "1 cell, 1 to do, about" in told
    assert "cells 0/1, 1 at work, about" in told
    assert "(simclr, seed 0) done in" in told
    run_cells([cell(image_folder)], tmp_path / "study", quiet=False)
    assert "1 cell, 0 to do" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [{"keep": "some"}, {"workers": 0}, {"threads": 0}])
def test_wrong_words_are_refused_before_any_work(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="keep is one of: none, weights, all; workers and threads are at least 1"):
        run_cells([cell("digits")], tmp_path / "study", **wrong)
    assert not (tmp_path / "study").exists()


def test_a_setting_without_effect_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    idle = Cell(data="digits", settings=SETTINGS | {"objective": {"kl_weight": 2.0}, "training": {"batch_size": 10**6}})
    (one,) = run_cells([idle], tmp_path / "study")
    assert one.state == "failed"
    assert "has no effect: objective.kl_weight" in caplog.text
