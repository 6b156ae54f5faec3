"""`iecl plan --data ...`: what a run will take, before it is started."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from iecl.cli.command import say
from iecl.cli.pretrain import add_settings, asked
from iecl.training import scale
from iecl.training.scale import GPUS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The settings of a run, as for `iecl pretrain`."""
    add_settings(parser)
    parser.add_argument("--out", default="", help="directory of the future run; the forecast is kept there")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to try steps")
    parser.add_argument(
        "--gpu", default="", help=f"try nothing: estimate the run on --devices GPUs of this kind: {', '.join(GPUS)}"
    )
    parser.add_argument("--images", type=float, default=0, help="with --gpu: images to train on; default: 1,281,167")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Try steps, show the forecast, and what to do next."""
    from iecl import api
    from iecl.training.forecast import words

    if args.gpu or args.images:
        estimate = api.plan(args.data, **asked(args), gpu=args.gpu, images=args.images)
        what = f"{estimate['method']} with {estimate['backbone']} on images of {estimate['image_size']} px"
        say(args, what, *scale.words(estimate))
        return estimate
    made = api.plan(args.data, **asked(args), out=args.out, seconds=args.seconds, quiet=args.quiet)
    say(args, *words(made))
    flags = {**made["flags"], "--batch-size": made["suggested"]["batch_size"]}
    say(args, f"next: {next_command(args.words, flags)}")
    return made


def next_command(words: Sequence[str], flags: Mapping[str, Any]) -> str:
    """The run that was planned, with the batch that was found and what was chosen by a look at the clock.

    >>> next_command(["plan", "--data", "my photos", "--seconds=5", "--batch-size=64", "--json"], {"--batch-size": 32})
    "iecl pretrain --data 'my photos' --batch-size 32"
    """
    kept, rest = [], iter(words[1:])
    for word in rest:
        name = word.partition("=")[0]
        if name == "--seconds" or name in flags:
            if "=" not in word:
                next(rest)
        elif name not in ("--json", "--quiet", "--debug"):
            kept.append(word)
    return shlex.join(["iecl", "pretrain", *kept, *(str(part) for pair in flags.items() for part in pair)])
