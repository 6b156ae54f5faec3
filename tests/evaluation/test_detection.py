"""Detection from a backbone and a folder to average precision."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from iecl.errors import Interrupted, TrainingError, UserError
from iecl.evaluation.contract import Scores
from iecl.evaluation.detection import Detection, DetectionSettings
from iecl.evaluation.voc.detector import DetectorShape, make_detector
from iecl.evaluation.voc.resnet import STAGES, STEM, built_in_proof, pretrained_resnet
from iecl.settings import build
from iecl.weights.file import fingerprint
from made_voc import Breaking, MadeVoc, context, loaded, made_voc

TINY: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 2,
    "lr": 0.01,
    "warmup_steps": 0,
    "min_sizes": (32, 40),
    "test_min_size": 40,
    "anchors": (6, 12, 18, 24, 36),
    "channels": 8,
    "hidden_dim": 16,
    "rois": 16,
    "proposals": 20,
    "num_workers": 0,
}


@pytest.fixture
def voc(tmp_path: Path) -> MadeVoc:
    return made_voc(tmp_path)


def measure(voc: MadeVoc, work: Path | None = None, line: Any = None, **options: Any) -> Scores:
    return Detection(DetectionSettings(**TINY | options)).measure(context("resnet10-w16", voc.devkit, work, line))


def numbers(scores: Scores) -> tuple[Any, ...]:
    return scores.values, scores.details["curve"], scores.details["ap50_by_class"]


@pytest.mark.parametrize("neck", ["fpn", "c4"])
def test_a_detector_is_trained_and_says_what_its_number_rests_on(voc: MadeVoc, neck: str) -> None:
    scores = measure(voc, neck=neck, anchors=(6, 12, 18, 24, 36))
    assert list(scores.values) == ["ap50_voc12", "ap50_voc07", "ap", "ap50", "ap75"]
    assert all(0 <= value <= 1 for value in scores.values.values())
    assert scores.counts == {"n_train": 4, "n_test": 2, "classes": 20}
    assert len(scores.details["curve"]["loss"]) == 2
    assert list(scores.details["ap50_by_class"]) == ["aeroplane", "bicycle", "bird"]
    assert scores.details["boxes"]["train"]["objects"] == 6
    assert scores.protocol["shared_images"] == 2
    assert (scores.protocol["train_list"], scores.protocol["test_list"]) == ("2012/train", "2012/val")
    state = loaded("resnet10-w16").backbone.state_dict()
    assert scores.protocol["backbone_weights"].endswith(
        f"72/72 tensors, 0 missing, 0 unexpected, fingerprint {fingerprint(state)}"
    )
    assert scores.seen == "2012/train>2012/val 40px"


def test_the_loss_falls(voc: MadeVoc) -> None:
    curve = measure(voc, epochs=12, schedule="constant", hflip=False).details["curve"]["loss"]
    assert sum(curve[-3:]) < 0.8 * sum(curve[:3])


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
    Detection(DetectionSettings(**TINY)).measure(place)
    assert fingerprint(place.model.backbone.state_dict()) == before
    assert not place.model.backbone.training


# --- breaks


class PowerCutError(Exception):
    """Not foreseen by the code under test."""


def cut() -> None:
    raise PowerCutError


@pytest.mark.parametrize(
    ("what", "error", "left"),
    [(cut, PowerCutError, 2), (lambda: os.kill(os.getpid(), signal.SIGTERM), Interrupted, 1)],
    ids=["power cut", "signal"],
)
def test_a_training_that_was_broken_off_ends_as_if_nothing_had_happened(
    voc: MadeVoc, tmp_path: Path, what: Callable[[], None], error: type[Exception], left: int
) -> None:
    work = tmp_path / "work"
    with pytest.raises(error):
        measure(voc, work, Breaking("epoch 2/2  step 1/2", what))
    steps: list[str] = []
    going_on = measure(voc, work, Breaking("step", lambda: steps.append("")))
    assert len(steps) == left  # of four steps: the epoch that was cut, or what came after the signal
    assert numbers(going_on) == numbers(measure(voc))


@pytest.mark.parametrize("options", [{"lr": 0.02}, {"train": "val"}])
def test_other_settings_or_data_start_anew(voc: MadeVoc, tmp_path: Path, options: dict[str, Any]) -> None:
    first = measure(voc, tmp_path / "work")
    assert numbers(measure(voc, tmp_path / "work", **options)) == numbers(measure(voc, **options))
    steps: list[str] = []
    again = measure(voc, tmp_path / "work", Breaking("  step ", lambda: steps.append("")))
    assert (numbers(again), steps) == (numbers(first), [])  # its own state is still there


# --- weights


@pytest.mark.parametrize("neck", ["fpn", "c4"])
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_the_detector_holds_every_pretrained_tensor_under_its_own_name(name: str, neck: str) -> None:
    model = loaded(name)
    shape = DetectorShape(neck, (32, 64, 128, 256, 512), 8, 8, 8, 8)
    made = make_detector(pretrained_resnet(model, "detection"), shape, 20, model.mean, model.std)
    assert built_in_proof(made.pretrained, model.backbone.state_dict()).count("0 missing, 0 unexpected")
    inside = {id(tensor) for tensor in made.network.state_dict(keep_vars=True).values()}
    assert {
        id(tensor) for part in made.pretrained.values() for tensor in part.state_dict(keep_vars=True).values()
    } <= inside
    assert set(made.pretrained) == {*STEM, *STAGES}


@pytest.mark.parametrize(("neck", "scales"), [("fpn", [1, 1 / 2, 1 / 4, 1 / 8]), ("c4", [1 / 4])])
def test_strides_do_not_depend_on_the_first_batch(neck: str, scales: list[float]) -> None:
    model = loaded("resnet10-w16")
    shape = DetectorShape(neck, (8, 16, 24, 32, 48), 8, 8, 8, 8)
    network = make_detector(pretrained_resnet(model, "detection"), shape, 3, model.mean, model.std).network.eval()
    network([torch.rand(3, 17, 20)])  # padded to 32×32, which looks like a map of twice the image's size
    assert network.roi_heads.box_roi_pool.scales == scales


def test_a_renamed_tensor_stops_the_evaluation_before_the_training(voc: MadeVoc) -> None:
    place = context("resnet10-w16", voc.devkit)
    place.model.backbone.first = place.model.backbone.layer1
    del place.model.backbone.layer1
    with pytest.raises(UserError, match=r"the weights do not fit: .*missing layer1.0.bn1.bias.*unexpected first.0.bn1"):
        Detection(DetectionSettings(**TINY)).measure(place)


# --- odd data and settings


def test_one_image_of_one_class_is_enough(tmp_path: Path) -> None:
    voc = MadeVoc(tmp_path)
    voc.add("p0", [("bird", (5, 5, 40, 40))])
    voc.lists("one", ["p0"])
    scores = measure(voc, train="one", test="one", epochs=1)
    assert scores.counts["n_train"] == 1
    assert list(scores.details["ap50_by_class"]) == ["bird"]


def test_an_image_without_objects_is_trained_on_and_tested(voc: MadeVoc) -> None:
    voc.add("p9", [])
    voc.lists("more", ["p0", "p9"])
    scores = measure(voc, train="more", test="more", epochs=1)
    assert scores.details["boxes"]["test"]["empty"] == 1


@pytest.mark.parametrize("difficult", [[], [0]])
def test_images_without_an_object_to_find_are_refused(tmp_path: Path, difficult: list[int]) -> None:
    voc = MadeVoc(tmp_path)
    voc.add("p0", [("bird", (5, 5, 40, 40))] if difficult else [], difficult=difficult)
    voc.lists("one", ["p0"])
    with pytest.raises(UserError, match=r"the images of 2012/one have no object to find \(--data\)"):
        measure(voc, train="one", test="one")


def test_no_folder_is_refused() -> None:
    with pytest.raises(UserError, match=r"no images with boxes or masks were named \(--data\); give a VOCdevkit"):
        Detection(DetectionSettings()).measure(context("resnet10-w16", None))


def test_a_missing_extra_is_named_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    with pytest.raises(UserError, match=r"detection needs pycocotools.* \(iecl evaluate detection\); pip install"):
        Detection(DetectionSettings()).measure(context("resnet10-w16", "nowhere"))


def test_a_rate_that_is_too_high_is_told_and_not_measured(voc: MadeVoc) -> None:
    with pytest.raises(TrainingError, match=r"the loss is (nan|inf) at step \d+ .*lower the learning rate"):
        measure(voc, lr=1e12, epochs=4)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"neck": "c5"}, "detection.neck is 'c5'"),
        ({"anchors": [32, 64]}, "neck fpn needs 5 anchors, one for each level, not 2"),
        ({"min_sizes": []}, "anchors and min_sizes must name at least one size"),
        ({"batch_norm": "sync"}, "detection.batch_norm is 'sync'"),
        ({"schedule": "linear"}, "detection.schedule is 'linear'"),
    ],
)
def test_a_wrong_setting_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        build(DetectionSettings, values, "detection", "iecl evaluate")


def test_the_summary_tells_the_forms_apart() -> None:
    fpn = DetectionSettings()
    assert Detection(fpn).summary == "detection/1 faster-rcnn fpn sgd lr=0.0001 batch=16 epochs=24 bn=train"
    assert " c4 " in Detection(replace(fpn, neck="c4")).summary
