"""`shapes`: small images drawn on the spot, so that everything can be tried without a download.

An image shows one object before a background of 1/f noise. The class is the object's shape together with its texture:
each of five textures is worn by two shapes that differ much. Colors, place, size, turn, light, and a band that hides a
part of some objects vary freely and say nothing about the class.

The ranges below are chosen such that pixels tell little (weighted kNN on raw pixels finds a third of the classes, as
does a random backbone), and that what they hide survives crops, flips and changes of color.
"""

import logging
import math
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import UInt8
from torch import Tensor

from iecl import counter
from iecl.data.cache import cache_folder
from iecl.data.datasets import FACTS, check_split
from iecl.data.drawing import SIDE, Column, Plane, color, noise, outline, texture, turned, wide
from iecl.data.settings import DataSettings
from iecl.data.source import ArraySource, Numbers
from iecl.files import atomic_file

SHAPES = ("disc", "cross", "triangle", "ring", "square", "star", "dome", "frame", "bar", "moon")
TEXTURES = ("plain", "striped", "checked", "spotted", "speckled")
CLASSES = tuple(f"{TEXTURES[number // 2]} {shape}" for number, shape in enumerate(SHAPES))

VERSION = 1
"""Goes up whenever a pixel changes, so that images kept from before are drawn again."""
_SEED = 2024
_CHUNK = 250  # images drawn at once: their planes fit in a processor's cache
_TURN = 2 * math.pi

RANGES: dict[str, tuple[float, float]] = {
    "x": (-6, 6),  # center of the object, pixels from the middle
    "y": (-6, 6),
    "radius": (9.5, 14),  # pixels
    "rotation": (0, _TURN),
    "hue": (0, 1),  # of the object, in turns
    "chroma": (0.03, 0.08),
    "brightness": (0.46, 0.54),  # mean of the object's two tones
    "contrast": (0.45, 0.55),  # between the two tones
    "lighter": (-1, 1),  # below 0 the tone that a plain object has is the darker one
    "period": (4, 5),  # of the texture, pixels
    "direction": (0, _TURN),
    "phase_a": (0, 1),  # periods
    "phase_b": (0, 1),
    "background": (0.38, 0.62),  # mean luminance
    "background_hue": (0, 1),
    "background_chroma": (0, 0.03),
    "light": (0, _TURN),  # where it comes from
    "light_strength": (0, 0.25),  # gain at the edge of the image
    "covered": (0, 1),  # a band of background lies before the object where this is below _COVERED_SHARE
    "gap_angle": (0, _TURN),
    "gap_offset": (-0.6, 0.6),  # from the object's center, in radii
    "occlusion": (0.08, 0.2),  # width of that band as a share of the object's diameter; 0 where there is none
}
"""Everything that is drawn for an image beside its class and its noise, each from a uniform range."""
_COVERED_SHARE = 0.25
_BACKGROUND_NOISE, _COLOR_NOISE = 0.08, 0.01


def labels(split: str) -> Numbers:
    """The class of every image: equally many of each, in a fixed random order."""
    order = counter.permutation(counter.key(_SEED, f"shapes {split} order"), _length(split))
    return (order % len(CLASSES)).numpy()


def factors(split: str) -> dict[str, npt.NDArray[np.generic]]:
    """All that an image was drawn from, one row for each image.

    `label`, `shape` and `texture` are numbers into CLASSES, SHAPES and TEXTURES; the others are explained at RANGES.
    """
    label = labels(split)
    drawn = _draws(split, torch.arange(len(label)))
    return {"label": label, "shape": label, "texture": label // 2} | {k: v.numpy() for k, v in drawn.items()}


def load(split: str) -> UInt8[Tensor, "n 3 32 32"]:
    """All images of a split, kept in the cache folder from the first call on."""
    path = cache_folder() / f"shapes-{split}.npz"
    kept = _kept(path, _length(split))
    if kept is not None:
        return torch.from_numpy(kept)
    parts = torch.split(torch.arange(_length(split)), _CHUNK)
    images = torch.cat([draw(split, positions) for positions in parts])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            np.savez(file, version=VERSION, images=images.numpy())
    except OSError as problem:
        logging.getLogger("iecl.data").warning("shapes are drawn again next time: cannot write %s: %s", path, problem)
    return images


def open_shapes(settings: DataSettings, split: str) -> ArraySource:
    """The drawn dataset as a source."""
    check_split("shapes", split)
    part = "train" if split == "pretrain" else split
    return ArraySource("shapes", load(part), labels(part), CLASSES)


def draw(split: str, positions: Tensor) -> UInt8[Tensor, "n 3 32 32"]:
    """The images with these numbers; each depends on the split and its own number only."""
    drawn = _draws(split, positions)
    label = torch.from_numpy(labels(split))[positions]
    middle = torch.arange(SIDE, dtype=torch.float64) - (SIDE - 1) / 2
    x, y = middle.expand(len(positions), SIDE, SIDE), middle[:, None].expand(len(positions), SIDE, SIDE)
    from_x, from_y = x - wide(drawn["x"]), y - wide(drawn["y"])

    tints = [noise(_key(split, f"tint {channel}"), positions, (2, 4, 8)) for channel in range(3)]
    tint = _COLOR_NOISE * torch.stack(tints, dim=1)
    gray = _BACKGROUND_NOISE * noise(_key(split, "grey"), positions, (2, 4, 8, 16, 32))
    paint = color(drawn["background"], drawn["background_chroma"], drawn["background_hue"])
    image = paint + gray[:, None] + tint

    body = _body(split, positions, label // 2, drawn, from_x, from_y)
    seen = _mask(label, drawn, from_x, from_y) * (1 - _gap(drawn, from_x, from_y))
    image = torch.lerp(image, body, seen[:, None])

    toward_light = turned(x, y, drawn["light"])[0] / (SIDE / 2)
    image = image * (1 + wide(drawn["light_strength"]) * toward_light)[:, None]
    return (255 * image.clamp(0, 1)).round().to(torch.uint8)


def _mask(label: Tensor, drawn: dict[str, Column], x: Plane, y: Plane) -> Plane:
    """How much of each pixel the object covers."""
    u, v = (axis / wide(drawn["radius"]) for axis in turned(x, y, drawn["rotation"]))
    outside = torch.empty_like(u)
    for number, shape in enumerate(SHAPES):
        rows = label == number
        outside[rows] = outline(shape, u[rows], v[rows])
    return (0.5 - outside * wide(drawn["radius"])).clamp(0, 1)  # an edge is one pixel wide


def _body(split: str, positions: Tensor, kind: Tensor, drawn: dict[str, Column], x: Plane, y: Plane) -> Tensor:
    """The colors of an object that fills the image."""
    a, b = (axis / wide(drawn["period"]) for axis in turned(x, y, drawn["direction"]))
    a, b = a + wide(drawn["phase_a"]), b + wide(drawn["phase_b"])
    grain = noise(_key(split, "grain"), positions, (16,))
    tone = torch.empty_like(a)
    for number, name in enumerate(TEXTURES):
        rows = kind == number
        tone[rows] = texture(name, a[rows], b[rows], grain[rows])
    half = drawn["contrast"] / 2 * torch.where(drawn["lighter"] < 0, -1, 1)
    first, second = (color(drawn["brightness"] + way * half, drawn["chroma"], drawn["hue"]) for way in (1, -1))
    return torch.lerp(first, second, tone[:, None])


def _gap(drawn: dict[str, Column], x: Plane, y: Plane) -> Plane:
    """How much of each pixel the band before the object covers."""
    radius = wide(drawn["radius"])
    distance = (turned(x, y, drawn["gap_angle"])[0] - wide(drawn["gap_offset"]) * radius).abs()
    covered = (wide(drawn["occlusion"]) * radius - distance + 0.5).clamp(0, 1)
    return torch.where(wide(drawn["occlusion"]) > 0, covered, 0)


def _draws(split: str, positions: Tensor) -> dict[str, Column]:
    columns = counter.uniform(_key(split, "factors"), positions, len(RANGES)).double().T
    pairs = zip(RANGES.items(), columns, strict=True)
    drawn = {name: low + (high - low) * column for (name, (low, high)), column in pairs}
    drawn["occlusion"] = torch.where(drawn["covered"] < _COVERED_SHARE, drawn["occlusion"], 0)
    return drawn


def _key(split: str, purpose: str) -> int:
    return counter.key(_SEED, f"shapes {split} {purpose}")


def _length(split: str) -> int:
    return {"train": FACTS["shapes"].train, "test": FACTS["shapes"].test}[split]


def _kept(path: Path, length: int) -> npt.NDArray[np.uint8] | None:
    """The images in a file, or None if it is absent, damaged or of another version."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:  # reading verifies checksums
            if int(file["version"]) != VERSION:
                return None
            images: npt.NDArray[np.uint8] = file["images"]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
        return None
    return images if images.shape == (length, 3, SIDE, SIDE) and images.dtype == np.uint8 else None
