"""Photographs and changed copies of them, for `benchmarks.doctor`: who finds the copies, and what else?"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFont

Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def _crop(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    """80 to 95 % of either side, anywhere."""
    wide, high = (int(length * draw.uniform(0.8, 0.95)) for length in image.size)
    left, top = int(draw.integers(0, image.width - wide + 1)), int(draw.integers(0, image.height - high + 1))
    return image.crop((left, top, left + wide, top + high))


def _resize(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    share = draw.uniform(0.3, 0.7)
    return image.resize((round(image.width * share), round(image.height * share)))


def _same(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    return image


def _brightness(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    light = ImageEnhance.Brightness(image).enhance(float(draw.choice([0.6, 0.75, 1.25, 1.4])))
    return ImageEnhance.Contrast(light).enhance(float(draw.choice([0.8, 1.2])))


def _flip(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _text(image: Image.Image, draw: np.random.Generator) -> Image.Image:
    marked = image.copy()
    pen, size = ImageDraw.Draw(marked), max(8, image.height // int(draw.integers(6, 12)))
    place = (int(image.width * draw.uniform(0.02, 0.3)), int(image.height * draw.uniform(0.05, 0.8)))
    pen.text(place, "SAMPLE TEXT 2026", (255, 255, 255), ImageFont.load_default(size), stroke_width=2, stroke_fill=0)
    return marked


CHANGES: dict[str, tuple[Change, int]] = {
    "crop": (_crop, 90),
    "resize": (_resize, 90),
    "re-encode": (_same, 30),
    "brightness": (_brightness, 90),
    "flip": (_flip, 90),
    "text": (_text, 90),
}
"""What is done to a copy, and the JPEG quality that it is written with."""


def make_pairs(photos: list[Path], others: list[Path], out: Path, seed: int = 0) -> dict[tuple[str, str], str]:
    """Write originals, a copy of each for every change, and other photographs; returns the change of each true pair.

    Two copies of one photograph are a pair too, of kind `both`: finding it is right, and is not counted.
    """
    draw, pairs = np.random.default_rng(seed), dict[tuple[str, str], str]()
    out.mkdir(parents=True)
    for number, path in enumerate(photos):
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        names = {"original": f"{number:04d}.jpg"} | {kind: f"{number:04d}-{kind}.jpg" for kind in CHANGES}
        (out / names["original"]).write_bytes(path.read_bytes())
        for kind, (change, quality) in CHANGES.items():
            change(image, draw).save(out / names[kind], quality=quality)
            pairs[names["original"], names[kind]] = kind
        kinds = list(CHANGES)
        pairs |= {(names[a], names[b]): "both" for i, a in enumerate(kinds) for b in kinds[i + 1 :]}
    for number, path in enumerate(others):
        (out / f"other-{number:05d}{path.suffix}").write_bytes(path.read_bytes())
    return {tuple(sorted(pair)): kind for pair, kind in pairs.items()}
