"""`iecl evaluate PROTOCOL MODEL ... --data ...`."""

import argparse
from typing import Any

from iecl.backbones.catalog import check_backbone
from iecl.cli.command import say
from iecl.cli.weights_source import add_data, add_source, source
from iecl.errors import UserError
from iecl.evaluation import EVALUATIONS
from iecl.evaluation.compute import precision_called
from iecl.names import suggestion
from iecl.registry import resolve
from iecl.settings import merge, parse_assignment

ALL = "all"
FLAGS = ("k", "temperature", "epochs", "seed")
"""Settings so common that they have a flag of their own."""
SHARED = ("exclude", "method", "out", "device", "precision", "devices", "quiet")
"""What every evaluation takes besides its settings and its weights."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The protocol's own numbers are defaults; each can be changed and is printed with the result."""
    parser.add_argument("evaluation", help=f"one of: {', '.join(EVALUATIONS)}, {ALL}")
    parser.add_argument("model", nargs="+", help="run directory, file of weights, or random; several are compared")
    add_data(parser, "VOCdevkit for detection and segmentation; default: the run's own")
    parser.add_argument(
        "--device", default="", help="where to compute, as cpu or cuda:1; default: a GPU if there is one"
    )
    parser.add_argument(
        "--precision", default="", help="arithmetic of the frozen backbone: 32, bf16 or fp16; default: 32"
    )
    parser.add_argument("--devices", type=int, default=1, help="processes that make features, each on a GPU of its own")
    parser.add_argument("--voc", help="all: VOCdevkit folder, for detection and segmentation too")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="all: these evaluations and no others; may be repeated",
    )
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="WHAT",
        help="measure this too, on the same images: random (untrained), pixels, or a run or file; may be repeated",
    )
    add_source(parser)
    parser.add_argument("--method", default="", help="what trained such a file, for the table, as in supervised")
    parser.add_argument("--seeds", type=int, help="repetitions with other seeds; default: 1, and 3 for all")
    parser.add_argument("--out", help="file for the result; all: folder for the card")
    parser.add_argument("--k", type=int, help="knn: neighbors that vote")
    parser.add_argument("--temperature", type=float, help="knn: how fast a vote falls with distance")
    parser.add_argument("--epochs", type=int, help="passes over the training images, where there is training")
    parser.add_argument("--seed", type=int, help="seed of what is random")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting; all: EVALUATION.KEY=VALUE"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, and say each number with its protocol."""
    if args.evaluation != ALL:
        resolve(args.evaluation, EVALUATIONS, "evaluation", "iecl evaluate")
    options = {name: value for name in FLAGS if (value := getattr(args, name)) is not None}
    for text in args.set:
        options = merge(options, parse_assignment(text))
    _check_names(args, options)
    precision_called(args.precision)
    source(args, *(model for model in args.model if model != "pixels"))  # before torch is imported
    if len(args.model) > 1 and args.out:
        raise UserError("several models do not fit into one result", where="--out", do="leave it out")
    if args.baseline and args.evaluation == ALL:
        raise UserError("a baseline belongs to one evaluation", where="--baseline", do="name it, as in evaluate knn")
    results = [_one(args, model, options) for model in args.model]
    whole = [each for result in results for each in result.get("results", [result, *result.get("baselines", [])])]
    if len(results) > 1 or args.baseline:
        from iecl.evaluation.card import compared

        say(args, *compared(whole).split("\n"))
    return {"evaluation": args.evaluation, "results": results} if len(results) > 1 else results[0]


def _check_names(args: argparse.Namespace, options: dict[str, Any]) -> None:
    """Refuse names that nothing has before torch is imported."""
    for name in args.only:
        resolve(name, EVALUATIONS, "evaluation", "--only")
    if args.backbone:
        check_backbone(args.backbone)
    for name, table in (_by_name(options) if args.evaluation == ALL else {args.evaluation: options}).items():
        known = EVALUATIONS[name].setting_names()
        for key in table if known else ():
            if key not in known:
                do = suggestion(key, known, name)
                raise UserError(f"[{name}] has no setting {key!r}", where="iecl evaluate", do=do)


def _one(args: argparse.Namespace, model: str, options: dict[str, Any]) -> dict[str, Any]:
    from iecl import api

    given = {name: getattr(args, name) for name in SHARED} | source(args)
    if args.seeds is not None:
        given["seeds"] = args.seeds
    if args.evaluation == ALL:
        card = api.evaluate_all(model, args.data, voc=args.voc, only=args.only, options=_by_name(options), **given)
        from iecl.evaluation.card import numbers

        say(args, *numbers(card["results"]).split("\n"), f"card: {card['file']}")
        return card
    if args.voc or args.only:
        raise UserError("--voc and --only belong to all", where=f"iecl evaluate {args.evaluation}", do="use --data")
    result = api.evaluate(args.evaluation, model, args.data, baselines=args.baseline, **given, **options)
    say(
        args,
        _sentence(result),
        f"protocol: {result['protocol_id']} ({result['protocol_hash']})",
        f"weights: {result['weights']}",
    )
    return result


def _by_name(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings for several evaluations, each under the name of its own."""
    for name, table in options.items():
        if not isinstance(table, dict):
            raise UserError(f"{name} of which evaluation?", where="--set", do=f"write it as in --set linear.{name}=...")
        resolve(name, EVALUATIONS, "evaluation", "--set")
    return options


def _sentence(result: dict[str, Any]) -> str:
    """As in `knn: top1 59.60 % (2,000 test images, 10,000 train images, 10 classes, sampling error ±1.1 points)`."""
    deviation = result.get("deviation", {})
    shown = (
        f"{name} {100 * result[name]:.2f} %" + (f" ± {100 * deviation[name]:.2f}" if name in deviation else "")
        for name in result["numbers"]
    )
    counts = f"{result['n_test']:,} test images, {result['n_train']:,} train images, {result['classes']} classes"
    if "top1" in result and not deviation:
        spread = (result["top1"] * (1 - result["top1"]) / result["n_test"]) ** 0.5
        counts += f", sampling error ±{100 * spread:.1f} points"
    if result["skipped"]:
        counts += f", {result['skipped']:,} files could not be read"
    return f"{result['evaluation']}: {', '.join(shown)} ({counts})"
