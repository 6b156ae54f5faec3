"""`iecl export RUN --out FILE.safetensors`."""

import argparse
from typing import Any

from iecl.cli.command import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A run and a file."""
    parser.add_argument("run", help="run directory")
    parser.add_argument("--out", required=True, help="file to write, ending in .safetensors")
    parser.add_argument(
        "--checkpoint", default="final", choices=("final", "last", "best"), help="which weights of the run"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the file, prove that it loads, and show how to load it."""
    from iecl import api

    result = api.export(args.run, args.out, checkpoint=args.checkpoint, overwrite=args.overwrite)
    say(args, f"{result['path']}: {result['proof']}", "load it with:", result["snippet"])
    return result
