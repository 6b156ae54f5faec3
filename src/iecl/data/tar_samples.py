"""Tar shards as WebDataset has them: members whose names agree up to the first dot are one sample. Free of torch.

Only bytes are looked at and nothing is unpacked, so that a member may be called anything. Samples that follow each
other are a block: the piece of a shard that is read at a time, and that a checksum is kept of.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from iecl.data.listing import EXTENSIONS

BLOCK = 2**19
"""Bytes that a block has at least: less, and the way to another machine takes longer than the reading."""
MOST_BLOCK = 2**30
"""A sample of more bytes than this is damage."""
_RECORD = 512
_MOST_TEXT = 2**20
"""Bytes of a label or of a long name."""
_LABEL_KEYS = ("label", "cls", "class", "target")
_PLAIN = b"0\07"


class BadShardError(Exception):
    """What is wrong with a shard, in a few words."""


@dataclass(frozen=True)
class _Member:
    name: bytes
    start: int
    """Where its first header stands."""
    content: int
    size: int
    end: int
    """Where the next member begins."""


@dataclass
class TarSample:
    """What is known of one image."""

    key: bytes
    start: int
    end: int = 0
    name: bytes = b""
    """Of the image; empty: there is none in it."""
    content: int = 0
    size: int = 0
    label: str = ""


@dataclass(frozen=True)
class TarBlock:
    """Some samples of a shard that follow each other."""

    start: int
    data: bytes
    samples: list[TarSample]
    """Those with an image; their places count from the beginning of the block."""


def samples_in(data: bytes | bytearray, *, is_whole: bool = True) -> list[TarSample]:
    """The samples in a piece of a shard, those without an image included.

    Args:
        data: a piece that begins with a header.
        is_whole: it ends where a sample does; otherwise what may go on after it is left out.

    Raises:
        BadShardError: this is no piece of a tar file, or one that is cut short.
    """
    found: list[TarSample] = []
    is_finished = False
    for member in _members(data, is_whole):
        if member is None:
            is_finished = True
            break
        folder, slash, base = member.name.rpartition(b"/")
        stem, _, kind = base.partition(b".")
        key = folder + slash + stem
        if not found or found[-1].key != key:
            found.append(TarSample(key, member.start))
        sample, kind = found[-1], kind.lower()
        sample.end = member.end
        # `.jpg` goes before `.seg.png`, which may be something else than the image.
        if b"." + kind.rpartition(b".")[2] in EXTENSIONS and (not sample.name or b"." not in kind):
            if not sample.name or b"." in sample.name[len(key) + 1 :]:
                sample.name, sample.content, sample.size = member.name, member.content, member.size
        elif kind in (b"cls", b"json") and member.size <= _MOST_TEXT:
            text = bytes(data[member.content : member.content + member.size])
            sample.label = sample.label or (_label(text) if kind == b"json" else _text(text))
    return found if is_whole or is_finished else found[:-1]


def _members(data: bytes | bytearray, is_whole: bool) -> Iterator[_Member | None]:
    """The regular files of an archive; None: its end was marked."""
    place, start, name, size_said = 0, 0, b"", -1
    while place < len(data):
        header = data[place : place + _RECORD]
        if len(header) == _RECORD and not any(header):
            yield None
            return
        size = _size(header) if len(header) == _RECORD else 0
        kind = header[156:157]
        if size_said >= 0 and kind in _PLAIN:
            size = size_said
        content = place + _RECORD
        end = content + -(-size // _RECORD) * _RECORD
        if len(header) < _RECORD or end > len(data):
            if is_whole or size > MOST_BLOCK:
                raise BadShardError("it is cut short")
            return
        place = end
        if kind == b"L":
            name = bytes(data[content : content + min(size, _MOST_TEXT)]).rstrip(b"\0")
        elif kind == b"x":
            said = _records(bytes(data[content : content + min(size, _MOST_TEXT)]))
            name, size_said = said.get(b"path", name), int(said.get(b"size", b"-1"))
        elif kind in (b"g", b"K"):
            continue
        else:
            if kind in _PLAIN:
                yield _Member(name or _name(header), start, content, size, end)
            start, name, size_said = end, b"", -1


def _size(header: bytes | bytearray) -> int:
    """How long a member is, if its header is what was written."""
    try:
        said = int(header[148:156].strip(b" \0") or b"x", 8)
        if said != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise ValueError
        if header[124] & 0x80:  # a number of more than eleven octal digits
            size = int.from_bytes(header[124:136], "big") & ~(0xFF << 88)
        else:
            size = int(header[124:136].strip(b" \0") or b"0", 8)
    except ValueError:
        raise BadShardError("it is no tar file, or damaged") from None
    if not 0 <= size <= 2**62:
        raise BadShardError("a member has an impossible size")
    return size


def _name(header: bytes | bytearray) -> bytes:
    name = bytes(header[:100]).partition(b"\0")[0]
    prefix = bytes(header[345:500]).partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _records(text: bytes) -> dict[bytes, bytes]:
    """What an extended header says: lines of length, key and value."""
    found = {}
    try:
        while text:
            length = int(text.partition(b" ")[0])
            key, _, value = text[:length].partition(b" ")[2].partition(b"=")
            found[key] = value.removesuffix(b"\n")
            if length < 1:
                raise ValueError
            text = text[length:]
        int(found.get(b"size", b"0"))
    except ValueError:
        raise BadShardError("an extended header is damaged") from None
    return found


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace").strip()


def _label(content: bytes) -> str:
    """The label in a JSON member, if there is one."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return ""
    values = (found.get(key) for key in _LABEL_KEYS) if isinstance(found, dict) else (found,)
    return next((str(value) for value in values if isinstance(value, int | str) and not isinstance(value, bool)), "")


def blocks_of(pieces: Iterable[bytes]) -> Iterator[TarBlock]:
    """A shard that comes piece by piece, cut into blocks; no more than a piece and a block are ever held.

    Raises:
        BadShardError: it is no tar file, or cut short.
    """
    rest, place = bytearray(), 0
    for piece in pieces:
        rest += piece
        used = 0
        for block in _cut(rest, samples_in(rest, is_whole=False), place, is_last=False):
            yield block
            used = block.start + len(block.data) - place
        place += used
        del rest[:used]
        if len(rest) > MOST_BLOCK:
            raise BadShardError(f"a sample has more than {MOST_BLOCK:,} bytes")
    yield from _cut(rest, samples_in(rest), place, is_last=True)


def _cut(data: bytearray, samples: list[TarSample], place: int, *, is_last: bool) -> Iterator[TarBlock]:
    start, held = 0, list[TarSample]()
    for number, sample in enumerate(samples):
        sample.content -= start
        held.append(sample)
        if sample.end - start >= BLOCK or (is_last and number == len(samples) - 1):
            yield TarBlock(place + start, bytes(data[start : sample.end]), [one for one in held if one.name])
            start, held = sample.end, []
