"""One evaluation from beginning to end: model, data, features, protocol, and a record of everything that counts."""

import re
import time
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from iecl.console import ProgressLine
from iecl.data.resolve import folder_of
from iecl.data.source import Source
from iecl.evaluation import EVALUATIONS
from iecl.evaluation.contract import Evaluation, Trial
from iecl.evaluation.features import no_labels
from iecl.evaluation.model import LoadedModel, load_model
from iecl.evaluation.reading import Reader, data_for, has_own_test
from iecl.registry import resolve
from iecl.runs.directory import RunDirectory
from iecl.settings import as_values, build
from iecl.views.policies import plain_share


def evaluate(
    name: str,
    target: Path | str,
    data: str | None = None,
    *,
    checkpoint: str = "final",
    quiet: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Measure a backbone; returns the scores together with the whole protocol that they belong to.

    For a run directory the result is also written to a file in its `evaluations/`.

    Args:
        name: a row of `EVALUATIONS`.
        target: a run directory or an exported `.safetensors` file.
        data: labelled folder or named data set; by default the one that the run was trained on.
        checkpoint: which weights of a run: `final`, `last` or `best`.
        quiet: show no progress.
        **options: the evaluation's own settings.

    Raises:
        UserError: an option, the weights or the data are not usable.
    """
    began = time.monotonic()
    kind: type[Evaluation] = resolve(name, EVALUATIONS, "evaluation", "iecl evaluate").load()
    settings: Any = build(kind.Settings, options, name, "iecl evaluate")
    evaluation = kind(settings)
    model = load_model(target, checkpoint)
    chosen = data_for(model, target, data, keep_decoded=evaluation.rereads)
    with ProgressLine(quiet) as line:
        reader = Reader(model, chosen, line)
        trial, classes = _trial(reader)
        scores = evaluation.measure(trial)
    result = {"evaluation": name, "top1": scores.top1, "top5": scores.top5, **scores.details}
    result |= {"n_train": len(trial.train), "n_test": len(trial.test), "classes": classes}
    result |= {
        "protocol": as_values(settings) | _circumstances(reader),
        "protocol_id": f"{evaluation.summary} {_seen(model)}",
        "weights": model.proof,
        "data": chosen.name,
        "skipped": len(reader.skipped),
        "seconds": round(time.monotonic() - began, 2),
    }
    return _record(result, target, checkpoint) if Path(target).is_dir() else result


def _trial(reader: Reader) -> tuple[Trial, int]:
    """Features of both splits, and the number of classes."""
    train, test = _labelled(reader, "train-part"), _labelled(reader, "test")
    trial = Trial(
        train=reader.features(train, "train").labelled("train"),
        test=reader.features(test, "test").labelled("test"),
        device=reader.device,
        crops=partial(reader.crops, train),
        progress=reader.line.count("epoch"),
    )
    return trial, len(train.classes)


def _labelled(reader: Reader, split: str) -> Source:
    """The pictures of a split; without labels it is refused now and not after the features were made."""
    source = reader.open(split)
    if not (source.labels >= 0).any():
        raise no_labels(split.removesuffix("-part"))
    return source


def _seen(model: LoadedModel) -> str:
    """What the backbone sees of a picture, as in `whole 32px` or `centre 0.875 224px`."""
    share = plain_share(model.image_size)
    return f"{'whole' if share == 1 else f'centre {share:g}'} {model.image_size}px"


def _circumstances(reader: Reader) -> dict[str, Any]:
    """Everything besides the evaluation's settings that moves a number by points."""
    model = reader.model
    return {
        "backbone": model.name,
        "checkpoint": model.checkpoint,
        "features": "output of the backbone, as it is",
        "batch_norm": "running statistics",
        "image_size": model.image_size,
        "crop_share": plain_share(model.image_size),
        "interpolation": "bilinear, antialiased",
        "mean": list(model.mean),
        "std": list(model.std),
        "test_split": "its own" if has_own_test(reader.data) else "a fixed fifth of the folder",
        "repetitions": 1,
    }


def _record(result: dict[str, Any], target: Path | str, checkpoint: str) -> dict[str, Any]:
    """The result with the file that it was written to; a repetition replaces it."""
    run = RunDirectory(target)
    run.evaluations.mkdir(exist_ok=True)
    parts = [result["evaluation"], _short_name(result["data"]), *([checkpoint] if checkpoint != "final" else [])]
    file = run.evaluations / f"{'-'.join(parts)}.json"
    run.write_json(file, result)
    return result | {"file": str(file)}


def _short_name(data: str) -> str:
    """A part of a file's name: the data set's own, or a folder's last part and four digits that tell folders apart."""
    if folder_of(data) is None:
        return data
    plain = re.sub(r"[^A-Za-z0-9_.]+", "_", Path(data).name) or "folder"
    return f"{plain[:40]}-{blake2b(data.encode(errors='surrogateescape'), digest_size=2).hexdigest()}"
