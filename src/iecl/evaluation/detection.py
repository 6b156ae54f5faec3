"""Detection on PASCAL VOC: a Faster R-CNN around the pretrained ResNet, trained whole, measured as VOC and COCO do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import SGD

from iecl import counter
from iecl.data.voc import Boxes, VocSet, open_boxes
from iecl.errors import UserError
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.contract import Evaluation, Scores
from iecl.evaluation.fit import Fit, param_groups
from iecl.evaluation.voc import detector as network
from iecl.evaluation.voc.average_precision import (
    THRESHOLDS,
    Found,
    Truth,
    VocPrecision,
    coco_metric,
    coco_precision,
    mean,
    voc_precision,
)
from iecl.evaluation.voc.detector import LEVELS, NECKS, Detector, DetectorShape, make_detector
from iecl.evaluation.voc.images import Boxed, boxed, draws, load_image, moved_back, scaled, size_for_short
from iecl.evaluation.voc.loader import Sample, VocLoader
from iecl.evaluation.voc.memory import check_room
from iecl.evaluation.voc.resnet import built_in_proof, freeze_norms, pretrained_resnet, training_mode
from iecl.evaluation.voc.transfer import BATCH_NORMS, common_protocol, counts, open_both, work_folder
from iecl.files import LARGEST
from iecl.schedule import LR_SCHEDULES
from iecl.settings import as_values, setting


@dataclass(frozen=True, kw_only=True)
class DetectionSettings:
    """How the detector is built and trained. The optimizer and its lr are the IE-CL paper's; the rest is ours."""

    train: str = setting("train", "list to train on; 2007/trainval+2012/trainval joins lists of two years")
    test: str = setting("val", "list to measure with")
    neck: str = setting("fpn", "form of the detector; numbers of the two are not comparable", choices=NECKS)
    batch_norm: str = setting("train", "batch norm of the backbone", choices=BATCH_NORMS)
    epochs: int = setting(24, "passes over the training images", low=1)
    batch_size: int = setting(16, "images in a step", low=1)
    lr: float = setting(1e-4, "learning rate of SGD, as printed; MoCo's recipe has 0.02", above=0)
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    weight_decay: float = setting(1e-4, "weight decay of kernels; biases and norms have none", low=0)
    schedule: str = setting(
        "multistep",
        "how the learning rate falls; multistep: to 1/10 at 3/4, 1/100 at 11/12",
        choices=tuple(LR_SCHEDULES),
    )
    warmup_steps: int = setting(100, "steps over which the learning rate rises from 0", low=0)
    min_sizes: tuple[int, ...] = setting(
        (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800), "shorter sides of training images, drawn", low=16
    )
    test_min_size: int = setting(800, "shorter side of test images", low=16)
    max_size: int = setting(1333, "the longer side is at most this", low=16)
    hflip: bool = setting(True, "mirror half of the training images")
    with_difficult: bool = setting(True, "train on objects marked difficult too, as MoCo's recipe does")
    anchors: tuple[int, ...] = setting((32, 64, 128, 256, 512), "sides of anchors; fpn: one for each level", low=1)
    channels: int = setting(256, "fpn: channels of the pyramid", low=1)
    hidden_dim: int = setting(1024, "fpn: width of the two linear layers for a region", low=1)
    rois: int = setting(512, "regions of a training image that the second stage learns from", low=1)
    proposals: int = setting(1000, "regions of a test image for the second stage; twice as many in training", low=1)
    num_workers: int = setting(2, "threads that read images; changes no number", low=0)
    seed: int = setting(0, "decides new weights, order and draws", low=0, high=LARGEST)

    def __post_init__(self) -> None:
        if self.neck == "fpn" and len(self.anchors) != LEVELS:
            raise ValueError(f"neck fpn needs {LEVELS} anchors, one for each level, not {len(self.anchors)}")
        if not self.anchors or not self.min_sizes:
            raise ValueError("anchors and min_sizes must name at least one size")


@final
class Detection(Evaluation):
    """Faster R-CNN on VOC."""

    Settings = DetectionSettings
    is_frozen = False

    def __init__(self, settings: DetectionSettings) -> None:
        self.settings = settings

    @property
    def summary(self) -> str:
        """As in `detection/1 faster-rcnn fpn sgd lr=0.0001 batch=16 epochs=24 bn=train`."""
        s = self.settings
        return (
            f"detection/1 faster-rcnn {s.neck} sgd lr={s.lr:g} batch={s.batch_size} epochs={s.epochs} bn={s.batch_norm}"
        )

    def measure(self, context: EvaluationContext) -> Scores:
        """Train a detector on the training images and measure it on the test images."""
        s = self.settings
        coco_metric()
        train, test = open_both(context, open_boxes, s.train, s.test)
        for boxes in (train, test):
            if boxes.counts["objects"] - boxes.counts["difficult"] < 1:
                raise UserError(f"the images of {boxes.name} have no object to find", where="--data")
        detector, proof = self._detector(context, len(train.classes))
        curve = self._train(detector, train, proof, context)
        found = detect(detector, test, s.test_min_size, s.max_size, context)
        values, by_class = precisions(found, test)
        return Scores(
            values,
            counts(train, test),
            common_protocol(context, train, test, proof, s.batch_norm) | self._protocol(),
            f"{train.name}>{test.name} {s.test_min_size}px",
            {"curve": {"loss": curve}, **by_class, "boxes": {"train": train.counts, "test": test.counts}},
        )

    def _detector(self, context: EvaluationContext, classes: int) -> tuple[Detector, str]:
        """A detector around a copy of the backbone, on the context's device, with proof of its weights."""
        s, model = self.settings, context.model
        resnet = pretrained_resnet(model, "detection")
        shape = DetectorShape(s.neck, s.anchors, s.channels, s.hidden_dim, s.rois, s.proposals)
        with counter.seeded(counter.key(s.seed, "voc/weights")):
            made = make_detector(resnet, shape, classes, model.mean, model.std)
        proof = built_in_proof(made.pretrained, model.backbone.state_dict())
        if s.batch_norm == "frozen":
            freeze_norms(made.pretrained.values())
        size = max(s.min_sizes), min(s.max_size, 4 * max(s.min_sizes) // 3)  # most images of VOC are 3 by 4
        check_room(made.network, _maps, s.batch_size, size, context.device, model.name)
        made.network.to(context.device)
        return made, proof

    def _train(self, detector: Detector, train: VocSet, proof: str, context: EvaluationContext) -> list[float]:
        s, device = self.settings, context.device
        training_mode(detector.network, detector.pretrained.values(), s.batch_norm)

        def load(sample: Sample) -> Boxed:
            side, mirror = draws(s.seed, sample.epoch, sample.position, 2)
            short = s.min_sizes[int(side * len(s.min_sizes))]
            return boxed(
                train.examples[sample.row],
                short,
                s.max_size,
                mirrored=s.hflip and mirror < 0.5,
                with_difficult=s.with_difficult,
            )

        def loss_of(batch: Sequence[Boxed]) -> Tensor:
            targets = [{"boxes": one.boxes.to(device), "labels": one.labels.to(device)} for one in batch]
            losses: dict[str, Tensor] = detector.network([one.image.to(device) for one in batch], targets)
            return torch.stack(list(losses.values())).sum()

        loader = VocLoader(
            load=load, images=len(train), batch_size=s.batch_size, seed=s.seed, num_workers=s.num_workers
        )
        fit = Fit(
            network=detector.network,
            optimizer=SGD(param_groups(detector.network, s.weight_decay), lr=s.lr, momentum=s.momentum),
            epochs=s.epochs,
            steps_per_epoch=loader.steps,
            schedule=s.schedule,
            warmup_steps=s.warmup_steps,
            purpose="voc",
            seed=s.seed,
            folder=work_folder("detection", as_values(s), context, train, proof),
            line=context.line,
        )
        return fit.run(lambda step: loader.batches(step, fit.steps), loss_of)

    def _protocol(self) -> dict[str, Any]:
        """What moves the numbers of this evaluation besides its settings."""
        forms = {
            "fpn": "torchvision's pyramid of four stages and a pooled copy, two linear layers for each region",
            "c4": "one map of stage 3; stage 4 and one more batch norm for each region of 14×14, then the mean",
        }
        return {
            "detector": forms[self.settings.neck],
            "anchor_ratios": list(network.RATIOS),
            "score_at_least": network.SCORE_AT_LEAST,
            "nms_overlap": network.NMS_OVERLAP,
            "most_found": network.MOST_FOUND,
            "batch_norm_at_test": "running statistics",
            "voc_metrics": "overlap 0.5 or more; 11 points (voc07), area (voc12); difficult objects do not count",
            "coco_metrics": "torchmetrics with pycocotools; overlaps 0.5 to 0.95, 101 points; difficult as crowds",
        }


@torch.no_grad()
def detect(detector: Detector, images: VocSet, short: int, longest: int, context: EvaluationContext) -> list[Found]:
    """What the detector finds in each image, in the pixels of the image as it is stored."""
    made = []
    progress = context.line.count("detecting in test images")
    detector.network.eval()
    for number, example in enumerate(images.examples, start=1):
        size = size_for_short(example.size, short, longest)
        (said,) = detector.network([scaled(load_image(example), size).to(context.device)])
        boxes, scores, labels = (said[name].cpu() for name in ("boxes", "scores", "labels"))
        made.append(Found(moved_back(boxes, size, example.size), scores, labels))
        progress(number, len(images))
    return made


def precisions(found: list[Found], test: VocSet) -> tuple[dict[str, float], dict[str, Any]]:
    """The scores, and the average precision of each class."""
    truth = [_truth(example.boxes) for example in test.examples if example.boxes is not None]
    at: dict[float, VocPrecision] = {t: voc_precision(found, truth, len(test.classes), t) for t in THRESHOLDS}
    values = {"ap50_voc12": mean(at[0.5].area), "ap50_voc07": mean(at[0.5].eleven_points)}
    names = {label: name for label, name in enumerate(test.classes, start=1)}
    by_class = {names[label]: value for label, value in at[0.5].area.items()}
    # What MoCo's tables have under AP and AP75: VOC's metric at COCO's overlaps.
    forms = {"voc12": [one.area for one in at.values()], "voc07": [one.eleven_points for one in at.values()]}
    more = {f"ap_{form}": sum(map(mean, rows)) / len(rows) for form, rows in forms.items()}
    more |= {"ap75_voc12": mean(at[0.75].area), "ap75_voc07": mean(at[0.75].eleven_points)}
    return values | coco_precision(found, truth), {"ap50_by_class": by_class, "voc_at_coco_overlaps": more}


def _truth(boxes: Boxes) -> Truth:
    return Truth(*(torch.from_numpy(values) for values in (boxes.corners, boxes.labels, boxes.difficult)))


def _maps(network: Any, images: Tensor) -> Any:
    """Backbone, neck and the first head, which see whole images; the second sees a few regions."""
    found = network.backbone(images)
    return network.rpn.head(list(found.values()) if isinstance(found, dict) else [found])
