"""Memory for a batch of large images: estimated from shapes, and refused before it runs out."""

from pathlib import Path

import pytest
import torch
from torch import nn

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.evaluation.detection import Detection, DetectionSettings
from iecl.evaluation.segmentation import Segmentation, SegmentationSettings
from iecl.evaluation.voc import memory
from made_voc import context, made_voc


def plain(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    return network(images)


@pytest.mark.parametrize("name", ["resnet10-w16", "resnet18"])
def test_what_is_estimated_is_what_convolutions_and_norms_give(name: str) -> None:
    network, given = make_backbone(name).eval(), list[int]()
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.BatchNorm2d):
            layer.register_forward_hook(lambda layer, inputs, output: given.append(output.numel()))
    with torch.no_grad():
        network(torch.zeros(1, 3, 64, 96))
    assert memory.kept_bytes(make_backbone(name), plain, (64, 96)) == 4 * sum(given)


def test_a_batch_that_cannot_fit_is_refused_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    network, cpu = make_backbone("resnet10-w16"), torch.device("cpu")
    monkeypatch.setattr(memory, "free_memory", lambda device: 2 * 1024)
    words = r"16 images of 800×1066 through resnet10-w16 need more than \d+ GB of memory, 2 GB are free \(batch\)"
    with pytest.raises(UserError, match=words):
        memory.check_room(network, plain, 16, (800, 1066), cpu, "resnet10-w16")
    memory.check_room(network, plain, 1, (800, 1066), cpu, "resnet10-w16")
    monkeypatch.setattr(memory, "free_memory", lambda device: 0)  # a system that does not say
    memory.check_room(network, plain, 16, (800, 1066), cpu, "resnet10-w16")


@pytest.mark.parametrize("neck", ["fpn", "c4"])
def test_a_detector_asks_for_room_before_its_first_step(
    neck: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 1024)
    evaluation = Detection(DetectionSettings(neck=neck, batch_size=16))
    with pytest.raises(UserError, match=r"16 images of 800×1066 through resnet18 need more than \d+ GB"):
        evaluation.measure(context("resnet18", made_voc(tmp_path).root))


def test_a_segmenter_asks_for_room_before_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 1024)
    with pytest.raises(UserError, match=r"16 images of 513×513 through resnet18 need more than \d GB"):
        Segmentation(SegmentationSettings()).measure(context("resnet18", made_voc(tmp_path).root))
