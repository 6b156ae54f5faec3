"""What detection and segmentation have in common besides the training: where data come from, what is put on record."""

import json
import logging
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from iecl.data.voc import Progress, VocSet
from iecl.errors import UserError
from iecl.evaluation.context import EvaluationContext

BATCH_NORMS = ("train", "frozen")
_log = logging.getLogger(__name__)
_Opener = Callable[[str, str, Progress | None], VocSet]


def open_both(context: EvaluationContext, opener: _Opener, train: str, test: str) -> tuple[VocSet, VocSet]:
    """The images to train on and those to measure with.

    Raises:
        UserError: no folder was named, or something in it is not right.
    """
    if not isinstance(context.given, str):
        raise UserError(
            "no images with boxes or masks were named",
            where="--data",
            do="give a VOCdevkit folder, as --data VOCdevkit",
        )
    both = tuple(
        opener(context.given, lists, context.line.count(f"reading {what} images"))
        for what, lists in (("train", train), ("test", test))
    )
    if both[0].classes != both[1].classes:
        raise UserError("train and test images have different classes", where="--data")
    shared = shared_images(*both)
    if shared:
        _log.warning("%d of the %d test images are also trained on", shared, len(both[1]))
    return both[0], both[1]


def shared_images(train: VocSet, test: VocSet) -> int:
    """How many test images are trained on; a number with more than none shows fitting, not transfer."""
    return len({example.name for example in train.examples} & {example.name for example in test.examples})


def counts(train: VocSet, test: VocSet) -> dict[str, int]:
    """How many images and classes the numbers rest on."""
    return {"n_train": len(train), "n_test": len(test), "classes": len(train.classes)}


def common_protocol(
    context: EvaluationContext, train: VocSet, test: VocSet, proof: str, batch_norm: str
) -> dict[str, Any]:
    """What moves the numbers of both evaluations."""
    model = context.model
    norms = {
        "train": "statistics of the batch, scales and shifts trained; running statistics at test, not recomputed",
        "frozen": "running statistics, scales and shifts of the pretraining, all fixed",
    }
    return {
        "backbone": model.name,
        "checkpoint": model.checkpoint,
        "backbone_weights": proof,
        "trained": "all layers",
        "batch_norm_of_backbone": norms[batch_norm],
        "pixels": "RGB, scaled bilinear and antialiased; EXIF not applied",
        "mean": list(model.mean),
        "std": list(model.std),
        "train_list": train.name,
        "test_list": test.name,
        "shared_images": shared_images(train, test),
        "selection": "last epoch",
        "train_fingerprint": train.fingerprint,
        "test_fingerprint": test.fingerprint,
    }


def work_folder(
    evaluation: str, values: dict[str, Any], context: EvaluationContext, train: VocSet, proof: str
) -> Path | None:
    """Where a training keeps its checkpoints: other settings, weights or data have another place; None: nowhere."""
    if context.work is None:
        return None
    kept = {name: value for name, value in values.items() if name not in ("num_workers", "test")}
    scale = {"mean": list(context.model.mean), "std": list(context.model.std)}
    whole = {"evaluation": evaluation, "settings": kept, "weights": proof, "data": train.fingerprint, **scale}
    text = json.dumps(whole, sort_keys=True)
    return context.work / evaluation / blake2b(text.encode(), digest_size=8).hexdigest()
