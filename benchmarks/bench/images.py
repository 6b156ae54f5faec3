"""Images to measure on: made on the spot, or taken from a folder."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from iecl.data import shapes
from iecl.errors import UserError

QUALITY = 90
MEDIUM, LARGE = (500, 375), (4000, 3000)
ENDINGS = (".jpg", ".jpeg", ".png")
OCTAVES = (4, 8, 16, 32, 64, 128, 256)
"""Waves across the longer side; each is weaker than the one before, as in photographs."""
KINDS = 16
"""Photographs that are made; files beyond that are copies."""
MOST_LOOKED_AT = 2000
"""Files of a folder that are opened in search of photographs."""


def textured(count: int, width: int, height: int) -> Tensor:
    """Smooth images with texture at every scale and a little grain, which compress about as photographs do."""
    drawn = torch.Generator().manual_seed(0)
    image = torch.zeros(count, 3, height, width)
    fall = torch.linspace(0.1, 0.7, count)[:, None, None, None]  # some are rough, some are smooth
    for waves in (n for n in OCTAVES if n <= width):
        coarse = torch.rand(count, 3, max(2, waves * height // width), waves, generator=drawn) - 0.5
        coarse = 0.7 * coarse.mean(dim=1, keepdim=True) + 0.3 * coarse  # colors change less than brightness
        grown = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic", align_corners=False)
        image += grown * (OCTAVES[0] / waves) ** fall
    noisy = 0.5 + image + 0.01 * torch.randn(image.shape, generator=drawn)
    return (noisy.clamp(0, 1) * 255).to(torch.uint8)


def pillow(images: Tensor) -> list[Image.Image]:
    """The same images as PIL has them."""
    return [Image.fromarray(x) for x in images.permute(0, 2, 3, 1).contiguous().numpy()]


@dataclass(frozen=True)
class Photographs:
    """What larger images are made from."""

    images: list[Image.Image]
    fitting: list[Path] = field(default_factory=list)
    """JPEGs that are 500 × 375 already: they are taken as they are."""


def made_photographs() -> Photographs:
    """Images that nobody took."""
    return Photographs(pillow(textured(KINDS, *MEDIUM)))


def photographs_of(data: Path) -> Photographs:
    """Some photographs of a folder."""
    found = Photographs([])
    for path in islice(images_in(data), MOST_LOOKED_AT):
        with Image.open(path) as opened:
            if sorted(opened.size) == sorted(MEDIUM) and path.suffix.lower() != ".png":
                found.fitting.append(path)
            if min(opened.size) >= min(MEDIUM) // 2 and len(found.images) < 4 * KINDS:
                found.images.append(opened.convert("RGB"))
    if not found.images:
        raise UserError(f"no image in {data} is as large as a photograph", where="--data", do="name another folder")
    return found


def images_in(folder: Path) -> Iterator[Path]:
    """Files that are called as images are, in order; of a folder with a training part those."""
    root = folder / "train" if (folder / "train").is_dir() else folder
    yield from sorted(path for path in root.rglob("*") if path.suffix.lower() in ENDINGS)


def place(folder: Path, number: int, ending: str) -> Path:
    """Where an image goes: ten classes, a training part only."""
    own = folder / f"class{number % 10}"
    own.mkdir(parents=True, exist_ok=True)
    return own / f"{number:06d}{ending}"


def make_medium(taken: Photographs, folder: Path, count: int) -> str:
    """JPEGs of 500 × 375, as the web gives them: copied until there are enough."""
    for number in range(count):
        path = place(folder, number, ".jpg")
        if taken.fitting:
            path.write_bytes(taken.fitting[number % len(taken.fitting)].read_bytes())
        else:
            ImageOps.fit(taken.images[number % len(taken.images)], MEDIUM).save(path, quality=QUALITY)
    different = min(count, len(taken.fitting or taken.images))
    return f"{count} JPEGs of 500 × 375, {different} different ones"


def make_large(taken: Photographs, folder: Path, count: int) -> str:
    """JPEGs of 4000 × 3000: photographs enlarged, with a little noise, as a sensor has it."""
    noise = np.random.default_rng(0)
    for number in range(count):
        image = ImageOps.fit(taken.images[number % len(taken.images)], LARGE)
        grain = noise.normal(0, 3, (LARGE[1], LARGE[0], 1))
        pixels = (np.asarray(image) + grain).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place(folder, number, ".jpg"), quality=QUALITY)
    return f"{count} JPEGs of 12 megapixels"


def make_small(taken: Photographs, folder: Path, count: int) -> str:
    """PNGs of 32 px: squares of the photographs."""
    noise = np.random.default_rng(0)
    opened = [image.resize((256, 256)) for image in taken.images]
    for number in range(count):
        left, top = noise.integers(0, 128, 2).tolist()
        square = opened[number % len(opened)].crop((left, top, left + 128, top + 128))
        square.resize((32, 32)).save(place(folder, number, ".png"))
    return f"{count} PNGs of 32 px"


def make_shapes(folder: Path, count: int) -> str:
    """The first images of our generated dataset as PNG files, in folders by class."""
    labels = shapes.labels("train")[:count]
    for number, (image, label) in enumerate(zip(pillow(shapes.load("train")[:count]), labels, strict=True)):
        own = folder / shapes.CLASSES[int(label)].replace(" ", "-")
        own.mkdir(parents=True, exist_ok=True)
        image.save(own / f"{number:06d}.png")
    return f"{count:,} generated images of 32 px"


def link_part(data: Path, folder: Path, count: int) -> str:
    """Links to so many images of a folder, equally many of each class; one class where it has no class folders."""
    by_class: dict[str, list[Path]] = {}
    for path in images_in(data):
        by_class.setdefault(path.parent.name, []).append(path)
    share = -(-count // max(1, len(by_class)))
    chosen = [path for own in by_class.values() for path in own[:share]][:count]
    if len(chosen) < count:
        raise UserError(f"{data} has {len(chosen)} images, {count} are needed", where="--data")
    for number, path in enumerate(chosen):
        own_folder = folder / path.parent.name
        own_folder.mkdir(parents=True, exist_ok=True)
        (own_folder / f"{number:06d}{path.suffix.lower()}").symlink_to(path.resolve())
    return f"{count:,} images of {data.name}"
