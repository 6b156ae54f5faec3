"""Where shards lie: paths, patterns, braces, lists and URLs, and how a piece of one is read. Free of torch.

What is not on this machine is read by fsspec, which is imported when the first URL is used. Nothing is ever written
there, and a URL with a password in it is refused: it would be kept in the run directory.
"""

import glob
import os
import re
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from iecl.data.listing import TEST_FOLDERS, kept_for_one_walk, printable
from iecl.data.tar_samples import BadShardError
from iecl.errors import UserError, lacking
from iecl.files import read_text

INDEX = "index-{}.npz"
"""What `iecl pack --shards` calls the index of a part."""
EXTRAS = {"http": ("aiohttp", "http"), "https": ("aiohttp", "http"), "s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3")}
"""The package that a kind of URL needs, and our extra that brings it."""
TRIES, FIRST_WAIT = 4, 0.2
"""How often a piece is asked for before its shard is bad, and the seconds before the second time; then twice that."""
SILENCE = 30.0
"""Seconds without a byte after which a web server counts as one that does not answer."""
_LOOK = 16
_Answer = TypeVar("_Answer")
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_SECRET = re.compile(r"://[^/]*@|\?.*=")
_MOST_LIST, _MOST_SHARDS = 2**26, 10**6


def is_url(name: str) -> bool:
    """Whether a name is a URL.

    >>> is_url("s3://bucket/train-{000..099}.tar"), is_url("photos/cats")
    (True, False)
    """
    return re.match(r"[a-z][a-z0-9+.-]*(::[a-z].*)?://", name, re.IGNORECASE) is not None


@kept_for_one_walk
def is_shards(name: str) -> bool:
    """Whether a name stands for tar shards: a URL, names that end in .tar, a list of these, or a folder of them."""
    if is_url(name) or name.endswith(".tar"):
        return True
    path = Path(name).expanduser()
    if path.suffix == ".txt" and path.is_file():
        with path.open("rb") as file:
            return file.readline(2**16).strip().endswith(b".tar")
    if not (path.is_dir() and os.access(path, os.R_OK | os.X_OK)):
        return False
    if any((path / INDEX.format(part)).is_file() for part in ("all", "train")):
        return True
    with os.scandir(path) as entries:  # a look at some: a folder may hold a million images
        seen = [entry.name for _, entry in zip(range(_LOOK), entries, strict=False) if not entry.name.startswith(".")]
    return any(one.endswith(".tar") for one in seen) and all(
        Path(one).suffix in (".tar", ".json", ".txt", ".idx") for one in seen
    )


def refuse_secrets(name: str) -> None:
    """Refuse a URL that comes with a password or a key: it would be written to run directories and logs.

    Raises:
        ValueError: it does; the message has the rest of it.
    """
    if is_url(name) and _SECRET.search(name):
        shown = re.sub(r"://[^/]*@", "://", name).partition("?")[0]
        raise ValueError(
            f"{shown} came with a password or a key, which would be written to the run directory: "
            "leave it out, and give it to fsspec by the environment"
        )


def expand(name: str) -> list[str]:
    """The shards that a name stands for, in order.

    Raises:
        UserError: there are none.
    """
    if not is_url(name) and Path(name).is_dir():
        name = str(Path(glob.escape(name)) / "*.tar")
    if name.endswith(".txt"):
        lines = [line.strip() for line in read_text(Path(name), _MOST_LIST).splitlines()]
        return [one for line in lines if line for one in expand(_beside(line, name))]
    found = [one for text in _braced(name) for one in (_matching(text) if glob.has_magic(text) else [text])]
    if not found:
        raise UserError(f"{_shown(name)} matches no shard", where="--data", do="quote the pattern")
    wrong = next((one for one in found if not one.endswith(".tar")), None)
    if wrong is not None:
        raise UserError(f"{_shown(wrong)} is no .tar file", where="--data", do="give shards as NAME-{000..123}.tar")
    return found


def _beside(line: str, list_name: str) -> str:
    """What a line of a list names: a URL, or a path that may be relative to the list."""
    try:
        refuse_secrets(line)
    except ValueError as problem:
        raise UserError(str(problem), where=list_name) from None
    if line.endswith(".txt"):
        raise UserError(f"{_shown(list_name)} lists another list", where="--data", do="list shards")
    return line if is_url(line) else str(Path(list_name).parent / line)


def _braced(name: str) -> Iterator[str]:
    """The names that a range in braces stands for."""
    found = _BRACES.search(name)
    if found is None:
        yield name
        return
    first, last = found.groups()
    if not 0 <= int(last) - int(first) < _MOST_SHARDS:
        raise UserError(f"{{{first}..{last}}} is no range of shards", where="--data")
    for number in range(int(first), int(last) + 1):
        yield from _braced(f"{name[: found.start()]}{number:0{len(first)}d}{name[found.end() :]}")


def _matching(pattern: str) -> list[str]:
    if not is_url(pattern):
        return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - patterns are absolute
    system, path = _filesystem(pattern)
    try:
        return sorted(map(system.unstrip_protocol, system.glob(path)))
    except Exception as problem:  # somebody else's code, and any network
        raise UserError(f"cannot list {_shown(pattern)}: {_reason(problem)}", where="--data") from problem


def part_of(shard: str) -> str:
    """The part that a shard belongs to, by a word of its name, or its folder: `train`, `test`, or else `all`.

    >>> part_of("s3://b/imagenet-train-0001.tar"), part_of("a/val/00.tar"), part_of("a/photos-3.tar")
    ('train', 'test', 'all')
    """
    *_, folder, name = ("", *shard.lower().split("/"))
    words = {folder, *re.split(r"[^a-z]+", name)}
    return "test" if words & set(TEST_FOLDERS) else "train" if "train" in words else "all"


def _filesystem(url: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs

    scheme = url.rpartition("::")[2].partition("://")[0].lower()
    try:
        package = import_module(EXTRAS[scheme][0]) if scheme in EXTRAS else None
        how: dict[str, Any] = {}
        if package is not None and scheme in ("http", "https"):  # whose own limit is five minutes for a whole piece
            limit = package.ClientTimeout(total=None, connect=SILENCE, sock_read=SILENCE)
            how = {scheme: {"client_kwargs": {"timeout": limit}}}
        found: tuple[Any, str] = url_to_fs(url, **how)
    except ImportError as problem:
        if scheme in EXTRAS:
            name, extra = EXTRAS[scheme]
            raise lacking(f"a URL that begins with {scheme}://", name, extra=extra, where="--data") from problem
        raise UserError(f"cannot read {scheme}:// URLs: {_reason(problem)}", where="--data") from problem
    except ValueError as problem:
        raise UserError(f"fsspec does not know URLs that begin with {scheme}://", where="--data") from problem
    return found


def size_and_stamp(shard: str) -> tuple[int, str]:
    """How long a shard is, and what changes when it does.

    Raises:
        BadShardError: it is not there.
    """

    def look() -> tuple[int, str]:
        if not is_url(shard):
            status = Path(shard).stat()
            return status.st_size, str(status.st_mtime_ns)
        system, path = _filesystem(shard)
        info = system.info(path)
        keys = ("ETag", "etag", "LastModified", "last_modified", "mtime", "md5Hash")
        if info.get("size") is None:
            raise BadShardError("the server does not say how long it is")
        return int(info["size"]), next((str(info[key]) for key in keys if info.get(key)), "")

    return _tried(look)


def read_range(shard: str, start: int, length: int) -> bytes:
    """A piece of a shard.

    Raises:
        BadShardError: it is not there, shorter than that, or was asked for in vain several times.
    """

    def read() -> bytes:
        if is_url(shard):
            system, path = _filesystem(shard)
            found: bytes = system.cat_file(path, start=start, end=start + length)
            if len(found) > length:
                raise BadShardError("the server sends whole files where a part is asked for (HTTP Range)")
            return found
        handle = os.open(shard, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(handle, length, start)
        finally:
            os.close(handle)

    found = _tried(read)
    if len(found) < length:
        raise BadShardError("it is cut short")
    return found


def _tried(ask: Callable[[], _Answer]) -> _Answer:
    for number in range(TRIES):
        try:
            return ask()
        except (UserError, BadShardError):
            raise
        except Exception as problem:  # somebody else's code, and any network
            # fsspec calls whatever kept it from a web page a file that is not there; that is its cause then.
            cause = problem.__cause__ or problem if isinstance(problem, FileNotFoundError) else problem
            if isinstance(cause, FileNotFoundError) or getattr(cause, "status", 0) in (404, 410):
                raise BadShardError("it is not there") from None
            if number == TRIES - 1:
                raise BadShardError(_reason(cause)) from problem
            time.sleep(FIRST_WAIT * 2**number)
    raise AssertionError("unreachable")


def _reason(problem: BaseException) -> str:
    text = getattr(problem, "strerror", None) or f"{type(problem).__name__}: {problem}"
    return str(text).partition("\n")[0][:200].lower()


def _shown(name: str) -> str:
    return printable(os.fsencode(name))
