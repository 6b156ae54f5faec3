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
