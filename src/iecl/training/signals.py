"""Ctrl-C, SIGTERM, a closed terminal: before the first step they end a run at once; later it ends its step first."""

import os
import signal
import threading
import time
from collections.abc import Iterable
from types import FrameType

from iecl.console import forget_lost_terminal
from iecl.errors import Interrupted
from iecl.launch import STOPS

REPEATED = 2.0
"""Seconds in which one request may arrive several times: from the terminal, from a parent process, from torchrun."""


def heeded() -> list[int]:
    """The signals that stop a run: `STOPS`, but not a closed terminal where `nohup` made it ignored."""
    hangup = getattr(signal, "SIGHUP", None)
    return [number for number in STOPS if number != hangup or signal.getsignal(number) != signal.SIG_IGN]


class StopFlag:
    """Whether somebody asked the run to stop. Use it as a context around set-up and loop.

    Asked again, it ends the process at once, unless a launcher started it: one request reaches such a process from the
    terminal and from the launcher, on a busy machine seconds apart, and the launcher kills those that take too long.
    """

    def __init__(self, *, is_launched: bool = False) -> None:
        self.signal, self.is_launched = 0, is_launched
        self.is_polled = False
        """Whether a loop looks at the flag; until then a signal raises `Interrupted` wherever the program is."""
        self._since = 0.0
        self._before: dict[int, object] = {}
        self._blocked: Iterable[int] | None = None

    def __enter__(self) -> "StopFlag":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in heeded():
                self._before[number] = signal.signal(number, self._raise)
            if hasattr(signal, "pthread_sigmask"):  # a process that a run starts has kept them waiting until now
                self._blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        return self

    def _raise(self, number: int, frame: FrameType | None) -> None:
        forget_lost_terminal()
        is_repeated = self.signal and time.monotonic() - self._since > REPEATED
        if is_repeated and not self.is_launched:  # somebody does not want to wait
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if not self.signal:
            self.signal, self._since = number, time.monotonic()
            if not self.is_polled:
                raise Interrupted("stopped before the first step", signal=number)

    def __exit__(self, *_: object) -> None:
        if self._blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
