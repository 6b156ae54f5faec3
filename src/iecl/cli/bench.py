"""`iecl bench [QUESTION ...]`: how fast is it here, beside what else is installed?"""

import argparse
from typing import Any

from iecl.benching import QUESTIONS
from iecl.cli.command import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which questions, how much effort, and where the answers go."""
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", help=f"any of: {', '.join(QUESTIONS)}; default: all"
    )
    parser.add_argument("--list", action="store_true", help="show what each question asks, and measure nothing")
    parser.add_argument("--out", default="bench", help="folder for results: one JSON for each question, and bench.md")
    parser.add_argument("--data", default="", help="folder of images to measure on; default: they are made")
    parser.add_argument("--quick", action="store_true", help="small sizes, two minutes: does it run?")
    parser.add_argument("--rounds", type=int, default=0, help="rounds that count; default: what a question finds right")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Ask, and show all rows at the end."""
    if args.list:
        lines = {name: entry.summary for name, entry in QUESTIONS.items()}
        say(args, *(f"  {name:<{max(map(len, lines))}}  {line}" for name, line in lines.items()))
        return {"questions": lines}
    from iecl.benching.report import results_table
    from iecl.benching.running import bench

    options = {"data": args.data, "quick": args.quick, "rounds": args.rounds, "quiet": args.quiet}
    made = bench(args.questions, args.out, **options)
    for name, found in made["questions"].items():
        say(args, f"{name}: {QUESTIONS[name].summary}", *results_table(found["results"]).split("\n"))
    say(args, f"all results of {args.out}: {made['page']}")
    return made
