"""A pretrained ResNet inside another network: its weights, its stride, its batch norm."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet50

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.evaluation.voc.resnet import (
    STAGES,
    STEM,
    built_in_proof,
    channels_of,
    dilate,
    freeze_norms,
    pretrained_resnet,
    training_mode,
)
from iecl.evaluation.voc.segmenter import Segmenter
from made_voc import loaded


def last_map(resnet: Any, images: Tensor) -> Tensor:
    """What comes out of the fourth stage."""
    for name in (*STEM, *STAGES):
        images = getattr(resnet, name)(images)
    return images


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# --- weights


def test_the_copy_holds_the_weights_and_shares_none_of_them() -> None:
    model = loaded("resnet10-w16", seed=5)
    copy = pretrained_resnet(model, "detection")
    assert torch.equal(copy.conv1.weight, model.backbone.conv1.weight)  # type: ignore[union-attr]
    with torch.no_grad():
        copy.conv1.weight.zero_()
    assert model.backbone.conv1.weight.any()  # type: ignore[union-attr,operator]


def test_a_renamed_tensor_is_refused_with_both_names() -> None:
    model = loaded("resnet10-w16")
    model.backbone.stem = model.backbone.conv1
    del model.backbone.conv1
    words = r"71/72 tensors, missing conv1.weight; unexpected stem.weight \(detection, backbone resnet10-w16\)"
    with pytest.raises(UserError, match=words):
        pretrained_resnet(model, "detection")


def test_a_backbone_that_is_no_resnet_is_refused() -> None:
    model = loaded("resnet10-w16")
    other = replace(model, info=replace(model.info, backbone="torchvision/mobilenet_v3_small"))
    with pytest.raises(
        UserError, match=r"segmentation needs a torchvision ResNet, torchvision/mobilenet_v3_small is none \(MODEL\)"
    ):
        pretrained_resnet(other, "segmentation")


def test_the_proof_is_that_of_the_backbone_and_fails_for_weights_of_another() -> None:
    state = make_backbone("resnet10-w16", seed=1).state_dict()
    right, wrong = (make_backbone("resnet10-w16", seed=seed) for seed in (1, 2))
    parts = {name: right.get_submodule(name) for name in (*STEM, *STAGES)}
    assert built_in_proof(parts, state).startswith("72/72 tensors, 0 missing, 0 unexpected, fingerprint ")
    with pytest.raises(UserError, match="does not hold the weights it was given"):
        built_in_proof({name: wrong.get_submodule(name) for name in parts}, state)
    del parts["layer4"]
    with pytest.raises(UserError, match=r"does not hold the pretrained weights: missing \['layer4.0.bn1.bias'"):
        built_in_proof(parts, state)


@pytest.mark.parametrize(
    ("name", "widths"), [("resnet10-w16", [16, 32, 64, 128]), ("resnet50", [256, 512, 1024, 2048])]
)
def test_stages_know_their_channels(name: str, widths: list[int]) -> None:
    backbone = make_backbone(name)
    assert [channels_of(backbone.get_submodule(stage)) for stage in STAGES] == widths


# --- stride


@pytest.mark.parametrize("name", ["resnet10-w16", "resnet18", "resnet50"])
@pytest.mark.parametrize("times", [2, 4])
def test_a_dilated_network_has_the_old_values_at_every_second_place(name: str, times: int) -> None:
    plain, spread = (make_backbone(name).eval() for _ in range(2))
    images = noise(1, 3, 64, 64)
    stride = 64 // last_map(plain, images).shape[2]
    assert dilate(spread, stride // times) == stride // times
    with torch.inference_mode():
        fine, coarse = last_map(spread, images), last_map(plain, images)
    assert fine.shape[2] == times * coarse.shape[2]
    torch.testing.assert_close(fine[:, :, ::times, ::times], coarse, atol=1e-4, rtol=1e-4)  # sums in another order
    assert list(spread.state_dict()) == list(plain.state_dict())


def test_bottlenecks_are_dilated_as_torchvision_does_it() -> None:
    ours = make_backbone("resnet50").eval()
    theirs = resnet50(replace_stride_with_dilation=[False, True, True])
    theirs.fc = nn.Identity()
    theirs.load_state_dict(ours.state_dict())
    assert dilate(ours, 8) == 8
    with torch.inference_mode():
        images = noise(1, 3, 48, 32)
        torch.testing.assert_close(last_map(ours, images), last_map(theirs.eval(), images))


def test_a_network_that_shrinks_less_keeps_its_stride() -> None:
    small = make_backbone("resnet10-w16")
    assert dilate(small, 16) == 8
    assert Segmenter(make_backbone("resnet10-w16"), 3, 16).rates == (12, 24, 36)
    assert Segmenter(make_backbone("resnet18"), 3, 16).rates == (6, 12, 18)


# --- batch norm


@pytest.mark.parametrize("batch_norm", ["frozen", "train"])
def test_frozen_batch_norm_keeps_statistics_scales_and_shifts(batch_norm: str) -> None:
    resnet = make_backbone("resnet10-w16")
    network = nn.Sequential(resnet, nn.BatchNorm1d(128))
    if batch_norm == "frozen":
        freeze_norms([resnet])
    training_mode(network, [resnet], batch_norm)
    network(noise(4, 3, 16, 16)).pow(2).sum().backward()
    moved = not torch.equal(resnet.bn1.running_mean, torch.zeros(16))  # type: ignore[union-attr,arg-type]
    assert moved is (batch_norm == "train")
    assert (resnet.bn1.weight.grad is None) is (batch_norm == "frozen")  # type: ignore[union-attr]
    assert resnet.conv1.weight.grad is not None  # type: ignore[union-attr]
    assert network[1].running_mean.any()  # the new layer learns in both
