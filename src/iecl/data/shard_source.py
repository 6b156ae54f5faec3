"""Images of tar shards, on this machine or another: blocks are fetched ahead, and decoded when they are read."""

import io
import os
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import torch

from iecl.data.batch import Pixels
from iecl.data.block_cache import BlockCache
from iecl.data.decoder import ImageArray, Unreadable, decode
from iecl.data.listing import Listing, printable
from iecl.data.shard_files import read_range
from iecl.data.shard_set import ShardPart, bad_shard
from iecl.data.source import Numbers
from iecl.data.tar_samples import BadShardError, samples_in
from iecl.errors import TrainingError

Content = bytes | str
"""The bytes of an image, or why there are none."""


class ShardBlocks:
    """What fetches a block: pickled with its source, for processes that are not forked."""

    def __init__(self, part: ShardPart) -> None:
        self.shards, self.blocks = part.shards, part.blocks

    def __call__(self, block: int) -> list[bytes]:
        """The images of a block.

        Raises:
            BadShardError: the shard is missing, cut short, or was changed.
        """
        shard, start, length, checksum, count = self.blocks[block].tolist()
        name = self.shards[shard]
        try:
            data = read_range(name, start, length)
            if crc32(data) != checksum:
                raise BadShardError("it is not what it was when its index was made")
            found = [data[one.content : one.content + one.size] for one in samples_in(data) if one.name]
            if len(found) != count:
                raise BadShardError("its index has another number of images")
        except BadShardError as problem:
            raise BadShardError(name, str(problem)) from problem
        return found


class ShardSource:
    """One part of a set of shards, or some of its images."""

    is_decoded = False

    def __init__(
        self,
        part: ShardPart,
        *,
        side: int,
        max_pixels: int,
        channels: int = 3,
        with_labels: bool = True,
        skips: bool = False,
    ) -> None:
        """Hold the index.

        Args:
            part: which shards.
            side: height and width that every image is brought to.
            max_pixels: an image with more pixels is bad.
            channels: of an image; one that has another number of them is bad.
            with_labels: whether classes and labels are taken over.
            skips: images of a shard that cannot be read are bad images; otherwise they end the work.
        """
        self._part, self.name = (
            part,
            printable(os.fsencode(part.title)) + ("" if part.name == "all" else f"/{part.name}"),
        )
        self.side, self.max_pixels, self.channels, self._skips = side, max_pixels, channels, skips
        self._starts: Numbers = np.concatenate([np.zeros(1, np.int64), part.blocks[:, 4].cumsum()])
        self.classes = part.classes if with_labels else ()
        # Without labels this takes no memory, however many images there are.
        self.labels: Numbers = part.labels() if with_labels else np.broadcast_to(np.int64(-1), part.count)
        self.bounds = self._starts
        """Where each block begins among the images, and where the last one ends."""
        self.usual_bytes = float(part.blocks[:, 2].sum() / part.count)
        self._index: Numbers | None = None
        self._cache = BlockCache(ShardBlocks(part), part.blocks[:, [2, 4]])
        self._listing: Listing | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def listing(self) -> Listing:
        """The names of all images of the part; read when they are asked for."""
        if self._listing is None:
            self._listing = self._part.listing()
        return self._listing

    def select(self, index: Numbers) -> "ShardSource":
        """Some of the images, in the order given."""
        made = ShardSource.__new__(ShardSource)
        vars(made).update(vars(self))
        made._index, made.labels = self._numbers(index), self.labels[index]
        in_order = len(index) == 0 or bool((np.diff(made._index) > 0).all())
        # Where they are not in the order of the shards, all are one block.
        made.bounds = np.searchsorted(made._index, self._starts) if in_order else np.array([0, len(index)])
        made.bounds = np.unique(made.bounds)
        return made

    def _numbers(self, index: Numbers) -> Numbers:
        return index if self._index is None else self._index[index]

    def expect(self, index: Numbers) -> None:
        """Let the blocks of these images be fetched while something else is done."""
        self._cache.expect(np.unique(self._block(self._numbers(index))).tolist())

    def _block(self, numbers: Numbers) -> Numbers:
        return np.searchsorted(self._starts, numbers, side="right") - 1

    def fetch(self, index: Numbers) -> list[Content]:
        """The bytes of these images, or of one that cannot be had the reason.

        Raises:
            TrainingError: a shard cannot be read, and is not to be skipped.
        """
        self.expect(index)
        numbers = self._numbers(index)
        blocks = self._block(numbers)
        found: list[Content] = [""] * len(index)
        for block in np.unique(blocks).tolist():
            (rows,) = np.nonzero(blocks == block)
            try:
                contents: Sequence[Content] = self._cache.take(block, (numbers[rows] - self._starts[block]).tolist())
            except BadShardError as problem:
                shard, reason = problem.args
                if not self._skips:
                    error = bad_shard(shard, reason)
                    raise TrainingError(error.what, where=error.where, do=f"{error.do}, and resume") from problem
                contents = [f"shard {printable(os.fsencode(shard))}: {reason}"] * len(rows)
            for row, content in zip(rows.tolist(), contents, strict=True):
                found[row] = content
        return found

    def read(self, index: Numbers) -> Pixels:
        """Fetch and decode these images; one that cannot be decoded gives a black row and a line in `bad`."""
        return self.decode_into(
            np.empty((len(index), self.channels, self.side, self.side), np.uint8), self.fetch(index)
        )

    def read_into(self, images: ImageArray, index: Numbers) -> Pixels:
        """The same, into memory that is there already."""
        return self.decode_into(images, self.fetch(index))

    def decode_into(self, images: ImageArray, contents: Sequence[Content]) -> Pixels:
        """Decode what was fetched into memory that is there already."""
        sizes = np.full((len(contents), 2), self.side, np.int64)
        bad: list[tuple[int, str]] = []
        for row, content in enumerate(contents):
            try:
                if isinstance(content, str):
                    raise Unreadable(content)
                sizes[row] = decode(io.BytesIO(content), self.side, self.max_pixels, images[row])[1]
            except Unreadable as problem:
                images[row] = 0
                bad.append((row, str(problem)))
        return Pixels(torch.from_numpy(images), torch.from_numpy(sizes), tuple(bad))

    def path(self, index: int) -> str:
        """The set of shards and the name of the image in it, in printable letters."""
        number = int(self._numbers(np.array([index]))[0])
        return f"{self.name}/{printable(self.listing.relative(number))}"
