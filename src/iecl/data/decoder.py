"""An image file as upright 8-bit RGB, squeezed to a square; whatever is wrong with the file becomes one short reason.

Pillow's own limits and switches are global, so they are neither used nor changed: the formats are asked directly, and
the number of pixels is read from the header and compared before anything is decoded.
"""

import io
import os
import stat
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import simplejpeg

# Importing a plug-in registers its format. Formats that run programs or embed others (EPS, PDF, ...) stay out.
from PIL import (
    AvifImagePlugin,  # noqa: F401
    BmpImagePlugin,  # noqa: F401
    GifImagePlugin,  # noqa: F401
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,  # noqa: F401
    PpmImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401
    WebPImagePlugin,  # noqa: F401
)

from iecl.data import bands
from iecl.data.bands import eight_bit

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF")
ImageArray = npt.NDArray[np.uint8]
File = bytes | str | os.PathLike[str] | io.BytesIO
"""A path, or what a file would hold."""
_DRAFT = 1.5
"""How many times the square's side a JPEG must at least be decoded to.

The decoder halves for free, up to three times, and what is left is a proper filter's to do. On photographs the square
then differs from that of a full decoding by 42 dB on average, and its edges keep 98 % of their steepness; down to the
square itself it would be 38 dB and 97 %.
"""
_REDUCE = 3
"""How many times the square's side is left when blocks of pixels are averaged first, which saves time and memory."""
_ORIENTATION = 0x0112
_UPRIGHT: dict[object, Callable[[ImageArray], ImageArray]] = {
    2: lambda image: image[:, :, ::-1],
    3: lambda image: image[:, ::-1, ::-1],
    4: lambda image: image[:, ::-1],
    5: lambda image: image.swapaxes(1, 2),
    6: lambda image: image[:, ::-1].swapaxes(1, 2),
    7: lambda image: image[:, ::-1, ::-1].swapaxes(1, 2),
    8: lambda image: image[:, :, ::-1].swapaxes(1, 2),
}
"""How a stored image is turned upright, by its EXIF orientation."""
_TURNED = (5, 6, 7, 8)  # height and width are swapped
# What decoders raise on garbage: nearly anything. A name that does not exist would be our mistake, and is not caught.
_GARBAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    RuntimeError,  # with RecursionError and NotImplementedError
    EOFError,
    BufferError,
    struct.error,
    zlib.error,
)


class Unreadable(Exception):  # noqa: N818 - it is an answer about a file, caught row by row
    """A file that is no usable image; the message is the reason in a few words."""


class Unopened(Unreadable):
    """A file that the system did not give: it, or the folder that it is in, is gone or out of reach."""


def decode(
    path: File, side: int, max_pixels: int, square: ImageArray | None = None
) -> tuple[ImageArray, tuple[int, int]]:
    """The first frame of an image as (3, side, side), and the (height, width) that it had.

    The aspect ratio is not kept in the square; height and width are those of the upright image, so that a crop of any
    aspect can still be drawn.

    Args:
        path: the file.
        side: height and width of the square.
        max_pixels: an image with more of them is not decoded.
        square: where the image goes, with as many channels as are wanted; by default new memory for three.

    Raises:
        Unreadable: the file is missing, damaged, no image, or has more than `max_pixels` pixels.
    """
    content = _content(path, max_pixels)
    square = np.empty((3, side, side), np.uint8) if square is None else square
    with _reasons():
        if len(square) != 3 or _is_npy(content):
            return square, _decode_bands(content, max_pixels, square)
        image = _opened(content, max_pixels)
        width, height = image.size
        pixels = _usual_jpeg(image, content, side)
        if pixels is None:
            pixels = _by_pillow(image, content, side)
        orientation = _orientation(image)
        _squeeze(pixels, square)
        if orientation in _UPRIGHT:
            square[...] = _UPRIGHT[orientation](square)
        size = (width, height) if orientation in _TURNED else (height, width)
        return square, size


def _decode_bands(content: io.BytesIO, max_pixels: int, square: ImageArray) -> tuple[int, int]:
    """Any number of channels into a square; returns the (height, width) that there were. EXIF turns nothing here."""
    import torch  # here: to look at headers nobody should wait for it
    from torch.nn.functional import interpolate

    if _is_npy(content):
        _check_pixels(*bands.npy_size(content), max_pixels)
        values = bands.npy_bands(content)
    else:
        values = bands.image_bands(_opened(content, max_pixels), len(square))
    _check_channels(len(values), len(square))
    pixels = np.ascontiguousarray(values if values.dtype == np.uint8 else eight_bit(values))
    made = torch.from_numpy(pixels.astype(np.uint8, copy=False)).unsqueeze(0)
    if made.shape[2:] != square.shape[1:]:
        made = interpolate(made, square.shape[1:], mode="bicubic", antialias=True)
    square[...] = made[0].numpy()
    return pixels.shape[1], pixels.shape[2]


def _check_channels(found: int, wanted: int) -> None:
    if found != wanted:
        raise Unreadable(f"{found} channel{'s' * (found != 1)}, {wanted} are wanted")


def _is_npy(content: io.BytesIO) -> bool:
    return content.getbuffer()[: len(bands.NPY)] == bands.NPY


def _usual_jpeg(image: Image.Image, content: io.BytesIO, side: int) -> ImageArray | None:
    """A JPEG as (height, width, 4), halved as often as leaves enough; None: it is none of the usual kind.

    The library inside Pillow, asked directly: the same pixels without copies between, in a seventh less of the time.
    """
    if not isinstance(image, JpegImagePlugin.JpegImageFile) or image.mode != "RGB":
        return None
    room = min(image.size) // int(_DRAFT * side)
    halved = next(factor for factor in (8, 4, 2, 1) if factor <= max(1, room))
    width, height = (-(-length // halved) for length in image.size)
    if max(width, height) >= 2 * _REDUCE * side:
        return None
    try:
        found: ImageArray = simplejpeg.decode_jpeg(content.getbuffer(), "RGBX", min_height=height, min_width=width)
    except ValueError:  # damage, which Pillow has words for, or what is only unusual
        return None
    return found


def _by_pillow(image: Image.Image, content: io.BytesIO, side: int) -> ImageArray:
    """Any image as (height, width, 4), shrunk by whole pixels where it is very large."""
    if isinstance(image, JpegImagePlugin.JpegImageFile):
        image.draft(None, (int(_DRAFT * side), int(_DRAFT * side)))
        image.decodermaxblock = content.getbuffer().nbytes  # all at once: what is left of a piece is copied
    image.load()
    image = rgb(image)
    wide, high = (max(1, length // (_REDUCE * side)) for length in image.size)
    if wide > 1 or high > 1:
        image = image.reduce((wide, high))
    return np.frombuffer(image.tobytes("raw", "RGBX"), np.uint8).reshape(image.height, image.width, 4)


def _squeeze(pixels: ImageArray, square: ImageArray) -> None:
    """Bring pixels of four bytes to a square of (3, side, side), by a bicubic filter that averages what it shrinks.

    It is Pillow's filter to within two levels, but torch has it in vector instructions, which like four bytes best, and
    takes a quarter of the time.
    """
    if pixels.shape[:2] != square.shape[1:]:
        import torch  # here: to look at headers nobody should wait for it
        from torch.nn.functional import interpolate

        # torch adds the dimension: numpy's would have a stride of 0, and torch then rearranges all pixels.
        stored = torch.from_numpy(pixels).unsqueeze(0).permute(0, 3, 1, 2)
        made = interpolate(stored, square.shape[1:], mode="bicubic", antialias=True)
        pixels = made.permute(0, 2, 3, 1)[0].numpy()
    # Three planes by shifts of whole pixels: half the time of picking bytes.
    whole = pixels.view(np.dtype("<u4"))[:, :, 0]
    for number, plane in enumerate(square):
        np.copyto(plane, whole >> (8 * number) if number else whole, casting="unsafe")


@dataclass(frozen=True)
class Examined:
    """An image at about the size asked for, and what its file says of itself."""

    planes: ImageArray
    """(channels, height, width), upright; the first three are red, green and blue."""
    size: tuple[int, int]
    """Height and width, upright."""
    bytes: int
    format: str
    mode: str
    is_deep: bool
    """Whether a channel has more than eight bits."""
    is_animated: bool
    tables: dict[int, list[int]]
    """What a JPEG was compressed with; empty for others."""


def examine(path: File, side: int, max_pixels: int) -> Examined:
    """A small version of an image whose shorter side is `side` or more, if the image's is; without torch.

    Raises:
        Unreadable: as for `decode`.
    """
    content = _content(path, max_pixels)
    length = content.getbuffer().nbytes
    with _reasons():
        if _is_npy(content):
            _check_pixels(*bands.npy_size(content), max_pixels)
            values = bands.npy_bands(content)
            planes = values.astype(np.uint8) if values.dtype == np.uint8 else eight_bit(values)
            size, mode = (planes.shape[1], planes.shape[2]), f"{len(planes)} bands"
            return Examined(planes, size, length, "NPY", mode, values.dtype.itemsize > 1, False, {})
        image = _opened(content, max_pixels)
        mode, (width, height) = image.mode, image.size
        is_deep = mode.startswith(("I", "F")) or ";16" in str(image.tile)
        pixels = _usual_jpeg(image, content, side)
        if pixels is None:
            pixels = _by_pillow(image, content, side)
        orientation, planes = _orientation(image), pixels.transpose(2, 0, 1)
        if orientation in _UPRIGHT:
            planes = _UPRIGHT[orientation](planes)
        size = (width, height) if orientation in _TURNED else (height, width)
        tables = getattr(image, "quantization", {})
        return Examined(planes, size, length, image.format or "", mode, is_deep, _is_animated(image), tables)


def _is_animated(image: Image.Image) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except _GARBAGE:  # the first image is good, which is all that is used
        return True


def decode_whole(path: File, max_pixels: int, *, is_upright: bool = False) -> ImageArray:
    """The first frame of an image as (3, height, width), pixels as they are stored: EXIF turns it only if asked for.

    For images with boxes or masks, which were drawn on the stored pixels.

    Raises:
        Unreadable: as for `decode`.
    """
    content = _content(path, max_pixels)
    with _reasons():
        image = _opened(content, max_pixels)
        image.load()
        turn = _UPRIGHT.get(_orientation(image)) if is_upright else None
        pixels = np.asarray(rgb(image)).transpose(2, 0, 1)
        return np.ascontiguousarray(pixels if turn is None else turn(pixels))


def decode_numbers(path: File, max_pixels: int) -> ImageArray:
    """A mask as (height, width): the stored number of each pixel, which is an index where there is a palette.

    Raises:
        Unreadable: as for `decode`, or the pixels are colors.
    """
    content = _content(path, max_pixels)
    with _reasons():
        image = _opened(content, max_pixels)
        image.load()
        if image.mode not in ("P", "L"):
            raise Unreadable(f"its pixels are not numbers of 8 bits: mode {image.mode}")
        return np.array(image)


def header_size(path: File, max_pixels: int, channels: int = 0) -> tuple[int, int]:
    """The (height, width) that a file declares, before it is turned upright; nothing is decoded.

    With `channels` an array that declares another number of them is no usable image.

    Raises:
        Unreadable: as for `decode`, as far as the header tells.
    """
    content = _content(path, max_pixels)
    with _reasons():
        if _is_npy(content):
            found = bands.npy_size(content)
            _check_pixels(*found, max_pixels)
            if channels:
                _check_channels(bands.npy_channels(content), channels)
            return found
        width, height = _opened(content, max_pixels).size
        return height, width


def _content(path: File, max_pixels: int) -> io.BytesIO:
    """The bytes of a file. Decoders read from memory: a false length in the file then cannot claim any."""
    if isinstance(path, io.BytesIO):
        if not path.getbuffer().nbytes:
            raise Unreadable("empty file")
        return path
    try:
        # Without O_NONBLOCK a pipe that took an image's place would wait forever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb", buffering=0) as file:  # noqa: PTH123 - no Path can be made of bytes
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable("not a regular file")
            if status.st_size > 16 * max_pixels + 2**24:  # four 32-bit channels and room for metadata
                raise Unreadable(f"too large: {status.st_size} bytes")
            content = file.read()
    except FileNotFoundError:
        raise Unopened("file is gone") from None
    except OSError as problem:
        raise Unopened((problem.strerror or "cannot be read").lower()) from problem
    if not content:
        raise Unreadable("empty file")
    return io.BytesIO(content)


def _opened(content: io.BytesIO, max_pixels: int) -> ImageFile.ImageFile:
    """The image with its header read; the content decides on the format, not the file's name."""
    prefix = content.read(16)
    for name in FORMATS:
        factory, accept = Image.OPEN[name]
        if accept is not None and accept(prefix) is True:  # a text instead of True: a decoder that is not installed
            content.seek(0)
            image = factory(content, "")
            width, height = image.size
            _check_pixels(height, width, max_pixels)
            return image
    raise Unreadable("not an image")


def _check_pixels(height: int, width: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise Unreadable(f"too large: {width}x{height}")
    if width * height == 0:
        raise Unreadable("no pixels")


@contextmanager
def _reasons() -> Iterator[None]:
    """Turn what decoders raise into `Unreadable`, and keep what they warn of to ourselves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Image.DecompressionBombError as problem:
            raise Unreadable("too large") from problem
        except MemoryError as problem:
            raise Unreadable("out of memory") from problem
        except _GARBAGE as problem:
            is_cut = isinstance(problem, EOFError) or "truncated" in str(problem).lower()
            raise Unreadable("truncated" if is_cut else "damaged") from problem


def _orientation(image: Image.Image) -> object:
    """The EXIF orientation; an image is good even if its EXIF block is not."""
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except _GARBAGE:
        return 1


def rgb(image: Image.Image) -> Image.Image:
    """Eight bits of red, green and blue; what is transparent becomes white."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image  # to convert it would be to copy it
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(eight_bit(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        solid = image.convert("RGBA")
        white = Image.new("RGBA", solid.size, "white")
        return Image.alpha_composite(white, solid).convert("RGB")
    return image.convert("RGB")
