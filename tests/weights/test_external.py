"""Backbones from elsewhere: plain weights of torchvision, and none at all."""

import pickle
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from iecl.errors import UserError
from iecl.evaluation.model import load_model
from iecl.evaluation.runner import evaluate


@pytest.fixture(scope="module")
def theirs() -> torchvision.models.ResNet:
    torch.manual_seed(3)
    return torchvision.models.resnet18().eval()


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_a_classifier_of_torchvision_is_read_without_its_head(
    kind: str, theirs: torchvision.models.ResNet, tmp_path: Path
) -> None:
    file = tmp_path / f"resnet18.{kind}"
    (torch.save if kind == "pth" else save_file)(theirs.state_dict(), file)
    model = load_model(file, backbone="resnet18")
    theirs.fc, head = torch.nn.Identity(), theirs.fc
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(model.backbone(x), theirs(x))
    theirs.fc = head
    assert model.proof.startswith("120/120 tensors, 0 missing, 0 unexpected")
    assert model.proof.endswith("layout plain, 2 tensors of heads and other parts left out")
    assert (model.image_size, model.mean[0], model.method) == (224, 0.485, "not known")


def test_a_file_is_of_the_method_that_it_is_said_to_be_of(theirs: torchvision.models.ResNet, tmp_path: Path) -> None:
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    assert load_model(tmp_path / "a.pth", backbone="resnet18", method="supervised").method == "supervised"


def test_weights_of_another_backbone_are_refused_with_their_names(
    theirs: torchvision.models.ResNet, tmp_path: Path
) -> None:
    torch.save(theirs.state_dict(), tmp_path / "a.pth")
    with pytest.raises(UserError, match="has no known layout for this backbone"):
        load_model(tmp_path / "a.pth", backbone="resnet50")


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("evil"),)


def test_a_file_that_needs_pickled_code_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Evil()}, "zip.pth")
    Path("bare.pth").write_bytes(pickle.dumps(Evil(), protocol=2))
    for name in ("zip.pth", "bare.pth"):
        with pytest.raises(UserError, match="cannot be opened safely"):
            load_model(name, backbone="resnet18")
    assert not Path("evil").exists()


def test_a_random_backbone_is_measured_with_statistics_of_the_data(image_folder: Path) -> None:
    result = evaluate("knn", "random", str(image_folder), backbone="resnet10-w16", image_size=16)
    assert result["top1"] == 1.0  # colors are easy even for a backbone that was never trained
    assert (result["method"], result["protocol"]["checkpoint"]) == ("random", "never trained")
    assert result["weights"].startswith("random weights of seed 0, nothing was loaded")


def test_a_random_backbone_needs_a_name() -> None:
    with pytest.raises(UserError, match="random of which backbone"):
        load_model("random")
