"""Cells in processes: they fail alone, survive kills, are shared by runners, and are never done twice."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from iecl import counter
from iecl.errors import UserError
from iecl.runs.directory import RunDirectory
from iecl.studies.cell import Cell, Measurement
from iecl.studies.engine import CellStatus, look_at_cells, run_cells, seconds_left
from iecl.studies.folder import StudyFolder
from iecl.weights.file import load_weights
from made_images import make_images
from made_runs import MadeRun

SETTINGS = {
    "method": {"name": "simclr", "hidden_dim": 16, "out_dim": 8},
    "backbone": {"name": "resnet10-w16"},
    "data": {"image_size": 16},
    "training": {"epochs": 2, "batch_size": 8, "precision": "32-true", "meter_steps": 2, "log_steps": 1},
}
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="children are found as Linux lists them")


def cell(data: Path | str, *evaluations: str, **training: Any) -> Cell:
    settings = SETTINGS | {"training": {**SETTINGS["training"], **training}}
    return Cell(
        data=str(data), settings=settings, evaluations=tuple(Measurement(name=name) for name in evaluations or ["knn"])
    )


def scores(one: CellStatus) -> list[Any]:
    assert one.state == "done", one.record
    return [[part["numbers"], part["hits"], part["protocol_hash"]] for part in one.record["evaluations"].values()]


def starts(folder: Path) -> list[list[str]]:
    """How each run was started and resumed."""
    histories = (folder / "runs").glob("*/history.jsonl")
    return [[json.loads(line)["kind"] for line in file.read_text().splitlines()] for file in histories]


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


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `images` and a `study` of one cell, with everything kept."""
    place = tmp_path_factory.mktemp("finished")
    (one,) = run_cells([cell(make_images(place))], place / "study", keep="all")
    assert one.state == "done", one.record
    return place


def test_a_record_is_small_and_says_what_a_number_rests_on(finished: Path) -> None:
    (one,) = look_at_cells([cell(finished / "images")], finished / "study")
    (file,) = (finished / "study" / "cells").glob("*.json")
    assert file.stat().st_size < 8000
    assert str(finished) not in file.read_text()  # what was trained on, not where it lay
    record = one.record
    assert record["settings"]["method.hidden_dim"] == 16
    assert [record["environment"][key] for key in ("device", "precision", "threads")] == ["cpu", "32-true", 1]
    assert record["code"]["iecl"]
    assert record["training"]["images"] == 40
    assert record["training"]["seconds"] > 0
    assert record["training"]["verdict"]
    (measured,) = record["evaluations"].values()
    assert measured["protocol_id"].startswith("knn/1 k=20")
    assert list(measured["numbers"]) == ["top1"]
    assert len(measured["hits"]) == 2  # eight test images
    longer = look_at_cells([cell(finished / "images"), cell(finished / "images", epochs=1000)], finished / "study")
    assert [other.state for other in longer] == ["done", "waiting"]
    expected = 1000 * 40 / record["training"]["images_per_second"]
    assert seconds_left(longer, workers=2) == pytest.approx((10 + expected + measured["seconds"]) / 2)


def test_another_evaluation_trains_nothing_and_folders_are_packed_once(finished: Path, tmp_path: Path) -> None:
    images, folder = finished / "images", shutil.copytree(finished / "study", tmp_path / "study")
    (packed,) = (folder / "data").glob("*.iecl")
    made = packed.stat().st_mtime_ns
    cells = [cell(images), cell(images, "fewshot", checkpoint_steps=3)]  # which is the same run
    before, waiting = look_at_cells(cells, folder)
    assert waiting.state == "waiting"
    first, second = run_cells(cells, folder, keep="weights", workers=0)
    assert first.state == second.state == "done"
    assert first.names == before.names
    assert first.names.training == second.names.training
    assert {key: first.record["evaluations"][key] for key in first.names.evaluations} == before.record["evaluations"]
    assert starts(folder) == [["start"]]
    assert packed.stat().st_mtime_ns == made
    assert not (folder / "runs" / first.names.training / "checkpoints").exists()
    assert (folder / "runs" / first.names.training / "weights.safetensors").exists()
    assert run_cells(cells, folder)[0].record == first.record


@pytest.mark.parametrize(("keep", "left"), [("none", []), ("weights", ["weights"]), ("all", ["last", "weights"])])
def test_a_finished_run_keeps_what_was_asked_for(tmp_path: Path, keep: str, left: list[str]) -> None:
    place, run = StudyFolder(tmp_path), RunDirectory.fresh(tmp_path / "runs" / "one")
    for file in (run.weights, run.checkpoints / "last.ckpt"):
        file.write_bytes(bytes(2**20))
    assert place.megabytes() == 2
    place.tidy("one", keep)
    assert sorted(file.stem for file in run.path.rglob("*.*")) == left if run.path.exists() else not left


def test_moments_that_were_asked_for_stay_with_the_weights(tmp_path: Path) -> None:
    place, run = StudyFolder(tmp_path), RunDirectory.fresh(tmp_path / "runs" / "one")
    for file in (run.weights, run.checkpoints / "last.ckpt", run.kept_checkpoint(0), run.kept_checkpoint(5)):
        file.write_bytes(b"")
    place.tidy("one", "weights")
    assert sorted(file.name for file in run.path.rglob("*.*")) == [
        "epoch-0.ckpt",
        "epoch-5.ckpt",
        "weights.safetensors",
    ]


def test_cells_in_this_process_give_the_same_scores_and_fail_alone(finished: Path, tmp_path: Path) -> None:
    images = finished / "images"
    broken = Cell(data=str(images), settings=SETTINGS | {"optimizer": {"name": "sgd", "lr": 1e30}})
    threads = torch.get_num_threads()
    bad, good = run_cells([broken, cell(images)], tmp_path / "study", workers=0)
    assert (bad.state, bad.record["error"]) == ("failed", "loss/contrast became NaN or infinite at step 2")
    (alone,) = look_at_cells([cell(images)], finished / "study")
    assert scores(good) == scores(alone)
    assert torch.get_num_threads() == threads


def test_one_failing_cell_leaves_the_others_and_is_run_again_on_request(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    idle, folder = {"objective": {"kl_weight": 2.0}}, tmp_path / "study"
    broken = Cell(data=str(image_folder), settings=SETTINGS | idle | {"optimizer": {"name": "sgd", "lr": 1e30}})
    first = run_cells([cell(image_folder), broken], folder, workers=2, quiet=False)
    assert [one.state for one in first] == ["done", "failed"]
    assert first[1].record["error"] == "loss/contrast became NaN or infinite at step 2"
    told = capsys.readouterr().err  # no terminal: whole lines, and few of them
    assert "has no effect: objective.kl_weight: objective.kl is none" in told
    assert "2 cells, 2 to do, about" in told
    assert "cells 0/2, 2 at work, about" in told
    assert "(simclr, seed 0) done in" in told
    assert "(simclr, seed 0) failed after" in told
    (same,) = run_cells([broken], folder)
    assert same.record == first[1].record
    (again,) = run_cells([broken], folder, retry=True, workers=0)
    assert again.state == "failed"
    assert again.record["time"] > same.record["time"]
    assert [one.state for one in look_at_cells([cell(image_folder), broken], folder)] == ["done", "failed"]


def test_cells_of_a_validation_run_are_measured_on_images_it_never_saw(image_folder: Path, tmp_path: Path) -> None:
    settings = SETTINGS | {"data": {"image_size": 16, "validation": True}}
    asked = (Measurement(name="knn"), Measurement(name="knn", part="test"))
    (one,) = run_cells(
        [Cell(data=str(image_folder), settings=settings, evaluations=asked)], tmp_path / "study", workers=0
    )
    on_tenth, on_fifth = (one.record["evaluations"][key] for key in one.names.evaluations)
    assert one.record["training"]["images"] == on_tenth["n_train"]  # of the four fifths that are not for testing
    assert on_tenth["n_train"] + on_tenth["n_test"] == on_fifth["n_train"] == 32
    assert on_fifth["n_test"] == 8
    assert on_tenth["protocol_hash"] != on_fifth["protocol_hash"]


@pytest.mark.slow
@on_linux
def test_a_cell_that_is_killed_again_and_again_gives_the_scores_of_one_left_alone(
    image_folder: Path, tmp_path: Path
) -> None:
    asked = [cell(image_folder, "knn", "linear", epochs=24)]
    (undisturbed,) = run_cells(asked, tmp_path / "calm")
    run = RunDirectory(tmp_path / "killed" / "runs" / undisturbed.names.training)
    states = []
    for delay in counter.uniform(counter.key(5, "kills"), torch.arange(3)).flatten().tolist():
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
    assert "resume" in starts(tmp_path / "killed")[0]


PROGRAM = """
import json, sys
from iecl.studies.cell import Cell
from iecl.studies.engine import run_cells
from iecl.errors import Interrupted
data, folder, settings, seeds = sys.argv[1:]
cells = [Cell(data=data, seed=seed, settings=json.loads(settings)) for seed in json.loads(seeds)]
try:
    print([one.state for one in run_cells(cells, folder)])
except Interrupted as problem:
    print(problem)
    sys.exit(128 + problem.signal)
"""


def runner(data: Path, folder: Path, seeds: list[int], **training: Any) -> "subprocess.Popen[str]":
    settings = SETTINGS | {"training": {**SETTINGS["training"], **training}}
    words = [sys.executable, "-c", PROGRAM, str(data), str(folder), json.dumps(settings), json.dumps(seeds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_runners_share_the_cells_and_never_run_one_twice(image_folder: Path, tmp_path: Path) -> None:
    both = [runner(image_folder, tmp_path / "study", seeds) for seeds in ([0, 1, 2], [2, 1, 0])]
    said = [one.communicate() for one in both]
    assert [one[0].strip() for one in said] == [str(["done"] * 3)] * 2, said
    assert starts(tmp_path / "study") == [["start"]] * 3


def test_cells_at_a_time_have_a_gpu_each_unless_they_ask_for_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    class Process:
        """One that fails at once, but is seen to have ended only when looked at again."""

        def __init__(self, *_: Any, env: dict[str, str], **__: Any) -> None:
            given.append(env.get("CUDA_VISIBLE_DEVICES", "all"))
            self.stdin, self.returncode, self.looks = io.StringIO(), 1, 0

        def poll(self) -> int | None:
            self.looks += 1
            return 1 if self.looks > 1 else None

        def communicate(self) -> tuple[str, str]:
            return "", ""

    monkeypatch.setattr("iecl.studies.engine.subprocess.Popen", Process)
    monkeypatch.setattr("iecl.training.machine.visible_gpus", lambda: ["3", "5"])
    found = run_cells([replace(cell("digits"), seed=seed) for seed in range(3)], tmp_path / "one", workers=2)
    assert [one.state for one in found] == ["failed"] * 3
    assert sorted(given[:2]) == ["3", "5"]
    assert given[2] in ("3", "5")
    given.clear()
    run_cells([cell("digits", devices=2)], tmp_path / "both", workers=2)
    monkeypatch.setattr("iecl.training.machine.visible_gpus", lambda: ["0"])
    run_cells([cell("digits")], tmp_path / "alone", workers=2)
    assert given == ["all", "all"]


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_runner_that_is_stopped_leaves_no_process_and_the_same_call_goes_on(
    image_folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "study"
    stopped = runner(image_folder, folder, [0], epochs=400)
    wait_for(lambda: [file for file in (folder / "runs").glob("*/metrics.jsonl") if file.stat().st_size > 2000])
    (worker,) = workers_of(stopped.pid)
    stopped.send_signal(number)
    said, _ = stopped.communicate(timeout=60)
    wait_for(lambda: not Path(f"/proc/{worker}").exists(), 60)
    assert stopped.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert ("stopped with 0 of 1 cell ended, the others saved" in said) == (number == signal.SIGTERM)
    assert not list((folder / "cells").glob("*.json"))
    (saved,) = (folder / "runs").glob("*/checkpoints/last.ckpt")
    steps = [row["step"] for row in RunDirectory(saved.parents[1]).read_metrics()]
    assert torch.load(saved, weights_only=True)["step"] == max(steps) < 2000  # nothing that was trained is lost
    if number == signal.SIGKILL:
        goes_on = runner(image_folder, folder, [0], epochs=400)
        wait_for(lambda: starts(folder) == [["start", "resume"]])
        goes_on.terminate()
        goes_on.communicate(timeout=60)


@pytest.mark.parametrize("wrong", [{"keep": "some"}, {"workers": -1}, {"threads": 0}])
def test_wrong_words_are_refused_before_any_work(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(
        UserError, match="keep is one of: none, weights, all; workers are at least 0, threads at least 1"
    ):
        run_cells([cell("digits")], tmp_path / "study", **wrong)
    assert not (tmp_path / "study").exists()


def test_a_damaged_record_is_named(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished / "study", tmp_path / "study")
    (file,) = (folder / "cells").glob("*.json")
    file.write_text('{"training": 5}')
    with pytest.raises(UserError, match=r"cells/\w+.json is damaged: training is not a table"):
        look_at_cells([cell(finished / "images")], folder)


def test_a_cell_starts_from_the_weights_it_names(tmp_path: Path) -> None:
    source = MadeRun(tmp_path / "source")
    source.save_weights()
    still = {"optimizer": {"lr": 1e-30, "weight_decay": 0.0}}
    one = replace(cell(make_images(tmp_path), epochs=1), init_from=str(source.directory.path))
    one = replace(one, settings={**one.settings, **still})
    (done,) = run_cells([one], tmp_path / "study", workers=0)
    assert done.state == "done", done.record
    assert done.record["init_from"].startswith("weights-")
    (file,) = (tmp_path / "study" / "runs").glob("*/weights.safetensors")
    trained, begun = (load_weights(path)[0]["conv1.weight"] for path in (file, source.directory.weights))
    assert torch.equal(trained, begun)
