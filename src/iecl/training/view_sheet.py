"""A sheet of views before any run: images as they are, after each operator alone, and as training would see them."""

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from iecl import counter
from iecl.data.batch import Batch
from iecl.data.factory import list_source
from iecl.data.skipped_files import Skipping
from iecl.data.stream_order import some_of
from iecl.errors import UserError
from iecl.files import write_atomically
from iecl.training.config import RunConfig
from iecl.training.factory import sketch_method
from iecl.views.operators import Policy
from iecl.views.params import draw
from iecl.views.pipeline import make_plain, make_views
from iecl.views.policies import POLICIES, ViewSpec
from iecl.views.transform import apply

TILE, GAP, MARGIN = 144, 4, 230
"""Pixels on a side of an image of the sheet, between two of them, and for the words at the left."""
MOST_IMAGES, EPOCHS = 12, 2
COLORS = ("brightness", "contrast", "saturation", "hue")
ROLES = ("anchor", "query")


@dataclass(frozen=True)
class Line:
    """One row of the sheet."""

    name: str
    note: str
    images: Float[Tensor, "n 3 size size"]
    """In [0, 1]."""


def write_sheet(config: RunConfig, count: int, out: Path) -> dict[str, Any]:
    """Draw and save; returns the path, how many images there are, the words of each row, which operators are off."""
    check_png(out)
    lines = draw_sheet(config, count)
    save_sheet(lines, out)
    rows = [{"name": line.name, "note": line.note} for line in lines]
    return {"path": str(out), "images": len(lines[0].images), "rows": rows, "off": _switched_off(config)}


def draw_sheet(config: RunConfig, count: int) -> list[Line]:
    """The rows of the sheet for some images of the data of a resolved configuration.

    Raises:
        UserError: no image can be read, or more than fit on a sheet are asked for.
    """
    batch, data = some_images(config, count), config.data
    spec = sketch_method(config).views
    policies, size = config.augmentation.policies(spec), data.image_size
    plain = make_plain(batch.images, batch.sizes, size, data.mean, data.std, 1.0)
    lines = [Line("original", f"{size} x {size} pixels", _shown(plain, data.mean, data.std))]
    pair = tuple(replace(policy, scale=spec.global_scale or policy.scale) for policy in policies[: len(ROLES)])
    for name, note, policy in operators_alone(pair):
        drawn = draw(policy, batch.sizes, batch.positions, seed=config.training.seed, epoch=0, view=0)
        lines.append(
            Line(name, note, _shown(apply(batch.images, drawn, size, data.mean, data.std), data.mean, data.std))
        )
    look: dict[str, Any] = {"size": size, "mean": data.mean, "std": data.std, "seed": config.training.seed}
    made = [make_views(batch, policies, spec, epoch=epoch, **look) for epoch in range(EPOCHS)]
    for number in range(len(policies)):
        role = ROLES[number] if number < len(ROLES) else "local crop" if number >= spec.global_crops else "global crop"
        for epoch, views in enumerate(made):
            view = (*views.global_crops, *views.local_crops)[number]
            lines.append(Line(f"view {number + 1}: {role}", f"epoch {epoch + 1}", _shown(view, data.mean, data.std)))
    return lines


def some_images(config: RunConfig, count: int, more: int = 0) -> Batch:
    """The first readable images of an order that the seed decides; `more` of them where a block asks for a batch."""
    if not 1 <= count <= MOST_IMAGES:
        raise UserError(f"a sheet shows 1 to {MOST_IMAGES} images, not {count}", where="--images")
    count = max(count, more)
    source = list_source(config.data, "pretrain", Skipping())
    order = some_of(source, counter.key(config.training.seed, "view sheet"), 2 * count)
    pixels = source.read(order)
    bad = {row for row, _ in pixels.bad}
    rows = [row for row in range(len(order)) if row not in bad][:count]
    if not rows:
        raise UserError(f"{pixels.bad[0][1]}: {source.path(int(order[0]))}", where="--data")
    return Batch(
        pixels.images[rows],
        pixels.sizes[rows],
        torch.full((len(rows),), -1),
        torch.from_numpy(order[rows]),
        torch.arange(len(rows)),
    )


def operators_alone(policies: tuple[Policy, ...]) -> Iterator[tuple[str, str, Policy]]:
    """Name, words and a policy that does nothing else, for each operator that may happen in any of the views.

    Where the views have other parameters, each has a row of its own.

    >>> [f"{name}: {note}" for name, note, _ in operators_alone(POLICIES["byol"])][-3:]
    ['grayscale: chance 0.2', 'gaussian_blur: sigma 0.1 to 2, chance 1 and 0.1', 'solarize: chance 0 and 0.2']
    """
    for name, parameters in _parameters().items():
        chances = [float(p.scale[0] < 1) if name == "crop" else getattr(p, f"{name}_prob") for p in policies]
        for own in [[color] for color in parameters] if name == "color_jitter" else [parameters]:
            values = [tuple(getattr(policy, key) for key in own) for policy in policies]
            seen = [number for number, pair in enumerate(values) if chances[number] and pair != (0.0,)]
            alike = len({values[number] for number in seen}) == 1
            for number in seen[:1] if alike else seen:
                changed: dict[str, Any] = dict(zip(own, values[number], strict=True))
                if name != "crop":
                    changed = dict.fromkeys(COLORS, 0.0) | changed | {f"{name}_prob": 1.0}
                title = own[0] if name == "color_jitter" else name
                said = _words(changed, own, [] if name == "crop" else chances if alike else [chances[number]])
                yield title if alike else f"{title}, {ROLES[number]}", said, replace(POLICIES["none"][0], **changed)


def _parameters() -> dict[str, list[str]]:
    """The parameters of each operator: those that follow its chance in `Policy`; the first are those of the crop."""
    found: dict[str, list[str]] = {"crop": []}
    for field in fields(Policy):
        if field.name.endswith("_prob"):
            found[field.name.removesuffix("_prob")] = []
        else:
            found[next(reversed(found))].append(field.name)
    return found


def _switched_off(config: RunConfig) -> list[str]:
    """Operators that happen in neither the first view nor the second."""
    pair = config.augmentation.policies(ViewSpec())
    names = [name for name in _parameters() if name != "crop"]
    return [name for name in names if not any(getattr(policy, f"{name}_prob") for policy in pair)]


def _words(values: Mapping[str, Any], names: list[str], chances: list[float]) -> str:
    said = []
    for name in names:
        value, short = values[name], name.rpartition("_")[2]
        if isinstance(value, tuple):
            said.append(f"{short} {value[0]:.3g} to {value[1]:.3g}")
        else:
            said.append(f"up to {value:g}" if name in COLORS else f"{short} {value:g}")
    if chances:
        said.append("chance " + " and ".join(f"{chance:g}" for chance in dict.fromkeys(chances)))
    return ", ".join(said)


def _shown(views: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    offset, scale = (torch.tensor(values)[:, None, None] for values in (mean, std))
    return (views * scale + offset).clamp(0, 1)


def save_sheet(lines: list[Line], out: Path) -> None:
    """The rows as one PNG, with words at the left of each."""
    columns = len(lines[0].images)
    sheet = Image.new("RGB", (MARGIN + columns * (TILE + GAP), len(lines) * (TILE + GAP) + GAP), "white")
    pen, large, small = ImageDraw.Draw(sheet), ImageFont.load_default(17), ImageFont.load_default(13)
    for row, line in enumerate(lines):
        top = GAP + row * (TILE + GAP)
        pen.text((12, top + TILE // 2 - 22), line.name, fill="black", font=large)
        for number, words in enumerate(line.note.split(", ")):
            pen.text((12, top + TILE // 2 + 2 + 17 * number), words, fill="#555555", font=small)
        for column, image in enumerate(line.images):
            sheet.paste(_tile(image), (MARGIN + column * (TILE + GAP), top))
    write_png(sheet, out)


def _tile(image: Float[Tensor, "3 size size"]) -> Image.Image:
    """Enlarged pixel by pixel, or made smaller; centered if its side is no divisor."""
    made = Image.fromarray((image * 255).round().byte().permute(1, 2, 0).contiguous().numpy())
    side = made.width * (TILE // made.width) or TILE
    made = made.resize((side, side), Image.Resampling.NEAREST if side >= made.width else Image.Resampling.BICUBIC)
    tile = Image.new("RGB", (TILE, TILE), "#eeeeee")
    tile.paste(made, ((TILE - side) // 2, (TILE - side) // 2))
    return tile


def check_png(out: Path) -> None:
    """Refuse a name that is not one of a PNG, before any work is done."""
    if out.suffix.lower() != ".png":
        raise UserError(f"{out} is no .png", where="--out", do="name a file that ends in .png")


def write_png(image: Image.Image, out: Path) -> None:
    """Write an image whole or not at all."""
    check_png(out)
    held = io.BytesIO()
    image.save(held, "PNG")
    try:
        write_atomically(out, held.getvalue())
    except OSError as problem:
        raise UserError(f"cannot write {out}: {problem.strerror}", where="--out") from problem
