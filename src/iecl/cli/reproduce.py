"""`iecl reproduce T3`: make a table or figure of the paper, and set it beside what is printed."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.console import counted, duration, plain_table
from iecl.errors import TrainingError, UserError
from iecl.reproduction.exhibit import ORDER, find_exhibit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which exhibit, at which scale, on which images."""
    parser.add_argument("exhibit", nargs="?", default="", metavar="EXHIBIT", help="T1 to T5, F5 to F10, ...; or all")
    parser.add_argument("--list", action="store_true", help="show every exhibit: claim, cells, data, time and memory")
    parser.add_argument("--scale", default="mini", help="smoke: minutes; mini: small networks; full: as printed")
    parser.add_argument(
        "--data", action="append", default=[], help="images to train on, or NAME=FOLDER, as in voc=VOCdevkit; repeat it"
    )
    parser.add_argument("--seeds", type=int, default=0, help="how many, the same for all rows; default: the scale's")
    parser.add_argument("--epochs", type=int, default=0, help="in the place of the scale's")
    parser.add_argument("--precision", default="", help="32-true or bf16-mixed; default: as the machine has units for")
    parser.add_argument(
        "--dry-run", action="store_true", help="build everything, take two steps, state time and memory"
    )
    parser.add_argument("--table", action="store_true", help="show what was found so far, and train nothing")
    parser.add_argument("--out", default="reproductions", help="folder for records, runs and results")
    parser.add_argument("--workers", type=int, default=1, help="cells at a time, each in a process; 0: in this one")
    parser.add_argument("--threads", type=int, default=1, help="threads of each cell")
    parser.add_argument("--retry", action="store_true", help="run cells again that failed")
    parser.add_argument("--keep", default="weights", help="what stays of a finished run: none, weights or all")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """List, try, look or make; failed cells make the command fail when everything else is done."""
    if args.list:
        return _list(args)
    if not args.exhibit:
        raise UserError("which exhibit?", where="EXHIBIT", do="see: iecl reproduce --list")
    if args.exhibit != "all":
        find_exhibit(args.exhibit)  # a wrong name is told before anything else is looked at
    from iecl.reproduction.call import reproduce

    how = {
        name: getattr(args, name)
        for name in ("scale", "data", "seeds", "epochs", "precision", "workers", "threads", "retry", "keep")
    }
    made = reproduce(args.exhibit, args.out, **how, dry=args.dry_run, look=args.table, quiet=args.quiet)
    for one in made["exhibits"].values() if "exhibits" in made else [made]:
        say(args, *one["text"].rstrip().split("\n"))
        if args.dry_run and "error" not in one:
            say(args, _summary(one))
        elif one.get("files"):
            say(args, f"written to {one['folder']}: {', '.join(sorted(one['files']))}")
    _fail(made, args)
    return made


def _fail(made: dict[str, Any], args: argparse.Namespace) -> None:
    every = made["exhibits"].values() if "exhibits" in made else [made]
    failed = (
        [row for one in every for row in one.get("rows", ()) if "error" in row]
        if args.dry_run
        else [cell for one in every for cell in one.get("cells", ()) if cell["state"] == "failed"]
    )
    if failed and not args.table:
        what = f"{len(failed)} {'kinds of run cannot be built' if args.dry_run else 'cells failed'}"
        do = "see the rows above" if args.dry_run else "mend what they say, and add --retry"
        raise TrainingError(what, where=args.exhibit, do=do)


def _summary(one: dict[str, Any]) -> str:
    """Cells, hours and memory in words."""
    words = f"{one['exhibit']}, {one['scale']}: {counted(one['cells'], 'cell')}"
    if one["hours"] is None:
        return words
    words += f", {duration(3600 * one['hours'])} one after the other, {one['gigabytes']:.1f} GB of memory"
    return words + (f", at most {one['disk_megabytes']:,} MB on the disk" if one["disk_megabytes"] else "")


def _list(args: argparse.Namespace) -> dict[str, Any]:
    """Every exhibit; hours and memory where steps were tried on this machine. No torch."""
    from iecl.reproduction.forecast import expect
    from iecl.reproduction.plan import read_wish

    made, rows = {}, []
    for name in ORDER if args.exhibit in ("", "all") else [args.exhibit]:
        exhibit = find_exhibit(name)
        roles = [word for word in args.data if word.partition("=")[0] in exhibit.needs]
        roles += [f"{need}=." for need in exhibit.needs if not any(word.startswith(f"{need}=") for word in roles)]
        bare = [word for word in args.data if "=" not in word]
        wish = read_wish(exhibit, args.scale, [*bare, *roles], args.seeds, args.epochs, args.precision)
        found = expect(wish)
        made[exhibit.name] = {"claim": exhibit.claim, **found}
        scale = exhibit.scales[args.scale]
        data = bare or [
            *scale.get("data", ()),
            *(c.table["data"] for c in exhibit.columns_at(args.scale) if "data" in c.table),
        ]
        time = "?" if found["hours"] is None else duration(3600 * found["hours"])
        memory = "?" if found["gigabytes"] is None else f"{found['gigabytes']:.1f} GB"
        rows.append(
            [exhibit.name, str(found["cells"] or "?"), ", ".join([*data, *exhibit.needs]), time, memory, exhibit.claim]
        )
    head = ["name", "cells", "data", "time", "memory", "claim"]
    say(args, *plain_table(head, rows).split("\n"))
    say(args, f"scale {args.scale}; time: one cell after the other, on this machine with one thread")
    for reason in dict.fromkeys(found["missing"] for found in made.values() if "missing" in found):
        say(args, reason)
    if any(row[3] == "?" for row in rows):
        command = f"iecl reproduce {args.exhibit or 'all'} --dry-run --scale {args.scale}"
        say(args, f"?: nothing was tried here yet; {command} takes two steps of each kind of run")
    return made
