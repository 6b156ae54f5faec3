"""Images with another number of channels than three: gray ones, and those of microscopes, satellites and sensors.

NPY arrays of (height, width), (height, width, channels) or (channels, height, width); TIFF with a page for each
channel; and, for as many channels as they have, what Pillow opens.
"""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

NPY = b"\x93NUMPY"
ImageArray = npt.NDArray[np.uint8]


def npy_shape(content: io.BytesIO) -> tuple[int, ...]:
    """The shape that an NPY file declares; nothing else is read."""
    content.seek(0)
    version = np.lib.format.read_magic(content)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(content)
    if dtype.hasobject or dtype.kind not in "biuf" or len(shape) not in (2, 3):
        raise ValueError(f"an array of {shape} and {dtype} is no image")
    return shape


def npy_size(content: io.BytesIO) -> tuple[int, int]:
    """Height and width of an image in an NPY file."""
    shape = npy_shape(content)
    first = 1 if len(shape) == 3 and shape[0] < shape[2] else 0
    return shape[first], shape[first + 1]


def npy_channels(content: io.BytesIO) -> int:
    """How many channels an image in an NPY file has."""
    shape = npy_shape(content)
    return 1 if len(shape) == 2 else min(shape[0], shape[2])


def npy_bands(content: io.BytesIO) -> npt.NDArray[np.generic]:
    """The channels of an NPY file, as (channels, height, width)."""
    content.seek(0)
    values: npt.NDArray[np.generic] = np.load(content, allow_pickle=False)
    if values.ndim == 2:
        return values[None]
    return values if values.shape[0] < values.shape[2] else values.transpose(2, 0, 1)


def image_bands(image: Image.Image, channels: int) -> npt.NDArray[np.generic]:
    """The channels of an image of Pillow's, as (channels, height, width): its pages, or what a pixel holds."""
    if getattr(image, "n_frames", 1) == channels > 1:
        pages = []
        for number in range(channels):
            image.seek(number)
            pages.append(np.asarray(image))
        return np.stack(pages)
    image.load()
    if channels == 1 and image.mode not in ("L", "1") and not image.mode.startswith(("I", "F")):
        image = image.convert("L")
    values = np.asarray(image.convert("L") if image.mode == "1" else image)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def eight_bit(values: npt.NDArray[np.generic]) -> ImageArray:
    """Gray values of more than eight bits on the scale 0 to 255, without clipping.

    16-bit values keep their scale. 32-bit and floating-point files do not say theirs: it is the smallest usual one that
    holds all values (1 for fractions, 255, 65535), else the range from the lowest to the highest value.

    >>> eight_bit(np.array([0, 257, 65535], np.uint16)).tolist()
    [0, 1, 255]
    >>> eight_bit(np.array([0, 0.5, 1], np.float32)).tolist(), eight_bit(np.array([-3, 0, 3])).tolist()
    ([0, 128, 255], [0, 128, 255])
    """
    gray = values.astype(np.float32)
    finite = gray[np.isfinite(gray)]
    if not finite.size:
        raise ValueError("no finite value")
    low, high = float(finite.min()), float(finite.max())
    usual = (65535,) if values.dtype.itemsize == 2 else (255, 65535) if values.dtype.kind in "iu" else (1, 255, 65535)
    scale = next((top for top in usual if low >= 0 and high <= top), None)
    start, span = (0.0, float(scale)) if scale else (low, (high - low) or 1.0)
    filled = np.nan_to_num(gray, nan=start, posinf=high, neginf=low)
    made: ImageArray = np.rint((filled - start) * (255 / span)).astype(np.uint8)
    return made
