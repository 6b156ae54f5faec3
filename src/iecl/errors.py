"""The one exception a user is meant to read: what happened, where, and what to do about it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches

MOST_NAMES = 30
"""A longer list of options is no help on one line."""


class UserError(Exception):
    """Something the user can fix. The command prints it on one line, without a traceback.

    >>> print(UserError("no method is called 'simcrl'", where="--method", do="did you mean simclr?"))
    no method is called 'simcrl' (--method); did you mean simclr?
    """

    def __init__(self, what: str, *, where: str = "", do: str = "") -> None:
        super().__init__()
        self._say(what, where, do)

    def _say(self, what: str, where: str, do: str) -> None:
        self.what, self.where, self.do = what, where, do
        self.args = (what + (f" ({where})" if where else "") + (f"; {do}" if do else ""),)

    def reword(self, change: Callable[[str], str]) -> None:
        """Say the same in other words."""
        self._say(change(self.what), change(self.where), change(self.do))

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip from a worker process, which rebuilds an exception from its arguments."""
        return _rebuild, (type(self), self.what, self.where, self.do)


class TrainingError(UserError):
    """A run that had to stop: not the user's spelling but the training itself went wrong."""


class LostPeer(TrainingError):  # noqa: N818  # the other process has the error
    """A process that could not go on since another one ended."""


def _rebuild(kind: type[UserError], what: str, where: str, do: str) -> UserError:
    return kind(what, where=where, do=do)


def lacking(what: str, package: str, *, extra: str, where: str) -> UserError:
    """The error of a feature whose optional package is not installed.

    >>> print(lacking("a .parquet file", "pyarrow", extra="parquet", where="--out"))
    a .parquet file needs pyarrow, which is not installed (--out); pip install 'iecl[parquet]'
    """
    return UserError(f"{what} needs {package}, which is not installed", where=where, do=f"pip install 'iecl[{extra}]'")


_IN_COMMAND: ContextVar[bool] = ContextVar("in_command", default=False)


@contextmanager
def in_command() -> Iterator[None]:
    """While this lasts, the command is what calls Python's functions: errors may speak of flags."""
    before = _IN_COMMAND.set(True)
    try:
        yield
    finally:
        _IN_COMMAND.reset(before)


def is_command() -> bool:
    """Whether a command called, and not a Python program."""
    return _IN_COMMAND.get()


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """The nearest of the options as a question, or all of them when none is near.

    >>> did_you_mean("Temprature", ["temperature", "queue"])
    'did you mean temperature?'
    >>> did_you_mean("zzz", ["b", "a"])
    'one of: a, b'
    """
    names = sorted(options)
    lower = {name.lower(): name for name in names}
    near = get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    if near:
        return f"did you mean {lower[near[0]]}?"
    return f"one of: {', '.join(names[:MOST_NAMES])}" + (", ..." if len(names) > MOST_NAMES else "")


class Interrupted(UserError):  # noqa: N818  # nothing went wrong
    """A run that was asked to stop and has saved itself; `signal` is what asked it."""

    def __init__(self, what: str, *, where: str = "", do: str = "", signal: int = 2) -> None:
        super().__init__(what, where=where, do=do)
        self.signal = signal

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the signal on the way between processes."""
        return _rebuild_interrupted, (self.what, self.where, self.do, self.signal)


def _rebuild_interrupted(what: str, where: str, do: str, signal: int) -> Interrupted:
    return Interrupted(what, where=where, do=do, signal=signal)
