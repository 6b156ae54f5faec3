"""A look at a folder of images before anything is trained on it, and with a backbone at what it makes of them."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from iecl.checks.diagnosis import Diagnosis
from iecl.checks.duplicates import Copies
from iecl.checks.findings import balance_findings, file_findings, look_findings
from iecl.checks.report import check_place, write_report
from iecl.checks.scan import Numbers, Scan, Split, scan
from iecl.checks.suggestions import planned, suggestions
from iecl.checks.table import CHECKS, CheckSettings
from iecl.console import ProgressLine
from iecl.data.defaults import files_of, kind_of, resolve_data
from iecl.data.exclusion import roots_of
from iecl.data.labels import class_folders
from iecl.data.listing import Listing, one_walk, printable
from iecl.data.places import parts_of
from iecl.data.settings import DataSettings
from iecl.data.skipped_files import nothing_readable
from iecl.errors import UserError
from iecl.settings import build


@one_walk()
def diagnose(
    names: Iterable[str],
    run: str = "",
    *,
    exclude: str = "",
    workers: int = -1,
    plan_seconds: float = 0.0,
    quiet: bool = True,
    settings: Mapping[str, Any] | None = None,
    **source: Any,
) -> Diagnosis:
    """Look at every image once, and say what is wrong.

    Args:
        names: folders, lists or patterns.
        run: a run directory or a file of weights, for the checks that need a backbone.
        exclude: a list of images to leave out.
        workers: processes that decode; -1: one for each core, at most 8.
        plan_seconds: how long to try training steps for a forecast; 0: none is made.
        quiet: show no progress.
        settings: thresholds of the checks that are not to have their defaults.
        **source: which weights, as `iecl.evaluation.model.load_model` takes it, and `device`.

    Raises:
        UserError: the images or the weights are not usable.
    """
    began = time.monotonic()
    limits = build(CheckSettings, dict(settings or {}), "doctor", "--set")
    data = _data(tuple(names), exclude, workers, limits)
    parts, labels, classes = _listed(data)
    look = _with_run(run, **source) if run else None  # before the pass, which may take hours
    with ProgressLine(quiet) as line:
        root, show = roots_of(data.names)[0], line.count("looking at images")
        how: dict[str, Any] = {"max_pixels": limits.max_pixels, "workers": data.num_workers, "progress": show}
        seen = scan(parts, root, labels, classes, **how)
        if not seen.readable.any():
            raise nothing_readable(printable(root), Counter(seen.reasons.values()))
        seconds = time.monotonic() - began
        made = look(seen, limits, data, line) if look else None
        line.show("comparing images")
        copies = Copies(seen, limits, None if made is None else made.candidates)
    uneven, counts = balance_findings(seen, limits)
    found = [*file_findings(seen), *copies.findings(), *look_findings(seen, limits), *uneven]
    if made is not None:
        found += made.findings(copies)
    facts = _facts(seen, data, counts) | {"pass_seconds": round(seconds, 2), "crowded": copies.crowded}
    facts |= {} if made is None else made.facts
    facts["suggestions"] = suggestions(seen, data)
    if plan_seconds:
        facts["plan"] = planned(data.names, data.exclude, plan_seconds, quiet=quiet)
    order = {name: place for place, name in enumerate(CHECKS)}
    found.sort(key=lambda one: (order[one.check], -1 if one.group is None else one.group, one.number))
    facts["seconds"] = round(time.monotonic() - began, 2)
    return Diagnosis(seen, limits, copies, found, facts, made)


def examine_data(names: Iterable[str], run: str, out: Path, *, overwrite: bool, **options: Any) -> dict[str, Any]:
    """What `diagnose` found, as plain values, and as files in a folder.

    Raises:
        UserError: there is a report already, and it is not to be replaced; or as for `diagnose`.
    """
    check_place(out, overwrite)
    made = diagnose(names, run, **options)
    result = made.result()
    return result | {"files": write_report(made, result, out)}


def _data(names: tuple[str, ...], exclude: str, workers: int, settings: CheckSettings) -> DataSettings:
    if not names:
        raise UserError("which images?", where="--data", do="name a folder")
    given = {"name": names[0], "more": names[1:], "exclude": exclude, "num_workers": workers}
    asked = build(DataSettings, given | {"max_pixels": settings.max_pixels}, "data", "--data")
    if kind_of(asked) != "files":
        do = "give the folder, list or pattern of the files that it is made of"
        raise UserError(f"{names[0]} is no folder of files", where="--data", do=do)
    return resolve_data(asked)


def _listed(data: DataSettings) -> tuple[list[Split], Numbers, tuple[bytes, ...]]:
    """The files of each part, training before test, and the class of each."""
    found = [(name, files_of(data, name)) for name in parts_of(data.names)]
    starts = np.cumsum([0, *(len(listing) for _, listing in found)]).tolist()
    parts = [Split(name, listing, start) for (name, listing), start in zip(found, starts, strict=False)]
    has_classes = bool(class_folders(parts[0].listing, "auto"))
    owners = [list(_owners(part.listing)) if has_classes else [b""] * len(part.listing) for part in parts]
    classes = tuple(sorted({name for each in owners for name in each} - {b""}))
    number = {name: place for place, name in enumerate(classes)} | {b"": -1}
    return parts, np.array([number[name] for each in owners for name in each], np.int64), classes


def _owners(listing: Listing) -> Iterable[bytes]:
    for name, start, end in listing.first_folders():
        yield from [name] * (end - start)


def _with_run(run: str, *, device: str = "", checkpoint: str = "final", **foreign: Any) -> Callable[..., Any]:
    """What looks at images with these weights, once they were scanned."""
    from iecl.checks.backbone import Neighborhood  # here: it imports torch
    from iecl.evaluation.compute import device_called
    from iecl.evaluation.model import load_model

    return partial(Neighborhood, run, load_model(run, checkpoint, **foreign), device_called(device))


def _facts(seen: Scan, data: DataSettings, counts: dict[str, int]) -> dict[str, Any]:
    others = Counter[str]()
    for part in seen.parts:
        others.update(part.listing.others)
    return {
        "data": list(data.names),
        "exclude": data.exclude,
        "images": len(seen),
        "parts": {part.name: len(part.listing) for part in seen.parts},
        "classes": counts,
        "other_files": dict(others.most_common()),
        "unreadable_places": [list(pair) for part in seen.parts for pair in part.listing.unreadable],
    }
