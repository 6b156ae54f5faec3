"""`iecl list methods|backbones|datasets|recipes`: tables of plain strings, no torch."""

import argparse
from typing import Any

from iecl.cli.command import say
from iecl.errors import UserError, did_you_mean

KINDS = ("methods", "backbones", "datasets", "recipes", "evaluations", "policies")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to list; everything by default."""
    parser.add_argument("kind", nargs="?", default="", help=f"one of: {', '.join(KINDS)}; default: all")
    parser.add_argument(
        "text", nargs="?", default="", help="names that have this in them, as: backbones timm/vit_small"
    )


def rows_of(kind: str, text: str = "") -> dict[str, str]:
    """Names and one line each; with `text`, of those that have it in them, every backbone included."""
    rows = _rows_of(kind)
    if kind == "backbones":
        from iecl.backbones.catalog import PACKAGES, described, model_names

        if text:
            rows |= {name: "" for package in PACKAGES for name in model_names(package)}
        else:
            rows |= {f"{package}/NAME": described(package) for package in PACKAGES}
            rows["package.module:factory"] = "a network of your own, as its function or class is imported"
    if kind == "methods" and not text:
        rows["package.module:Class"] = "a method of your own, held to the contract by iecl.testing.check_method"
    found = {name: line for name, line in rows.items() if text in name}
    if not found:
        raise UserError(f"none of the {kind} has {text!r} in its name", do=f"see: iecl list {kind}")
    return found


def _rows_of(kind: str) -> dict[str, str]:
    from iecl.backbones import BACKBONES
    from iecl.data.datasets import DATASETS
    from iecl.evaluation import EVALUATIONS
    from iecl.methods import METHODS, declared_methods
    from iecl.recipes import list_recipes
    from iecl.views.policies import POLICIES

    if kind == "recipes":
        return list_recipes()
    if kind == "policies":
        return {name: f"{'the same for every view' if len(p) == 1 else 'views differ'}" for name, p in POLICIES.items()}
    table = {
        "methods": METHODS | declared_methods(),
        "backbones": BACKBONES,
        "datasets": DATASETS,
        "evaluations": EVALUATIONS,
    }[kind]
    return {name: entry.summary for name, entry in table.items()}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Print one table, or all."""
    if args.kind and args.kind not in KINDS:
        raise UserError(f"there is no list of {args.kind!r}", do=did_you_mean(args.kind, KINDS))
    tables = {kind: rows_of(kind, args.text) for kind in ([args.kind] if args.kind else KINDS)}
    for kind, rows in tables.items():
        if not args.kind:
            say(args, f"{kind}:")
        width = max(map(len, rows))
        say(args, *(f"  {name:<{width}}  {line}".rstrip() for name, line in rows.items()))
    return tables
