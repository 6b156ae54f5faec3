"""A run directory and an export that were written under the first names are read, gone on with, and compared."""

import shutil
import tarfile
from pathlib import Path

import pytest

import iecl
from iecl.cli.command import main
from iecl.comparison.results import read_result
from iecl.runs.directory import RunDirectory
from iecl.training.config import read_config

ARCHIVE = Path(__file__).parent / "fixtures" / "first-names.tar.xz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The folder with `run` and `export.safetensors`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_an_old_run_is_described_with_the_names_of_today(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = read_config(RunDirectory(old / "run"))
    assert (config.optimizer.lr, config.optimizer.grad_clip, config.training.grad_accumulation) == (1e-30, 1.0, 2)
    assert config.method_settings().queue_size == 8
    assert iecl.load(old / "run").settings["augmentation"]["policy"] == "crop"
    assert "lr" in iecl.load(old / "run").metrics[1]
    assert main(["describe", str(old / "run")]) == 0
    assert "finished" in capsys.readouterr().out
    assert read_result(old / "run/evaluations/linear-digits-b3a6.json")["protocol"]["lr"] == 0.03


def test_an_old_run_goes_on_where_it_was_stopped(old: Path) -> None:
    run = old / "run"
    for name in ("summary.json", "weights.safetensors", "checkpoints/last.ckpt"):
        (run / name).unlink()
    (run / "checkpoints/previous.ckpt").rename(run / "checkpoints/last.ckpt")
    made = iecl.pretrain(out=run, resume=True, quiet=True)
    assert made.summary["finished"]
    assert made.summary["steps_before"] == 2
    assert [row["step"] for row in made.metrics if "loss" in row] == [1, 2, 3, 4]


def test_an_old_run_is_a_recipe_and_can_be_made_longer(old: Path) -> None:
    longer = iecl.extend(old / "run", 3, quiet=True)
    assert longer.summary["steps"] == 6
    assert "optimizer" in longer.settings


def test_old_weights_and_results_are_read(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(old / "export.safetensors")]) == 0
    before = read_result(old / "run/evaluations/knn-digits.json")
    shutil.rmtree(old / "run/evaluations")
    again = iecl.evaluate("knn", old / "run", quiet=True)
    assert again["top1"] == pytest.approx(before["top1"])
    assert again["protocol"] == before["protocol"]
    assert iecl.evaluate("knn", old / "export.safetensors", "digits")["top1"] == pytest.approx(before["top1"])


def test_a_run_that_named_its_host_as_its_method_goes_on_as_ie_cl_around_it(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE.with_name("second-names.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    config = read_config(RunDirectory(tmp_path / "run"))
    assert (config.method_name, config.host_name, config.saib.form) == ("ie-cl", "simclr", "certified")
    made = iecl.pretrain(out=tmp_path / "run", method="simclr", resume=True, quiet=True)
    assert made.summary["steps_before"] == 2
    assert made.summary["forecast"]["seconds"]["real"] > 0  # held against a forecast in plan.json
