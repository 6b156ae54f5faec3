"""One evaluation from beginning to end: model, data, features, protocol, and a record of everything that counts."""

import re
import time
from hashlib import blake2b
from pathlib import Path
from typing import Any

from iecl.console import ProgressLine
from iecl.data.resolve import folder_of
from iecl.evaluation import EVALUATIONS
from iecl.evaluation.bench import Bench
from iecl.evaluation.contract import Evaluation
from iecl.evaluation.model import load_model
from iecl.registry import resolve
from iecl.runs.directory import RunDirectory
from iecl.settings import as_values, build


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
    with ProgressLine(quiet) as line:
        bench = Bench(model, target, data, line, keep_decoded=evaluation.rereads)
        scores = evaluation.measure(bench)
    result = {"evaluation": name, **scores.values, **scores.details, **scores.counts}
    result |= {
        "protocol": as_values(settings) | scores.protocol | {"repetitions": 1},
        "protocol_id": f"{evaluation.summary} {scores.seen}".strip(),
        "weights": model.proof,
        "data": bench.data.name,
        "skipped": len(bench.skipped),
        "seconds": round(time.monotonic() - began, 2),
    }
    return _record(result, target, checkpoint) if Path(target).is_dir() else result


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
