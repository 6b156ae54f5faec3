"""DeepLab-v3 around a pretrained ResNet."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.segmentation.deeplabv3 import DeepLabHead

from iecl.evaluation.voc.resnet import STAGES, STEM, channels_of, dilate

STRIDES = (8, 16, 32)
_RATES = (6, 12, 18)
"""Dilations of DeepLab's parallel kernels at a stride of 16; they grow as the map does."""


class Segmenter(nn.Module):
    """Scores of each class for each pixel: the ResNet's last map, the head, and bilinear scaling."""

    def __init__(self, resnet: Any, classes: int, output_stride: int) -> None:
        """New layers are drawn from torch's generator; `classes` counts background."""
        super().__init__()
        self.output_stride = dilate(resnet, output_stride)
        """As asked for, or less where the ResNet shrinks less by itself."""
        self.rates = tuple(max(1, rate * 16 // self.output_stride) for rate in _RATES)
        self.body = IntermediateLayerGetter(resnet, {STAGES[-1]: "out"})
        self.head = DeepLabHead(channels_of(resnet.layer4), classes, self.rates)

    @property
    def pretrained(self) -> Mapping[str, nn.Module]:
        """The parts that were pretrained, by the names that they have in a ResNet."""
        return {name: self.body[name] for name in (*STEM, *STAGES)}

    def forward(self, images: Tensor, size: tuple[int, int]) -> Tensor:
        """(n, classes, *size)."""
        scores: Tensor = self.head(self.body(images)["out"])
        return interpolate(scores, size=size, mode="bilinear", align_corners=False)
