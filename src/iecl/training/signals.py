"""Ctrl-C and SIGTERM only raise a flag; the loop ends its step, saves and leaves. A second signal leaves at once."""

import signal
import threading
from types import FrameType


class StopFlag:
    """Whether somebody asked the run to stop. Use it as a context around the loop."""

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopFlag":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._raise)
        return self

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
