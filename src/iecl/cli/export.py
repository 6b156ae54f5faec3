"""`iecl export RUN --out FILE --format ...`."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.cli.weights_source import add_source, source

FORMATS = ("safetensors", "torchvision", "timm", "detectron2", "onnx")
"""The rows of `iecl.weights.formats.EXPORT_FORMATS`, which would import torch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A run and a file."""
    parser.add_argument("run", help="run directory, exported file, or with --backbone a file from elsewhere")
    parser.add_argument("--out", required=True, help="file to write: .safetensors, .pth or .onnx")
    parser.add_argument(
        "--format", default="", metavar="NAME", help=f"one of: {', '.join(FORMATS)}; default: by the file's name"
    )
    add_source(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the file, prove that it gives the same features, and show how to load it."""
    from iecl import api

    asked = source(args, args.run)
    result = api.export(args.run, args.out, format=args.format, overwrite=args.overwrite, **asked)
    say(args, f"read: {result['weights']}", f"{result['path']}: {result['proof']}", "load it with:")
    say(args, *result["snippet"].split("\n"))
    return result
