"""Exhibits from beginning to end at the scale of a smoke test: tables, figures, resuming, what a step takes."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

import iecl
from iecl.reproduction.exhibit import ORDER, find_exhibit
from iecl.reproduction.steps import seconds_before_epoch
from iecl.runs.directory import write_json
from made_images import make_images
from made_voc import MadeVoc

QUICK = ("T4", "F5", "F8")
"""Exhibits that the default tests make: a table, a gallery, curves. The others are slow together."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduced")
    make_images(folder)
    return folder


def smoke(name: str, place: Path, out: str = "out", **options: Any) -> dict[str, Any]:
    data = [str(place / "images"), *options.pop("more", [])]
    return iecl.reproduce(name, place / out, scale="smoke", data=data, quiet=True, **{"workers": 0, **options})


@pytest.mark.parametrize("name", QUICK)
def test_an_exhibit_leaves_tables_and_figures_without_paths(name: str, place: Path) -> None:
    made = smoke(name, place)
    assert {cell["state"] for cell in made["cells"]} == {"done"}
    assert made["verdict"] == "not testable here"
    files = {kind: Path(path) for kind, path in made["files"].items()}
    assert set(files) == {"md", "csv", "json", "png", "svg"}
    assert files["svg"].read_text().startswith("<?xml")
    found = json.loads(files["json"].read_text())
    assert str(place) not in files["json"].read_text() + files["md"].read_text()
    assert {key: found[key] for key in ("exhibit", "scale", "data")} == {
        **{"exhibit": name, "scale": "smoke", "data": ["images"]}
    }
    assert found["environment"]["torch"]
    table = list(csv.DictReader(files["csv"].read_text().splitlines()))
    assert len(table) == sum(len(row["values"]) for panel in found["panels"] for row in panel["rows"]) > 0
    with Image.open(files["png"]) as image:
        assert min(image.size) > 300


def test_a_gallery_shows_augmentations_and_the_block_at_its_moments(place: Path) -> None:
    rows = [(row["name"], row["note"]) for row in smoke("F5", place)["gallery"]["rows"]]
    assert rows[0][0] == "original"
    assert [note for name, note in rows if name == "behind the block"] == [
        "0 % of training, 0 epochs",
        "100 % of training, 1 epoch",
    ]
    assert [name for name, _ in rows].count("difference") == 2
    assert {"crop", "hue", "query view"} <= {name for name, _ in rows}


def test_curves_have_points_of_every_reading_and_the_block_of_the_host_alone_adds_nothing(place: Path) -> None:
    curves = smoke("F8", place)["curves"]
    assert list(curves) == ["iecl/gain_total", "iecl/gain_rest", "loss/contrast"]
    for reading in curves.values():
        for points in (points for seeds in reading["rows"].values() for points in seeds.values()):
            assert points
    ((_, certified),) = curves["iecl/gain_total"]["rows"]["certified block"][0]
    assert certified > 0  # by construction


def test_what_is_finished_is_not_run_again_and_can_be_looked_at(place: Path) -> None:
    first = smoke("T4", place)
    runs = place / "out" / "runs"
    before = {file: file.stat().st_mtime_ns for file in runs.glob("*/weights.safetensors")}
    again = smoke("T4", place)
    seen = smoke("T4", place, look=True)
    assert before == {file: file.stat().st_mtime_ns for file in runs.glob("*/weights.safetensors")}
    assert first["panels"] == again["panels"] == seen["panels"]
    assert "files" not in seen


def test_a_dry_run_takes_steps_and_then_the_list_knows_time_and_memory(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iecl.reproduction.forecast import expect
    from iecl.reproduction.plan import read_wish

    monkeypatch.setenv("IECL_CACHE", str(tmp_path / "not there yet"))
    wish = read_wish(find_exhibit("F7"), "smoke", [str(place / "images")])
    assert expect(wish) == {"cells": 2, "hours": None, "gigabytes": None}
    made = smoke("F7", place, out="dry", dry=True)
    assert [row["row"] for row in made["rows"]] == ["MoCo-v2", "+ block"]
    assert all(row["seconds"] > 0 and row["megabytes"] > 100 for row in made["rows"])
    assert made["disk_megabytes"] > 1
    assert not (place / "dry").exists()
    known = expect(wish)
    assert known["hours"] > 0
    assert known["gigabytes"] == max(row["megabytes"] for row in made["rows"]) / 1024


def test_time_per_epoch_holds_what_comes_before_the_first_step() -> None:
    def batches() -> Any:
        yield from ()

    class Loop:
        source = range(10)

        def begin_epoch(self) -> Any:
            time.sleep(0.05)
            return batches()

    steps: Any = SimpleNamespace(loop=Loop(), batches=batches())
    assert 0.005 <= seconds_before_epoch(steps) < 0.5


def test_looking_at_timed_steps_times_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iecl.reproduction.steps.measured_panels", lambda *_, **__: pytest.fail("it was measured"))
    assert "not measured yet" in smoke("F9", place, out="timed", look=True)["text"]
    made = {"exhibit": "F9", "title": "x", "claim": "x", "scale": "smoke", "data": [], "verdict": "x", "why": "x"}
    made |= {"panels": [], "claims": [], "cells": [], "notes": ["seen before"], "reference": "x"}
    (place / "timed" / "F9-smoke").mkdir(parents=True)
    write_json(place / "timed" / "F9-smoke" / "results.json", made)
    assert "seen before" in smoke("F9", place, out="timed", look=True)["text"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ORDER if name not in QUICK])
def test_every_exhibit_runs(name: str, place: Path, tmp_path: Path) -> None:
    more = []
    if find_exhibit(name).needs:
        voc = MadeVoc(tmp_path)
        for number in range(4):
            voc.add(f"{number}", [("bird", (5, 5, 30, 30))], seed=number)
        voc.lists("train", ["0", "1"])
        voc.lists("val", ["2", "3"])
        more = [f"voc={voc.devkit}"]
    if name == "sensitivity":  # it keeps images for validation, and too few are left of the others
        made = iecl.reproduce(name, place / "out", scale="smoke", quiet=True, workers=0)
    else:
        made = smoke(name, place, more=more)
    assert [cell for cell in made["cells"] if cell["state"] != "done"] == []
    assert all(row["n"] for panel in made["panels"] for row in panel["rows"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["T1", "T2a", "T2b", "T3", "T4", "T5"])
def test_every_run_of_the_papers_tables_can_be_built_at_full_scale(name: str) -> None:
    made = iecl.reproduce(name, scale="full", data=["voc=."] if name == "T2b" else [], dry=True, quiet=True)
    assert made["rows"]
    assert [row for row in made["rows"] if "error" in row] == []
    assert made["hours"] > 1


def command(place: Path, out: str) -> "subprocess.Popen[str]":
    words = ["reproduce", "T4", "--scale", "smoke", "--data", str(place / "images"), "--epochs", "60", "--retry"]
    return subprocess.Popen([sys.executable, "-m", "iecl", *words, "--out", str(place / out), "--quiet"], text=True)


def values(place: Path, out: str) -> Any:
    made = json.loads((place / out / "T4-smoke" / "results.json").read_text())
    return [[row["row"], row["values"]] for panel in made["panels"] for row in panel["rows"]]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are found as Linux lists them")
def test_an_exhibit_that_is_killed_between_cells_and_within_one_ends_with_the_same_numbers(place: Path) -> None:
    assert command(place, "calm").wait() == 0
    records = place / "killed" / "cells"
    for done in (0, 1):  # in the first cell; in a later one, with a cell finished
        process = command(place, "killed")
        end = time.monotonic() + 300
        while len(list(records.glob("*.json"))) < done or not any((place / "killed" / "runs").glob("*/metrics.jsonl")):
            assert time.monotonic() < end
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
        process.wait()
    assert command(place, "killed").wait() == 0
    assert values(place, "killed") == values(place, "calm")
