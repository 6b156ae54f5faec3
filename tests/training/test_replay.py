"""A step taken again is the step of the run, and shows where a run broke."""

from pathlib import Path

import pytest

import iecl
from iecl.errors import TrainingError, UserError
from iecl.training.replay import replay

SMALL = {"method": {"hidden_dim": 16, "out_dim": 8}}
RUN = {"backbone": "resnet10-w16", "epochs": 2, "batch_size": 8, "settings": SMALL, "quiet": True}
EXACT = "training.precision=32-true"


def content(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("step", "start"), [(2, "the start"), (8, "previous.ckpt")])
def test_a_replayed_step_has_the_losses_of_the_run(
    step: int, start: str, image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    sets = [*tiny, EXACT, "saib.form=certified"]
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=sets, **RUN)
    before = content(run.path)
    result = replay(run.path, step)
    (logged,) = (row for row in run.metrics if row["step"] == step and "loss" in row)
    assert result["losses"]["loss"] == logged["loss"]
    assert result["from"].endswith(start)
    assert result["problem"] == ""
    assert len(result["images"]) == 8
    assert content(run.path) == before


def test_every_layer_tells_its_weights_outputs_and_gradients(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=[*tiny, EXACT], **RUN)
    layers = {row["layer"]: row for row in replay(run.path, 1)["layers"]}
    first = layers["host.backbone.conv1"]
    assert first["gradient_largest"] > 0
    assert first["output_deviation"] > 0
    assert first["weight_largest"] > 0
    assert layers["host.momentum.parts.0.conv1"]["gradient_largest"] == 0  # the copy never receives one
    assert not any(row["output_not_finite"] or row["gradient_not_finite"] for row in layers.values())


def test_a_run_that_broke_shows_in_which_layers(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    sets = [*tiny, EXACT, "optimizer.name=sgd", "optimizer.lr=1e30", "optimizer.warmup_epochs=0"]
    with pytest.raises(TrainingError, match="at step 2"):
        iecl.pretrain(image_folder, tmp_path / "run", sets=sets, **RUN)
    result = replay(tmp_path / "run", 2)
    assert result["from"].endswith("broken.ckpt")
    assert "became NaN or infinite at step 2" in result["problem"]
    assert any(row["output_not_finite"] for row in result["layers"])


def test_a_step_that_the_run_does_not_have_is_refused(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=tiny, **RUN)
    with pytest.raises(UserError, match=r"the run has steps 1 to 10 \(--step\)"):
        replay(run.path, 11)
