"""Where pixels come from: anything that reads rows by number, and the source that holds them all in memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from iecl.data.batch import Pixels
from iecl.data.decoder import ImageArray

Numbers = npt.NDArray[np.int64]
OnBad = Callable[[str, str], None]
"""Is told the path of a file that had to be left out, and the reason."""
Progress = Callable[[int, int], None]
"""Is told how many are done, of how many."""


class Source(Protocol):
    """A fixed list of images, some of which may turn out to be unreadable."""

    @property
    def is_decoded(self) -> bool:
        """Whether reading only copies: it then takes less time than it would to send images between processes."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, empty when there are none."""

    @property
    def labels(self) -> Numbers:
        """The class number of every image, -1 where there is none."""

    def __len__(self) -> int: ...

    def read(self, index: Numbers) -> Pixels:
        """The images with these numbers; bad ones are reported, not raised."""

    def path(self, index: int) -> str:
        """Where an image comes from, in printable letters."""


@runtime_checkable
class Decoding(Source, Protocol):
    """A source whose images are made when they are read, each brought to the same square."""

    side: int
    channels: int

    def select(self, index: Numbers) -> "Decoding":
        """Some of the images, in the order given."""


@runtime_checkable
class Fetching(Decoding, Protocol):
    """A source whose images come from far away: what one process fetches, others decode."""

    usual_bytes: float
    """What has to be fetched for an image, about."""

    def fetch(self, index: Numbers) -> Sequence[bytes | str]:
        """The bytes of these images, or of one that cannot be had the reason."""

    def decode_into(self, images: ImageArray, contents: Sequence[bytes | str]) -> Pixels:
        """What was fetched, decoded into memory that is there already."""


class ArraySource:
    """Images that are in memory already.

    >>> two = ArraySource("two", torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    >>> two.read(np.array([1, 1, 0])).images.shape, two.labels.tolist(), two.path(1)
    (torch.Size([3, 3, 8, 8]), [-1, -1], 'two[1]')
    """

    is_decoded = True
    bounds: Numbers | None = None
    """Where blocks begin, of images that come from shards: their order does not depend on where they are kept."""

    def __init__(
        self,
        name: str,
        images: UInt8[Tensor, "n 3 height width"],
        labels: Numbers | None = None,
        classes: tuple[str, ...] = (),
        *,
        sizes: Int64[Tensor, "n 2"] | None = None,
        path: Callable[[int], str] | None = None,
    ) -> None:
        """Hold images.

        Args:
            name: what people call the dataset.
            images: all images.
            labels: class numbers; without them every image has -1.
            classes: names of the classes.
            sizes: heights and widths of the originals, where the images were brought to one shape.
            path: where the image with a number came from.
        """
        self.name, self.images, self.classes = name, images, classes
        self.labels: Numbers = np.full(len(images), -1, np.int64) if labels is None else labels
        self._sizes, self._path = sizes, path
        assert len(self.labels) == len(images)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: Numbers) -> Pixels:
        """The images with these numbers; none of them can be bad."""
        rows = torch.from_numpy(index)
        if self._sizes is None:
            sizes = torch.tensor(self.images.shape[2:]).expand(len(rows), 2)
        else:
            sizes = self._sizes.index_select(0, rows)
        if self.images.is_contiguous():  # numpy asks the system for large pages: a third of torch's time
            return Pixels(torch.from_numpy(self.images.numpy().take(index, axis=0)), sizes)
        return Pixels(self.images.index_select(0, rows), sizes)

    def path(self, index: int) -> str:
        """The file that an image came from, or its number."""
        return self._path(index) if self._path is not None else f"{self.name}[{index}]"


class ChosenSource:
    """Some images of a source, under numbers of their own.

    >>> three = ArraySource("three", torch.zeros(3, 3, 8, 8, dtype=torch.uint8), np.array([4, 5, 6]))
    >>> some = ChosenSource(three, np.array([2, 0]))
    >>> len(some), some.labels.tolist(), some.path(0)
    (2, [6, 4], 'three[2]')
    """

    def __init__(self, whole: Source, index: Numbers) -> None:
        self.whole, self.index = whole, index
        self.name, self.classes, self.labels = whole.name, whole.classes, whole.labels[index]
        self.is_decoded = whole.is_decoded

    def __len__(self) -> int:
        return len(self.index)

    def read(self, index: Numbers) -> Pixels:
        """The images with these numbers; bad ones are reported, not raised."""
        return self.whole.read(self.index[index])

    def read_into(self, images: ImageArray, index: Numbers) -> Pixels:
        """The same, into memory that is there already."""
        return read_into(self.whole, images, self.index[index])

    def expect(self, index: Numbers) -> None:
        """These will be read soon."""
        expect(self.whole, self.index[index])

    def path(self, index: int) -> str:
        """Where an image comes from, in printable letters."""
        return self.whole.path(int(self.index[index]))


def name_in(source: Source, index: int) -> str:
    """What an image is called, whatever folder the data were copied to: its path below it, or its number."""
    return source.path(index).removeprefix(source.name).strip("/[]")


def read_into(source: Source, images: ImageArray, index: Numbers) -> Pixels:
    """As `source.read`, into memory that is there already; a source that can do it itself does without a copy."""
    own = getattr(source, "read_into", None)
    if own is not None:
        made: Pixels = own(images, index)
        return made
    pixels = source.read(index)
    images[...] = pixels.images.numpy()
    return replace(pixels, images=torch.from_numpy(images))


def expect(source: Source, index: Numbers) -> None:
    """Tell a source that wants to know it which images will be read soon."""
    told = getattr(source, "expect", None)
    if told is not None:
        told(index)
