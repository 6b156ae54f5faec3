"""Files as text, tables and lines, read within limits and written whole.

A run directory may come from anywhere, and a crash may leave anything behind: nothing that a file holds may crash a
command, and nothing may make it wait forever; whatever is wrong with one is a `UserError`. Every file that is not
appended to is written by `atomic_path` or what stands on it.
"""

import json
import math
import os
import re
import stat
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import date, time
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, get_args, get_origin

from iecl.errors import UserError

MOST_TOML, MOST_JSON, MOST_LINE = 2**18, 2**24, 2**20
"""Bytes: some thirty times what settings take, evaluations of 50 million test images, and any row of metrics."""
MOST_DOTS = 2000
"""The time that tomllib takes for a key grows with the square of its parts."""
DEEPEST = 32
"""Tables within tables. Ours have five."""
LARGEST = 2**63 - 1
"""What TOML calls a whole number, and what arrays can hold."""
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON has no spelling for, as the text that stands for them."""
KINDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", dict: "a table", list: "a list"}
"""Types as a message calls them."""


def open_plain(path: Path) -> BinaryIO:
    """Open a file to read its bytes; a pipe or a device, which might never end, is refused without waiting for it."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as problem:
        raise _unreadable(path, problem) from problem
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)
        what = "it is a folder" if stat.S_ISDIR(kind) else "it is a pipe or a device, not a file"
        raise UserError(f"cannot read {path}: {what}", where=str(path))
    return os.fdopen(handle, "rb")


def read_text(path: Path, most: int = MOST_JSON) -> str:
    """The text of a file of at most so many bytes."""
    with open_plain(path) as file:
        try:
            raw = file.read(most + 1)
        except OSError as problem:
            raise _unreadable(path, problem) from problem
    if len(raw) > most:
        raise UserError(f"{path} is too large: more than {most:,} bytes", where=str(path))
    return _decoded(raw, str(path))


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line with the words for where it stands; a last line that a crash cut short is left out."""
    with open_plain(path) as file:
        number = 0
        while raw := file.readline(MOST_LINE + 1):
            number += 1
            where = f"{path}, line {number}"
            if raw.endswith(b"\n"):
                yield where, _decoded(raw, where)
            elif len(raw) > MOST_LINE:
                raise damaged(where, f"it has more than {MOST_LINE:,} bytes")


def read_json(path: Path) -> dict[str, Any]:
    """The table in a JSON file, or an empty one where there is no file."""
    return parse_json(read_text(path), str(path)) if os.path.lexists(path) else {}


def parse_json(text: str, where: str) -> dict[str, Any]:
    """One JSON table."""
    try:
        found = json.loads(text)
    except RecursionError as problem:
        raise damaged(where, "it is nested too deeply") from problem
    except json.JSONDecodeError as problem:
        raise damaged(where, str(problem)) from problem
    except ValueError as problem:  # Python converts no number of thousands of digits
        raise damaged(where, "a number in it has too many digits") from problem
    if not isinstance(found, dict):
        raise damaged(where, "it holds no table")
    _check_sizes(found, where)
    return found


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """The tables of TOML, or a `UserError` that gives the place of the mistake."""
    if text.count(".") > MOST_DOTS:
        raise UserError(f"{where} has more than {MOST_DOTS:,} dots: these are no settings", where=where)
    try:
        found = tomllib.loads(text)
    except RecursionError as problem:
        raise UserError(f"{where} is not valid TOML: it is nested too deeply", where=where) from problem
    except tomllib.TOMLDecodeError as problem:
        raise UserError(f"{where} is not valid TOML: {problem}", where=where) from problem
    except ValueError as problem:
        raise UserError(f"{where} is not valid TOML: a number has too many digits", where=where) from problem
    _check_sizes(found, where)
    return found


Kinds = Mapping[str, Any]
"""Types by name, as `str` or `dict[str, float]`. A `float` is any number, also one that is written as text."""


def check(found: Mapping[str, Any], where: str, *, needed: Kinds | None = None, known: Kinds | None = None) -> None:
    """Refuse a table that lacks what is needed, or in which a value is not of its kind.

    >>> check({"step": "x"}, "metrics.jsonl, line 2", needed={"step": int})
    Traceback (most recent call last):
    iecl.errors.UserError: metrics.jsonl, line 2 is damaged: step is not a whole number; remove or restore it
    """
    how = fault(found, needed=needed, known=known)
    if how:
        raise damaged(where, how)


def fault(found: Mapping[str, Any], *, needed: Kinds | None = None, known: Kinds | None = None) -> str:
    """What is wrong with a table, in words; empty: nothing.

    >>> fault({"numbers": ["top1", 5]}, needed={"numbers": list[str]})
    'numbers is not a list of text'
    """
    for name, kind in {**(known or {}), **(needed or {})}.items():
        if name not in found:
            if needed and name in needed:
                return f"it has no {name}"
        elif not _fits(found[name], kind):
            return f"{name if len(name) <= 80 else name[:80] + '...'} is not {_words(kind)}"
    return ""


def _words(kind: Any) -> str:
    inner = get_args(kind)
    return f"{KINDS[get_origin(kind)]} of {_words(inner[-1])}" if inner else KINDS[kind]


def _fits(value: Any, kind: Any) -> bool:
    inner = get_args(kind)
    if inner:
        items = value.values() if isinstance(value, dict) else value
        return isinstance(value, get_origin(kind)) and all(_fits(item, inner[-1]) for item in items)
    if kind is float:
        return type(value) in (int, float) or (isinstance(value, str) and value in NOT_FINITE)
    return type(value) is kind


def number(value: Any) -> Any:
    """A number, also one that is written as text because it is not finite."""
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value


def damaged(where: str, how: str) -> UserError:
    """The error for a file, or a line of one, that is not as it was written."""
    return UserError(f"{where} is damaged: {how}", do="remove or restore it")


def _decoded(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise damaged(where, f"it is not text in UTF-8: {problem.reason} at byte {problem.start:,}") from problem


def _check_sizes(found: Any, where: str) -> None:
    """Level by level and not by recursion, which would end as that of the parsers does."""
    level, depth = [found], 0
    while level:
        if depth > DEEPEST:
            raise damaged(where, "it is nested too deeply")
        if any(isinstance(item, int) and abs(item) > LARGEST for item in level):
            raise damaged(where, "a number in it has too many digits")
        if any(isinstance(item, date | time) for item in level):
            raise damaged(where, "a date or a time in it is not in quotes")  # no setting is one, and JSON has none
        tables = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level, depth = [item for table in tables for item in table], depth + 1


def _unreadable(path: Path, problem: Exception) -> UserError:
    reason = getattr(problem, "strerror", None) or str(problem)
    return UserError(f"cannot read {path}: {reason.lower()}", where=str(path))


# --- writing


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write text or bytes as `atomic_path` does."""
    with atomic_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, as `atomic_path` does."""
    with atomic_path(path) as part, part.open("r+b") as file:
        yield file


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """An empty file beside `path`, called `.NAME.PROCESS.part`: what it holds at the end takes the place of `path`.

    A reader sees the old file or the new one, never a part; a power cut leaves one of them. After an error the old one
    stays. A part is locked while it is written: those of killed processes are known by that, and removed by the next
    one that writes the file.
    """
    remove_leftovers(path.parent, path.name)
    part, held = _new_part(path)
    try:
        yield part
        with part.open("r+b") as file:
            os.fsync(file.fileno())
        if sys.platform == "win32":
            held.close()  # what is open cannot be renamed there
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
        held.close()
    _sync_folder(path.parent)


def _new_part(path: Path) -> tuple[Path, BinaryIO]:
    """A part that is locked as long as the file is open."""
    for number in count(os.getpid()):  # in another container there may be a process of the same number
        part = path.with_name(f".{path.name}.{number}.part")
        try:
            held = part.open("xb")
        except FileExistsError:
            continue
        with suppress(OSError):  # not every file system has locks; without them nothing is taken for a leftover
            if not (lock(held.fileno()) and is_open_at(held.fileno(), part)):
                held.close()  # somebody took it for a leftover before it was locked
                continue
        return part, held
    raise AssertionError("unreachable")


def remove_leftovers(folder: Path, name: str = "") -> int:
    """Remove parts of files, or of the one called `name`, that nobody writes; returns how many somebody does."""
    wanted, busy = re.compile(rf"\.+{re.escape(name) or '.+'}(\.\d+\.part)+"), 0
    for part in folder.glob(".*.part"):
        if wanted.fullmatch(part.name):
            with suppress(OSError), part.open("r+b") as file:
                if not lock(file.fileno()):
                    busy += 1
                elif is_open_at(file.fileno(), part):
                    part.unlink()
    return busy


def lock(handle: int) -> bool:
    """Lock an open file for this process and those that inherit it, until they close it; False: another one has it."""
    try:
        import fcntl
    except ImportError:  # Windows: nothing but the user's care keeps two processes apart
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_open_at(handle: int, path: Path) -> bool:
    """Whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder cannot be opened on Windows, where a rename is durable by itself
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
