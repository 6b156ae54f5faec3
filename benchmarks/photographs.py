"""What does a run on photographs give? Numbers, and the pictures of README and tutorials.

    python -m benchmarks.photographs PHOTOS WORK

PHOTOS holds the images of scikit-image 0.26 (`skimage/data`), of which nine photographs in the public domain or under
CC0 are cut into 64 tiles each that do not overlap. WORK keeps tiles and run; a run that is there is used again.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import iecl
from benchmarks.result import write

NAMES = ("astronaut", "brick", "chelsea", "coffee", "grass", "gravel", "hubble_deep_field", "retina", "rocket")
TILE, SIDE = 64, 512
"""Pixels of a tile, and of the middle square of a photograph that tiles are cut from."""
SETTINGS: dict[str, Any] = {"backbone": "resnet10-w16", "image_size": 32, "epochs": 40, "batch_size": 32}
SHOTS = (1, 5, 10)
IMAGES = Path(__file__).parent.parent / "docs" / "images"
SAME, OTHER = (30, 140, 90), (205, 70, 50)


def cut(photos: Path, out: Path) -> None:
    """The middle square of each photograph as 64 tiles, in a folder of its own."""
    for name in NAMES:
        (path,) = photos.glob(f"{name}.*")
        with Image.open(path) as photo:
            side = min(photo.size)
            left, top = ((length - side) // 2 for length in photo.size)
            square = photo.convert("RGB").resize((SIDE, SIDE), box=(left, top, left + side, top + side))
        (out / name).mkdir(parents=True)
        for y in range(0, SIDE, TILE):
            for x in range(0, SIDE, TILE):
                square.crop((x, y, x + TILE, y + TILE)).save(out / name / f"{y // TILE}{x // TILE}.png")


def unit(rows: np.ndarray) -> np.ndarray:
    centered = rows - rows.mean(axis=0)
    return centered / np.linalg.norm(centered, axis=1, keepdims=True)


def nearest(rows: np.ndarray, count: int) -> np.ndarray:
    """For each row the others of greatest cosine, best first."""
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1)[:, :count]


def pixels_of(paths: np.ndarray) -> np.ndarray:
    """Tiles of 32 pixels as rows."""
    images = [np.asarray(Image.open(path).resize((32, 32)), dtype=np.float32) for path in paths]
    return np.stack(images).reshape(len(paths), -1)


def framed(path: Path | str, color: tuple[int, int, int], side: int = 64) -> Image.Image:
    sheet = Image.new("RGB", (side, side), color)
    sheet.paste(Image.open(path).convert("RGB").resize((side - 6, side - 6)), (3, 3))
    return sheet


def draw_neighbors(paths: np.ndarray, sides: dict[str, np.ndarray]) -> None:
    """The tile in the middle of every photograph, and its nearest others by both ways of looking."""
    count, step, head, gap = 5, 68, 34, 40
    asked = [next(n for n, path in enumerate(paths) if path.endswith(f"{name}/33.png")) for name in NAMES]
    width = step + gap // 2 + len(sides) * count * step + (len(sides) - 1) * gap
    sheet = Image.new("RGB", (width + 8, head + len(asked) * step), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=17)
    pen.text((4, 6), "query", "black", font)
    for place, (title, found) in enumerate(sides.items()):
        start = step + gap // 2 + place * (count * step + gap)
        pen.text((start, 6), title, "black", font)
        for row, number in enumerate(asked):
            y = head + row * step
            sheet.paste(framed(paths[number], (120, 120, 120)), (4, y))
            for column, other in enumerate(found[number]):
                is_same = Path(paths[other]).parent == Path(paths[number]).parent
                sheet.paste(framed(paths[other], SAME if is_same else OTHER), (start + column * step, y))
    save(sheet, "neighbors")


def draw_duplicates(work: Path, tiles: Path, run: Any) -> None:
    """A tile of every photograph, a changed copy of it, and the copy's place among all others by similarity."""
    copied = work / "copies"
    for name in NAMES if not copied.exists() else ():
        (copied / name).mkdir(parents=True)
        for path in (tiles / name).iterdir():
            image = Image.open(path)
            image.save(copied / name / path.name)
            if path.stem == "33":
                changed = image.crop((2, 2, 62, 62)).resize((40, 40)).resize((64, 64))
                changed.save(copied / name / "33-copy.jpg", quality=50)
    run.embed(str(copied), work / "copies.npz", overwrite=True)
    table = np.load(work / "copies.npz")
    order = nearest(unit(table["features"]), len(table["paths"]) - 1)
    sheet = Image.new("RGB", (5 * 150, 2 * 100), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=15)
    for place, name in enumerate(NAMES):
        x, y = place % 5 * 150 + 6, place // 5 * 100 + 4
        ends = f"{name}/33.png", f"{name}/33-copy.jpg"
        one, copy = (next(n for n, path in enumerate(table["paths"]) if path.endswith(end)) for end in ends)
        rank = int(np.flatnonzero(order[one] == copy)[0]) + 1
        for offset, number in ((0, one), (68, copy)):
            sheet.paste(framed(table["paths"][number], SAME if rank == 1 else OTHER), (x + offset, y))
        pen.text((x + 38, y + 68), f"place {rank}", "black", font)
    save(sheet, "duplicates")


def draw_few_labels(trained: dict[str, Any], untrained: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    for found, name, color in ((trained, "trained without labels", "#0b6e6e"), (untrained, "untrained", "#999999")):
        values = [100 * found[f"top1_{shots}shot"] for shots in SHOTS]
        errors = [100 * found["deviation"][f"top1_{shots}shot"] for shots in SHOTS]
        axes.errorbar(range(len(SHOTS)), values, errors, marker="o", capsize=4, color=color, label=name)
    axes.set_xticks(range(len(SHOTS)), [str(shots) for shots in SHOTS])
    axes.set(xlabel="labeled tiles of each photograph", ylabel="right answers, %", ylim=(0, 100))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(IMAGES / "few-labels.png", dpi=110)


def draw_block(tiles: Path) -> None:
    """Six tiles, and what a block makes of them before and after training against SimCLR's loss."""
    from iecl.backbones.factory import make_backbone
    from iecl.losses.nt_xent import nt_xent

    torch.manual_seed(0)
    images = torch.stack([image_of(path) for path in sorted(tiles.rglob("*.png"))])
    images = images[torch.randperm(len(images))]
    backbone = make_backbone("resnet10-w16", 0)
    optimizer = torch.optim.AdamW(backbone.parameters(), lr=1e-3)
    block = iecl.attach_block(optimizer, image_size=TILE)
    shown = torch.stack([image_of(tiles / name / "33.png") for name in NAMES[:7]])
    rows = [shown, block(shown).detach()]
    for batch in images[:512].split(64):
        optimizer.zero_grad()
        nt_xent(backbone(batch), backbone(block(batch.flip(-1))), 0.2).backward()
        optimizer.step()
    rows.append(block(shown).detach())
    sheet = Image.new("RGB", (120 + 7 * 72, 3 * 72), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=15)
    for y, (row, title) in enumerate(zip(rows, ("view", "new block", "after 8 steps"), strict=True)):
        pen.text((6, y * 72 + 26), title, "black", font)
        for x, image in enumerate(row):
            values = ((image.clamp(-1, 1) + 1) * 127.5).byte().permute(1, 2, 0).numpy()
            sheet.paste(Image.fromarray(values), (120 + x * 72, y * 72 + 4))
    save(sheet, "block")


def image_of(path: Path) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1).float() / 127.5 - 1


def save(sheet: Image.Image, name: str) -> None:
    """With 160 colors, which is hardly visible and a third of the bytes."""
    sheet.quantize(160).save(IMAGES / f"{name}.png", optimize=True)


def main(photos: Path, work: Path) -> None:
    tiles = work / "tiles"
    if not tiles.exists():
        cut(photos, tiles)
    run = iecl.load(work / "run") if (work / "run").exists() else iecl.pretrain(tiles, work / "run", **SETTINGS)
    untrained: dict[str, Any] = {"backbone": SETTINGS["backbone"], "image_size": SETTINGS["image_size"]}
    run.embed(str(tiles), work / "trained.npz", overwrite=True)
    iecl.embed("random", tiles, work / "untrained.npz", overwrite=True, **untrained)
    paths = np.load(work / "trained.npz")["paths"]
    ways = {name: np.load(work / f"{name}.npz")["features"] for name in ("trained", "untrained")}
    ways["pixels"] = pixels_of(paths)
    found = {name: nearest(unit(rows), 5) for name, rows in ways.items()}
    photo = np.array([Path(path).parent.name for path in paths])
    few = [run.evaluate("fewshot"), iecl.evaluate("fewshot", "random", str(tiles), **untrained)]
    rows: list[dict[str, Any]] = [
        {"arm": name, "seed": 0, "same_photograph": float((photo[five] == photo[:, None]).mean())}
        for name, five in found.items()
    ]
    for row, result in zip(rows[:2], few, strict=True):
        row |= {f"few_{shots}": result[f"top1_{shots}shot"] for shots in SHOTS}
    draw_neighbors(paths, {"what the backbone finds": found["trained"], "by raw pixels": found["pixels"]})
    draw_few_labels(*few)
    draw_duplicates(work, tiles, run)
    draw_block(tiles)
    setting = f"{len(paths)} tiles of {len(NAMES)} photographs, ie-cl/default, resnet10-w16 at 32 px"
    setting += f", {SETTINGS['epochs']} epochs, batch {SETTINGS['batch_size']}, one run"
    seconds = run.summary.get("seconds")
    write("photographs", "what does a run on photographs give?", {"setting": setting, "rows": rows, "seconds": seconds})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
