"""Segmentation on PASCAL VOC: DeepLab-v3 around the pretrained ResNet, trained whole, measured by overlap."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import Adam

from iecl import counter
from iecl.data.voc import IGNORED, VocSet, open_masks
from iecl.errors import UserError
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.contract import Evaluation, Scores
from iecl.evaluation.fit import Fit, param_groups
from iecl.evaluation.voc.images import CropRules, Cut, crop, draws, load_image, normalized, scaled, size_for_long
from iecl.evaluation.voc.iou import confusion, union_of
from iecl.evaluation.voc.loader import Sample, VocLoader
from iecl.evaluation.voc.memory import check_room
from iecl.evaluation.voc.resnet import built_in_proof, freeze_norms, pretrained_resnet, training_mode
from iecl.evaluation.voc.segmenter import STRIDES, Segmenter
from iecl.evaluation.voc.transfer import BATCH_NORMS, common_protocol, counts, open_both, work_folder
from iecl.files import LARGEST
from iecl.schedule import LR_SCHEDULES
from iecl.settings import as_values, setting


@dataclass(frozen=True, kw_only=True)
class SegmentationSettings:
    """How the segmenter is trained. Adam, its lr, crops and contrast are the IE-CL paper's; the rest is ours."""

    train: str = setting("train", "list to train on; 2007/train+2012/train joins lists of two years")
    test: str = setting("val", "list to measure with")
    output_stride: int = setting(16, "the ResNet's last map is 1/8, 1/16 or 1/32 of the image", low=8, high=32)
    batch_norm: str = setting("train", "batch norm of the backbone", choices=BATCH_NORMS)
    epochs: int = setting(50, "passes over the training images", low=1)
    batch_size: int = setting(16, "crops in a step", low=2)
    lr: float = setting(3e-4, "learning rate of Adam, as printed", above=0)
    weight_decay: float = setting(0.0, "weight decay of kernels; biases and norms have none", low=0)
    schedule: str = setting(
        "poly", "how the learning rate falls; poly: (1 - step/steps)^0.9", choices=tuple(LR_SCHEDULES)
    )
    warmup_steps: int = setting(0, "steps over which the learning rate rises from 0", low=0)
    crop: int = setting(513, "side of a training crop", low=16)
    long_side: int = setting(0, "images are first scaled to this longer side; 0: as they are", low=0)
    scale: tuple[float, ...] = setting((1.0, 1.0), "training images are scaled by a factor from here to here", above=0)
    contrast: float = setting(0.4, "contrast of a crop is changed by a factor up to 1 ± this", low=0, high=1)
    hflip: bool = setting(False, "mirror half of the crops")
    num_workers: int = setting(2, "threads that read images; changes no number", low=0)
    seed: int = setting(0, "decides new weights, order and draws", low=0, high=LARGEST)

    def __post_init__(self) -> None:
        if self.output_stride not in STRIDES:
            raise ValueError(f"output_stride is {self.output_stride}, it must be 8, 16 or 32")
        if len(self.scale) != 2 or self.scale[0] > self.scale[1]:
            raise ValueError(f"scale is {list(self.scale)}, it must be two factors, the smaller one first")


@final
class Segmentation(Evaluation):
    """DeepLab-v3 on VOC."""

    Settings = SegmentationSettings
    is_frozen = False

    def __init__(self, settings: SegmentationSettings) -> None:
        self.settings = settings

    @property
    def summary(self) -> str:
        """As in `segmentation/1 deeplab-v3 os=16 adam lr=0.0003 batch=16 epochs=50 crop=513 bn=train`."""
        s = self.settings
        trained = f"adam lr={s.lr:g} batch={s.batch_size} epochs={s.epochs} crop={s.crop} bn={s.batch_norm}"
        return f"segmentation/1 deeplab-v3 os={s.output_stride} {trained}"

    def measure(self, context: EvaluationContext) -> Scores:
        """Train a segmenter on the training images and measure it on the test images."""
        s = self.settings
        train, test = open_both(context, open_masks, s.train, s.test)
        for masks in (train, test):
            if masks.counts["pixels"] == masks.counts["ignored"]:
                raise UserError(f"every pixel of {masks.name} is ignored", where="--data", do=f"{IGNORED} is no class")
        segmenter, proof = self._segmenter(context, len(train.classes) + 1)
        curve = self._train(segmenter, train, proof, context)
        result = union_of(segment(segmenter, test, s.long_side, context))
        names = ("background", *test.classes)
        return Scores(
            {"miou": result.mean, "pixel_accuracy": result.pixel_accuracy},
            counts(train, test),
            common_protocol(context, train, test, proof, s.batch_norm) | self._protocol(segmenter),
            f"{train.name}>{test.name} {f'long {s.long_side}px' if s.long_side else 'whole'}",
            {
                "curve": {"loss": curve},
                "iou_by_class": {names[label]: value for label, value in result.by_class.items()},
                "masks": {"train": train.counts, "test": test.counts},
            },
        )

    def _segmenter(self, context: EvaluationContext, classes: int) -> tuple[Segmenter, str]:
        """A segmenter around a copy of the backbone, on the context's device, with proof of its weights."""
        s, model = self.settings, context.model
        resnet = pretrained_resnet(model, "segmentation")
        with counter.seeded(counter.key(s.seed, "voc/weights")):
            made = Segmenter(resnet, classes, s.output_stride)
        proof = built_in_proof(made.pretrained, model.backbone.state_dict())
        if s.batch_norm == "frozen":
            freeze_norms(made.pretrained.values())
        side = s.crop, s.crop
        check_room(made, lambda network, images: network(images, side), s.batch_size, side, context.device, model.name)
        return made.to(context.device), proof

    def _train(self, segmenter: Segmenter, train: VocSet, proof: str, context: EvaluationContext) -> list[float]:
        s, model, device = self.settings, context.model, context.device
        rules = CropRules(s.crop, s.long_side, (s.scale[0], s.scale[1]), s.contrast, s.hflip)
        training_mode(segmenter, segmenter.pretrained.values(), s.batch_norm)

        def load(sample: Sample) -> tuple[Tensor, Tensor]:
            cut = Cut(*draws(s.seed, sample.epoch, sample.position, 5))
            return crop(train.examples[sample.row], cut, rules, model.mean, model.std)

        def loss_of(batch: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
            images, masks = (torch.stack(list(part)).to(device) for part in zip(*batch, strict=True))
            return pixel_loss(segmenter(images, (s.crop, s.crop)), masks.long())

        loader = VocLoader(
            load=load, images=len(train), batch_size=s.batch_size, seed=s.seed, num_workers=s.num_workers
        )
        fit = Fit(
            network=segmenter,
            optimizer=Adam(param_groups(segmenter, s.weight_decay), lr=s.lr),
            epochs=s.epochs,
            steps_per_epoch=loader.steps,
            schedule=s.schedule,
            warmup_steps=s.warmup_steps,
            purpose="voc",
            seed=s.seed,
            folder=work_folder("segmentation", as_values(s), context, train, proof),
            line=context.line,
        )
        return fit.run(lambda step: loader.batches(step, fit.steps), loss_of)

    def _protocol(self, segmenter: Segmenter) -> dict[str, Any]:
        """What moves the numbers of this evaluation besides its settings."""
        return {
            "segmenter": "torchvision's DeepLabHead on the last stage, no auxiliary loss",
            "head_dilations": list(segmenter.rates),
            "true_output_stride": segmenter.output_stride,
            "loss": f"cross-entropy, mean over pixels that are not {IGNORED}",
            "test_view": "whole image, one scale, scores scaled to the mask's size",
            "metric": "one confusion matrix over all images, background included; classes without a pixel left out",
        }


def pixel_loss(scores: Tensor, masks: Tensor) -> Tensor:
    """The mean cross-entropy of the pixels that are of a class; 0 where there is none.

    >>> pixel_loss(torch.zeros(1, 4, 1, 2), torch.tensor([[[3, 255]]])).item()     # log 4
    1.386...
    """
    total = cross_entropy(scores, masks, ignore_index=IGNORED, reduction="sum")
    return total / (masks != IGNORED).sum().clamp_min(1)


@torch.no_grad()
def segment(segmenter: Segmenter, images: VocSet, long_side: int, context: EvaluationContext) -> Tensor:
    """The confusion matrix over all images, each seen whole and compared at its own size."""
    classes = len(images.classes) + 1
    total = torch.zeros(classes, classes, dtype=torch.int64)
    progress = context.line.count("segmenting test images")
    segmenter.eval()
    for number, example in enumerate(images.examples, start=1):
        image = scaled(load_image(example), size_for_long(example.size, long_side))
        seen = normalized(image, context.model.mean, context.model.std)[None].to(context.device)
        predicted = segmenter(seen, example.size).argmax(dim=1).cpu().flatten()
        total += confusion(predicted, torch.from_numpy(example.numbers()).long().flatten(), classes)
        progress(number, len(images))
    return total
