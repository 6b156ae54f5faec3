"""`iecl bench` as a user types it, and `iecl.bench`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.bench import QUESTIONS, running
from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.turns import summary

import iecl
from iecl.cli.command import main
from iecl.registry import Entry


def measure(effort: Effort) -> Content:
    """A question that is answered at once."""
    results = {"first row": summary([2.0, 3.0, 4.0]) | {"goal": "at least 5"}}
    effort.keep({"results": results})
    effort.leave_out("a peer", "not installed")
    return {"results": results | {"second row": summary([float(effort.rounds_of(7))])}, "unit": "apples"}


def broken(effort: Effort) -> Content:
    effort.keep({"results": {"first row": summary([1.0])}})
    raise KeyboardInterrupt


@pytest.fixture
def _one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(QUESTIONS, "views", Entry(f"{__name__}:measure", "how many apples?"))
    monkeypatch.setitem(QUESTIONS, "growth", Entry(f"{__name__}:broken", "how long?"))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def test_list_shows_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and entry.summary in shown for name, entry in QUESTIONS.items())


def test_an_unknown_question_is_answered_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "vews", "--out", str(tmp_path / "out")]) == 2
    assert "error: no question is called 'vews' (QUESTION); did you mean views?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "nowhere"], "there is no folder nowhere (--data)"),
        (["--rounds", "-1"], "-1 rounds cannot be measured (--rounds)"),
        (["--out", "FILE"], "(--out)"),
    ],
)
def test_wrong_use_is_told_before_anything_is_measured(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("x", encoding="utf-8")
    assert main(["bench", "views", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("_one_question")
def test_rows_go_to_the_terminal_and_files_as_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "views", "--out", str(tmp_path), "--rounds", "3"]) == 0
    shown = capsys.readouterr()
    assert "views: how many apples?" in shown.err
    assert "first row: 3, at least 5: no" in shown.err
    assert shown.err.count("first row") == 1
    assert "left out: a peer (not installed)" in shown.err
    assert "| second row | 3 " in shown.out
    assert str(tmp_path / "bench.md") in shown.out
    (file,) = (tmp_path / "views").glob("*.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["left_out"] == ["a peer (not installed)"]
    assert "is_unfinished" not in found
    assert "is_quick" not in found
    assert "load_before" in found


@pytest.mark.usefixtures("_one_question")
def test_json_is_the_last_line_and_the_only_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "views", "--out", str(tmp_path), "--quick", "--json", "--quiet"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["page"] == str(tmp_path / "bench.md")
    assert found["questions"]["views"]["results"]["second row"]["median"] == 2.0
    assert Path(found["questions"]["views"]["file"]).is_file()


@pytest.mark.usefixtures("_one_question")
def test_a_measurement_that_is_broken_off_leaves_its_rows(tmp_path: Path) -> None:
    assert main(["bench", "growth", "--out", str(tmp_path), "--quiet"]) == 130
    (file,) = (tmp_path / "growth").glob("*.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["is_unfinished"] is True
    assert "Not finished" in (tmp_path / "bench.md").read_text(encoding="utf-8")
    assert found["results"]["first row"]["median"] == 1.0


@pytest.mark.usefixtures("_one_question")
@pytest.mark.parametrize(("load", "warns"), [(1.1, True), (0.9, False)])
def test_a_busy_machine_is_warned_about(
    load: float, warns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(running, "usable_cores", lambda: 2)
    iecl.bench(["views"], tmp_path)
    assert ("the machine is busy" in capsys.readouterr().err) is warns


@pytest.mark.parametrize("words", [["--list"], ["--help"], ["views"]])
def test_an_installed_package_says_that_bench_needs_a_clone(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iecl.repository.ROOT", tmp_path)
    assert main(["bench", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: iecl bench works from a clone of the repository")
    assert "git clone" in line
    assert "make setup" in line


def test_bench_is_found_from_any_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "iecl", "bench", "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_help_and_list_do_not_load_torch() -> None:
    program = (
        "import contextlib, sys\nfrom iecl.cli.command import main\n"
        "with contextlib.suppress(SystemExit): main(['bench', '--help'])\n"
        "main(['bench', '--list'])\nassert not {'torch', 'torchvision', 'sklearn', 'numba'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
