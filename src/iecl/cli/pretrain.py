"""`iecl pretrain`: arguments, one call, closing lines."""

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from iecl.cli.command import say
from iecl.cli.weights_source import add_data, add_exceptions
from iecl.launch import rank_at_start
from iecl.runs.records import has_labels

if TYPE_CHECKING:
    from iecl.api import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only what nearly every run sets has a flag; everything else is `--set section.key=value`."""
    add_settings(parser)
    parser.add_argument("--out", default="", help="run directory to write; default: runs/METHOD-DATA")
    parser.add_argument("--seed", type=int, help="decides every random draw")
    parser.add_argument(
        "--init-from",
        "--from",
        dest="init_from",
        default="",
        help="run or file of weights to start from, or imagenet: torchvision's for the backbone",
    )
    parser.add_argument("--download", action="store_true", help="fetch the weights of --from imagenet if need be")
    add_exceptions(parser)
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--overwrite", action="store_true", help="replace a run in --out")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """What is trained on what, how long, and where."""
    add_data(parser)
    parser.add_argument(
        "--method", default="", help="a name from: iecl list methods, or package.module:Class of yours; default: ie-cl"
    )
    parser.add_argument(
        "--saib",
        nargs="?",
        const="certified",
        help="put the input block before the method: certified (the default), sample, batch or none",
    )
    parser.add_argument(
        "--backbone",
        default="",
        help="a name from: iecl list backbones (torchvision/NAME and timm/NAME are all of theirs), or "
        "package.module:factory of yours; default: a ResNet-18",
    )
    parser.add_argument("--epochs", type=int, help="passes over the data")
    parser.add_argument("--batch-size", type=int, help="images in a loss, over all processes")
    parser.add_argument("--lr", type=float, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, help="weight decay")
    parser.add_argument("--image-size", type=int, help="side of a view in pixels; default: chosen from the images")
    parser.add_argument("--augmentation", default="", help="how views are made: simclr, moco-v2, byol, crop, none, ...")
    parser.add_argument("--precision", default="", help="auto, 32-true, bf16-mixed or 16-mixed")
    parser.add_argument("--workers", dest="num_workers", type=int, help="processes that decode images")
    parser.add_argument("--recipe", default="", help="a name from: iecl list recipes, a TOML file, or a run directory")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, as training.seed=1"
    )
    parser.add_argument("--devices", type=int, help="processes on this machine, one for each device; 0: all devices")
    parser.add_argument("--nodes", type=int, help="machines")
    parser.add_argument("--strategy", help="how processes work together: auto, ddp or fsdp")
    parser.add_argument("--accelerator", help="auto, cpu, gpu, cuda or mps")


COMMON = (
    *("backbone", "epochs", "batch_size", "lr", "weight_decay", "image_size", "augmentation", "precision"),
    *("exclude", "num_workers", "accelerator", "devices", "nodes", "strategy"),
)
"""Flags that are arguments of `iecl.pretrain` by the same name."""


def asked(args: argparse.Namespace) -> dict[str, Any]:
    """The settings on the command line, as Python's functions take them."""
    return {
        "method": args.method,
        "recipe": args.recipe,
        "settings": {} if args.saib is None else {"saib": {"form": args.saib}},
        "sets": args.set,
        **{name: getattr(args, name) for name in COMMON},
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train, then say what was made and what to do next."""
    from iecl import api

    made = api.pretrain(
        args.data,
        args.out,
        **asked(args),
        seed=args.seed,
        init_from=args.init_from,
        layout=args.layout,
        allow=args.allow,
        download=args.download,
        resume=args.resume,
        overwrite=args.overwrite,
        quiet=args.quiet,
    )
    return closing(args, made)


def closing(args: argparse.Namespace, made: "Run") -> dict[str, Any]:
    """What to say of a run that has ended, and what to do next."""
    if rank_at_start() > 0:  # the first of several processes speaks for all
        return {"run": str(made.path)}
    summary = made.summary
    knn = summary.get("last", {}).get("knn")
    before = summary.get("untrained_knn")
    beside = f" (untrained {100 * before:.1f} %)" if before is not None else ""
    said = f", online kNN {100 * knn:.1f} %{beside}" if knn is not None else ""
    say(args, f"verdict: {summary.get('verdict', 'not known')}{said}")
    run, features = shlex.quote(str(made.path)), shlex.quote(str(made.path / "features.npz"))
    labeled = f"next: iecl evaluate knn {run} --baseline random --baseline pixels"
    unlabeled = f"next: iecl embed {run} --out {features}"  # of the run's own images
    say(args, f"run directory: {made.path}", labeled if has_labels(summary) else unlabeled)
    say(args, f"look: iecl report {run}")
    return {"run": str(made.path), "summary": summary}
