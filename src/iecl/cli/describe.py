"""`iecl describe RUN|recipe|method|FILE`: everything about one of them."""

import argparse
import inspect
import shlex
import textwrap
from dataclasses import asdict, fields
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iecl.cli.command import say
from iecl.comparison.results import read_result, result_files
from iecl.data.settings import LEAST_SIDE
from iecl.errors import UserError, did_you_mean
from iecl.files import MOST_TOML, check, parse_toml, read_text
from iecl.meters.outcome import outcome_table
from iecl.methods import DEFAULT_HOST, METHODS, WRAPPER
from iecl.names import current_settings
from iecl.recipes import list_recipes
from iecl.runs.directory import RunDirectory
from iecl.settings import as_values, shown

if TYPE_CHECKING:
    from iecl.training.cost import Cost

SIZE = 32
"""Pixels on a side at which a method is measured, by default."""

LONGEST = 200
"""Letters of metadata that a person reads; features and snippets are for programs."""
EXAMPLE = {"data": {"name": "shapes"}}
"""Data for a configuration that is only looked at."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One name, and with what a method is measured."""
    parser.add_argument("name", help="run directory, recipe, TOML file, method, or file of weights")
    parser.add_argument("--backbone", help="for a method: backbone to measure it with; default: that of a run")
    parser.add_argument("--image-size", type=int, help=f"for a method: side of a view in pixels; default: {SIZE}")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Find out what the name is, and show it."""
    path = Path(args.name)
    if args.name not in METHODS and (args.backbone or args.image_size):
        raise UserError("a backbone and an image size are for measuring a method", where="iecl describe")
    if args.image_size is not None and args.image_size < LEAST_SIDE:
        raise UserError(f"images of {args.image_size} px are too small to measure with", where="--image-size")
    if RunDirectory(path).holds_run:
        return _describe_run(args, RunDirectory(path))
    recipes = list_recipes()
    if args.name in recipes or path.suffix == ".toml":
        return _describe_recipe(args)
    if args.name in METHODS:
        return _describe_method(args)
    if path.suffix == ".safetensors" and path.is_file():
        return _describe_weights(args, path)
    if path.exists():
        raise UserError(f"{path} is not a run directory: it has no settings.toml", where="iecl describe")
    guess = did_you_mean(args.name, [*recipes, *METHODS])
    do = guess if guess.startswith("did you mean") else "see: iecl list recipes, iecl list methods"
    raise UserError(f"no run, recipe or method is called {args.name!r}", do=do)


def _describe_run(args: argparse.Namespace, found: RunDirectory) -> dict[str, Any]:
    text = read_text(found.settings, MOST_TOML)
    settings, summary = current_settings(parse_toml(text, str(found.settings))), found.read_summary()
    for section in ("method", "data"):
        check(settings, str(found.settings), needed={section: dict})
        check(settings[section], f"[{section}] of {found.settings}", needed={"name": str})
    step = 0
    for row in found.read_metrics():  # millions of rows, perhaps
        step = row["step"]
    results = [read_result(file) for file in result_files(found)]
    state = "finished" if summary.get("finished") else f"unfinished, at step {step}"
    say(args, f"{found.path}: {settings['method']['name']} on {settings['data']['name']}, {state}")
    kept = found.kept_epochs()
    if kept:
        say(args, f"kept checkpoints of epochs {', '.join(map(str, kept))}: {found.kept_checkpoint(kept[-1]).parent}")
    if "verdict" in summary:
        say(args, f"verdict: {summary['verdict']}: {'; '.join(summary.get('reasons', []))}")
    if "outcome" in summary:
        say(args, *outcome_table(summary["outcome"]))
    for result in results:
        number = result["numbers"][0]
        say(
            args,
            f"{result['evaluation']} {number.replace('top1', 'top-1')} {100 * result[number]:.2f} % "
            f"({result['protocol_id']}, {result['data']})",
        )
    say(args, "", *text.rstrip().split("\n"))
    return {"run": str(found.path), "settings": settings, "summary": summary, "evaluations": results} | (
        {"kept_epochs": kept} if kept else {}
    )


def _describe_recipe(args: argparse.Namespace) -> dict[str, Any]:
    """The recipe with every default filled in, as a run would have it before it sees the data."""
    from iecl.training.config import make_config

    config = make_config(recipe=args.name, flags=EXAMPLE)
    say(args, *config.to_toml(f"recipe {args.name}; data is an example").rstrip().split("\n"))
    return {"recipe": args.name, "settings": config.values()}


def _describe_weights(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    """What a file of weights says of itself."""
    from iecl.weights.file import load_weights

    state, metadata = load_weights(path)
    say(args, f"{path}: {len(state)} tensors, {sum(tensor.numel() for tensor in state.values()):,} numbers")
    short = {name: value for name, value in metadata.items() if "\n" not in value and len(value) < LONGEST}
    say(
        args,
        *(f"  {name}: {value}" for name, value in short.items()),
        f"check it with: iecl verify {shlex.quote(str(path))}",
    )
    return {"file": str(path), "tensors": {name: list(t.shape) for name, t in state.items()}, "metadata": metadata}


def _describe_method(args: argparse.Namespace) -> dict[str, Any]:
    """What a method is, what it costs, and each of its settings."""
    from iecl.training.config import make_config
    from iecl.training.cost import cost_of

    host = DEFAULT_HOST if args.name == WRAPPER else args.name
    formula = formula_of(METHODS[args.name].load())
    say(args, f"{args.name}: {METHODS[args.name].summary}", "", *(f"  {line}" for line in formula.splitlines()), "")
    cost = cost_of(args.name, args.backbone or "auto", args.image_size or SIZE)
    say(args, *_cost_lines(cost))
    declared = fields(METHODS[host].load().Settings)
    values = as_values(make_config(method=args.name, flags=EXAMPLE).method_settings())
    width = max((len(f.name) for f in declared), default=0)
    heading = "settings (--set method.NAME=VALUE) and their values in the default recipe:"
    say(args, heading if declared else "it has no settings")
    say(args, *(f"  {f.name:<{width}}  {f.metadata['doc']} ({shown(values[f.name])})" for f in declared))
    if args.name == WRAPPER:
        say(
            args,
            f"these are the settings of its host, {host}; --set method.host=NAME takes any other method. "
            f"[saib] and [objective] hold the rest: iecl describe {args.name}/paper",
        )
    documented = {f.name: {"doc": f.metadata["doc"], "default": values[f.name]} for f in declared}
    return {"method": args.name, "host": host, "formula": formula, "cost": asdict(cost), "settings": documented}


def formula_of(cls: type) -> str:
    """The lines under `formula:` in the docstring of a method.

    >>> class Example:
    ...     '''Words.
    ...
    ...     formula:
    ...         loss = a
    ...              + b
    ...     '''
    >>> print(formula_of(Example))
    loss = a
         + b
    """
    lines = iter((inspect.getdoc(cls) or "").splitlines())
    for line in lines:
        if line.startswith("formula:"):
            block = takewhile(lambda below: not below.strip() or below.startswith(" "), lines)
            return textwrap.dedent("\n".join(block)).strip("\n")
    return ""


def _cost_lines(cost: "Cost") -> list[str]:
    width, image, step = max(map(len, cost.parts)), cost.per_image, cost.per_step
    lines = [f"modules with {cost.backbone} at {cost.image_size} px, as in the default recipe:"]
    for name, part in cost.parts.items():
        moved = "" if part.trained == part.weights else f", {part.trained:,} of them trainable"
        stored = f", {part.stored:,} buffer values" if part.stored else ""
        lines.append(f"  {name:<{width}}  {part.weights:,} parameters{moved}{stored}")
    few, many = cost.images
    return [
        *lines,
        f"cost of the forward passes of a step, measured with batches of {few} and {many}:",
        f"  {image.flops / 1e9:.3g} GFLOP per image and {step.flops / 1e9:.3g} per step, two for each multiply-add; "
        "the backward pass takes about twice as much",
        f"  {image.saved / 1e6:.3g} MB per image and {step.saved / 1e6:.3g} MB per step kept for the backward pass, "
        "in 32-bit floats",
    ]
