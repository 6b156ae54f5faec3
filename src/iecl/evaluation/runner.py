"""One evaluation from beginning to end: model, data, protocol, and a record of everything that counts."""

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from iecl.comparison.protocols import protocol_hash
from iecl.comparison.results import packed
from iecl.console import ProgressLine
from iecl.data.defaults import folder_of
from iecl.data.listing import one_walk
from iecl.data.shard_files import is_url
from iecl.errors import UserError
from iecl.evaluation import EVALUATIONS
from iecl.evaluation.baselines import baseline_model
from iecl.evaluation.compute import FULL, compute_called
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.contract import Evaluation, Scores
from iecl.evaluation.model import EXTERNAL, load_model
from iecl.registry import resolve
from iecl.runs.directory import RunDirectory, write_json
from iecl.settings import as_values, build


@one_walk()
def evaluate(
    name: str,
    target: Path | str,
    data: str | tuple[str, ...] | None = None,
    *,
    exclude: str = "",
    checkpoint: str = "final",
    seeds: int = 1,
    out: Path | str | None = None,
    device: str = "",
    precision: str = "",
    devices: int = 1,
    quiet: bool = True,
    baselines: Sequence[str] = (),
    **options: Any,
) -> dict[str, Any]:
    """Measure a backbone; returns the scores together with the whole protocol that they belong to.

    For a run directory the result is also written to a file in its `evaluations/`. A long evaluation that was stopped
    goes on from its last epoch when the same call is made again.

    Args:
        name: a row of `EVALUATIONS`.
        target: a run directory, a checkpoint in one, a file of weights, or `random`; see `load_model`.
        data: labeled folder or named dataset; by default the one that the run was trained on.
        exclude: a list of images to leave out, as `iecl doctor` writes it.
        checkpoint: which weights of a run: `final`, `last` or `best`.
        seeds: how often to repeat, each time with another seed; the numbers are then means.
        out: a JSON file for the result, besides the one in a run directory.
        device: where to compute, as in `cpu` or `cuda:1`; empty: a GPU if there is one.
        precision: arithmetic of the frozen backbone: `32`, `bf16` or `fp16`; empty: 32 bits, without TF32.
        devices: processes that share the images when features are made, each on a GPU of its own if there are any.
        quiet: show no progress.
        baselines: what to measure in the same way on the same images: `random`, an untrained network, `pixels`, runs
            and files of weights; their results are in `baselines` of this one.
        **options: the evaluation's own settings, and what `load_model` takes for a file from elsewhere and `random`:
            backbone, image_size, layout, allow, method.

    Raises:
        UserError: an option, the weights or the data are not usable.
    """
    external = {key: options.pop(key) for key in EXTERNAL if key in options}
    evaluation = prepare(name, options)
    model = load_model(target, checkpoint, **external)
    with ProgressLine(quiet) as line:
        how: dict[str, Any] = {"keep_decoded": evaluation.rereads, "exclude": exclude}
        how |= compute_called(device, precision, devices)
        if not evaluation.is_frozen and how["precision"] != FULL:
            raise UserError(f"{name} trains the backbone, in 32 bits", where="--precision", do="leave it out")
        context = EvaluationContext(model, target, data, line, **how)
        others = [(word, baseline_model(word, model, target, name)) for word in dict.fromkeys(baselines)]
        held = [measure(name, evaluation, context.beside(other, word), seeds=seeds) for word, other in others]
        return measure(name, evaluation, context, seeds=seeds, checkpoint=checkpoint, out=out, baselines=held)


def prepare(name: str, options: Mapping[str, Any]) -> Evaluation:
    """The evaluation called `name` with these of its settings."""
    kind: type[Evaluation] = resolve(name, EVALUATIONS, "evaluation", "iecl evaluate").load()
    return kind(build(kind.Settings, options, name, "iecl evaluate"))


def measure(
    name: str,
    evaluation: Evaluation,
    context: EvaluationContext,
    *,
    seeds: int = 1,
    checkpoint: str = "final",
    out: Path | str | None = None,
    baselines: Sequence[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Run an evaluation in a context, once for each seed, and record the result.

    `baselines` are results of other models to be kept with it.
    """
    began = time.monotonic()
    file = _file_in_run(name, evaluation, context, checkpoint)
    place = file or (Path(out) if out else None)
    found = []
    for number, repetition in enumerate(_repetitions(evaluation, seeds)):
        context.work = None if place is None else place.parent / "work" / f"{place.stem}-{number}"
        found.append(repetition.measure(context))
    result = {"evaluation": name, "numbers": list(found[0].values), **_means(found)}
    result |= found[0].details | found[0].counts
    if found[0].hits is not None:
        result["hits"] = packed(found[0].hits.numpy())
    protocol = as_values(evaluation.settings) | found[0].protocol | {"repetitions": seeds}
    spoken = f"{evaluation.summary} {found[0].seen}".strip()
    result |= {
        "protocol": protocol,
        "protocol_id": spoken,
        "protocol_hash": protocol_hash(spoken, protocol),
        "model": str(context.target),
        "method": context.model.method,
        "weights": context.model.proof,
        "data": context.data_name,
        "skipped": len(context.skipped),
        "device": context.device.type,
        "seconds": round(time.monotonic() - began, 2),
    }
    if baselines:
        result["baselines"] = baselines
    for path in [file] if out is None else [file, Path(out)]:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, result)
            if found[0].lists:
                (path.parent / "images").mkdir(exist_ok=True)
                write_json(path.parent / "images" / path.name, found[0].lists)
    if place is not None:
        _clear(place, seeds)
    return result if place is None else result | {"file": str(place)}


def _repetitions(evaluation: Evaluation, seeds: int) -> list[Evaluation]:
    """The same evaluation with one seed after the other."""
    if seeds < 1:
        raise UserError(f"{seeds} repetitions measure nothing", where="--seeds", do="give 1 or more")
    if seeds == 1:
        return [evaluation]
    if not hasattr(evaluation.settings, "seed"):
        raise UserError("nothing in this evaluation is random", where="--seeds", do="leave it out")
    first: int = evaluation.settings.seed
    return [type(evaluation)(replace(evaluation.settings, seed=first + number)) for number in range(seeds)]


def _means(found: Sequence[Scores]) -> dict[str, Any]:
    """Each number, as the mean over the seeds with their standard deviation where there are several."""
    by_name = {name: [scores.values[name] for scores in found] for name in found[0].values}
    if len(found) == 1:
        return {name: values[0] for name, values in by_name.items()}
    return {name: mean(values) for name, values in by_name.items()} | {
        "deviation": {name: stdev(values) for name, values in by_name.items()},
        "by_seed": by_name,
    }


def _file_in_run(name: str, evaluation: Evaluation, context: EvaluationContext, checkpoint: str) -> Path | None:
    """Where a run directory keeps this result: the same evaluation replaces it, one with other settings does not."""
    if not Path(context.target).is_dir() or context.beside_of is not None:
        return None
    parts = [name, _short_name(context.data_name), *([checkpoint] if checkpoint != "final" else [])]
    parts += [context.part] if context.part else []
    parts += [context.precision] if context.precision != FULL else []
    if evaluation.settings != evaluation.Settings():
        parts.append(blake2b(repr(evaluation.settings).encode(), digest_size=2).hexdigest())
    return RunDirectory(context.target).evaluations / f"{'-'.join(parts)}.json"


def _short_name(data: str) -> str:
    """A part of a file's name: the dataset's own, or a folder's last part and four digits that tell folders apart."""
    if folder_of(data) is None and not is_url(data):
        return data.replace(":", "-")
    plain = re.sub(r"[^A-Za-z0-9_.]+", "_", Path(data).name) or "folder"
    return f"{plain[:40]}-{blake2b(data.encode(errors='surrogateescape'), digest_size=2).hexdigest()}"


def _clear(place: Path, seeds: int) -> None:
    """Remove what a finished evaluation needed to go on after a break."""
    work = place.parent / "work"
    for number in range(seeds):
        shutil.rmtree(work / f"{place.stem}-{number}", ignore_errors=True)
    if work.is_dir() and not any(work.iterdir()):
        work.rmdir()
