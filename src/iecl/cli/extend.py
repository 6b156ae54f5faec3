"""`iecl extend RUN --epochs N`."""

import argparse
from typing import Any

from iecl.cli.pretrain import closing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A run and how long it is to be."""
    parser.add_argument("run", help="run directory to continue; it is not changed")
    parser.add_argument("--epochs", type=int, required=True, help="total passes over the data, those done included")
    parser.add_argument("--out", default="", help="new run directory; default: RUN-N-epochs")
    parser.add_argument("--overwrite", action="store_true", help="replace a run in --out")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Show both schedules, train, then say what was made and what to do next."""
    from iecl import api

    return closing(args, api.extend(args.run, args.epochs, args.out, overwrite=args.overwrite, quiet=args.quiet))
