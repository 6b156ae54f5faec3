"""Weights from elsewhere: every verb that reads them counts what arrived, and takes less only by name."""

import json
from pathlib import Path

import pytest
import torch

from iecl.backbones.factory import make_backbone
from iecl.cli.command import main
from iecl.weights.file import load_weights
from made_images import TINY

NAME = "resnet10-w16"
FILE, SEEN = ("--backbone", NAME), ("--backbone", NAME, "--image-size", "16")


@pytest.fixture
def lacking(tmp_path: Path) -> Path:
    """A file without one of its kernels."""
    state = make_backbone(NAME, 3).state_dict()
    del state["layer4.0.conv1.weight"]
    torch.save(state, tmp_path / "lacking.pth")
    return tmp_path / "lacking.pth"


SETTINGS = [*FILE, "--epochs", "1", "--batch-size", "20", *(word for text in TINY for word in ("--set", text))]


def words_of(verb: str, file: Path, data: Path, tmp_path: Path) -> list[str]:
    out = str(tmp_path / "out")
    return {
        "evaluate": ["evaluate", "knn", str(file), "--data", str(data), *SEEN],
        "embed": ["embed", str(file), "--data", str(data), "--out", f"{out}.npz", *SEEN],
        "export": ["export", str(file), "--out", f"{out}.safetensors", *FILE],
        "verify": ["verify", str(file), *FILE],
        "inspect": ["inspect", str(file), "--data", str(data), "--out", out, "--images", "8", *SEEN],
        "pretrain": ["pretrain", "--from", str(file), "--data", str(data), "--out", out, *SETTINGS],
    }[verb]


@pytest.mark.parametrize("verb", ["evaluate", "embed", "export", "verify", "inspect", "pretrain"])
def test_a_tensor_that_is_missing_must_be_named(
    verb: str, lacking: Path, image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*words_of(verb, lacking, image_folder, tmp_path), "--json", "--quiet"]
    assert main(words) == 2
    assert "lacks 1 of 72 tensors, first layer4.0.conv1.weight" in capsys.readouterr().err
    assert main([*words, "--allow", "layer4.0.conv1.*"]) == 0
    told = json.loads(capsys.readouterr().out)
    if verb == "pretrain":
        (line,) = (tmp_path / "out" / "history.jsonl").read_text(encoding="utf-8").splitlines()
        told = json.loads(line)
    assert told["weights"].startswith("71/72 tensors, 1 missing, 0 unexpected, fingerprint")
    assert "allowed: layer4.0.conv1.weight" in told["weights"]


def test_own_weights_are_whole(lacking: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "own.safetensors"
    assert main(["export", str(lacking), "--out", str(out), *FILE, "--allow", "layer4.0.conv1.*"]) == 0
    assert load_weights(out)[1]["source"].startswith("71/72 tensors")  # whole, and it says what it was made of
    assert main(["verify", str(out), "--allow", "layer4.*"]) == 2
    assert "must be whole (--allow)" in capsys.readouterr().err


def test_an_exception_is_for_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pretrain", "--data", str(tmp_path), "--allow", "layer4.*"]) == 2
    assert "which file has that layout or exception? (--init-from)" in capsys.readouterr().err
