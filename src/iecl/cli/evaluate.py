"""`iecl evaluate knn|linear MODEL --data ...`."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.evaluation import EVALUATIONS
from iecl.registry import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The protocol's own numbers are defaults; each can be changed and is printed with the result."""
    parser.add_argument("evaluation", help=f"one of: {', '.join(EVALUATIONS)}")
    parser.add_argument("model", help="run directory or exported .safetensors file")
    parser.add_argument("--data", help="labelled folder or data set; default: the data of the run")
    parser.add_argument(
        "--checkpoint", default="final", choices=("final", "last", "best"), help="which weights of a run"
    )
    parser.add_argument("--k", type=int, default=20, help="knn: neighbours that vote")
    parser.add_argument("--temperature", type=float, default=0.07, help="knn: how fast a vote falls with distance")
    parser.add_argument("--epochs", type=int, default=200, help="linear: passes over the training features")
    parser.add_argument("--augment", action="store_true", help="linear: new flips and crops each epoch, much slower")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure and say the number with its protocol."""
    resolve(args.evaluation, EVALUATIONS, "evaluation", "iecl evaluate")
    from iecl import api

    own = {"knn": ("k", "temperature"), "linear": ("epochs", "augment")}[args.evaluation]
    options = {name: getattr(args, name) for name in own}
    result = api.evaluate(
        args.evaluation, args.model, args.data, checkpoint=args.checkpoint, quiet=args.quiet, **options
    )
    say(
        args,
        f"{args.evaluation} top-1 {100 * result['top1']:.2f} %, top-5 {100 * result['top5']:.2f} % "
        f"({result['n_test']:,} test images, {result['n_train']:,} train images, {result['classes']} classes)",
        f"protocol: {result['protocol_id']}",
        f"weights: {result['weights']}",
    )
    return result
