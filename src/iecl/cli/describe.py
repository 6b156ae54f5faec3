"""`iecl describe RUN|recipe|method`: everything about one of them."""

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from iecl.cli.command import say
from iecl.errors import UserError, did_you_mean
from iecl.methods import HOSTS, METHODS
from iecl.recipes import list_recipes
from iecl.runs.directory import RunDirectory
from iecl.settings import read_toml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One name."""
    parser.add_argument("name", help="run directory, recipe, TOML file, or method")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Find out what the name is, and show it."""
    path = Path(args.name)
    if RunDirectory(path).holds_run:
        return _describe_run(args, RunDirectory(path))
    recipes = list_recipes()
    if args.name in recipes or path.suffix == ".toml":
        return _describe_recipe(args)
    if args.name in METHODS:
        return _describe_method(args)
    if path.exists():
        raise UserError(f"{path} is not a run directory: it has no settings.toml", where="iecl describe")
    options = [*recipes, *METHODS]
    raise UserError(f"no run, recipe or method is called {args.name!r}", do=did_you_mean(args.name, options))


def _describe_run(args: argparse.Namespace, found: RunDirectory) -> dict[str, Any]:
    settings, summary = read_toml(found.settings), found.read_json(found.summary)
    rows = list(found.read_metrics())
    results = [found.read_json(file) for file in sorted(found.evaluations.glob("*.json"))]
    state = "finished" if summary.get("finished") else f"unfinished, at step {rows[-1]['step'] if rows else 0}"
    say(args, f"{found.path}: {settings['method']['name']} on {settings['data']['name']}, {state}")
    if "verdict" in summary:
        say(args, f"verdict: {summary['verdict']}: {'; '.join(summary['reasons'])}")
    for result in results:
        say(
            args,
            f"{result['evaluation']} top-1 {100 * result['top1']:.2f} % ({result['protocol_id']}, {result['data']})",
        )
    say(args, "", found.settings.read_text(encoding="utf-8").rstrip())
    return {"run": str(found.path), "settings": settings, "summary": summary, "evaluations": results}


def _describe_recipe(args: argparse.Namespace) -> dict[str, Any]:
    """The recipe with every default filled in, as a run would have it before it sees the data."""
    from iecl.training.plan import make_plan

    plan = make_plan(recipe=args.name, flags={"data": {"name": "shapes"}})
    say(args, plan.to_toml(f"recipe {args.name}; data is an example").rstrip())
    return {"recipe": args.name, "settings": plan.values()}


def _describe_method(args: argparse.Namespace) -> dict[str, Any]:
    """What a method is and each of its settings."""
    host = HOSTS.get(args.name, args.name)
    say(args, f"{args.name}: {METHODS[args.name].summary}", "settings, as --set method.NAME=VALUE:")
    declared = fields(METHODS[host].load().Settings)
    width = max(len(f.name) for f in declared)
    say(args, *(f"  {f.name:<{width}}  {f.metadata['doc']} (default {f.default})" for f in declared))
    if args.name in HOSTS:
        say(
            args,
            f"its host is {host}; [saib] and [objective] hold the rest: iecl describe {args.name}/paper",
        )
    documented = {f.name: {"doc": f.metadata["doc"], "default": str(f.default)} for f in declared}
    return {"method": args.name, "host": host, "settings": json.loads(json.dumps(documented))}
