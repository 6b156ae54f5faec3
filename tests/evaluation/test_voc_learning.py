"""Sixteen real images learned by heart: the whole way from files to metrics can reach the top."""

import os
from pathlib import Path
from typing import Any

import pytest

from iecl.evaluation.contract import Evaluation
from iecl.evaluation.detection import Detection, DetectionSettings
from iecl.evaluation.segmentation import Segmentation, SegmentationSettings
from made_voc import context

DATA = os.environ.get("IECL_TEST_DATA", "")
needs_voc = pytest.mark.skipif(not DATA, reason="IECL_TEST_DATA does not name the folder with the datasets")
# As in benchmarks/voc.py: small images, a small detector, and rates that suit a network nobody trained.
COMMON: dict[str, Any] = {"train": "few", "test": "few", "schedule": "cosine", "num_workers": 0}
DETECTION = Detection(
    DetectionSettings(
        **COMMON,
        batch_size=4,
        epochs=150,
        lr=0.02,
        warmup_steps=50,
        hflip=False,
        min_sizes=(128,),
        test_min_size=128,
        max_size=256,
        anchors=(16, 32, 64, 128, 256),
        channels=64,
        hidden_dim=256,
        rois=64,
        proposals=100,
    )
)
SEGMENTATION = Segmentation(
    SegmentationSettings(
        **COMMON, batch_size=8, epochs=200, lr=1e-3, output_stride=8, long_side=224, crop=168, contrast=0.0
    )
)


def sixteen(folder: Path) -> Path:
    """The images of voc2012-mini with one more list."""
    year = Path(DATA) / "voc2012-mini/VOCdevkit/VOC2012"
    for name in ("JPEGImages", "Annotations", "SegmentationClass"):
        (folder / name).symlink_to(year / name)
    for kind in ("Main", "Segmentation"):
        (folder / "ImageSets" / kind).mkdir(parents=True)
        names = (year / "ImageSets" / kind / "train.txt").read_text().split()
        (folder / "ImageSets" / kind / "few.txt").write_text("\n".join(names[::16][:16]))
    return folder


@needs_voc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("evaluation", "backbone", "value", "bar"),
    [(DETECTION, "resnet18", "ap50_voc12", 0.9), (SEGMENTATION, "resnet10-w32", "miou", 0.85)],
    ids=["detection", "segmentation"],
)
def test_sixteen_images_are_learnt_by_heart(
    tmp_path: Path, evaluation: Evaluation, backbone: str, value: str, bar: float
) -> None:
    scores = evaluation.measure(context(backbone, sixteen(tmp_path)))
    assert scores.values[value] > bar
    curve = scores.details["curve"]["loss"]
    assert curve[-1] < 0.2 * curve[0]
