"""The command: verbs are imported when they are called, so that help answers at once."""

import argparse
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from iecl.allocation import keep_freed_memory
from iecl.console import one_line, show
from iecl.errors import Interrupted, TrainingError, UserError, did_you_mean, in_command
from iecl.names import suggested_flag
from iecl.runs.directory import strict_json

VERBS = {
    "doctor": "look for what is wrong with images: damage, copies, leaks, outliers; and with a backbone for more",
    "pack": "decode a folder of images once, into one file to train from; or write shards to stream from",
    "plan": "try a few steps and predict memory, time and disk of a run",
    "pretrain": "train a backbone on a folder of images",
    "extend": "continue a run for more epochs, with a new schedule",
    "evaluate": "measure a backbone: kNN, linear probe, and more; or all at once",
    "compare": "compare results: protocols, confidence intervals, noise",
    "study": "run arms and seeds in resumable cells, and compare them with intervals",
    "reproduce": "make a table or figure of the paper, and set it beside what is printed",
    "report": "write one page about runs: verdict, curves, views, neighbors, a map of the images, results",
    "watch": "show that page in a browser while a run is trained",
    "embed": "write one feature vector per image",
    "export": "write a backbone for other programs",
    "inspect": "follow entropy through block and encoder: where it is added and where it is lost",
    "verify": "check that a file of weights does what it did when it was written",
    "views": "show augmentations before a run, or the views of a training image exactly as they were drawn",
    "replay": "repeat one training step and show every layer",
    "list": "list methods, backbones, datasets and recipes",
    "describe": "show a run, a recipe or a method with its settings",
    "demo": "train on generated images, with the block and without, and compare with untrained baselines",
    "bench": "from a clone: measure how fast this machine trains, next to other installed libraries",
}
DONE, FAILED, WRONG_USE = 0, 1, 2
LONGEST = 4000
"""Letters of an error: what a message quotes may be as long as a file."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes become one line with a suggestion."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage."""
        raise UserError(message, do=f"see: {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0 done, 1 the work failed, 2 wrong use, 128 + n stopped by signal n."""
    words = list(sys.argv[1:] if argv is None else argv)
    here = str(Path.cwd())
    if here not in sys.path:  # package.module:thing may lie where the command is given; last, so that it hides nothing
        sys.path.append(here)
    try:
        with in_command():
            return _dispatch(words)
    except Interrupted as problem:  # nothing went wrong
        return _ended(problem, 128 + problem.signal, words)
    except UserError as problem:
        return _ended(problem, FAILED if isinstance(problem, TrainingError) else WRONG_USE, words)
    except KeyboardInterrupt:
        show("error: interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        sys.stderr.close()
        return DONE
    except OSError as problem:  # no room, no permission, too long a name: the system has said what is wrong
        where = str(problem.filename or "")
        return _ended(UserError((problem.strerror or str(problem)).lower(), where=where), FAILED, words)


def _ended(problem: UserError, code: int, words: list[str]) -> int:
    """Say why a command ended before its time: for people on one line, for programs as JSON."""
    if "--debug" in words:
        for line in traceback.format_exc().rstrip().split("\n"):
            show(f"  {line}")  # indented: a message may have lines of its own
    said = one_line(f"{'' if isinstance(problem, Interrupted) else 'error: '}{problem}")
    show(said if len(said) <= LONGEST else f"{said[: LONGEST // 2]} ... {said[-LONGEST // 2 :]}")
    if "--json" in words:
        told = {"error": problem.what, "where": problem.where, "do": problem.do, "code": code}
        show(strict_json(told), as_result=True)
    return code


def _dispatch(words: list[str]) -> int:
    from iecl import __version__

    parser = Parser(
        prog="iecl", description="Turn a folder of unlabeled images into a vision backbone, and measure it."
    )
    parser.add_argument("--version", action="version", version=f"iecl {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True, parser_class=Parser)
    if words and not words[0].startswith("-") and words[0] not in VERBS:
        raise UserError(f"no command is called {words[0]!r}", do=did_you_mean(words[0], VERBS))
    for name, line in VERBS.items():
        child = verbs.add_parser(name, help=line, description=line, allow_abbrev=False)
        if words[:1] == [name]:  # only the chosen verb is imported
            import_module(f"iecl.cli.{name}").add_arguments(child)
            child.add_argument("--json", action="store_true", help="print the result as one JSON object, the last line")
            child.add_argument("--quiet", action="store_true", help="show warnings only")
            child.add_argument("--debug", action="store_true", help="show the traceback of an error")
            chosen = child
    args, extra = parser.parse_known_args(words)
    if extra:
        flags = [option for action in chosen._actions for option in action.option_strings]
        word = extra[0].partition("=")[0]
        do = suggested_flag(word, flags) if word.startswith("-") else f"see: {chosen.prog} --help"
        raise UserError(f"{chosen.prog} does not know {word!r}", do=do)
    args.words = words
    keep_freed_memory()  # the process is ours
    result: dict[str, Any] = import_module(f"iecl.cli.{args.verb}").run(args)
    if args.json:
        show(strict_json(result), as_result=True)
    return DONE


def say(args: argparse.Namespace, *lines: str) -> None:
    """Print lines for a person: on standard output, unless that is kept for JSON. A text is given line by line."""
    for line in lines:
        show(line, as_result=not args.json)
