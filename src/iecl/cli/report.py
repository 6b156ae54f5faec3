"""`iecl report RUN [RUN ...] --out report.html`."""

import argparse
from pathlib import Path
from typing import Any

from iecl.cli.command import say
from iecl.reporting.sight_settings import MAPS
from iecl.runs.directory import RunDirectory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Runs, a file, and what to show of the images."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directory; several are compared, up to 20")
    parser.add_argument("--out", default="", help="the page, .html; default: report.html in the first run directory")
    parser.add_argument("--data", help="images of the first run, where they are no longer where it was trained")
    parser.add_argument("--images", type=int, default=5000, help="images on the map, sampled if more; default: 5000")
    parser.add_argument(
        "--map", action="append", default=[], choices=MAPS, help="how to lay images out; default: pca; again for more"
    )
    parser.add_argument("--columns", default="", metavar="FILE", help=".csv with paths and columns to color the map by")
    parser.add_argument("--checkpoint", default="final", choices=("final", "last", "best"), help="which weights")
    parser.add_argument("--device", default="", help="where to compute, as cpu or cuda:1")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the page and say where it is."""
    from iecl import api

    for run in args.runs:
        RunDirectory.existing(run)
    asked = {name: getattr(args, name) for name in ("data", "images", "columns", "checkpoint", "device", "quiet")}
    out = Path(args.out) if args.out else Path(args.runs[0]) / "report.html"
    page = api.report(args.runs, out, maps=tuple(dict.fromkeys(args.map)) or ("pca",), **asked)
    size = round(len(page.html.encode()) / 1e6, 2)
    say(args, f"written: {out} ({size} MB); open it in a browser")
    return {"file": str(out), "megabytes": size}
