"""kill -9 at random moments, twenty times in one run: of one process, of two, and of one of the two.

Processes are forks of this one, which has imported everything and computed nothing; two of them learn of each other as
srun tells them to.
"""

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.faults.runs import MOMENT, Tally, digest_of, is_clean, losses_of, tally, trial
from iecl.cli.command import main as iecl
from iecl.training import run as _run  # noqa: F401  # imported once, before the processes part

KILLS = 20
METHODS: dict[str, dict[str, object]] = {
    "ie-cl": {"saib__form": "certified"},
    "moco-v2": {"method__queue_size": 32},
    "byol": {"method__predictor_hidden_dim": 16},
    "deepcluster-v2": {"method__num_clusters": 6},
}
"""With a block, a queue, a momentum copy, and a memory of every image."""


class Ranks:
    """The processes of one start."""

    def __init__(self, log: Path, words: list[str], world: int) -> None:
        """Start them; what they say goes to a new file."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = str(listener.getsockname()[1])
        said = {"SLURM_NTASKS": str(world), "SLURM_NNODES": "1", "SLURM_NODELIST": "127.0.0.1", "MASTER_PORT": port}
        self.log = log
        self.log.write_bytes(b"")
        self.codes: dict[int, int | None] = {}
        for rank in range(world):
            own = said | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} if world > 1 else {}
            self.codes[self._forked(words, own)] = None

    def _forked(self, words: list[str], said: dict[str, str]) -> int:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                handle = os.open(self.log, os.O_WRONLY | os.O_APPEND)
                for stream in (1, 2):
                    os.dup2(handle, stream)
                os.environ.update(said)
                code = iecl(words)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        return child

    def poll(self) -> int | None:
        """The exit code of one that has ended; None: all are there."""
        for child, code in self.codes.items():
            if code is None:
                ended, status = os.waitpid(child, os.WNOHANG)
                self.codes[child] = os.waitstatus_to_exitcode(status) if ended else None
        return next((code for code in self.codes.values() if code is not None), None)

    def wait(self, seconds: float) -> bool:
        """Wait until all have ended; those that have not by then are killed."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.poll()
            if None not in self.codes.values():
                return True
            time.sleep(0.02)
        self.kill()
        return False

    def kill(self, only: int | None = None, number: int = signal.SIGKILL) -> None:
        """Send a signal to all that are there, or to one of them."""
        for rank, (child, code) in enumerate(self.codes.items()):
            if code is None and only in (None, rank):
                os.kill(child, number)

    def said(self) -> str:
        """The end of what they said."""
        return self.log.read_text(errors="replace")[-2000:]

    def is_clean(self) -> bool:
        """Whether nothing that was said is for programmers."""
        return is_clean(self.said())


def kills(method: str, world: int) -> Tally:
    """A run that is killed again and again, and then has the losses and weights of one that was left alone."""
    results, drawn = [], np.random.default_rng(world)
    with trial() as here:
        words = here.words("--method", method, "--quiet", epochs=30, training__checkpoint_steps=3, **METHODS[method])
        log = here.folder / "said.txt"
        whole = Ranks(log, words, world)
        assert whole.wait(10 * MOMENT), whole.log.read_text()
        assert set(whole.codes.values()) == {0}, whole.log.read_text()
        losses, weights = losses_of(here.out), digest_of(here.out)
        here.out = here.folder / "killed"
        words[words.index("--out") + 1] = str(here.out)
        again = ["pretrain", "--out", str(here.out), "--resume", "--quiet"]
        for number in range(KILLS):
            ranks = Ranks(log, again if number else words, world)
            here.wait_for_steps(int(drawn.integers(1, 6)), ranks)
            time.sleep(drawn.uniform(0, 0.1))
            # Of two, one alone: the other has to notice.
            ranks.kill(int(drawn.integers(world)) if number % 2 else None)
            ended = ranks.wait(2 * MOMENT)
            is_kept = any((here.out / "checkpoints").glob("*.ckpt")) or here.steps() < 4
            # Whoever is killed says nothing, whoever is left says so in one line.
            are_expected = {-signal.SIGKILL, 1} >= set(ranks.codes.values())
            results.append(ended and are_expected and ranks.is_clean() and is_kept)
        last = Ranks(log, again, world)
        ended = last.wait(10 * MOMENT) and set(last.codes.values()) == {0} and last.is_clean()
        results.append(ended and losses_of(here.out) == losses and digest_of(here.out) == weights)
    return tally(results)


FAULTS: dict[str, Callable[[], Tally]] = {
    f"kill -9, {KILLS} times in one run: {method}, {count}": partial(kills, method, world)
    for method in METHODS
    for world, count in ((1, "one process"), (2, "two processes"))
}
