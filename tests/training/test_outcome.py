"""What came out of a run stands at its end, beside doing nothing, with labels and without."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import iecl
from iecl.backbones.factory import make_backbone
from iecl.cli.command import main
from iecl.meters.outcome import outcome_table
from iecl.runs.directory import RunDirectory
from iecl.training import outcome
from iecl.weights.file import load_weights
from made_images import TINY, make_images

SETS = [text for text in TINY if "outcome" not in text]
COMMON = {"method": "simclr", "backbone": "resnet10-w16", "epochs": 2, "batch_size": 8}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same images with labels and without, and a run from the weights of the first."""
    place = tmp_path_factory.mktemp("outcome")
    images = make_images(place)
    flat = place / "flat"
    flat.mkdir()
    for file in images.rglob("*.png"):
        shutil.copyfile(file, flat / f"{file.parent.name}-{file.name}")
    made = {
        name: iecl.pretrain(data, place / name, sets=SETS, quiet=True, **COMMON).path
        for name, data in (("labeled", images), ("unlabeled", flat))
    }
    start = {"init_from": made["labeled"], "sets": [*SETS, "optimizer.lr=1e-30", "optimizer.weight_decay=0"]}
    made["from"] = iecl.pretrain(images, place / "from", quiet=True, **start, **COMMON).path
    return made


def test_scores_stand_beside_those_of_an_untrained_network_and_of_pixels(runs: dict[str, Path]) -> None:
    for name, path in runs.items():
        found = iecl.load(path).summary["outcome"]
        assert found["images"] == 40
        rows = {"trained", "untrained", "pixels"} | ({"start"} if name == "from" else set())
        assert set(found["scores"]) == rows
        for row in found["scores"].values():
            assert ("knn" in row) == (name != "unlabeled")
            assert 0 <= row["own_view"] <= 1
            assert row["rank_me"] >= 1
    labeled, unlabeled = (iecl.load(runs[name]).summary["outcome"]["scores"] for name in ("labeled", "unlabeled"))
    assert labeled["pixels"]["knn"] == 1.0  # classes are colors
    assert labeled["pixels"]["effective_rank"] == pytest.approx(unlabeled["pixels"]["effective_rank"], rel=1e-3)


def test_a_run_that_moved_nothing_has_the_scores_of_the_weights_it_began_with(runs: dict[str, Path]) -> None:
    held = iecl.load(runs["from"]).summary["outcome"]["scores"]
    before = load_weights(runs["from"] / "start.safetensors")[0]
    after = load_weights(runs["from"] / "weights.safetensors")[0]
    assert torch.equal(before["conv1.weight"], after["conv1.weight"])
    assert held["start"]["rank_me"] != held["untrained"]["rank_me"]


def test_the_untrained_network_is_the_one_that_the_run_began_with(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(outcome, "make_backbone", lambda *given: asked.append(given) or make_backbone(*given))
    config = iecl.training.config.read_config(RunDirectory(runs["labeled"]))
    outcome._models(config, RunDirectory(runs["labeled"]), torch.nn.Identity())
    assert asked == [("resnet10-w16", config.training.seed, 3)]


def test_neighbors_are_a_picture_with_both_networks(runs: dict[str, Path]) -> None:
    picture = Image.open(runs["unlabeled"] / "neighbors.png")
    assert picture.size == (13 * 68 + 24, 16 + 8 * 68)
    left, right = (picture.crop((edge, 16, edge + 6 * 68, 560)) for edge in (80, 7 * 68 + 24))
    assert left.tobytes() != right.tobytes()  # they do not find the same images


def test_it_is_shown_at_the_end_and_by_describe(
    image_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        run = iecl.pretrain(image_folder, tmp_path / "run", sets=SETS, **COMMON)
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("on 40 of its images") for line in lines)
    table = [line for line in lines if line.startswith("|")]
    assert [row.split("|")[1].strip() for row in (*table[:1], *table[2:])] == [
        "backbone",
        "trained",
        "untrained",
        "raw pixels",
    ]
    assert main(["describe", str(run.path)]) == 0
    shown = capsys.readouterr().out
    assert all(line in shown for line in table)
    assert any("raw pixels" in reason for reason in run.summary["reasons"]) or run.summary["verdict"] != "healthy"


def test_it_can_be_switched_off(image_folder: Path, tmp_path: Path) -> None:
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=TINY, quiet=True, **COMMON)
    assert "outcome" not in run.summary
    assert not (run.path / "neighbors.png").exists()


def test_a_fault_in_it_costs_no_weights(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*given: object) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(outcome, "write_atomically", fail)
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=SETS, quiet=True, **COMMON)
    assert run.summary["finished"]
    assert "what came out cannot be shown" in caplog.text


def test_a_damaged_outcome_is_named(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs["labeled"], tmp_path / "copy")
    summary = json.loads((tmp_path / "copy" / "summary.json").read_text())
    summary["outcome"]["scores"]["trained"] = 5
    (tmp_path / "copy" / "summary.json").write_text(json.dumps(summary))
    assert main(["describe", str(tmp_path / "copy")]) == 2
    assert "scores is not a table of a table" in capsys.readouterr().err


def test_a_score_of_nothing_has_no_sign() -> None:
    lines = outcome_table({"images": 2, "scores": {"trained": {"own_view": 0.0, "uniformity": -0.0}}})
    assert lines[-1] == "| trained  | 0.0 %            | 0      |"
