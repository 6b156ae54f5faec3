"""Results of evaluations as a comparison needs them: from run directories, from files, or by hand."""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import hexdigits
from typing import Any

import numpy as np
import numpy.typing as npt

from iecl.comparison.protocols import FREE, deciding, protocol_hash, version_of
from iecl.errors import UserError
from iecl.files import fault, number, read_json
from iecl.names import current_protocol
from iecl.runs.directory import RunDirectory
from iecl.runs.records import has_labels

NEEDED: dict[str, Any] = {"evaluation": str, "numbers": list[str], "protocol": dict, "data": str}
NEEDED |= {"n_train": int, "n_test": int}
KNOWN: dict[str, Any] = {"protocol_id": str, "by_seed": dict[str, list[float]], "hits": str}
"""Kinds of what is used of a result."""


@dataclass(frozen=True)
class Result:
    """One number of one model."""

    label: str
    evaluation: str
    number: str
    value: float
    """A share, from 0 to 1."""
    n_test: int = 0
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Without what may differ; empty for a number that was given by hand."""
    by_seed: tuple[float, ...] = ()
    hits: npt.NDArray[np.bool_] | None = None
    """Which test images were right."""
    free: Mapping[str, Any] = field(default_factory=dict)
    protocol_hash: str = ""

    @property
    def is_chosen(self) -> bool:
        """Whether its checkpoint is the best of a run, and not its last."""
        return str(self.free.get("checkpoint", "")).startswith("best")


def read_results(item: str, label: str = "") -> Iterator[Result]:
    """The results that a word of the command line stands for.

    A run directory gives all its evaluations, a JSON file its own, and `LABEL=PERCENT` a number from elsewhere. A run
    is called `label`, or else by the name of its folder.
    """
    path = Path(item)
    if path.is_dir():
        run = RunDirectory.existing(path)
        files = result_files(run)
        if not files:
            summary, where = run.read_summary(), shlex.quote(str(path))
            do = f"run: iecl evaluate knn {where}"
            if summary.get("finished") and not has_labels(summary):
                do = f"its images have no labels: scores without labels are shown by: iecl describe {where}"
            raise UserError(f"{path} has no evaluation", where=item, do=do)
        label = label or path.name
        results = [_from_json(file, label) for file in files]
        chosen = {result.evaluation for result in results if result.is_chosen}
        for result in sorted(results, key=lambda result: (result.evaluation, result.is_chosen)):  # the last one first
            which = " (best)" if result.is_chosen else " (last)" if result.evaluation in chosen else ""
            yield replace(result, label=label + which)
    elif path.is_file():
        yield _from_json(path, path.stem)
    elif "=" in item:
        yield _by_hand(item)
    else:
        raise UserError(f"there is no run, no result and no number {item}", do="a number is written LABEL=PERCENT")


def result_files(run: RunDirectory) -> list[Path]:
    """The results of a run, without the card that shows them together."""
    return sorted(file for file in run.evaluations.glob("*.json") if file.name != "card.json")


def read_result(file: Path) -> dict[str, Any]:
    """A file that `iecl evaluate` wrote, with everything in it that is used here.

    Raises:
        UserError: it is damaged, or something else.
    """
    try:
        found = read_json(file)
        why = fault(found, needed=NEEDED, known=KNOWN) or _fault_of_numbers(found)
    except UserError as problem:
        why = problem.what
    if why:
        raise UserError(f"{file} is no result of iecl evaluate: {why}", where=str(file))
    name, found["protocol"] = found["numbers"][0], current_protocol(found["protocol"])
    return {"protocol_id": found["evaluation"], **found, name: number(found[name])}


def _fault_of_numbers(found: Mapping[str, Any]) -> str:
    """What is wrong with the first number of a result and with what it was counted from; empty: nothing."""
    if not found["numbers"]:
        return "it has no number"
    name, hits, n_test = found["numbers"][0], found.get("hits"), found["n_test"]
    if fault(found, needed={name: float}):
        return fault(found, needed={name: float})
    shares = [number(share) for share in (found[name], *found.get("by_seed", {}).get(name, []))]
    if not all(math.isnan(share) or 0 <= share <= 1 for share in shares):
        return f"{name} is not a share, from 0 to 1"
    if n_test < 1:
        return "it was measured on no image"
    if hits is not None and (len(hits) != 2 * -(-n_test // 8) or not set(hits) <= set(hexdigits)):
        return "its hits are not those of n_test images"
    return ""


def _from_json(file: Path, label: str) -> Result:
    found = read_result(file)
    name, spoken = found["numbers"][0], found["protocol_id"]
    whole = found["protocol"] | {"data": found["data"], "n_train": found["n_train"], "version": version_of(spoken)}
    return Result(
        label=label,
        evaluation=found["evaluation"],
        number=name,
        value=found[name],
        n_test=found["n_test"],
        protocol=deciding(whole),
        by_seed=tuple(map(number, found.get("by_seed", {}).get(name, ()))),
        hits=unpacked(found["hits"], found["n_test"]) if "hits" in found else None,
        free={key: whole[key] for key in FREE if key in whole},
        protocol_hash=protocol_hash(spoken, found["protocol"]),
    )


def _by_hand(item: str) -> Result:
    label, _, text = item.rpartition("=")
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError as problem:
        raise UserError(f"{text!r} is no number", where=item, do="write LABEL=PERCENT, as in paper=92.1") from problem
    if not 0 <= value <= 1:
        raise UserError(f"{text} is no percentage", where=item, do="write it from 0 to 100")
    return Result(label, "", "", value)


def packed(hits: npt.NDArray[np.bool_]) -> str:
    """One bit for each test image, as text.

    >>> unpacked(packed(np.array([True, False, True])), 3).tolist()
    [True, False, True]
    """
    return np.packbits(hits).tobytes().hex()


def unpacked(text: str, count: int) -> npt.NDArray[np.bool_]:
    """The other way round."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8), count=count).astype(bool)
