"""From run directories to a page: what they say, what their first network sees, and the file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iecl.console import ProgressLine
from iecl.errors import UserError
from iecl.reporting.cache import looked_at
from iecl.reporting.columns import ColumnTable
from iecl.reporting.comparing import differing, labels, paired
from iecl.reporting.curves import panels
from iecl.reporting.page import ReportPage, check_place, written
from iecl.reporting.reading import RunReader
from iecl.reporting.sight_settings import SightSettings, check_maps

MOST_RUNS = 20


def make_report(
    runs: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    data: str | None = None,
    images: int = 5000,
    maps: Sequence[str] = ("pca",),
    columns: str = "",
    checkpoint: str = "final",
    device: str = "",
    quiet: bool = True,
) -> ReportPage:
    """One page about a run, or about several: verdict, curves, what training saw, what was learned, results.

    Args:
        runs: run directories. The first one is looked at with its images; of all there are curves and results.
        out: the .html file; None: none is written.
        data: its images, where they are no longer where it was trained.
        images: how many of them to show; more are sampled. 0: none.
        maps: ways to lay embeddings out on a plane, of `pca`, `tsne` and `umap` (the extra `map`).
        columns: a .csv file with a column of paths and others to color the map by.
        checkpoint: which weights of the first run: `final`, `last` or `best`.
        device: where to compute; empty: a GPU if there is one.
        quiet: show no progress.

    Raises:
        UserError: there is no such run, map or table, a package is missing, or nothing can be written to `out`.
    """
    if out is not None:
        check_place(Path(out))
    check_maps(maps)
    if images < 0:
        raise UserError(f"images is {images}, it must be 0 or more", where="--images")
    if columns:
        ColumnTable.read(columns)
    asked = SightSettings(data, images, tuple(maps), columns, checkpoint, device)
    with ProgressLine(quiet) as line:
        document = describe(runs)
        document["sights"] = looked_at(Path(runs[0]), asked, line)
    return written(document, None if out is None else Path(out))


def describe(runs: Sequence[Path | str]) -> dict[str, Any]:
    """The document without pictures: quick, without torch, and again and again while a run is trained."""
    if not 1 <= len(runs) <= MOST_RUNS:
        raise UserError(f"a page is about 1 to {MOST_RUNS} runs, not {len(runs)}", where="RUN")
    paths = [Path(run) for run in runs]
    readers = [RunReader(path) for path in paths]
    names = labels(paths)
    document: dict[str, Any] = {
        "title": names[0] if len(runs) == 1 else f"{names[0]} and {len(runs) - 1} more",
        "runs": [{"name": name, **reader.read()} for name, reader in zip(names, readers, strict=True)],
        "panels": panels([reader.rows for reader in readers]),
        "settings": [[name, str(value)[:200]] for name, value in _flat(readers[0].settings)],
    }
    if len(runs) > 1:
        document["differing"] = differing([reader.settings for reader in readers])
        document["paired"] = paired(paths, names)
    return document


def _flat(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(f"{section}.{key}", value) for section, table in settings.items() for key, value in table.items()]
