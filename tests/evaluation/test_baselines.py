"""What doing nothing gives, measured as the backbone is and shown beside it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import iecl
from iecl.backbones.factory import make_backbone
from iecl.backbones.pixels import RawPixels
from iecl.cli.command import main
from iecl.errors import UserError
from iecl.weights.file import fingerprint
from made_runs import MadeRun


def test_baselines_share_protocol_and_images_and_stand_in_the_result(made_run: MadeRun) -> None:
    config = made_run.config
    seeded = replace(config, training=replace(config.training, seed=5))
    made_run.directory.settings.write_text(seeded.to_toml("made for a test"))
    found = iecl.evaluate("knn", made_run.directory.path, k=3, baselines=["random", "pixels"])
    untrained, pixels = found["baselines"]
    assert [one["method"] for one in (untrained, pixels)] == ["random", "pixels"]
    for one in (untrained, pixels):
        assert {key: one[key] for key in ("protocol_hash", "n_train", "n_test", "data")} == {
            key: found[key] for key in ("protocol_hash", "n_train", "n_test", "data")
        }
    assert fingerprint(make_backbone("resnet10-w16", 5).state_dict()) in untrained["weights"]  # as the run began
    assert pixels["top1"] == 1.0  # classes are colors
    (file,) = made_run.directory.evaluations.glob("*.json")  # those of baselines are no results of the run
    assert [one["model"] for one in json.loads(file.read_text())["baselines"]] == ["random", "pixels"]


def test_weights_are_a_baseline_too_and_another_image_size_is_marked(
    made_run: MadeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(make_backbone("resnet10-w16", 3).state_dict(), tmp_path / "other.pth")
    other = MadeRun(tmp_path / "other", data=made_run.config.data.name)
    data = replace(other.config.data, image_size=24, decode_size=24)
    other.config = replace(other.config, data=data)
    other.directory.settings.write_text(other.config.to_toml("made for a test"))
    other.save_weights()
    run = str(made_run.directory.path)
    files = [str(tmp_path / "other.pth"), str(other.directory.path)]
    assert main(["evaluate", "knn", run, *(word for file in files for word in ("--baseline", file))]) == 0
    shown = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:]] for line in shown if line.startswith("|")][2:]
    assert [row[0] for row in rows] == [run, *files]
    assert [row[6] for row in rows] == ["16", "16", "24"]
    assert "*" in rows[2][7]
    assert "*" not in rows[0][7]
    assert "image size 24 against 16" in shown[-1]
    assert not list(other.directory.evaluations.glob("*.json"))


@pytest.mark.parametrize(
    ("evaluation", "word", "says"),
    [("knn", "pixel", "there is no baseline 'pixel'.*give random, pixels"), ("finetune", "pixels", "no weights for")],
)
def test_what_is_no_baseline_is_refused(made_run: MadeRun, evaluation: str, word: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        iecl.evaluate(evaluation, made_run.directory.path, baselines=[word])


def test_pixels_are_averaged_down_and_free_of_the_mean_of_training_images() -> None:
    images = torch.rand(6, 3, 64, 64)
    pixels = RawPixels(64)
    for part in images.split(4):
        pixels(part)
    rows = pixels.eval()(images)
    assert rows.shape == (6, 3 * 32 * 32)
    assert torch.allclose(rows.mean(0), torch.zeros(3072), atol=1e-6)
    assert torch.allclose(rows[0, 0] - rows[1, 0], (images[0] - images[1])[0, :2, :2].mean(), atol=1e-6)


SAID = [("--backbone", "resnet18", "backbone is resnet10-w16, not resnet18"), ("--image-size", "128", "is 16, not 128")]


@pytest.mark.parametrize("kind", ["run", "file"])
@pytest.mark.parametrize(("flag", "value", "says"), SAID)
def test_what_a_run_or_file_says_of_itself_stands(
    made_run: MadeRun, capsys: pytest.CaptureFixture[str], kind: str, flag: str, value: str, says: str
) -> None:
    model = made_run.directory.path if kind == "run" else made_run.directory.weights
    data = made_run.config.data.name
    assert main(["evaluate", "knn", str(model), "--data", data, flag, value]) == 2
    assert says in capsys.readouterr().err
    held = {"--backbone": "resnet10-w16", "--image-size": "16"}[flag]
    assert main(["evaluate", "knn", str(model), "--data", data, flag, held]) == 0


def test_a_backbone_that_is_named_takes_no_proof_from_a_file(
    made_run: MadeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    file, shown = str(made_run.directory.weights), []
    for words in ([], ["--backbone", "resnet10-w16"]):
        assert main(["verify", file, *words]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert main(["verify", file, "--backbone", "resnet10-w32"]) == 2
    assert "backbone is resnet10-w16, not resnet10-w32" in capsys.readouterr().err
    assert main(["verify", file, "--layout", "torchvision"]) == 2
    assert "is known (--layout)" in capsys.readouterr().err


def test_only_may_be_repeated(made_run: MadeRun, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "all", str(made_run.directory.path), "--seeds", "1", "--set", "linear.epochs=1", "--json"]
    assert main([*words, "--only", "knn", "--only", "linear"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["evaluation"] for one in found["results"]] == ["knn", "linear"]
