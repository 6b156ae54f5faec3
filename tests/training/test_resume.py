"""What a run that goes on may change."""

import logging
from pathlib import Path

import pytest

from iecl.data.defaults import resolve_data
from iecl.errors import UserError
from iecl.runs.directory import RunDirectory
from iecl.training.config import make_config, with_data, with_norms
from iecl.training.resume import settings_to_resume


def run_of(tmp_path: Path, *sets: str) -> RunDirectory:
    run = RunDirectory.fresh(tmp_path / "run")
    config = make_config(flags={"data": {"name": "shapes"}}, sets=sets)
    run.settings.write_text(with_data(config, resolve_data(config.data)).to_toml("made for a test"))
    return run


def test_workers_and_processes_may_change_and_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = run_of(tmp_path, "training.devices=2", "data.num_workers=0")
    with caplog.at_level(logging.WARNING):
        config, changed = settings_to_resume(run, "", {}, ["training.devices=1", "data.num_workers=3"])
    assert (config.training.devices, config.data.num_workers) == (1, 3)
    assert list(map(str, changed)) == ["data.num_workers was 0, now 3", "training.devices was 2, now 1"]
    assert "training.devices was 2, now 1: images and draws stay the same" in caplog.text
    assert "workers" not in caplog.text


def test_batch_norm_is_named_only_where_it_sees_another_part_of_the_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(tmp_path, "training.devices=2", "method.norm_groups=4", "saib.form=certified")
    with caplog.at_level(logging.WARNING):
        settings_to_resume(run, "", {}, ["training.devices=1"])
    assert "rounding does not" in caplog.text
    assert "batch norm" not in caplog.text


@pytest.mark.parametrize(
    ("before", "now", "is_named"), [("on", "on", False), ("off", "off", True), ("on", "off", False)]
)
def test_synchronized_norms_may_change_and_see_the_same_with_any_number_of_processes(
    before: str, now: str, is_named: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(tmp_path, "training.devices=2", f"training.sync_batch_norm={before}")
    with caplog.at_level(logging.WARNING):
        settings_to_resume(run, "", {}, ["training.devices=1", f"training.sync_batch_norm={now}"])
    assert ("batch norm sees another part" in caplog.text) == is_named  # one process sees the whole batch anyway


def test_a_run_from_before_norms_could_be_synchronized_goes_on_without(tmp_path: Path) -> None:
    run = run_of(tmp_path, "training.devices=2")
    lines = [line for line in run.settings.read_text().splitlines() if "sync_batch_norm" not in line]
    run.settings.write_text("\n".join(lines))
    config, changed = settings_to_resume(run, "", {}, [])
    assert config.training.sync_batch_norm == "off"
    assert not changed


def test_what_decides_how_it_goes_on_may_not_change(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"keeps its settings: training\.seed was 0, now 1 .*use the same values"):
        settings_to_resume(run_of(tmp_path), "", {"training": {"seed": 1}}, [])


def test_a_block_as_wide_as_the_batch_keeps_its_processes(tmp_path: Path) -> None:
    run = run_of(tmp_path, "saib.form=batch", "training.devices=2")
    with pytest.raises(UserError, match=r"keeps its settings: training\.devices was 2, now 1"):
        settings_to_resume(run, "", {}, ["training.devices=1"])


@pytest.mark.parametrize(("groups", "asked", "chosen"), [(0, "auto", "on"), (4, "auto", "off"), (0, "off", "off")])
def test_norms_are_synchronized_unless_they_are_in_groups(groups: int, asked: str, chosen: str) -> None:
    sets = [f"method.norm_groups={groups}", f"training.sync_batch_norm={asked}"]
    config = make_config(method="moco-v2", flags={"data": {"name": "shapes"}}, sets=sets)
    assert with_norms(config).training.sync_batch_norm == chosen


def test_norms_in_groups_that_are_to_be_synchronized_are_refused() -> None:
    sets = ["method.norm_groups=4", "training.sync_batch_norm=on"]
    config = make_config(method="moco-v2", flags={"data": {"name": "shapes"}}, sets=sets)
    with pytest.raises(UserError, match=r"groups of the batch .*training.sync_batch_norm.*set the one to off"):
        with_norms(config)


def launched(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    for name, value in (("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", world), ("RANK", 0), ("LOCAL_RANK", 0)):
        monkeypatch.setenv(name, str(value))


def test_a_launcher_that_starts_another_number_of_processes_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, "training.devices=2")
    launched(monkeypatch, 4)
    config, changed = settings_to_resume(run, "", {}, [])
    assert config.training.devices == 4
    assert [str(change) for change in changed] == ["training.devices was 2, now 4"]
    for flags, sets in (({"training": {"devices": 2}}, []), ({}, ["training.devices=2"])):
        with pytest.raises(UserError, match="torchrun has started 4 processes"):
            settings_to_resume(run, "", flags, sets)
