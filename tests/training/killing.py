"""Training in processes that are killed at chosen moments, until one of them comes to the end.

    python killing.py < request.json

Torch is imported once; each attempt is a fork of this process, which has computed nothing before. A kill is SIGKILL:
nothing can be saved any more. The answer, on the last line, is how each attempt ended.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

import iecl
from iecl.backbones import BACKBONES
from iecl.registry import Entry
from iecl.runs import checkpoint
from iecl.runs.directory import RunDirectory, strict_json
from iecl.training import loop, run  # noqa: F401  # run: imported before the fork, for speed

torch.set_num_threads(1)
BACKBONES["groups"] = Entry("killing:GroupNetwork", "a network without batch norm; spawned processes know it too")


class GroupNetwork(nn.Sequential):
    """Two convolutions whose norms look at one image at a time: the same for one process and for two."""

    num_features = 16

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.GroupNorm(2, 8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.GroupNorm(2, 16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Moment:
    """Waits for the `call`-th time that something happens."""

    def __init__(self, call: int) -> None:
        self.left = call

    def has_come(self) -> bool:
        self.left -= 1
        return self.left == 0


def in_the_first_step(call: int) -> None:
    """After the first backward pass of all; only a run without any checkpoint gets there."""
    loop.Loop._check_gradients = lambda self: die()


def before_the_momentum_update(call: int) -> None:
    """The optimizer has moved the weights; momentum copy, queue and centers have not followed."""
    make, moment = loop.Loop.__init__, Moment(call)

    def init(self: Any, *args: Any) -> None:
        make(self, *args)
        follow = self.method.after_step
        self.method.after_step = lambda clock: die() if moment.has_come() else follow(clock)

    loop.Loop.__init__ = init


def in_a_save(call: int, arm: Any) -> None:
    save, moment = loop.save_checkpoint, Moment(call)

    def armed(*args: Any, **options: Any) -> None:
        if moment.has_come():
            arm()
        save(*args, **options)

    loop.save_checkpoint = armed


def with_half_a_checkpoint_written(call: int) -> None:
    def half(path: Path, content: bytes) -> None:
        path.with_name(f".{path.name}.{os.getpid()}.part").write_bytes(content[: len(content) // 2])
        die()

    in_a_save(call, lambda: setattr(checkpoint, "write_atomically", half))


def with_a_checkpoint_written_and_not_renamed(call: int) -> None:
    in_a_save(call, lambda: setattr(checkpoint, "load_checkpoint", lambda path: die()))


def between_two_renames(call: int) -> None:
    """The last checkpoint is called `previous` already, and the fresh one is not called `last` yet."""
    replace = Path.replace

    def dying(self: Path, target: Path) -> Path:
        return die() if self.name == "fresh.ckpt" else replace(self, target)

    in_a_save(call, lambda: setattr(Path, "replace", dying))


def with_half_a_line_of_metrics(call: int) -> None:
    moment, append = Moment(call), RunDirectory.append_metrics

    def half(self: RunDirectory, row: dict[str, Any]) -> None:
        if not moment.has_come():
            return append(self, row)
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(strict_json(row)[:20])
        die()

    RunDirectory.append_metrics = half


def at_any_time(call: int) -> None:
    """`call` milliseconds after the first line of metrics, wherever the run is then."""
    moment, append = Moment(1), RunDirectory.append_metrics

    def starting(self: RunDirectory, row: dict[str, Any]) -> None:
        append(self, row)
        if moment.has_come():
            threading.Timer(call / 1000, die).start()

    RunDirectory.append_metrics = starting


def attempt(request: dict[str, Any], kill: tuple[str, int] | None) -> int:
    """One process from its start to its end; returns the signal that ended it, or its exit code with a minus."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if kill is not None:
                globals()[kill[0]](kill[1])
            train(request)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def train(request: dict[str, Any]) -> None:
    """Begin, or go on where an earlier attempt was killed."""
    out = Path(request["out"])
    if RunDirectory(out).holds_run:
        iecl.pretrain(out=out, resume=True, quiet=True, sets=request["resumed"])
    else:
        iecl.pretrain(request["data"], out, quiet=True, **request["words"])


def main() -> None:
    request = json.load(sys.stdin)
    ends = [attempt(request, kill) for kill in request["kills"]]
    ends.append(attempt(request, None))
    sys.stdout.write(json.dumps(ends) + "\n")


if __name__ == "__main__":
    main()
