"""An exhibit from Python and from the command."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from iecl.arguments import speaks_python
from iecl.console import log_to_terminal
from iecl.errors import Interrupted, UserError
from iecl.files import read_json
from iecl.reproduction.exhibit import ORDER, STEPS, find_exhibit
from iecl.reproduction.plan import Wish, cells_of, check_words, read_wish
from iecl.settings import merge
from iecl.studies.engine import check_how

FOLDER = "reproductions"
log = logging.getLogger("iecl.reproduction")


@speaks_python
def reproduce(
    exhibit: str,
    out: str | Path = FOLDER,
    *,
    scale: str = "mini",
    data: str | Path | Sequence[str | Path] = (),
    seeds: int = 0,
    epochs: int = 0,
    precision: str = "",
    workers: int = 1,
    threads: int = 1,
    retry: bool = False,
    keep: str = "weights",
    dry: bool = False,
    look: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Make a table or figure of the paper: train and measure what is missing, and set it beside what is printed.

    Args:
        exhibit: a name from `iecl reproduce --list`, or `all`.
        out: folder for records, runs and results; the same call goes on after a break.
        scale: `smoke` (minutes, says nothing), `mini` (the same question of small networks) or `full` (as printed).
        data: images to train on in the place of the scale's, and NAME=PLACE for those that have a name in the exhibit.
        seeds: how many, the same for all rows; 0: the scale's.
        epochs: in the place of the scale's; 0: the scale's.
        precision: of the arithmetic, as in `training.precision`; empty: what this machine has units for. Name it where
            several machines, or a later day, are to give the same runs.
        workers: cells at a time, each in a process of its own; 0: in this process.
        threads: of each cell.
        retry: run cells again that failed.
        keep: what stays of a finished run: `none`, `weights` or `all`.
        dry: train nothing; build every kind of run, take two steps with made-up images, and state time and memory.
        look: train nothing, and report what there is.
        quiet: show warnings only.

    Returns:
        The panels with the paper's numbers and ours, the verdict, every cell, the files that were written, and the
        report as Markdown (`text`). Of `all`: these by exhibit.
    """
    words = [data] if isinstance(data, str | Path) else list(data)
    check_how(workers=workers, threads=threads, keep=keep)
    how = {"workers": workers, "threads": threads, "retry": retry, "keep": keep, "quiet": quiet}
    with log_to_terminal(quiet):
        if exhibit == "all":
            return _every(
                Path(out), (scale, [str(word) for word in words], seeds, epochs, precision), dry=dry, look=look, how=how
            )
        wish = read_wish(find_exhibit(exhibit), scale, map(str, words), seeds, epochs, precision)
        return _one(wish, Path(out), dry=dry, look=look, how=how)


def _every(out: Path, asked: Any, *, dry: bool, look: bool, how: dict[str, Any]) -> dict[str, Any]:
    """All exhibits; one that cannot be made says why and leaves the others alone."""
    made: dict[str, Any] = {}
    scale, words, *numbers = asked
    check_words(scale, *numbers)
    for name in ORDER:
        exhibit = find_exhibit(name)
        roles = {role for other in ORDER for role in (*find_exhibit(other).needs, *find_exhibit(other).may)} - {
            *exhibit.needs,
            *exhibit.may,
        }
        own = [word for word in words if word.partition("=")[0] not in roles]
        try:
            wish = read_wish(exhibit, scale, own, *numbers)
            made[name] = _one(wish, out, dry=dry, look=look, how=how)
        except Interrupted:
            raise
        except UserError as problem:
            made[name] = {"exhibit": name, "error": str(problem), "text": f"{name}: {problem}\n"}
    return {"exhibits": made, "text": "\n".join(one["text"] for one in made.values())}


def _one(wish: Wish, out: Path, *, dry: bool, look: bool, how: dict[str, Any]) -> dict[str, Any]:
    from iecl.reproduction.forecast import try_out

    if dry:
        return try_out(wish, how["quiet"])
    from iecl.reproduction.figures import draw
    from iecl.reproduction.report import finished, write_reports

    folder = out / f"{wish.exhibit.name}-{wish.scale}"
    if wish.exhibit.kind in STEPS and look:
        return _measured_before(wish, folder)
    if wish.exhibit.kind in STEPS:
        from iecl.reproduction.steps import measured_panels

        made = measured_panels(wish, how["threads"], quiet=how["quiet"])
    else:
        made = _cells(wish, out, folder, look=look, how=how)
    environment = made.pop("environment")
    whole = finished(wish, made, environment)
    if look:
        return whole
    files = write_reports(whole, folder)
    return whole | {"files": files | draw(whole, folder), "folder": str(folder)}


def _measured_before(wish: Wish, folder: Path) -> dict[str, Any]:
    """What an exhibit of steps gave the last time."""
    from iecl.reproduction.report import finished, markdown

    found = read_json(folder / "results.json")
    if not found:
        return finished(wish, {"panels": [], "notes": ["not measured yet"]}, {})
    return found | {"text": markdown(found)}


def _with_blocks(cells: Any, sources: Any, place: Path, how: dict[str, Any]) -> dict[Any, Any]:
    """Cells whose block is that of other runs, which are made first."""
    from iecl.studies.engine import run_cells

    learned = run_cells(list(sources.values()), place, **how | {"keep": "weights"}) if sources else []
    made = {}
    for (key, source), one in zip(sources.items(), learned, strict=True):
        if one.state != "done" or one.names is None:
            raise UserError(f"the block of {key[1].arm} was not learned: {one.record.get('error')}", where=source.data)
        block = {"saib": {"init_from": str((place / "runs" / one.names.training).absolute())}}
        made[key] = replace(cells[key], settings=merge(cells[key].settings, block))
    return made


def _cells(wish: Wish, out: Path, folder: Path, *, look: bool, how: dict[str, Any]) -> dict[str, Any]:
    """Train and measure what is missing, and read what there is."""
    from iecl.reproduction.checks import check_images, check_room
    from iecl.reproduction.report import accuracy_panels
    from iecl.studies.engine import look_at_cells, run_cells

    panels, kind = wish.panels(), wish.exhibit.kind
    cells = cells_of(panels)
    place = out if kind == "accuracy" else folder  # what is read from runs themselves is not shared with others
    if kind != "accuracy" and how["keep"] == "none":
        do = "keep weights"
        raise UserError(f"{wish.exhibit.name} is drawn from its runs", where="--keep none", do=do)
    sources = wish.sources(cells)
    if look:
        found = look_at_cells(list(cells.values()), place)
    else:
        configs = check_images(cells.values())
        configs += check_images(sources.values())
        need = check_room(configs, place, workers=how["workers"], keep=how["keep"])
        log.info("%s takes at most %s MB on the disk, images aside", wish.exhibit.name, f"{need:,}")
        cells |= _with_blocks(cells, sources, place, how)
        found = run_cells(list(cells.values()), place, **how)
    status = dict(zip(cells, found, strict=True))
    made = accuracy_panels(wish, panels, status)
    records = [one.record for one in found if "environment" in one.record]
    made["environment"] = records[-1]["environment"] | records[-1]["code"] if records else {}
    if kind == "curves":
        from iecl.reproduction.curves import curve_panels

        made |= curve_panels(wish, status, place)
    if kind == "gallery" and not look:
        from iecl.reproduction.gallery import draw_gallery

        made["panels"] = [panel | {"is_claimed": False} for panel in made["panels"]]
        (one,) = list(status.values())[:1]
        if one.names is not None and one.state == "done":
            made["gallery"] = draw_gallery(place / "runs" / one.names.training, folder / f"{wish.exhibit.name}.png")
    return made
