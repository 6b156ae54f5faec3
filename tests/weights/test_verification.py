"""Weights that prove themselves: what a file carries, what damage is noticed, what a stranger needs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from iecl.api import export, verify
from iecl.backbones.factory import make_backbone
from iecl.cli.command import main
from iecl.errors import UserError
from iecl.weights import verification
from iecl.weights.external import random_model
from iecl.weights.file import fingerprint, load_weights, save_weights
from iecl.weights.proof import IMAGES, SHOWN, proof_images
from made_runs import MadeRun


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    run = MadeRun(tmp_path / "run", data="digits")
    run.save_checkpoint(step=3)
    export(tmp_path / "run", tmp_path / "out.safetensors")
    return tmp_path / "out.safetensors"


def test_an_exported_file_gives_the_features_it_carries(exported: Path) -> None:
    result = verify(exported)
    assert result["is_equal"]
    assert result["difference"] < 1e-6
    assert result["weights"].startswith("72/72 tensors, 0 missing, 0 unexpected, fingerprint ")
    assert not result["is_random"]
    assert result["norms_moved"] > 0.4  # the test moves scales, and leaves shifts where they were


def test_a_stranger_needs_no_iecl_to_check(exported: Path) -> None:
    with safe_open(exported, "pt") as file:
        said = file.metadata()
    side = int(said["image_size"])
    x = (torch.arange(4 * 3 * side * side, dtype=torch.float64) * 0.6180339887498949 % 1).float()
    model = make_backbone("resnet10-w16").eval()
    model.load_state_dict(load_file(exported), strict=True)
    with torch.no_grad():
        found = model(x.reshape(4, 3, side, side))[:, :8]
    assert torch.allclose(found, torch.tensor(json.loads(said["proof_features"])), rtol=1e-5, atol=1e-6)


def rewritten(file: Path, change: str) -> None:
    """Damage the weights and correct the fingerprint, so that only the features can tell."""
    state, metadata = load_weights(file)
    if change == "one weight":
        state["conv1.weight"][0, 0, 0, 0] += 0.5
    elif change == "swapped layers":
        names = ("layer4.0.bn1.weight", "layer4.0.bn2.weight")
        state[names[0]], state[names[1]] = state[names[1]], state[names[0]]
    else:
        state = make_backbone("resnet10-w16", 7).state_dict()
    metadata["fingerprint"] = fingerprint(state)
    save_weights(file, state, metadata)


@pytest.mark.parametrize("change", ["one weight", "swapped layers", "random weights"])
def test_weights_that_were_changed_give_other_features(exported: Path, change: str) -> None:
    rewritten(exported, change)
    with pytest.raises(UserError, match=r"gives other features than it carries: they differ by .*export it again"):
        verify(exported)


def test_a_network_that_nobody_trained_is_named(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", data="digits")
    run.method.encoder().load_state_dict(make_backbone("resnet10-w16", 5).state_dict())
    run.save_checkpoint(step=3)
    export(tmp_path / "run", tmp_path / "out.safetensors")
    result = verify(tmp_path / "out.safetensors")
    assert result["is_random"]
    assert result["norms_moved"] == 0
    assert result["spectrum_distance"] == pytest.approx(1, abs=0.5)


def test_a_bit_that_flipped_is_noticed(exported: Path) -> None:
    raw = bytearray(exported.read_bytes())
    raw[-5] ^= 1
    exported.write_bytes(raw)
    with pytest.raises(UserError, match="is damaged: its fingerprint should be"):
        verify(exported)


def test_a_file_without_features_cannot_be_verified(exported: Path) -> None:
    state, metadata = load_weights(exported)
    save_weights(exported, state, {key: value for key, value in metadata.items() if not key.startswith("proof")})
    with pytest.raises(UserError, match=r"carries no features to compare with .*; export it again"):
        verify(exported)


def test_the_built_in_images_are_what_the_documentation_says() -> None:
    images = proof_images(4)
    assert images.shape == (IMAGES, 3, 4, 4)
    assert images.flatten()[10].item() == pytest.approx(10 * 0.6180339887498949 % 1)
    assert SHOWN == 8


def unsolvable(*_: object) -> None:
    raise torch.linalg.LinAlgError("the input matrix contained non-finite values")


def constant_network() -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 4))
    made.load_state_dict({name: torch.full_like(value, 0.5) for name, value in made.state_dict().items()})
    return made


def test_side_information_that_cannot_be_computed_refuses_no_file(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.linalg, "eigvalsh", unsolvable)
    verification._random_spectra.cache_clear()
    assert main(["verify", str(exported)]) == 0
    assert "singular values cannot be compared: it was trained" in capsys.readouterr().out
    assert verify(exported)["spectrum_distance"] is None


def test_a_network_for_gray_images_is_held_against_one_for_gray_images() -> None:
    model = random_model("resnet10-w16", image_size=8)
    gray = replace(
        model, info=replace(model.info, mean=(0.5,), std=(0.5,)), backbone=make_backbone("resnet10-w16", 5, channels=1)
    )
    assert verification.distance_from_random(gray).spectrum == pytest.approx(1, abs=0.5)


def test_of_a_network_that_always_begins_alike_it_is_not_said_whether_it_was_trained() -> None:
    model = random_model(f"{__name__}:constant_network", image_size=8)
    assert verification.distance_from_random(model) == verification.Distance(moved=None, spectrum=None)
    assert verification.distance_from_random(model).is_random is None


def test_weights_that_are_not_finite_are_told_by_a_value_and_not_by_an_exception() -> None:
    model = random_model("resnet10-w16", image_size=8)
    torch.nn.init.constant_(model.backbone.conv1.weight, torch.nan)
    assert verification.distance_from_random(model).spectrum is None
