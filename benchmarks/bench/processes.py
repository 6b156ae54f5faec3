"""Measurements in processes of their own: for the most memory that was ever held, and for arms that must not meet."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from iecl.errors import UserError
from iecl.repository import ROOT
from iecl.runs.directory import strict_json


def peak_bytes() -> int:
    """The most memory that this process held so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def can_tell_memory() -> bool:
    """Whether the system keeps that record: Linux does."""
    return Path("/proc/self/status").is_file()


def answer(content: dict[str, Any], talk: TextIO | None = None) -> None:
    """Tell the process that asked."""
    print(strict_json(content), file=talk, flush=True)


def in_repository() -> dict[str, str]:
    """The environment of a process that shall find this package from any folder."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def ask(module: str, *words: str) -> dict[str, Any]:
    """Run a module of ours by itself; the last line that it prints is its answer."""
    command = [sys.executable, "-m", f"benchmarks.bench.{module}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=in_repository())
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"measuring {' '.join(words)} ended with code {done.returncode}: {last}", where=module)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


class Companion:
    """A module of ours that answers line by line, and stands still, its workers too, while it is not asked.

    An arm whose workers went on while others have their turn would slow these, and begin its own with work done.
    """

    def __init__(self, module: str, request: dict[str, Any]) -> None:
        """Start it; it says once what it has to say, and that is `ready`."""
        self.name = f"{module} {request}"
        self.ready: dict[str, Any] = {}
        self._said = tempfile.TemporaryFile(mode="w+", encoding="utf-8")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", f"benchmarks.bench.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=in_repository(),
            process_group=0,  # with its workers; if we die while they stand still, the system ends them all
        )
        self._write(strict_json(request))

    def ask(self, line: str) -> dict[str, Any]:
        """Wake it, ask, and let it stand still again."""
        self._signal(signal.SIGCONT)
        self._write(line)
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """Its next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            last = (self._said.read().strip().splitlines() or ["no message"])[-1]
            raise UserError(f"an arm ended with code {self._process.wait()}: {last}", where=self.name)
        self._signal(signal.SIGSTOP)
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End it and its workers."""
        self._signal(signal.SIGKILL)
        self._process.communicate()
        self._said.close()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what it died of is told by `hear`
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@contextmanager
def companions(module: str, requests: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Companion]]:
    """One for each request, all of them ready; they end with the comparison."""
    with ExitStack() as stack:
        started = {name: Companion(module, request) for name, request in requests.items()}
        for companion in started.values():
            stack.callback(companion.close)
        for companion in started.values():
            companion.ready = companion.hear()
        yield started
