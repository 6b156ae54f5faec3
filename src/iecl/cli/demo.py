"""`iecl demo`: does it learn anything, and does the block help? Two short runs on generated images."""

import argparse
import shlex
from typing import Any

from iecl.cli.command import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to write, and how long."""
    parser.add_argument("--out", default="runs/demo", help="run directory to write")
    parser.add_argument("--epochs", type=int, default=4, help="passes over 10,000 generated images")
    parser.add_argument("--seed", type=int, default=0, help="decides every random draw")
    parser.add_argument("--overwrite", action="store_true", help="replace a run in --out")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train with the block and without, measure, and compare."""
    from iecl.demo import demo

    result = demo(args.out, epochs=args.epochs, seed=args.seed, overwrite=args.overwrite, quiet=args.quiet)
    say(args, "kNN accuracy on 2,000 test images of 10 classes (chance is 10 %):")
    for name in ("pretrained", "without block", "random", "pixels"):
        share = result[f"knn_{name.replace(' ', '_')}"]
        say(args, f"  {name:<15}{100 * share:5.1f} %  {'█' * round(40 * share)}")
    say(args, f"run directory: {result['run']}", f"a page about it, for a browser: {result['report']}")
    say(args, f"next: iecl describe {shlex.quote(result['run'])}")
    return result
