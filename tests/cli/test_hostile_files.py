"""Commands on damaged and hostile files: one line for the user, never a traceback, never a control character."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.faults.readers import (
    HOSTILE,
    MUTATED,
    READERS,
    Count,
    call,
    commands,
    damageable,
    hostile_settings,
    make_run,
    mutated,
    mutated_file,
    terminal_injection,
    without_work,
)
from benchmarks.faults.trees import edited
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run."""
    return make_run(tmp_path_factory.mktemp("faults"))


def no_content_is_lost(run: Path, name: str, count: int, *, is_repeatable: bool) -> None:
    """Try so many contents of a file; hypothesis shrinks one that a command does not survive."""
    with damageable(run, name) as (raw, losses_with):
        longest = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

        @settings(max_examples=count, derandomize=is_repeatable, **longest)
        @given(st.randoms(use_true_random=False), st.sampled_from((edited, mutated)))
        def survives(drawn: random.Random, change: Callable[[bytes, random.Random], bytes]) -> None:
            assert losses_with(change(raw, drawn)) == []

        survives()


@pytest.mark.parametrize("name", READERS)
def test_no_content_of_a_file_of_a_run_crashes_a_command(name: str, run: Path) -> None:
    no_content_is_lost(run, name, 20 if name == "settings.toml" else 80, is_repeatable=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_none_of_ten_thousand_contents_crashes_a_command(name: str, run: Path) -> None:
    no_content_is_lost(run, name, 10_000, is_repeatable=False)


@pytest.mark.parametrize("name", READERS)
def test_no_fault_in_a_file_of_a_run_crashes_a_command(name: str, run: Path) -> None:
    assert len(READERS) == len(MUTATED) + 2  # the three files of a study are one row
    found = mutated_file(run, name, count=3, seed=1, show=True)
    assert found == Count(3, 3, 0)


def test_no_hostile_settings_crash_a_command(run: Path) -> None:
    found = hostile_settings(run, show=True)
    assert found.tried > 300
    assert found.lost == 0


def test_nothing_that_a_terminal_obeys_is_printed(run: Path) -> None:
    found = terminal_injection(run, show=True)
    assert found.tried > 150
    assert found.lost == 0


def fifo(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [fifo, loop, Path.mkdir])
@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "settings.toml", "evaluations/x.json"])
def test_what_is_no_file_neither_crashes_nor_stops_a_command(
    make: Callable[[Path], None], name: str, run: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / name).unlink(missing_ok=True)
    make(copy / name)
    with without_work():
        for words in commands(copy, tmp_path / "out").values():
            assert not call(*words).is_lost


def test_a_pipe_in_place_of_weights_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for more in ([], ["--backbone", "resnet18"]):
        outcome = call("evaluate", "knn", str(tmp_path / "pipe"), "--data", "digits", *more)
        assert outcome.code == 2
        assert "it is a pipe or a device" in outcome.said


def test_a_name_that_no_system_takes_is_one_line(run: Path) -> None:
    for verb in (["describe"], ["evaluate", "knn"], ["compare"], ["verify"]):
        outcome = call(*verb, "a" * 5000)
        assert outcome.code in (1, 2)
        assert outcome.said.count("\n") == 1
        assert len(outcome.said) < 5000


def test_an_error_is_one_line_and_json_even_if_a_name_has_several() -> None:
    outcome = call("describe", HOSTILE, "--json")
    told, answer = outcome.said.rstrip("\n").split("\n")
    assert told.startswith("error: ")
    assert json.loads(answer)["error"] == f"no run, recipe or method is called {HOSTILE!r}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "1" + "0" * 20], "training.epochs is a number of more than 18 digits (--epochs)"),
        (["--epochs", "1" + "0" * 400], "training.epochs is a number of more than 18 digits"),
        (["--epochs", "10000000"], "training.epochs is 10000000, it must be at most 1,000,000 (--epochs)"),
        (["--devices", "100000"], "training.devices is 100000, it must be at most 1,024"),
        (["--set", "method.hidden_dim=1000000"], "method.hidden_dim is 1000000, it must be at most 65,536"),
        (["--set", "optimizer.lr=" + "9" * 400], "it must be a number"),
        (["--set", "data.mean=[" + "0.5," * 2000 + "]"], "data.mean has 2,000 values, it may have 1,000"),
        (["--set", "data.root=" + "a" * 5000], "data.root has 5,000 letters, it may have 4,096"),
    ],
)
def test_a_number_that_no_run_can_have_is_refused(words: list[str], message: str, tmp_path: Path) -> None:
    outcome = call("pretrain", "--data", "digits", "--out", str(tmp_path / "run"), "--method", "simclr", *words)
    assert outcome.code == 2
    assert message in outcome.said
    assert len(outcome.said) < 5000


def test_seeds_and_intervals_may_be_large() -> None:
    from iecl.training.config import make_config

    sets = ["training.seed=9223372036854775807", "training.meter_steps=1000000000", "data.cache_megabytes=4000000"]
    assert make_config(flags={"data": {"name": "digits"}}, sets=sets).training.seed == 2**63 - 1


def test_settings_that_lost_a_choice_are_not_trained_with(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "summary.json").unlink()
    text = (copy / "settings.toml").read_text(encoding="utf-8")
    (copy / "settings.toml").write_text("\n".join(line for line in text.split("\n") if "image_size" not in line))
    outcome = call("pretrain", "--resume", "--out", str(copy))
    assert outcome.code == 2
    assert "is not the record of a run: it does not say data.image_size" in outcome.said


@pytest.mark.parametrize("content", ["{", "[]", '{"measured": {}}', '{"measured": {"settings": {}}, "seconds": "x"}'])
def test_a_forecast_that_cannot_be_read_loses_no_run(content: str, run: Path, tmp_path: Path) -> None:
    from iecl.errors import UserError
    from iecl.runs.directory import RunDirectory
    from iecl.training.config import read_config
    from iecl.training.forecast import held_against

    (tmp_path / "forecast.json").write_text(content)
    if content == "{":  # the whole way, once
        outcome = call("pretrain", "--recipe", str(run), "--out", str(tmp_path), "--epochs", "1")
        assert outcome.code == 0
        assert "the forecast cannot be compared" in outcome.said
        assert json.loads((tmp_path / "summary.json").read_text())["finished"]
    with pytest.raises(UserError, match=r"forecast\.json is damaged"):
        held_against(RunDirectory(tmp_path), read_config(RunDirectory(run)), {}, 1.0)
