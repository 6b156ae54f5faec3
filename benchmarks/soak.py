"""Do streaming runs that are killed for an hour end with the loss curve of one that nobody disturbed?

    python -m benchmarks.soak --minutes 60          # beside it the same run, left alone; two cores for an hour

Shards come from a server on this machine that refuses some of its requests. The run begins with two processes. At
random moments one of its processes, a process that decodes, or all of them are killed or asked to stop, and another
number of processes, with another number of workers, goes on. After ten minutes at most it is through, and the next one
begins, until the time is over.
Three things are compared at the end of each: every step is in the curve once, its loss is the same but for rounding,
and so are the weights. Sums over processes are taken in another order when their number changes; everything else is bit
for bit the same. Training makes such a difference larger and larger: with a learning rate of 0.03 two runs that nobody
disturbed, with one process and with two, are 0.6 apart in a loss after 50 steps. With 2e-5 they stay within 2e-6 for
170, the length of a run, and a step with another image or view than its own would still be off by far more. A disturbed
run of 2,720 steps was 3 % off in a loss with that rate, too.

Processes are forks of this one, which has imported everything and computed nothing, so that a start takes a second;
they learn of each other as srun tells them to.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fsspec.implementations import http as _http  # noqa: F401  # imported once, before the processes part
from PIL import Image
from torch import nn

import iecl
from benchmarks.faults.kills import Ranks
from benchmarks.result import write
from benchmarks.shard_server import served
from iecl.runs.checkpoint import latest_checkpoint

IMAGES, SIDE, BATCH = 2040, 16, 24
TOLERANCE = 1e-3
"""Rounding: how far a loss may be off, as a share of it, and a weight, as a share of its tensor's usual size."""
ROUND = 10.0
"""Minutes that one run is disturbed at most; runs follow each other until the time is over."""
MOST_EPOCHS = 2
"""Of 85 steps: later, rounding has grown beyond the tolerance, as in runs that nobody disturbs."""
REFUSED = 40
"""One of so many requests is refused by the server."""
WORLDS, WORKERS = (1, 2, 2, 2, 3, 4), (0, 0, 1, 2)
FAULTS = ("kill all", "kill a rank", "kill a worker", "stop all", "stop a rank")
LONGEST = 600.0
"""Seconds that processes may take to end, on a machine on which they hardly get a turn."""
SETS = {
    "data.image_size": SIDE, "data.decode_size": SIDE, "data.cache_megabytes": 0, "method.hidden_dim": 32,
    "method.out_dim": 16, "training.precision": "32-true", "training.log_steps": 1, "training.meter_steps": 200,
    "training.loggers": "[]", "training.online_eval_epochs": 0, "training.outcome": "false",
    "training.sync_batch_norm": "on", "training.checkpoint_steps": 20, "optimizer.name": "sgd", "optimizer.lr": 2e-5,
}  # fmt: skip


def make_network() -> nn.Module:
    """Three small convolutions with batch norm, which is synchronized."""
    parts: list[nn.Module] = []
    for inside, outside in ((3, 8), (8, 16), (16, 32)):
        parts += [nn.Conv2d(inside, outside, 3, stride=2, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
    made = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    made.num_features = 32  # type: ignore[assignment]
    return made


def make_shards(folder: Path) -> Path:
    """Images with a color and noise each, in shards."""
    drawn = np.random.default_rng(0)
    (folder / "images").mkdir()
    for number in range(IMAGES):
        pixels = drawn.integers(0, 160, (1, 1, 3)) + drawn.integers(0, 96, (SIDE, SIDE, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "images" / f"{number:05d}.png")
    iecl.pack(folder / "images", folder / "shards", shards=True, shard_megabytes=1, sets=["data.num_workers=0"])
    return folder / "shards"


class Refusal:
    """Which of the requests a server refuses; other processes can read how many they were."""

    def __init__(self) -> None:
        self._drawn = np.random.default_rng(1)
        self.asked, self.refused = (multiprocessing.Value("q", 0) for _ in range(2))

    def __call__(self) -> bool:
        """Whether this one."""
        with self.asked.get_lock():
            self.asked.value += 1
            is_refused = int(self._drawn.integers(REFUSED)) == 0
            self.refused.value += is_refused
            return is_refused


@contextmanager
def served_apart(folder: Path, refusal: Refusal) -> Iterator[str]:
    """A server in a process of its own: whoever is forked must have no threads."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        with served(folder, refuses=refusal) as url:
            there.send(url)
            signal.pause()
    try:
        yield here.recv()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Run:
    """A run directory, and the command that works on it."""

    def __init__(self, out: Path, url: str, epochs: int) -> None:
        self.out, self.url, self.epochs = out, url, epochs
        self.said = out.with_suffix(".txt")

    def start(self, world: int, workers: int) -> Ranks:
        """So many processes: at first of the whole run, then of a resume."""
        words = ["pretrain", "--out", str(self.out), "--devices", str(world), "--quiet"]
        words += ["--set", f"data.num_workers={workers}"]
        if (self.out / "settings.toml").is_file():
            words.append("--resume")
        else:
            words += ["--data", self.url, "--method", "simclr", "--backbone", "benchmarks.soak:make_network"]
            words += ["--epochs", str(self.epochs), "--batch-size", str(BATCH)]
            words += [word for name, value in SETS.items() for word in ("--set", f"{name}={value}")]
        return Ranks(self.said, words, world)

    def curve(self) -> dict[int, float]:
        """The loss of each step that is written down."""
        return {row["step"]: row["loss"] for row in self.rows() if "loss" in row}

    def rows(self) -> list[dict[str, Any]]:
        """All whole rows of metrics."""
        try:
            lines = (self.out / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def step(self) -> int:
        """How far it has come, by the last line that is whole."""
        try:
            with (self.out / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 2**14))
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return 0
        whole = [line for line in lines[1:] if line.endswith(b"\n")]
        return int(json.loads(whole[-1])["step"]) if whole else 0


def _children(number: int) -> list[int]:
    try:
        found = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in found]


@dataclass
class Soak:
    """What is done to a run, and what came of it."""

    run: Run
    deadline: float
    drawn: np.random.Generator
    start_seconds: float
    step_seconds: float
    faults: Counter[str] = field(default_factory=Counter)
    worlds: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    repeated: int = 0
    """Steps that were taken again, since they came after the last checkpoint."""

    def go(self, steps: int) -> None:
        """Start, disturb and resume the run until it is through."""
        attempts = 0
        while not (self.run.out / "weights.safetensors").exists():
            world = 2 if not attempts else int(self.drawn.choice(WORLDS))
            began, before, attempts = time.monotonic(), self.run.step(), attempts + 1
            ranks = self.run.start(world, int(self.drawn.choice(WORKERS)))
            self.worlds[world] += 1
            first = self._wait(ranks, 1, before)
            if first:
                self.start_seconds += 0.3 * (time.monotonic() - began - self.start_seconds)
                self.repeated += max(0, before + 1 - first)
            began, goal = time.monotonic(), self._goal(steps, first or before)
            reached = 0 if goal is None else self._wait(ranks, goal - first, first)
            if reached > first:
                self.step_seconds += 0.3 * ((time.monotonic() - began) / (reached - first) - self.step_seconds)
            fault = str(self.drawn.choice(FAULTS)) if reached else "ended"
            if reached:
                time.sleep(self.drawn.uniform(0, 0.3))
                self._disturb(ranks, fault, world)
            elif not ranks.wait(LONGEST) or set(ranks.codes.values()) != {0}:
                self._note(f"attempt {attempts} ended with {ranks.codes} by itself: {ranks.said()}")
                if len(self.lost) > 5:
                    return
            print(f"{attempts}: {world} processes, step {self.run.step()} of {steps}, {fault}", flush=True)

    def _goal(self, steps: int, step: int) -> int | None:
        """The step at which the next fault comes, so that the time is used up; None: the run may end."""
        left, remaining = self.deadline - time.monotonic(), max(1, steps - step)
        attempts = (left - remaining * self.step_seconds) / self.start_seconds
        return None if attempts < 1 else step + int(self.drawn.integers(1, 2 + int(2 * remaining / attempts)))

    def _wait(self, ranks: Ranks, count: int, before: int) -> int:
        """Wait until the run has written a step that is new, or `count` later ones; 0: it ended before."""
        size = -1
        while ranks.poll() is None:
            try:
                now = (self.run.out / "metrics.jsonl").stat().st_size
            except OSError:
                now = -1
            step = self.run.step()
            # A resume cuts rows off that came after the checkpoint, so that steps may go back at first.
            if (size >= 0 and now > size and count == 1 and step) or (count > 1 and step >= before + count):
                return step
            size = now
            time.sleep(0.02)
        return 0

    def _disturb(self, ranks: Ranks, fault: str, world: int) -> None:
        number = signal.SIGKILL if fault.startswith("kill") else int(self.drawn.choice([signal.SIGTERM, signal.SIGINT]))
        rank = int(self.drawn.integers(world))
        workers = [child for one in ranks.codes for child in _children(one)]
        if fault.endswith("worker") and workers:
            with suppress(ProcessLookupError):
                os.kill(int(self.drawn.choice(workers)), number)
        else:
            fault = fault.replace("worker", "rank")  # there is none
            ranks.kill(None if fault.endswith("all") else rank, number)
        self.faults[fault] += 1
        has_ended = ranks.wait(LONGEST)
        # Whoever is killed says nothing, whoever is left says so; a run that is asked to stop may just have ended.
        expected = {128 + number, 0} if fault.startswith("stop") else {-signal.SIGKILL, 1, 0}
        if not has_ended or not expected >= set(ranks.codes.values()) or not ranks.is_clean():
            self._note(f"{fault} ended with {ranks.codes}: {ranks.said()}")

    def _note(self, what: str) -> None:
        self.lost.append(what)
        print(f"LOST: {what}", flush=True)


def trial(folder: Path, url: str) -> tuple[float, float]:
    """Seconds of a start with two processes, and of a step, here and now."""
    run = Run(folder / "trial", url, 100)
    began, ranks = time.monotonic(), run.start(2, 0)
    while not run.step() and ranks.poll() is None:
        time.sleep(0.02)
    started, first = time.monotonic(), run.step()
    while run.step() < first + 60 and ranks.poll() is None:
        time.sleep(0.02)
    seconds = (time.monotonic() - started) / max(1, run.step() - first)
    if ranks.poll() is not None:
        raise SystemExit(f"the trial did not train: {ranks.said()}")
    ranks.kill()
    ranks.wait(LONGEST)
    return started - began, seconds


def differences(whole: Run, disturbed: Run) -> dict[str, Any]:
    """How far curve and weights of two runs are apart."""
    one, other = whole.curve(), disturbed.curve()
    steps = sorted(one)
    apart = np.array([abs(one[step] - other.get(step, np.inf)) / abs(one[step]) for step in steps])
    states = [latest_checkpoint(run.out / "checkpoints") for run in (whole, disturbed)]
    assert states[0] is not None
    assert states[1] is not None
    weights = []
    for name, value in states[0]["method"].items():
        first, second = value.double(), states[1]["method"][name].double()
        weights.append(float((first - second).abs().max() / first.square().mean().sqrt().clamp_min(1e-12)))
    numbers = [row["step"] for row in disturbed.rows() if "loss" in row]
    return {
        "steps": len(steps),
        "every_step_once": numbers == list(range(1, len(steps) + 1)) == steps,
        "loss_first_and_last": [one[steps[0]], one[steps[-1]]],
        "largest_difference_of_a_loss": float(apart.max()),
        "median_difference_of_a_loss": float(np.median(apart)),
        "steps_that_are_equal_bit_for_bit": int((apart == 0).sum()),
        "largest_difference_of_a_weight": max(weights),
    }


def main() -> int:
    """Disturb a run, compare it with one that was left alone, and write down what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    each = min(ROUND, args.minutes)
    refusal, soaks, found = Refusal(), list[Soak](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["IECL_CACHE"] = str(folder / "cache")
        shards = make_shards(folder)
        with served_apart(shards, refusal) as url:
            began = time.monotonic()
            start_seconds, step_seconds = trial(folder, url)
            per_epoch = IMAGES // BATCH
            epochs = min(MOST_EPOCHS, max(1, round(0.2 * each * 60 / step_seconds / per_epoch)))
            print(
                f"{start_seconds:.1f} s for a start, {step_seconds:.3f} s a step: {epochs * per_epoch} steps",
                flush=True,
            )
            whole = Run(folder / "whole", url, epochs)
            undisturbed = whole.start(2, 0)
            disturbed_since = time.monotonic()
            while time.monotonic() - disturbed_since < 60 * args.minutes:
                number = len(soaks)
                run = Run(folder / f"disturbed-{number}", url, epochs)
                drawn = np.random.default_rng([args.seed, number])
                soaks.append(Soak(run, time.monotonic() + 60 * each, drawn, start_seconds, step_seconds))
                soaks[-1].go(epochs * per_epoch)
                if not number and (not undisturbed.wait(60 * LONGEST) or set(undisturbed.codes.values()) != {0}):
                    soaks[-1].lost.append(f"the run that nobody disturbed: {undisturbed.said()}")
                found.append(differences(whole, run))
                minutes = (time.monotonic() - disturbed_since) / 60
                print(f"round {number + 1}, {minutes:.0f} minutes: {found[-1]}", flush=True)
            seconds = time.monotonic() - began
    content = summary(soaks, found)
    content |= {
        "minutes": round(seconds / 60, 1),
        "requests": refusal.asked.value,
        "requests_refused": refusal.refused.value,
    }
    print(json.dumps(content, indent=1))
    write("soak", "do streaming runs that are killed for an hour end like one that nobody disturbed?", content)
    return int(not content["ends_as_the_run_that_nobody_disturbed"] or bool(content["lost"]))


def summary(soaks: list[Soak], found: list[dict[str, Any]]) -> dict[str, Any]:
    """All rounds together: sums of what was done, the worst of what came of it."""
    losses = [one["largest_difference_of_a_loss"] for one in found]
    weights = [one["largest_difference_of_a_weight"] for one in found]
    each_once = all(one["every_step_once"] for one in found)
    worlds = sum((soak.worlds for soak in soaks), Counter[int]())
    faults = sum((soak.faults for soak in soaks), Counter[str]())
    return {
        "setting": f"SimCLR, {IMAGES} images of {SIDE} px in shards on a server that refuses one request of {REFUSED}, "
        f"batches of {BATCH}, three convolutions with synchronized batch norm, SGD, 32 bits, one thread a process",
        "rounds": len(found),
        "steps_of_a_round": found[0]["steps"],
        "starts_by_processes": {str(world): count for world, count in sorted(worlds.items())},
        "faults": dict(sorted(faults.items())),
        "steps_taken_again": sum(soak.repeated for soak in soaks),
        "lost": [line for soak in soaks for line in soak.lost],
        "tolerance": TOLERANCE,
        "every_step_once": each_once,
        "ends_as_the_run_that_nobody_disturbed": bool(each_once and max(*losses, *weights) <= TOLERANCE),
        "loss_first_and_last": found[0]["loss_first_and_last"],
        "largest_difference_of_a_loss": max(losses),
        "largest_difference_of_a_weight": max(weights),
        "steps_that_are_equal_bit_for_bit": [one["steps_that_are_equal_bit_for_bit"] for one in found],
    }


if __name__ == "__main__":
    sys.exit(main())
