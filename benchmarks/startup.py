"""How long until the command answers? An empty interpreter beside `iecl --help`, `iecl list`, a first progress line."""

import subprocess
import sys
import tempfile
import time

from benchmarks.result import summary, write

COMMANDS = {
    "empty interpreter": [sys.executable, "-c", "pass"],
    "iecl --help": [sys.executable, "-m", "iecl", "--help"],
    "iecl list": [sys.executable, "-m", "iecl", "list"],
    "import torch": [sys.executable, "-c", "import torch"],
}
REPEATS = 5


def seconds(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def first_line_of_pretrain() -> dict[str, float]:
    """Seconds until the first line on the terminal, and until the first line that counts a training step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "iecl", "pretrain", "--data", "digits", "--backbone", "resnet10-w16"]
        command += ["--epochs", "1", "--out", f"{folder}/run", "--set", "training.loggers=[]"]
        began, found = time.monotonic(), {}
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
            assert child.stderr is not None
            for line in child.stderr:
                found.setdefault("first line", time.monotonic() - began)
                if line.startswith("epoch"):
                    found.setdefault("first step", time.monotonic() - began)
        return found


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(REPEATS):  # interleaved, so that a busy moment hits all of them
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
        for name, value in first_line_of_pretrain().items():
            times.setdefault(f"pretrain: {name}", []).append(value)
    content = {"unit": "s", "results": {name: summary(values) for name, values in times.items()}}
    write("startup", "how long until the command answers?", content)


if __name__ == "__main__":
    main()
