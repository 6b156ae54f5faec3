"""`iecl compare A B ...`."""

import argparse
from typing import Any

from iecl.cli.command import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two or more results."""
    parser.add_argument("results", nargs="+", help="run directories, result files, or LABEL=PERCENT from elsewhere")
    parser.add_argument("--evaluation", default="", help="only results of this evaluation")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Show the numbers, which may be compared, and which differences are more than noise."""
    from iecl import api

    made = api.compare(args.results, args.evaluation)
    say(args, *made.pop("text").split("\n"))
    return made
