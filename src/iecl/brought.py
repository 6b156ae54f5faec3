"""Things of Python's that a run is given (a dataset, a network): settings hold a name, and here is what it stands for.

Such a name begins with `object:` and ends with a fingerprint, so that a run cannot go on with something else. What it
stands for is known while the call lasts that was given it, here and in the processes that the call starts.
"""

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from multiprocessing.reduction import ForkingPickler
from typing import Any

from iecl.errors import UserError

PREFIX = "object:"
_AT_HAND: ContextVar[Mapping[str, Any]] = ContextVar("at_hand", default={})  # noqa: B039 - nobody writes into it


def is_brought(name: str) -> bool:
    """Whether a name stands for a thing of Python's."""
    return name.startswith(PREFIX)


@contextmanager
def at_hand(things: Mapping[str, Any]) -> Iterator[None]:
    """Let names stand for these things, and for those that were there before.

    >>> with at_hand({"object:list-1": [1, 2]}):
    ...     find("object:list-1", "data")
    [1, 2]
    """
    before = _AT_HAND.set({**_AT_HAND.get(), **things})
    try:
        yield
    finally:
        _AT_HAND.reset(before)


def find(name: str, argument: str) -> Any:
    """The thing that a name stands for.

    Raises:
        UserError: nobody gave it to this call.
    """
    found = _AT_HAND.get().get(name)
    if found is None:
        given = ", ".join(key for key in _AT_HAND.get() if key != name)
        raise UserError(
            f"{name} is an object of the Python program that started this run, and is not at hand"
            + (f" (this call was given {given})" if given else ""),
            where=f"{argument}=",
            do=f"call it from Python with the same object as {argument}=",
        )
    return found


def at_hand_or(name: str, otherwise: Any) -> Any:
    """The thing that a name stands for, if somebody gave it."""
    return _AT_HAND.get().get(name, otherwise)


def to_hand_on() -> dict[str, Any]:
    """Everything at hand, for processes that are about to start.

    Raises:
        UserError: something cannot be sent to another process.
    """
    things = dict(_AT_HAND.get())
    for name, thing in things.items():
        try:
            ForkingPickler.dumps(thing)
        except (pickle.PicklingError, AttributeError, TypeError) as problem:
            raise UserError(
                f"{name} cannot be sent to the other processes of the run: {problem}",
                where="devices",
                do="define its class or function at the top of a module, or use one process",
            ) from problem
    return things
