"""Export: a file that torchvision loads strictly and that gives the run's features."""

import tomllib
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torchvision
from torch import Tensor, nn

from iecl.api import export
from iecl.errors import UserError
from iecl.evaluation.model import load_model
from iecl.weights import export as module
from iecl.weights.file import fingerprint, load_weights
from iecl.weights.model import LoadedModel, load_file
from made_runs import MadeRun


def unfinished_run(path: Path, backbone: str, encoder: str = "none") -> nn.Module:
    """Leave a checkpoint of a run in `path`; returns its encoder."""
    run = MadeRun(path, method="ie-cl", encoder=encoder, backbone=backbone)
    run.save_checkpoint(step=12)
    return run.method.encoder()


def seen(backbone: nn.Module) -> Tensor:
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        return backbone(images)


@pytest.mark.parametrize("encoder", ["none", "spectral-norm"])
def test_torchvision_loads_an_exported_resnet_and_gives_equal_features(tmp_path: Path, encoder: str) -> None:
    trained = unfinished_run(tmp_path / "run", "resnet18", encoder)
    made = export(tmp_path / "run", tmp_path / "out.safetensors")

    fresh = torchvision.models.resnet18()
    fresh.fc = nn.Identity()
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "out.safetensors"), strict=True)
    assert torch.equal(seen(fresh.eval()), seen(trained))
    assert made["tensors"] == 120
    assert made["fingerprint"] == fingerprint(fresh.state_dict())
    assert made["proof"] == (
        f"120/120 tensors, 0 missing, 0 unexpected, fingerprint {made['fingerprint']}, equal features of 4 images"
    )


def test_a_backbone_that_only_we_have_is_loaded_by_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = unfinished_run(tmp_path / "run", "resnet10-w16")
    made = export(tmp_path / "run", tmp_path / "cats.safetensors")
    monkeypatch.chdir(tmp_path)
    found: dict[str, nn.Module] = {}
    exec(made["snippet"], found)
    assert torch.equal(seen(found["model"].eval()), seen(trained))


def test_the_file_says_all_that_is_needed_to_use_it(tmp_path: Path) -> None:
    unfinished_run(tmp_path / "run", "resnet10-w16")
    made = export(tmp_path / "run", tmp_path / "out.safetensors")
    _, metadata = load_weights(tmp_path / "out.safetensors")
    loading, version = metadata.pop("loading"), metadata.pop("iecl")
    assert metadata.pop("source") == made["weights"]
    assert loading == made["snippet"]
    assert version
    recipe = tomllib.loads(metadata.pop("recipe"))
    assert recipe["training"]["batch_size"] == 4
    assert recipe["method"]["queue_size"] == 8
    metadata = {name: value for name, value in metadata.items() if not name.startswith("proof_")}
    assert len(metadata.pop("digest")) == 16
    assert metadata == {
        "format": "iecl-backbone-2",
        "backbone": "resnet10-w16",
        "image_size": "16",
        "mean": "[0.5, 0.4, 0.3]",
        "std": "[0.25, 0.2, 0.3]",
        "width": "128",
        "stem": "3x3, stride 1",
        "method": "ie-cl",
        "step": "12",
        "fingerprint": made["fingerprint"],
    }


def test_an_exported_file_can_be_exported_again(tmp_path: Path) -> None:
    unfinished_run(tmp_path / "run", "resnet10-w16")
    first = export(tmp_path / "run", tmp_path / "one.safetensors")
    second = export(tmp_path / "one.safetensors", tmp_path / "two.safetensors")
    assert second["fingerprint"] == first["fingerprint"]
    assert "two.safetensors" in second["snippet"]
    assert load_model(tmp_path / "two.safetensors").info.step == 12


def test_an_earlier_file_stays_unless_it_may_be_replaced(tmp_path: Path) -> None:
    unfinished_run(tmp_path / "run", "resnet10-w16")
    out = tmp_path / "out.safetensors"
    out.write_text("mine")
    with pytest.raises(UserError, match=r"is there already .*add overwrite=True, or name another file"):
        export(tmp_path / "run", out)
    assert out.read_text() == "mine"
    export(tmp_path / "run", out, overwrite=True)
    assert load_model(out).name == "resnet10-w16"


@pytest.mark.parametrize(
    ("name", "words"), [("out.bin", r"does not end in \.safetensors or \.pth"), ("no/out.safetensors", "no folder")]
)
def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        export(tmp_path / "run that is not there", tmp_path / name)


def test_nothing_is_written_when_the_features_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished_run(tmp_path / "run", "resnet10-w16")

    def leaky(path: Path) -> LoadedModel:
        """The same names and shapes, and yet another function."""
        model = load_file(path)
        model.backbone.relu = nn.LeakyReLU(0.5)
        return model

    monkeypatch.setattr(module, "load_file", leaky)
    with pytest.raises(UserError, match="give other features than the run's backbone"):
        export(tmp_path / "run", tmp_path / "out.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
