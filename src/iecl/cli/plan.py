"""`iecl plan --data ...`: what a run will take, before it is started."""

import argparse
import shlex
from collections.abc import Sequence
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
    say(args, f"next: {next_command(args.words, made['suggested']['batch_size'])}")
    return made


def next_command(words: Sequence[str], batch: int) -> str:
    """The run that was planned, with the batch that was found.

    >>> next_command(["plan", "--data", "my photos", "--seconds=5", "--batch-size", "64", "--json"], 32)
    "iecl pretrain --data 'my photos' --batch-size 32"
    """
    kept, rest = [], iter(words[1:])
    for word in rest:
        name = word.partition("=")[0]
        if name in ("--seconds", "--batch-size"):
            if "=" not in word:
                next(rest)
        elif name not in ("--json", "--quiet", "--debug"):
            kept.append(word)
    return shlex.join(["iecl", "pretrain", *kept, "--batch-size", str(batch)])
