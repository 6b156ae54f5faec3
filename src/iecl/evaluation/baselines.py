"""What doing nothing gives, beside a backbone: one that was never trained, raw pixels, or weights from elsewhere."""

from pathlib import Path
from typing import Any

from iecl.backbones.pixels import RawPixels
from iecl.errors import UserError
from iecl.evaluation.model import load_model
from iecl.runs.directory import RunDirectory
from iecl.training.config import read_config
from iecl.weights.external import PIXELS, RANDOM, external_info, random_model
from iecl.weights.file import says_backbone
from iecl.weights.model import LoadedModel

FROZEN = ("knn", "linear", "fewshot")
"""Evaluations of features, which pixels may stand in for."""


def baseline_model(word: str, model: LoadedModel, target: Path | str, evaluation: str) -> LoadedModel:
    """What `--baseline` calls `word`, to be held against the model of `target`.

    An untrained network and pixels see images as the model does. The network is the one that the run began with, if
    `target` is a run. A file that does not say what it holds is taken for the model's backbone.

    Raises:
        UserError: there is no such baseline, or it does not go with the evaluation.
    """
    look: dict[str, Any] = {"image_size": model.image_size, "mean": model.mean, "std": model.std}
    path = Path(word)
    if word == RANDOM:
        is_run = Path(target).is_dir()
        seed = read_config(RunDirectory(target)).training.seed if is_run else 0
        return random_model(model.name, seed, **look)
    if word == PIXELS:
        if evaluation not in FROZEN:
            do = f"use it with one of: {', '.join(FROZEN)}"
            raise UserError(f"pixels have no weights for {evaluation} to train", where="--baseline", do=do)
        info = external_info(PIXELS, method=PIXELS, **look)
        return LoadedModel(
            RawPixels(model.image_size, info.channels).eval(),
            info,
            "no network",
            "no weights: the pixels of the images",
        )
    if not path.exists():
        do = f"give {RANDOM}, {PIXELS}, a run directory or a file of weights"
        raise UserError(f"there is no baseline {word!r}", where="--baseline", do=do)
    if path.is_dir() or says_backbone(path):
        return load_model(path)
    return load_model(path, backbone=model.name, image_size=model.image_size)
