"""Three intents, three spellings: resume, extend, start from weights."""

import json
import logging
from pathlib import Path

import pytest
import torch

import iecl
from iecl.errors import UserError
from iecl.evaluation.model import load_model
from iecl.runs.checkpoint import latest_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.settings import read_toml
from iecl.training.config import config_from_values
from iecl.weights.file import fingerprint

SMALL = {"method": {"hidden_dim": 16, "out_dim": 8}}
RUN = {"backbone": "resnet10-w16", "batch_size": 8, "settings": SMALL, "quiet": True}


def history(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def rates(run: Path) -> dict[int, float]:
    return {row["step"]: row["lr"] for row in RunDirectory(run).read_metrics() if "lr" in row}


@pytest.fixture
def short(image_folder: Path, tmp_path: Path, tiny: list[str]) -> Path:
    """A finished run of two epochs of five steps."""
    return iecl.pretrain(image_folder, tmp_path / "short", epochs=2, sets=tiny, **RUN).path


def test_an_extended_run_follows_the_longer_schedule_from_where_it_stood(
    short: Path, image_folder: Path, tmp_path: Path, tiny: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = {file: file.read_bytes() for file in short.rglob("*") if file.is_file()}
    made = iecl.extend(short, 4)
    whole = iecl.pretrain(image_folder, tmp_path / "whole", epochs=4, sets=tiny, **RUN)
    assert made.path == tmp_path / "short-4-epochs"
    assert made.summary["steps"] == 20
    assert {file: file.read_bytes() for file in short.rglob("*") if file.is_file()} == before
    old, new, planned = rates(short), rates(made.path), rates(whole.path)
    assert {step: new[step] for step in range(1, 11)} == old  # what was done stays as it was
    assert {step: new[step] for step in range(11, 21)} == {step: planned[step] for step in range(11, 21)}
    assert history(made.path)[0] | {"time": ""} == {
        "time": "",
        "kind": "extend",
        "parent": str(short),
        "step": 10,
        "epochs_before": 2,
        "epochs": 4,
    }
    shown = [record.getMessage() for record in caplog.records]
    assert any("old and new" in line for line in shown)
    (row,) = (line for line in shown if "10 (now)" in line)
    cells = [cell.strip() for cell in row.strip("| ").split("|")]
    assert cells[:4] == ["10 (now)", "2", "0", "0.001174"]  # of 2e-3, 8 / 18 of the way down the new cosine
    assert any("ema_momentum, new" in line for line in shown)


def test_a_run_cannot_be_extended_to_what_it_has_done(short: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has done 2 epochs already \(epochs\); give a larger number"):
        iecl.extend(short, 2)
    for file in (short / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="no checkpoint to extend"):
        iecl.extend(short, 4)
    assert not (tmp_path / "short-4-epochs").exists()


@pytest.mark.parametrize("kind", ["run", pytest.param("file", marks=pytest.mark.slow)])
def test_a_new_run_starts_from_the_weights_of_another(
    kind: str, short: Path, image_folder: Path, tmp_path: Path, tiny: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    source = short if kind == "run" else short / "weights.safetensors"
    still = [*tiny, "optimizer.lr=1e-30", "optimizer.weight_decay=0"]  # the first weights stay, and can be read
    options = RUN | {"quiet": False, "backbone": ""}
    made = iecl.pretrain(
        image_folder, tmp_path / "new", method="byol", epochs=1, sets=still, init_from=source, **options
    )
    proof = load_model(short).proof
    (line,) = (record.getMessage() for record in caplog.records if "starting from" in record.getMessage())
    assert line == f"starting from {source}: {proof}"
    first = history(made.path)[0]
    assert (first["kind"], first["parent"], first["weights"]) == ("from", str(source), proof)
    state = latest_checkpoint(made.path / "checkpoints")
    assert state is not None
    begun = load_model(short).backbone.state_dict()
    for prefix in ("backbone.", "momentum.parts.0."):  # the momentum copy begins with them too
        held = {n.removeprefix(prefix): t for n, t in state["method"].items() if n.startswith(prefix)}
        weights = {n: t for n, t in held.items() if n in dict(load_model(short).backbone.named_parameters())}
        assert all(torch.equal(tensor, begun[name]) for name, tensor in weights.items())
        assert weights
    assert fingerprint(begun) in proof


def test_a_resumed_run_notes_it(short: Path, image_folder: Path) -> None:
    (short / "summary.json").unlink()
    iecl.pretrain(out=short, resume=True, quiet=True)
    assert [row["kind"] for row in history(short)] == ["start", "resume"]


def test_speed_and_forecast_of_a_resumed_run_count_its_own_steps(short: Path, caplog: pytest.LogCaptureFixture) -> None:
    (short / "checkpoints" / "previous.ckpt").replace(short / "checkpoints" / "last.ckpt")  # step 5 of 10
    (short / "summary.json").unlink()
    settings = config_from_values(read_toml(short / "settings.toml")).values()
    forecast = {"seconds": 100.0, "memory_megabytes": 1.0, "measured": {"settings": settings}}
    (short / "forecast.json").write_text(json.dumps(forecast))
    with caplog.at_level(logging.INFO):
        run = iecl.pretrain(out=short, resume=True)
    assert run.summary["forecast"]["seconds"]["predicted"] == 50.0
    assert (run.summary["steps"], run.summary["steps_before"]) == (10, 5)
    assert any(record.getMessage().startswith("5 steps in") for record in caplog.records)


def test_resuming_and_starting_from_weights_exclude_each_other(short: Path) -> None:
    with pytest.raises(UserError, match=r"has its weights already \(init_from\)"):
        iecl.pretrain(out=short, resume=True, init_from=short)


def test_weights_of_another_backbone_are_refused(short: Path, image_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"its backbone is resnet10-w16, not resnet10-w32 \(backbone\)"):
        iecl.pretrain(image_folder, tmp_path / "new", **(RUN | {"backbone": "resnet10-w32"}), init_from=short)
    assert not (tmp_path / "new").exists()
