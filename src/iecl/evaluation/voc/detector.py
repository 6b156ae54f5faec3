"""Faster R-CNN around a pretrained ResNet, in two forms that must never be compared with each other.

`fpn`: a pyramid of maps from all four stages, and two linear layers for each region. `c4`: one map from the third
stage; the fourth stage looks at each region and is followed by one more batch norm, as in MoCo's recipe.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FasterRCNN, FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import MultiScaleRoIAlign
from torchvision.ops.poolers import LevelMapper

from iecl.evaluation.voc.resnet import STAGES, STEM, channels_of, strides_of

NECKS = ("fpn", "c4")
LEVELS = 5
"""Maps of the pyramid: four stages and a half-size copy of the last."""
RATIOS = (0.5, 1.0, 2.0)
SCORE_AT_LEAST, NMS_OVERLAP, MOST_FOUND = 0.05, 0.5, 100


@dataclass(frozen=True)
class DetectorShape:
    """The sizes of a detector."""

    neck: str
    anchors: tuple[int, ...]
    channels: int
    hidden: int
    rois: int
    proposals: int


@dataclass(frozen=True)
class Detector:
    """A Faster R-CNN, and the parts of it that were pretrained, by the names that they have in a ResNet."""

    network: Any
    pretrained: Mapping[str, nn.Module]


class _AsGiven(GeneralizedRCNNTransform):  # type: ignore[misc]
    """Normalizes and pads; images were scaled before, in the one way that training and test share."""

    def resize(self, image: Tensor, target: Any = None) -> tuple[Tensor, Any]:
        """Nothing to do."""
        return image, target


def make_detector(
    resnet: Any, shape: DetectorShape, classes: int, mean: Sequence[float], std: Sequence[float]
) -> Detector:
    """A detector for so many classes besides background; new layers are drawn from torch's generator."""
    pretrained = {name: getattr(resnet, name) for name in (*STEM, *STAGES)}
    common = {
        "box_score_thresh": SCORE_AT_LEAST,
        "box_nms_thresh": NMS_OVERLAP,
        "box_detections_per_img": MOST_FOUND,
        "box_batch_size_per_image": shape.rois,
        "rpn_post_nms_top_n_train": 2 * shape.proposals,
        "rpn_post_nms_top_n_test": shape.proposals,
    }
    parts = _fpn(resnet, shape, classes) if shape.neck == "fpn" else _c4(resnet, shape, classes)
    network = FasterRCNN(**parts, **common)
    network.transform = _AsGiven(1, 1, list(mean), list(std))
    return Detector(network, pretrained)


def _fpn(resnet: Any, shape: DetectorShape, classes: int) -> dict[str, Any]:
    names = {stage: str(number) for number, stage in enumerate(STAGES)}
    widths = [channels_of(getattr(resnet, stage)) for stage in STAGES]
    region = 7
    return {
        "backbone": BackboneWithFPN(resnet, names, widths, shape.channels),
        "rpn_anchor_generator": AnchorGenerator(tuple((size,) for size in shape.anchors), (RATIOS,) * LEVELS),
        "box_roi_pool": _pool(list(names.values()), region, strides_of(resnet)),
        "box_head": TwoMLPHead(shape.channels * region**2, shape.hidden),
        "box_predictor": FastRCNNPredictor(shape.hidden, classes + 1),
    }


def _c4(resnet: Any, shape: DetectorShape, classes: int) -> dict[str, Any]:
    body = IntermediateLayerGetter(resnet, {"layer3": "0"})
    body.out_channels = channels_of(resnet.layer3)
    width = channels_of(resnet.layer4)
    return {
        "backbone": body,
        "rpn_anchor_generator": AnchorGenerator((tuple(shape.anchors),), (RATIOS,)),
        # As many proposals as detectron2 has for one map.
        "rpn_pre_nms_top_n_train": 12000,
        "rpn_pre_nms_top_n_test": 6000,
        # 14, which the stride of the fourth stage halves.
        "box_roi_pool": _pool(["0"], 14, strides_of(resnet)[2:3]),
        "box_head": nn.Sequential(resnet.layer4, nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        "box_predictor": FastRCNNPredictor(width, classes + 1),
    }


def _pool(names: list[str], region: int, strides: list[int]) -> Any:
    """Cuts regions out of maps of known strides.

    Left alone, torchvision guesses the strides from the first batch it sees and keeps them. Padding misleads it where
    images are small, and a training that goes on after a break sees another first batch.
    """
    pool = MultiScaleRoIAlign(names, output_size=region, sampling_ratio=2)
    pool.scales = [1 / stride for stride in strides]
    pool.map_levels = LevelMapper(
        int(math.log2(strides[0])), int(math.log2(strides[-1])), pool.canonical_scale, pool.canonical_level
    )
    return pool
