"""Segmentation from a backbone and a folder to intersection over union."""

from pathlib import Path
from typing import Any

import pytest
import torch

from iecl.errors import UserError
from iecl.evaluation.contract import Scores
from iecl.evaluation.segmentation import Segmentation, SegmentationSettings
from iecl.settings import build
from iecl.weights.file import fingerprint
from made_voc import Breaking, MadeVoc, context, loaded, made_voc

TINY: dict[str, Any] = {"epochs": 2, "batch_size": 2, "lr": 3e-3, "crop": 32, "long_side": 32, "num_workers": 0}


@pytest.fixture
def voc(tmp_path: Path) -> MadeVoc:
    return made_voc(tmp_path)


def measure(voc: MadeVoc, work: Path | None = None, line: Any = None, **options: Any) -> Scores:
    return Segmentation(SegmentationSettings(**TINY | options)).measure(context("resnet10-w16", voc.devkit, work, line))


def numbers(scores: Scores) -> tuple[Any, ...]:
    return scores.values, scores.details["curve"], scores.details["iou_by_class"]


def test_a_segmenter_is_trained_and_says_what_its_number_rests_on(voc: MadeVoc) -> None:
    scores = measure(voc)
    assert list(scores.values) == ["miou", "pixel_accuracy"]
    assert scores.counts == {"n_train": 4, "n_test": 2, "classes": 20}
    assert {"background", "aeroplane", "bicycle", "bird"} <= set(scores.details["iou_by_class"])
    assert scores.values["miou"] == pytest.approx(
        sum(scores.details["iou_by_class"].values()) / len(scores.details["iou_by_class"])
    )
    assert scores.protocol["true_output_stride"] == 8  # its own: it was made for small images
    assert scores.protocol["shared_images"] == 2
    state = loaded("resnet10-w16").backbone.state_dict()
    assert scores.protocol["backbone_weights"].endswith(fingerprint(state))
    assert scores.seen == "2012/train>2012/val long 32px"


def test_four_images_are_learnt(voc: MadeVoc) -> None:
    scores = measure(voc, epochs=15, schedule="cosine", contrast=0.0)
    curve = scores.details["curve"]["loss"]
    assert curve[-1] < 0.3 * curve[0]
    assert scores.values["pixel_accuracy"] > 0.8


def test_the_same_seed_gives_the_same_bits_with_any_number_of_threads_and_another_seed_does_not(voc: MadeVoc) -> None:
    first = measure(voc)
    torch.manual_seed(5)  # whatever torch's generator did before
    before = torch.random.get_rng_state()
    second, other = measure(voc, num_workers=2), measure(voc, seed=1)
    assert numbers(first) == numbers(second)
    assert first.details["curve"] != other.details["curve"]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_model_is_left_as_it_was(voc: MadeVoc) -> None:
    place = context("resnet10-w16", voc.devkit)
    before = fingerprint(place.model.backbone.state_dict())
    Segmentation(SegmentationSettings(**TINY)).measure(place)
    assert fingerprint(place.model.backbone.state_dict()) == before
    assert place.model.backbone.layer4[0].conv1.stride == (2, 2)  # type: ignore[union-attr,index]


class PowerCutError(Exception):
    """Not foreseen by the code under test."""


def test_a_training_that_was_broken_off_ends_as_if_nothing_had_happened(voc: MadeVoc, tmp_path: Path) -> None:
    def cut() -> None:
        raise PowerCutError

    work = tmp_path / "work"
    with pytest.raises(PowerCutError):
        measure(voc, work, Breaking("epoch 2/2  step 1/2", cut))
    steps: list[str] = []
    going_on = measure(voc, work, Breaking("  step ", lambda: steps.append("")))
    assert len(steps) == 2  # the second epoch alone
    assert numbers(going_on) == numbers(measure(voc))


@pytest.mark.parametrize("output_stride", [8, 16])
def test_basic_blocks_with_the_large_stem_take_both_strides(voc: MadeVoc, output_stride: int) -> None:
    settings = SegmentationSettings(**TINY | {"output_stride": output_stride, "epochs": 1, "train": "val"})
    scores = Segmentation(settings).measure(context("resnet18", voc.devkit))
    assert scores.protocol["true_output_stride"] == output_stride
    assert scores.protocol["head_dilations"] == [96 // output_stride * k for k in (1, 2, 3)]


def test_one_image_of_one_class_is_enough(tmp_path: Path) -> None:
    voc = MadeVoc(tmp_path)
    voc.add("p0", [("bird", (5, 5, 40, 40))])
    voc.lists("one", ["p0"])
    assert measure(voc, train="one", test="one", epochs=1).counts["n_train"] == 1


def test_masks_without_a_class_are_refused(voc: MadeVoc) -> None:
    from PIL import Image

    Image.new("L", (64, 48), 255).save(voc.mask("p0"))
    voc.lists("one", ["p0"])
    with pytest.raises(UserError, match=r"every pixel of 2012/one is ignored \(--data\)"):
        measure(voc, train="one", test="one")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"output_stride": 12}, "output_stride is 12, it must be 8, 16 or 32"),
        ({"scale": [2.0, 0.5]}, r"scale is \[2.0, 0.5\], it must be two factors, the smaller one first"),
        ({"batch_size": 1}, "segmentation.batch_size is 1, it must be at least 2"),
        ({"crop": 8}, "segmentation.crop is 8, it must be at least 16"),
    ],
)
def test_a_wrong_setting_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build(SegmentationSettings, values, "segmentation", "iecl evaluate")


def test_the_summary_names_stride_and_crop() -> None:
    made = Segmentation(SegmentationSettings()).summary
    assert made == "segmentation/1 deeplab-v3 os=16 adam lr=0.0003 batch=16 epochs=50 crop=513 bn=train"
