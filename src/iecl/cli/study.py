"""`iecl study FILE.toml`: run what is missing of a study, and show what it found."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.console import counted, duration
from iecl.errors import TrainingError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which study, how many cells at a time, or only a look."""
    parser.add_argument("file", metavar="FILE.toml", help="the study: [study], and [arms.NAME] for each arm")
    parser.add_argument("--out", default="", help="folder for records and runs; default: studies/NAME")
    parser.add_argument(
        "--workers", type=int, default=1, help="cells at a time, each in a process of its own; 0: in this one"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of each cell")
    parser.add_argument("--retry", action="store_true", help="run cells again that failed")
    parser.add_argument("--keep", default="weights", help="what stays of a finished run: none, weights or all")
    parser.add_argument("--list", action="store_true", help="show every cell with its state, and run nothing")
    parser.add_argument("--table", action="store_true", help="show what was found so far, and run nothing")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run or look; failed cells make the command fail when everything else is done."""
    from iecl.studies.call import study

    how = {"workers": args.workers, "threads": args.threads, "retry": args.retry, "keep": args.keep}
    made = study(args.file, args.out, dry=args.list or args.table, **how, quiet=args.quiet)
    if args.list:
        for cell in made["cells"]:
            say(args, f"{cell['state']:<8} {cell['arm']}, {cell['data']}, seed {cell['seed']}  {cell['name']}")
        left = made["seconds_left"]
        time = f", about {duration(left)} with {counted(args.workers, 'worker')}" if left else ""
        words = f"{counted(len(made['cells']), 'cell')}, {made['to_do']} to do{time}"
        say(args, f"{words}; {made['megabytes']:.0f} MB in {made['folder']}")
        return made
    say(args, *made["text"].rstrip().split("\n"))
    failed = [cell for cell in made["cells"] if cell["state"] == "failed"]
    if failed and not args.table:
        what = f"{len(failed)} of {counted(len(made['cells']), 'cell')} failed"
        raise TrainingError(what, where=made["files"]["md"], do="mend what they say, and add --retry")
    return made
