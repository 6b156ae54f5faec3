"""Weights on the disk: what is written comes back, and what is not right is refused with a reason."""

import json
import os
import re
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.models import mnasnet0_5, resnet18

from iecl.backbones import BACKBONES
from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.weights.external import random_model, read_content
from iecl.weights.file import FORMAT, fingerprint, load_into, load_weights, proof, save_weights
from iecl.weights.model import load_file as load_model_file
from iecl.weights.model import save_model
from iecl.weights.snippet import loading_snippet

STATE = {"conv.weight": torch.arange(24.0).view(2, 3, 2, 2), "count": torch.tensor(7)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    save_weights(path, STATE, {"method": "moco-v2"})
    return path


def test_tensors_and_metadata_come_back_as_they_were(saved: Path) -> None:
    state, metadata = load_weights(saved)
    assert state.keys() == STATE.keys()
    assert torch.equal(state["conv.weight"], STATE["conv.weight"])
    assert state["count"].dtype == torch.int64
    assert state["count"].item() == 7
    assert metadata["method"] == "moco-v2"
    assert metadata["format"] == FORMAT
    assert metadata["fingerprint"] == fingerprint(STATE)


def test_other_programs_read_contiguous_float32_whatever_the_layout_was(tmp_path: Path) -> None:
    kernel = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    shared = torch.ones(3)
    state = {"kernel": kernel, "half": torch.ones(2, dtype=torch.bfloat16), "one": shared, "two": shared}
    save_weights(tmp_path / "a.safetensors", state, {})
    read = load_file(tmp_path / "a.safetensors")
    assert torch.equal(read["kernel"], kernel)
    assert {tensor.dtype for tensor in read.values()} == {torch.float32}
    assert torch.equal(read["two"], shared)


@pytest.mark.parametrize(
    ("tensor", "kind"),
    [
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
    ],
)
def test_a_tensor_that_is_not_dense_is_refused_by_name(tmp_path: Path, tensor: Tensor, kind: str) -> None:
    with pytest.raises(UserError, match=f"layer.weight is a {kind} tensor"):
        save_weights(tmp_path / "a.safetensors", {"layer.weight": tensor}, {})
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_earlier_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        save_weights(saved, {"other": torch.zeros(1)}, {})
    assert load_weights(saved)[0].keys() == STATE.keys()
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there are no weights .*gone\.safetensors"):
        load_weights(tmp_path / "gone.safetensors")


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_is_refused_whatever_it_is_called(tmp_path: Path, is_zip: bool) -> None:
    path = tmp_path / "a.safetensors"
    torch.save(STATE, path, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(UserError, match=r"only \.safetensors is read here"):
        load_weights(path)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_file_that_was_cut_short_is_damaged(saved: Path, length: int) -> None:
    saved.write_bytes(saved.read_bytes()[:length])
    with pytest.raises(UserError, match="is damaged"):
        load_weights(saved)


def test_one_flipped_bit_is_noticed(saved: Path) -> None:
    raw = bytearray(saved.read_bytes())
    raw[-1] ^= 1
    saved.write_bytes(raw)
    with pytest.raises(UserError, match="its fingerprint should be"):
        load_weights(saved)


@pytest.mark.parametrize(("length", "start"), [(0x80, b"\x80"), (0x4B50, b"PK")])
def test_a_header_whose_length_looks_like_a_pickle_is_read(length: int, start: bytes, tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode().ljust(length)
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", 1.5))
    assert path.read_bytes().startswith(start)
    assert load_weights(path)[0]["a"].tolist() == [1.5]
    assert read_content(path)["a"].tolist() == [1.5]


def test_a_backbone_whose_header_has_the_length_of_a_pickle_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_model(path, random_model("resnet10-w16"))
    raw, length = path.read_bytes(), 0x14B50
    end = 8 + int.from_bytes(raw[:8], "little")
    path.write_bytes(struct.pack("<Q", length) + raw[8:end].ljust(length) + raw[end:])
    assert path.read_bytes().startswith(b"PK")
    assert load_model_file(path).info.backbone == "resnet10-w16"


def test_a_file_from_elsewhere_has_no_metadata(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "a.safetensors")
    assert load_weights(tmp_path / "a.safetensors")[1] == {}


@pytest.mark.parametrize(
    "other",
    [
        {"b": torch.tensor([1.0, 2])},
        {"a": torch.tensor([[1.0, 2]])},
        {"a": torch.tensor([1.0, 2]).int()},
        {"a": torch.tensor([1.0, 2.0000002])},
        {"a": torch.tensor([1.0, 2]), "b": torch.zeros(0)},
    ],
    ids=["name", "shape", "type", "value", "one more"],
)
def test_a_fingerprint_changes_with(other: dict[str, Tensor]) -> None:
    assert fingerprint(other) != fingerprint({"a": torch.tensor([1.0, 2])})


def test_a_fingerprint_is_that_of_the_values_and_not_of_their_layout() -> None:
    kernel = torch.randn(2, 3, 4, 4)
    state = {"a": kernel, "b": torch.ones(1)}
    other = {"b": torch.ones(1), "a": kernel.to(memory_format=torch.channels_last)}
    assert fingerprint(state) == fingerprint(other)
    assert len(fingerprint(state)) == 8


def test_a_proof_counts_all_tensors_of_a_resnet() -> None:
    model = make_backbone("resnet18", seed=1)
    state = make_backbone("resnet18", seed=2).state_dict()
    load_into(model, state, "here")
    # 20 convolutions, and 20 batch norms with weight, bias, mean, variance and a count.
    assert proof(model, state) == f"120/120 tensors, 0 missing, 0 unexpected, fingerprint {fingerprint(state)}"


def test_a_proof_fails_for_a_module_that_holds_other_values() -> None:
    layer = nn.Linear(2, 2)
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    nn.init.zeros_(layer.weight)
    with pytest.raises(UserError, match="does not hold the weights it was given"):
        proof(layer, state)


def test_weights_that_do_not_fit_are_named_and_nothing_is_loaded() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = fingerprint(model.state_dict())
    state = {f"module.{name}": torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError) as caught:
        load_into(model, state, "run/weights")
    assert str(caught.value) == (
        "the weights do not fit: 0/7 tensors, "
        "missing 0.bias, 0.weight, 1.bias, 1.num_batches_tracked, 1.running_mean and 2 more; "
        "unexpected module.0.bias, module.0.weight, module.1.bias, module.1.num_batches_tracked, "
        "module.1.running_mean and 2 more (run/weights); "
        "use the backbone that they were trained with, under its plain names"
    )
    assert fingerprint(model.state_dict()) == before


def test_one_missing_tensor_is_enough_to_refuse() -> None:
    layer = nn.Linear(2, 3)
    with pytest.raises(UserError, match="1/2 tensors, missing bias"):
        load_into(layer, {"weight": torch.zeros(3, 2)}, "here")


def test_a_layer_that_asks_for_a_version_is_loaded() -> None:
    model = mnasnet0_5()
    state = {name: torch.ones_like(tensor) for name, tensor in model.state_dict().items()}
    load_into(model, state, "here")
    assert all(bool((tensor == 1).all()) for tensor in model.state_dict().values())


def test_a_tensor_of_another_shape_is_named_with_both_shapes() -> None:
    layer = nn.Linear(2, 3)
    with pytest.raises(UserError, match=r"of another shape weight \[3, 1\] for \[3, 2\]"):
        load_into(layer, {"weight": torch.zeros(3, 1), "bias": torch.zeros(3)}, "here")


TORCHVISION = [name for name in BACKBONES if "torchvision" in loading_snippet(name, "a")]


@pytest.mark.parametrize("name", TORCHVISION)
def test_the_snippet_makes_a_module_with_the_backbones_names_and_shapes(name: str) -> None:
    *making, loading = loading_snippet(name, "a.safetensors").splitlines()
    found: dict[str, nn.Module] = {}
    with torch.device("meta"):  # names and shapes without the weights
        exec("\n".join(making), found)
        expected = make_backbone(name).state_dict()
    assert {key: value.shape for key, value in found["model"].state_dict().items()} == {
        key: value.shape for key, value in expected.items()
    }
    assert "strict=True" in loading


def test_the_snippet_of_a_small_resnet_gives_its_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("resnet18-small", seed=3)
    save_model(tmp_path / "small.safetensors", model)
    monkeypatch.chdir(tmp_path)
    found: dict[str, nn.Module] = {}
    exec(load_weights(tmp_path / "small.safetensors")[1]["loading"], found)
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(found["model"].eval()(images), model.backbone(images))


def test_the_lines_on_the_page_build_a_narrow_resnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "weights.md").read_text()
    (lines,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "BasicBlock" in block]
    assert lines.replace("\n\n", "\n").strip() == loading_snippet("resnet10-w16", "photos.safetensors")
    model = random_model("resnet10-w16", seed=3)
    save_model(tmp_path / "photos.safetensors", model)
    monkeypatch.chdir(tmp_path)
    found: dict[str, nn.Module] = {}
    exec(lines, found)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(found["model"].eval()(images), model.backbone(images))


def test_torchvision_without_its_head_is_our_resnet18() -> None:
    model = resnet18()
    model.fc = nn.Identity()
    assert model.state_dict().keys() == make_backbone("resnet18").state_dict().keys()
