"""`iecl views RUN --step N --index I` or `iecl views --data FOLDER --set ...`: an image of views."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.cli.pretrain import add_settings, asked
from iecl.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A run, a moment, an image; or the settings of a run that is not started yet."""
    parser.add_argument("run", nargs="?", default="", help="run directory: the views of one of its images")
    parser.add_argument("--step", type=int, help="of a run: optimizer step, from 1 on")
    parser.add_argument("--index", type=int, help="of a run: which image of the data, in the epoch of that step")
    parser.add_argument("--row", type=int, help="of a run: which of the step's own images")
    parser.add_argument("--out", default="views.png", help="image to write; default: views.png")
    parser.add_argument("--images", type=int, default=6, help="before a run: how many images to show")
    add_settings(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Draw the views of a run again, or those that a run would have."""
    from iecl import drawing

    if bool(args.run) == bool(args.data):
        do = "name a run directory and --step, or --data and the settings of a run to come"
        raise UserError("which views?", where="iecl views", do=do)
    if args.data:
        made = drawing.preview(args.data, args.out, images=args.images, **asked(args))
        say(args, f"{made['path']}: {len(made['rows'])} rows, images: {made['images']}")
        if made["off"]:
            say(args, f"off: {', '.join(made['off'])}", f"on with: --set augmentation.{made['off'][-1]}_prob=0.5")
        return made
    if args.step is None:
        raise UserError("which step?", where="--step", do="name an optimizer step of the run, from 1 on")
    result = drawing.draw_views(args.run, args.step, args.out, index=args.index, row=args.row)
    say(
        args,
        f"{result['image']}: image {result['index']:,} of the data, row {result['row']} of step {result['step']:,} "
        f"(epoch {result['epoch'] + 1})",
        f"plain, then its {len(result['draws'])} views, before any input block: {result['path']}",
    )
    return result
