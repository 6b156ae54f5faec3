"""`iecl replay RUN --step N`."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.console import plain_table

COLUMNS = ("weight_largest", "output_mean", "output_deviation", "output_largest", "gradient_largest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A run and a step."""
    parser.add_argument("run", help="run directory; nothing in it is changed")
    parser.add_argument("--step", type=int, required=True, help="optimizer step to repeat, from 1 on")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Take the step again and show what each layer did."""
    from iecl import api

    result = api.replay(args.run, args.step, quiet=args.quiet)
    rows = []
    for layer in result["layers"]:
        bad = [
            f"{layer[f'{what}_not_finite']:,} {what}" for what in ("output", "gradient") if layer[f"{what}_not_finite"]
        ]
        rows.append([layer["layer"], *(f"{layer[name]:.3g}" for name in COLUMNS), ", ".join(bad)])
    table = plain_table(["layer", *(name.replace("_", " ") for name in COLUMNS), "not finite"], rows)
    say(args, *table.split("\n"))
    losses = {name: value for name, value in result["losses"].items() if name.startswith("loss")}
    say(
        args, f"step {result['step']:,}, from {result['from']}: " + ", ".join(f"{k} {v:.4g}" for k, v in losses.items())
    )
    if result["problem"]:
        say(args, result["problem"])
    return result
