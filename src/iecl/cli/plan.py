"""`iecl plan --data ...`: what a run will take, before it is started."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.cli.pretrain import add_settings, asked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The settings of a run, as for `iecl pretrain`."""
    add_settings(parser)
    parser.add_argument("--out", default="", help="directory of the future run; the forecast is kept there")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to try steps")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Try steps, show the forecast, and what to do next."""
    from iecl import api
    from iecl.training.forecast import words

    made = api.plan(args.data, **asked(args), out=args.out, seconds=args.seconds, quiet=args.quiet)
    say(args, *words(made))
    flags = {**made["flags"], **({"--out": args.out} if args.out else {})}
    flags["--batch-size"] = made["suggested"]["batch_size"]
    say(args, f"next: iecl pretrain with the same flags {' '.join(f'{name} {value}' for name, value in flags.items())}")
    return made
