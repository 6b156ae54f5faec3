"""`iecl bench [QUESTION ...]`: how fast is it here, beside what else is installed? Works from a clone only."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.repository import bench_module


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which questions, how much effort, and where the answers go."""
    names = ", ".join(bench_module().QUESTIONS)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"any of: {names}; default: all")
    parser.add_argument("--list", action="store_true", help="show what each question asks, and measure nothing")
    parser.add_argument("--out", default="bench", help="folder for results: one JSON for each question, and bench.md")
    parser.add_argument("--data", default="", help="folder of images to measure on; default: generated ones")
    parser.add_argument("--quick", action="store_true", help="small sizes, two minutes: does it run?")
    parser.add_argument("--rounds", type=int, default=0, help="rounds that count; default: chosen by each question")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Ask, and show all rows at the end."""
    questions = bench_module().QUESTIONS
    if args.list:
        lines = {name: entry.summary for name, entry in questions.items()}
        say(args, *(f"  {name:<{max(map(len, lines))}}  {line}" for name, line in lines.items()))
        return {"questions": lines}
    from iecl.repository import bench

    results_table = bench_module("report").results_table
    options = {"data": args.data, "quick": args.quick, "rounds": args.rounds, "quiet": args.quiet}
    made = bench(args.questions, args.out, **options)
    for name, found in made["questions"].items():
        say(args, f"{name}: {questions[name].summary}", *results_table(found["results"]).split("\n"))
    say(args, f"all results of {args.out}: {made['page']}")
    return made
