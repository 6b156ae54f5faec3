"""`iecl doctor --data ...`: what is wrong with images, before anything is trained on them."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.cli.weights_source import add_data, add_source, source
from iecl.console import plain_table
from iecl.settings import merge, parse_assignment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Images, perhaps a backbone, and where the report goes."""
    add_data(parser)
    parser.add_argument(
        "--with", dest="run", default="", metavar="RUN", help="run directory or file of weights: looks with it too"
    )
    parser.add_argument("--out", default="", help="folder for the report; default: doctor/NAME")
    parser.add_argument("--plan", action="store_true", help="try training steps too: time and memory of a run")
    parser.add_argument("--workers", type=int, default=-1, help="processes that decode images")
    parser.add_argument("--device", default="", help="where a backbone computes; default: a GPU if there is one")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a threshold of the table, as blur=0.7"
    )
    add_source(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace a report that is there")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Look, show the table, and say what to do with it."""
    from iecl.checks.call import doctor
    from iecl.checks.page import next_command

    asked = {name: getattr(args, name) for name in ("exclude", "workers", "plan", "device", "overwrite", "quiet")}
    thresholds: dict[str, Any] = {}
    for text in args.set:
        thresholds = merge(thresholds, parse_assignment(text))
    made = doctor(args.data, args.run, args.out, settings=thresholds, **asked, **source(args))
    say(args, *lines(made))
    files = made["files"]
    next_line = next_command(made | {"data": args.data}, files["exclude"])
    say(args, f"look: {files['html']}", f"next: {next_line}")
    return made


def lines(made: dict[str, Any]) -> list[str]:
    """What was found, as tables for a terminal."""
    from iecl.checks.page import of_crowds, of_votes, sentence, shown

    rows = [
        [
            name,
            f"{row['count']:,}",
            row["sure"],
            "".join(f"{k}={v:,}" for k, v in row["threshold"].items()),
            row["what"],
        ]
        for name, row in made["checks"].items()
    ]
    found = [row for row in rows if row[1] != "0"]
    nothing = ", ".join(row[0] for row in rows if row[1] == "0")
    others = ", ".join(f"{count:,} {kind}" for kind, count in made["other_files"].items())
    shortcuts = [
        [row["property"], *(shown(row[name]) for name in ("read", "shuffled", "neighbors"))]
        for row in made.get("shortcuts", [])
    ]
    advice = [[row["what"], row["value"], row["flag"], row["why"]] for row in made["suggestions"]]
    return [
        sentence(made),
        "",
        *(plain_table(["check", "images", "how sure", "threshold", "what"], found).split("\n") if found else []),
        *([f"nothing found: {nothing}"] if nothing else []),
        *(note for note in (of_crowds(made), of_votes(made)) if note),
        *([f"other files, not looked at: {others}"] if others else []),
        *(
            [
                "",
                *plain_table(
                    ["property", "read from the embedding", "shuffled", "shared by neighbors"], shortcuts
                ).split("\n"),
            ]
            if shortcuts
            else []
        ),
        "",
        *plain_table(["for a run", "value", "flag", "why"], advice).split("\n"),
        *([made["plan"]] if "plan" in made else []),
    ]
