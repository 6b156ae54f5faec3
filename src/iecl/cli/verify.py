"""`iecl verify FILE`."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.cli.weights_source import add_source, source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A file, and what is known of it."""
    parser.add_argument(
        "file", help="exported .safetensors file, run directory, or with --backbone any file of weights"
    )
    add_source(parser)
    parser.add_argument("--against", help="run or exported file whose features it must give")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Say what was compared, and warn of a network that nobody trained."""
    from iecl import api

    result = api.verify(args.file, against=args.against, **source(args, args.file))
    norms = result["norms_moved"]
    moved = "no norms" if norms is None else f"{100 * norms:.0f} % of the parameters of its norms have moved"
    far = result["spectrum_distance"]
    spectrum = "singular values "
    spectrum += "cannot be compared" if far is None else f"{far:.1f} times as far away as those of another random one"
    verdicts = {True: "IT LOOKS LIKE AN UNTRAINED NETWORK", False: "it was trained", None: "trained or not, unknown"}
    say(
        args,
        f"{result['path']}: {result['weights']}",
        f"features of the built-in images: {result['features']}",
        f"metadata: {result['metadata']}",
        f"compared with a random {result['backbone']}: {moved}, {spectrum}: {verdicts[result['is_random']]}",
    )
    return result
