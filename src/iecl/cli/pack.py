"""`iecl pack FOLDER --out FILE`, or `--shards --out FOLDER`."""

import argparse
import shlex
from typing import Any

from iecl.cli.command import say
from iecl.cli.weights_source import add_exclude
from iecl.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A folder, a file, and how large the images are kept."""
    parser.add_argument("data", help="folder of images")
    parser.add_argument("--out", required=True, help="file to write; with --shards a folder")
    parser.add_argument("--shards", action="store_true", help="files as they are, in tar shards that can be streamed")
    parser.add_argument("--shard-megabytes", type=int, default=None, metavar="MB", help="size of a shard; default: 256")
    parser.add_argument("--side", type=int, default=0, help="side of a kept image in pixels; default: as for pretrain")
    add_exclude(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the data, as data.labels=none"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Write the file, say what is in it and what to do with it."""
    from iecl import api

    given: dict[str, Any] = {
        "exclude": args.exclude,
        "sets": args.set,
        "overwrite": args.overwrite,
        "quiet": args.quiet,
    }
    own = {"shard_megabytes": args.shard_megabytes} if args.shards else {"side": args.side}
    other = {"--side": args.side} if args.shards else {"--shard-megabytes": args.shard_megabytes}
    wrong = next((flag for flag, value in other.items() if value), None)
    if wrong:
        what = "shards hold files as they are" if args.shards else "one file has no shards"
        raise UserError(what, where=wrong, do="leave it out" if args.shards else "add --shards")
    made = api.pack(args.data, args.out, shards=args.shards, **given, **{k: v for k, v in own.items() if v is not None})
    parts = ", ".join(f"{count:,} {name}" for name, count in made["parts"].items() if name != "all")
    size = f" of {made['side']} px" if "side" in made else ""
    place = f"{made['shards']:,} shards in {made['path']}" if "shards" in made else made["path"]
    say(
        args,
        f"{made['images']:,} images{size}{f' ({parts})' if parts else ''} in {place}, {made['megabytes']:,.0f} MB"
        + (f"; {made['skipped']:,} files could not be read" if made["skipped"] else ""),
        f"next: iecl pretrain --data {shlex.quote(made['path'])}",
    )
    return made
