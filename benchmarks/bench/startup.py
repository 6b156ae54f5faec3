"""How long until the command answers? Processes in turn: an empty one, help, lists, the first lines of a run."""

import subprocess
import sys
import tempfile
import time
from functools import partial

from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.turns import take_turns
from iecl.errors import UserError

COMMANDS = {
    "empty interpreter": [sys.executable, "-c", "pass"],
    "iecl --help": [sys.executable, "-m", "iecl", "--help"],
    "iecl list": [sys.executable, "-m", "iecl", "list"],
    "import torch": [sys.executable, "-c", "import torch"],
}
FIRST_LINE, FIRST_STEP = "pretrain: first line", "pretrain: first step"
BEYOND_TORCH = "pretrain: first step, without the time to import torch"
ROUNDS = 5
GOALS = {"iecl --help": "at most 0.6", FIRST_LINE: "at most 5", BEYOND_TORCH: "at most 5"}


def measure(effort: Effort) -> Content:
    """Seconds from the start of a process."""
    steps: list[float] = []
    arms = {name: partial(_seconds, command) for name, command in COMMANDS.items()}
    warm = 0 if effort.is_quick else 1
    found = take_turns(arms | {FIRST_LINE: partial(_pretrain, steps)}, effort.rounds_of(ROUNDS, 1), warm)
    found[FIRST_STEP] = steps[warm:]
    found[BEYOND_TORCH] = [step - load for step, load in zip(steps[warm:], found["import torch"], strict=True)]
    return {"unit": "s", "results": effort.rows(found, GOALS)}


def _seconds(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def _pretrain(steps: list[float]) -> float:
    """Seconds until the first line on the terminal; those until the first line that counts a step go to `steps`."""
    first, told, before = 0.0, "", len(steps)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "iecl", "pretrain", "--data", "digits", "--backbone", "resnet10-w16"]
        command += ["--epochs", "1", "--out", f"{folder}/run", "--set", "training.loggers=[]"]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
            assert child.stderr is not None
            for line in child.stderr:
                now = time.monotonic() - began
                first, told = first or now, line
                if line.startswith("epoch"):
                    steps.append(now)
                    child.kill()  # the rest of the run tells nothing more
                    break
    if len(steps) == before:
        raise UserError(f"iecl pretrain took no step, its last word was: {told.strip()}", where="startup")
    return first
