"""`iecl plan`: real steps are tried, what follows from them, and how it compares with what happened."""

import json
from pathlib import Path
from typing import Any

import pytest

import iecl
from iecl.cli.command import main
from iecl.errors import TrainingError, UserError
from iecl.runs.claim import claim
from iecl.runs.directory import RunDirectory, write_json
from iecl.training.advice import forecast, memory_at, suggested_batch, suggested_workers, warnings_for
from iecl.training.config import RunConfig, make_config, with_norms
from iecl.training.forecast import _probe, comparison, held_against

RUN = {
    "backbone": "resnet10-w16",
    "epochs": 2,
    "batch_size": 16,
    "settings": {"method": {"hidden_dim": 16, "out_dim": 8}},
}


def measured(**changes: Any) -> dict[str, Any]:
    """What a probe of batches of 64 and 128 could have found."""
    rows = [
        {"batch": 64, "before": 0.0, "first": 0.5, "steps": [0.1, 0.1]},
        {"batch": 128, "before": 0.0, "first": 0.5, "steps": [0.1, 0.3]},
    ]
    found = {
        "rows": rows,
        "fixed_megabytes": 452.0,
        "image_megabytes": 1.5625,
        "processes": 1,
        "images": 1280,
        "opened": 1280,
        "open_seconds": 2.0,
        "knn_seconds": 0.001,
        "save_seconds": 0.5,
        "decode_seconds": 0.0,
        "is_in_memory": True,
        "checkpoint_megabytes": 10.0,
        "weights_megabytes": 4.0,
        "metrics_megabytes": 0.0,
        "free_megabytes": 8000,
        "least_batch": 2,
        "small_batch": {"below": 256, "reason": "its negatives are the other images of the batch"},
        "image_side": 32,
        "settings": {"method": {"name": "simclr", "queue_size": 0}},
    }
    return found | changes


def planned(batch: int = 128, method: str = "simclr", *sets: str) -> RunConfig:
    flags = {"data": {"name": "shapes"}, "training": {"batch_size": batch, "epochs": 10}}
    return make_config(method=method, flags=flags, sets=["data.image_size=32", "training.loggers=[]", *sets])


def test_a_forecast_adds_up_steps_and_what_comes_between_epochs() -> None:
    made = forecast(measured(), planned(), 128)
    assert made["steps_per_epoch"] == 10
    assert made["step_seconds"] == pytest.approx(0.2)
    knn = 0.001 * 1280
    assert made["epoch_seconds"] == pytest.approx(10 * 0.2 + 0.5 + knn)
    opening = 2.0 + (0.5 - 0.2)
    assert made["seconds"] == pytest.approx(opening + 10 * (10 * 0.2 + 0.5) + 11 * knn)  # and kNN before the first step
    assert made["memory_megabytes"] == 650
    assert made["disk_megabytes"] == pytest.approx(4 * 10 + 4)
    assert made["is_measured"]


def test_memory_grows_with_the_share_of_the_batch_that_one_process_has() -> None:
    found = measured()
    assert memory_at(found, 256) == 850
    assert memory_at(measured(processes=2), 256) == 650
    assert not forecast(found, planned(), 256)["is_measured"]


def test_a_batch_that_does_not_fit_is_halved_until_it_does() -> None:
    assert suggested_batch(measured(), planned()) == (128, "as planned: it fits")
    batch, why = suggested_batch(measured(free_megabytes=750), planned())
    assert (batch, why) == (64, "128 would take 650 MB of 750 MB that are free")
    assert suggested_batch(measured(images=100), planned())[0] == 64
    assert suggested_batch(measured(least_batch=256), planned())[0] == 256


def test_workers_are_as_many_as_decoding_needs() -> None:
    found = measured(is_in_memory=False, decode_seconds=0.005)
    count, why = suggested_workers(found, planned(), cores=8)
    assert count == 4  # 5 ms to decode, 200 ms / 128 to train
    assert "5.0 ms to decode" in why
    assert suggested_workers(found, planned(), cores=2)[0] == 2
    assert "4 would keep up, there are 2 cores" in suggested_workers(found, planned(), cores=2)[1]


@pytest.mark.parametrize(
    ("changes", "config", "words"),
    [
        ({}, planned(64), "a batch of 64 is small for simclr: its negatives are the other images of the batch"),
        ({"least_batch": 512}, planned(256), "simclr needs at least 512 images, the batch has 256"),
        ({"images": 100}, planned(256), "a batch of 256 is more than the 100 images there are"),
        (
            {"image_side": 20},
            planned(256),
            "views of 32 px are larger than the images, whose shorter side is 20 px",
        ),
        ({"free_megabytes": 600}, planned(256), "it would take 850 MB of memory, 600 MB are free"),
    ],
)
def test_what_speaks_against_a_plan_is_said(changes: dict[str, Any], config: RunConfig, words: str) -> None:
    (line,) = (line for line in warnings_for(measured(**changes), config) if line.startswith(words))
    assert line


def test_a_method_that_knows_of_no_small_batch_is_not_warned_of() -> None:
    assert warnings_for(measured(small_batch=None, images=20_000), planned(64, "moco-v2")) == []
    assert warnings_for(measured(), planned(64, "moco-v2"))
    assert warnings_for(measured(images=20_000), planned(256)) == []


@pytest.mark.parametrize(("sets", "others"), [([], []), (["training.seed=3"], ["training.seed was 0, now 3"])])
def test_a_run_is_held_against_the_forecast_of_the_same_settings(
    sets: list[str], others: list[str], tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path)
    made = {"measured": {"settings": planned().plain_values()}, "seconds": 100.0, "memory_megabytes": 500}
    write_json(run.forecast, made)
    really = with_norms(planned(128, "simclr", *sets))  # as a run resolves what it was given
    held = held_against(run, really, {"seconds": 110.0, "peak_memory_megabytes": 450}, 1.0)
    if others:
        assert held == {"other_settings": others}
    else:
        assert held["seconds"] == {"predicted": 100.0, "real": 110.0}
        assert held["memory_megabytes"] == {"predicted": 500.0, "real": 450}


@pytest.mark.slow
def test_real_steps_are_tried_and_the_run_is_held_against_them(
    image_folder: Path, tmp_path: Path, tiny: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    made = iecl.plan(image_folder, **RUN, sets=tiny, out=tmp_path / "run", seconds=60.0)
    assert made["images"] == 40
    assert [row["batch"] for row in made["measured"]["rows"]] in ([8], [8, 16])  # as far as the machine gets in time
    assert made["memory_megabytes"] > 100
    assert made["by_batch"][0]["images_per_second"] > 0
    assert any("is small for ie-cl" in line for line in made["warnings"])
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"forecast.json", ".lock"}
    assert capfd.readouterr().out == ""

    run = iecl.pretrain(image_folder, tmp_path / "run", sets=tiny, quiet=True, **RUN)
    held = run.summary["forecast"]
    assert held["seconds"]["real"] == run.summary["seconds"]
    assert held["memory_megabytes"]["predicted"] == made["memory_megabytes"]
    assert "were predicted, it took" in (run.path / "log.txt").read_text()

    again = iecl.pretrain(image_folder, tmp_path / "other", sets=[*tiny, "training.seed=3"], quiet=True, **RUN)
    write_json(RunDirectory(again.path).forecast, made)
    (again.path / "summary.json").unlink()
    other = iecl.pretrain(out=again.path, resume=True, quiet=True)
    assert other.summary["forecast"] == {"other_settings": ["training.seed was 0, now 3"]}
    assert "forecast.json was made for other settings" in comparison(other.summary["forecast"])


def test_the_command_shows_a_table_and_leaves_nothing_behind(
    image_folder: Path,
    tmp_path: Path,
    tiny: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    words = [word for text in [*tiny, "method.hidden_dim=16", "method.out_dim=8"] for word in ("--set", text)]
    command = ["plan", "--data", str(image_folder), "--method", "simclr", "--backbone", "resnet10-w16", *words]
    assert main([*command, "--batch-size", "64", "--seconds", "1", "--quiet", "--json"]) == 0
    shown = capsys.readouterr()
    assert "| batch" in shown.err
    assert "warning: a batch of 64 is more than the 40 images there are: it cannot train" in shown.err
    assert json.loads(shown.out)["suggested"]["batch_size"] == 32
    assert sorted(tmp_path.rglob("*")) == before


def test_a_place_that_holds_a_run_is_refused_before_any_step(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("")
    with pytest.raises(UserError, match="already holds a run"):
        iecl.plan("shapes", out=tmp_path)


def test_a_forecast_goes_with_the_run_that_it_was_of(tmp_path: Path) -> None:
    (tmp_path / "forecast.json").write_text("{}")
    with claim(tmp_path, overwrite=True):  # no run yet: it is of the one to come
        assert (tmp_path / "forecast.json").exists()
    (tmp_path / "settings.toml").write_text("")
    with claim(tmp_path, overwrite=True):
        assert not (tmp_path / "forecast.json").exists()


@pytest.mark.slow
def test_what_the_probe_refuses_reaches_the_user(image_folder: Path, tiny: list[str]) -> None:
    diverging = [*tiny, "optimizer.name=sgd", "optimizer.lr=1e30", "optimizer.warmup_epochs=0"]
    with pytest.raises(TrainingError, match=r"became NaN or infinite at step 2"):
        iecl.plan(image_folder, **RUN, sets=diverging, seconds=1.0)


def test_a_probe_that_dies_says_at_which_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    died = subprocess.CompletedProcess([], -9, stdout='{"trying": 512}\n')
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: died)
    with pytest.raises(UserError, match=r"ended with code -9 at batches of 512 .*give a smaller --batch-size"):
        _probe(planned(), 1.0, True, 0)
