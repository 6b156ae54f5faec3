"""Every `next:` line is a command that can be pasted and works."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import iecl
from iecl.cli.command import main
from made_images import TINY, make_images

SRC = Path(iecl.__file__).parent
FLAGS = ["--method", "simclr", "--backbone", "resnet10-w16", "--epochs", "1", "--batch-size", "8"]
FLAGS += [word for text in TINY for word in ("--set", text)]


@pytest.fixture
def unlabeled(tmp_path: Path) -> Path:
    """Images without classes, in a folder whose name must be quoted."""
    folder = tmp_path / "my photos"
    folder.mkdir()
    for file in make_images(tmp_path).rglob("*.png"):
        shutil.copyfile(file, folder / f"{file.parent.name}-{file.name}")
    return folder


def next_line(shown: str) -> list[str]:
    """The words of the only command that is offered."""
    (line,) = re.findall(r"^next: (.*)$", shown, re.MULTILINE)
    assert not re.search(r"\b[A-Z]{4,}\b", line.replace("PYTEST", "")), f"a placeholder: {line}"
    words = shlex.split(line)
    assert words[0] == "iecl"
    return words[1:]


def test_after_a_run_with_labels(image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "--data", str(image_folder), "--out", str(tmp_path / "a run"), *FLAGS]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^verdict: .*, online kNN [0-9.]+ % \(untrained [0-9.]+ %\)$", shown, re.MULTILINE)
    words = next_line(shown)
    assert words[:2] == ["evaluate", "knn"]
    assert main(words) == 0
    assert "pixels" in capsys.readouterr().out


def test_after_runs_without_labels_that_were_started_resumed_and_extended(
    unlabeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, halves = tmp_path / "a run", [f"{unlabeled}/{kind}*" for kind in ("red", "blue")]
    for command in (
        ["pretrain", "--data", halves[0], "--data", halves[1], "--out", str(run), *FLAGS],
        ["pretrain", "--out", str(run), "--resume"],
        ["extend", str(run), "--epochs", "2", "--out", str(tmp_path / "longer")],
    ):
        assert main(command) == 0
        words = next_line(capsys.readouterr().out)
        assert words[:1] == ["embed"]
        assert main([*words, "--overwrite"]) == 0
        assert "40 vectors" in capsys.readouterr().out


def test_what_compare_advises_for_runs_without_labels_works(
    unlabeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a run"
    assert main(["pretrain", "--data", str(unlabeled), "--out", str(run), *FLAGS]) == 0
    assert main(["compare", str(run), str(run)]) == 2
    (advised,) = re.findall(r"iecl (describe .*)$", capsys.readouterr().err, re.MULTILINE)
    assert main(shlex.split(advised)) == 0


def test_after_a_plan(unlabeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "planned")
    assert main(["plan", "--data", str(unlabeled), "--out", out, "--seconds", "0.5", *FLAGS]) == 0
    words = next_line(capsys.readouterr().out)
    assert main(words) == 0
    assert iecl.load(out).summary["finished"]


def test_of_a_packed_folder_and_of_a_file_of_weights(
    unlabeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(unlabeled), "--out", str(tmp_path / "my photos.iecl")]) == 0
    words = next_line(capsys.readouterr().out)
    out = str(tmp_path / "run")
    assert main([*words, "--out", out, *FLAGS]) == 0
    file = str(tmp_path / "a file.safetensors")
    assert main(["export", out, "--out", file]) == 0
    capsys.readouterr()
    assert main(["describe", file]) == 0
    (checked,) = re.findall(r"check it with: iecl (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert main(shlex.split(checked)) == 0


def test_after_a_look_at_images_with_a_copy_and_at_clean_ones(
    unlabeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = min(unlabeled.iterdir())
    shutil.copyfile(first, unlabeled / "zz copy.png")
    for number, left_out in enumerate((True, False)):
        assert main(["doctor", "--data", str(unlabeled), "--out", str(tmp_path / f"look {number}")]) == 0
        words = next_line(capsys.readouterr().out)
        assert ("--exclude" in words) is left_out
        assert main([*words, "--out", str(tmp_path / f"run {number}"), *FLAGS]) == 0
        capsys.readouterr()
        for file in unlabeled.iterdir():  # what is left is one image of each kind, nothing like another
            if left_out and file.name in Path(words[-1]).read_text(encoding="utf-8"):
                file.unlink()


def test_every_place_that_offers_a_next_command_is_tested_here() -> None:
    places = {file.stem for file in SRC.rglob("*.py") if re.search(r"f?\"next: ", file.read_text())}
    assert places == {"pretrain", "plan", "pack", "demo", "doctor"}


def test_the_demo_offers_its_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shares = {"knn_pretrained": 0.5, "knn_without_block": 0.4, "knn_random": 0.3, "knn_pixels": 0.2}
    monkeypatch.setattr("iecl.demo.demo", lambda out, **given: shares | {"run": out, "report": "page.html"})
    assert main(["demo", "--out", str(tmp_path / "a run"), "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["run"] == str(tmp_path / "a run")
    assert next_line(told.err) == ["describe", str(tmp_path / "a run")]
