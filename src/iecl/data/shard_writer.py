"""`iecl pack --shards`: the files of a folder in tar shards, with an index, to be streamed from near or far."""

import io
import os
import shutil
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from iecl import counter
from iecl.console import ProgressLine
from iecl.data.decoder import Unreadable, header_size
from iecl.data.defaults import resolve_data
from iecl.data.folder import FolderSource
from iecl.data.listing import one_walk
from iecl.data.pack_writer import check_folder, check_space, listed_parts, pack_settings, show_part
from iecl.data.settings import DataSettings
from iecl.data.shard_files import INDEX
from iecl.data.shard_index import IndexWriter
from iecl.data.skipped_files import refuse_too_many
from iecl.errors import UserError
from iecl.files import atomic_file, lock

MEGABYTES = 256
"""What a shard takes by default."""
_HEADERS = 3 * 512
"""Bytes of a tar file besides an image and its label."""
_LOCK = ".writing"


@one_walk()
def pack_shards(
    data: str,
    out: Path,
    *,
    shard_megabytes: float = MEGABYTES,
    exclude: str = "",
    sets: Iterable[str] = (),
    overwrite: bool = False,
    quiet: bool = True,
) -> dict[str, Any]:
    """Write the files of a folder, as they are, to tar shards in a folder of their own.

    They are written in a random order, so that a piece of a shard is a sample of the images. `train` and `test` are
    kept apart; class numbers are `.cls` members, as WebDataset has them. The folder takes its name when it is whole.

    Args:
        data: a folder, list or pattern.
        out: folder to write.
        shard_megabytes: what a shard takes.
        exclude: a list of images to leave out, as `iecl doctor` writes it.
        sets: further settings of the data as text, as in `["data.labels=none"]`.
        overwrite: replace a folder of shards that is there.
        quiet: show no progress.

    Raises:
        UserError: the images cannot be read, or the shards cannot be written.
    """
    began = time.monotonic()
    _check_place(out, overwrite)
    if shard_megabytes <= 0:
        raise UserError(
            f"a shard of {shard_megabytes} MB holds nothing", where="--shard-megabytes", do="give 1 or more"
        )
    settings = resolve_data(pack_settings(data, 0, exclude, sets))
    parts = []
    for name, source, skipped in listed_parts(settings):
        if not isinstance(source, FolderSource):
            raise UserError(f"{data} is in shards already", where="iecl pack", do="use it as it is")
        parts.append(_ShardPartWriter(name, source, skipped))
    total = sum(len(part.source) for part in parts)
    check_space(out, sum(part.most_bytes() for part in parts))
    with ProgressLine(quiet) as line, _draft(out) as folder:
        show, before = line.count("packing images"), 0
        for part in parts:
            part.write(folder, int(shard_megabytes * 2**20), settings, partial(show_part, show, before, total))
            before += len(part.source)
    return {
        "path": str(out),
        "images": sum(part.count for part in parts),
        "parts": {part.name: part.count for part in parts},
        "shards": sum(part.shards for part in parts),
        "classes": len(parts[0].source.classes),
        "skipped": sum(len(part.skipped) for part in parts),
        "megabytes": round(sum(file.stat().st_size for file in out.iterdir()) / 2**20, 1),
        "seconds": round(time.monotonic() - began, 1),
    }


@dataclass
class _ShardPartWriter:
    """A split while it is written."""

    name: str
    source: FolderSource
    skipped: list[tuple[str, str]]
    count: int = 0
    shards: int = 0

    def most_bytes(self) -> int:
        """What the shards take, about."""
        paths = map(self.source.listing.path, range(len(self.source)))
        sizes = (os.stat(path).st_size for path in paths if os.path.exists(path))  # noqa: PTH110, PTH116 - bytes
        return sum(sizes) + len(self.source) * (_HEADERS + 512)

    def write(self, folder: Path, most: int, settings: DataSettings, progress: Callable[[int], None]) -> None:
        """Write every image whose header can be read, and the index."""
        index, folders, done = IndexWriter(), len(self.skipped), 0
        order = iter(counter.permutation(counter.key(0, "shards", self.shards), len(self.source)).tolist())
        while done < len(self.source):
            path, names = folder / f"{self.name}-{self.shards:06d}.tar", list[bytes]()
            with atomic_file(path) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
                for i in order:
                    done += 1
                    if self._add(tar, i, settings.max_pixels, names[-1] if names else b""):
                        names.append(self.source.listing.relative(i))
                    if file.tell() >= most:
                        break
            if names:
                index.add(path.name, str(path), path.stat().st_size, names)
                self.shards += 1
                self.count += len(names)
            else:
                path.unlink()
            progress(done)
        reasons = Counter(reason for _, reason in self.skipped[folders:])
        if not self.count:
            raise UserError(f"no image of {self.source.name} can be read", where="iecl pack")
        refuse_too_many(self.source.name, reasons, len(self.source), settings.max_unreadable)
        index.write(folder / INDEX.format(self.name), self.source.classes)

    def _add(self, tar: tarfile.TarFile, i: int, max_pixels: int, before: bytes) -> bool:
        """Add an image and its label; a file that is no image is left out."""
        name = self.source.listing.relative(i)
        try:
            content = Path(os.fsdecode(self.source.listing.path(i))).read_bytes()
            header_size(io.BytesIO(content), max_pixels)
        except OSError as problem:
            self.skipped.append((os.fsdecode(name), (problem.strerror or "cannot be read").lower()))
            return False
        except Unreadable as problem:
            self.skipped.append((os.fsdecode(name), str(problem)))
            return False
        key, kind = _key(name)
        if before and key == _key(before)[0]:  # members that follow each other under one key are one sample
            key += "_"
        members = {kind: content}
        if self.source.labels[i] >= 0:
            members["cls"] = str(self.source.labels[i]).encode("ascii")
        for ending, value in members.items():
            about = tarfile.TarInfo(f"{key}.{ending}")
            about.size = len(value)
            tar.addfile(about, io.BytesIO(value))
        return True


def _key(name: bytes) -> tuple[str, str]:
    """What WebDataset calls a sample, which ends with the first dot of a name, and the ending of its image.

    >>> _key(b"cats/one.two.JPG")
    ('cats/one_two', 'jpg')
    """
    folder, slash, base = os.fsdecode(name).rpartition("/")
    stem, _, kind = base.rpartition(".")
    return folder + slash + stem.replace(".", "_"), kind.lower()


def _check_place(out: Path, overwrite: bool) -> None:
    """What can be refused is refused before the work."""
    check_folder(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        is_ours = out.is_dir() and any(out.glob(INDEX.format("*")))
        if not (overwrite and is_ours):
            do = "add --overwrite, or name another" if is_ours else "name a folder that is not there yet"
            raise UserError(f"{out} is there already", where="--out", do=do)


@contextmanager
def _draft(out: Path) -> Iterator[Path]:
    """The folder while it is written; what a process that was killed left behind is removed first."""
    folder = out.with_name(f".{out.name}.part")
    try:
        folder.mkdir(exist_ok=True)
        with (folder / _LOCK).open("wb") as held:
            if not lock(held.fileno()):
                raise UserError(f"another process is writing {out}", where="--out", do="wait for it")
            for left in folder.iterdir():
                if left.name != _LOCK:
                    left.unlink()
            try:
                yield folder
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            (folder / _LOCK).unlink()
            if out.exists():
                shutil.rmtree(out)
            folder.replace(out)
    except OSError as problem:
        raise UserError(f"cannot write {out}: {problem.strerror}", where="--out") from problem
