"""Images with boxes or masks in the layout of PASCAL VOC, every file of it checked before it is used.

A set is small compared with the training that uses it, and a fault that shows after hours is expensive. So opening a
set reads all of its lists, annotations, masks and images once. What cannot be right is an error that names the file;
boxes that reach over the edge are clipped, boxes without area are left out, and both are counted.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iecl.data.decoder import ImageArray, Unreadable, decode_numbers, decode_whole
from iecl.errors import UserError, did_you_mean
from iecl.files import read_text

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
"""In VOC's order, which is that of its masks: 1 is an aeroplane, 0 is background."""
IGNORED = 255
"""The number of pixels of a mask that are of no class: outlines and doubtful parts."""
MAX_PIXELS = 2**26
_LARGEST_ANNOTATION = 2**22
_IMAGE_ENDINGS = (".jpg", ".jpeg", ".png")
_YEAR = re.compile(r"VOC(\d{4})$")
_GIVE = "give a VOCdevkit folder, or a VOC2012 or VOC2007 folder inside it"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Boxes:
    """The objects of one image."""

    corners: npt.NDArray[np.float32]
    """(n, 4): left, top, right, bottom in pixels from the image's left upper corner; the first pixel is 0 to 1."""
    labels: npt.NDArray[np.int64]
    """(n,): 1 for the first class."""
    difficult: npt.NDArray[np.bool_]
    """(n,): objects that a metric of VOC neither asks for nor counts against a detector."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Example:
    """One image and what is known of it."""

    name: str
    """As in the list, behind its year: `2012/2007_000033`."""
    image: Path
    size: tuple[int, int]
    """Height and width."""
    boxes: Boxes | None = None
    mask: Path | None = None

    def pixels(self) -> ImageArray:
        """The pixels, (3, height, width)."""
        return _read(self.image, "image")

    def numbers(self) -> ImageArray:
        """The class of each pixel, (height, width)."""
        assert self.mask is not None
        return _read(self.mask, "mask")


@dataclass(frozen=True)
class VocSet:
    """The images of one or several lists."""

    name: str
    """The lists, as in `2012/train`."""
    classes: tuple[str, ...]
    examples: tuple[Example, ...]
    counts: dict[str, int] = field(default_factory=dict)
    """What was met on the way: `objects`, `difficult`, `clipped`, `dropped`, `empty`; or `pixels`, `ignored`."""
    fingerprint: str = ""
    """Eight hexadecimal digits that change with any image, box or mask, and with their order."""

    def __len__(self) -> int:
        return len(self.examples)


# --- opening


def open_boxes(folder: Path | str, lists: str, progress: Progress | None = None) -> VocSet:
    """Images with boxes, from `ImageSets/Main` and `Annotations`.

    Args:
        folder: `VOCdevkit`, a year inside it, or a folder that holds `VOCdevkit`.
        lists: the name of a list, as `train`; where there are several years `2012/train`; several joined with `+`.
        progress: is told how many images are read, of how many.

    Raises:
        UserError: something is missing, damaged or contradicts itself.
    """
    counts = dict.fromkeys(("objects", "difficult", "clipped", "dropped", "empty"), 0)
    return _open(folder, lists, "Main", _with_boxes, counts, progress)


def open_masks(folder: Path | str, lists: str, progress: Progress | None = None) -> VocSet:
    """Images with masks, from `ImageSets/Segmentation` and `SegmentationClass`; arguments as for `open_boxes`."""
    return _open(folder, lists, "Segmentation", _with_mask, dict.fromkeys(("pixels", "ignored"), 0), progress)


def check_lists(folder: Path | str, lists: str, *, masks: bool) -> None:
    """See that the lists are there and name something, without reading an image.

    Raises:
        UserError: there is no such folder or list, or it is empty.
    """
    years = _years(Path(folder).expanduser())
    for part in lists.split("+"):
        _names(_chosen(part.strip(), years, "Segmentation" if masks else "Main")[1])


@dataclass
class _Reading:
    """What is collected while a set is opened."""

    classes: tuple[str, ...]
    counts: dict[str, int]
    hashed: "blake2b"


_Reader = Callable[[Path, str, Path, tuple[int, int], _Reading], Example]


def _open(
    folder: Path | str, lists: str, kind: str, reader: _Reader, counts: dict[str, int], progress: Progress | None
) -> VocSet:
    years = _years(Path(folder).expanduser())
    chosen = [_chosen(part.strip(), years, kind) for part in lists.split("+")]
    if len(classes := {_classes(root) for root, _ in chosen}) > 1:
        raise UserError("the years have different classes", where=str(folder), do="give them the same classes.txt")
    reading = _Reading(classes.pop(), counts, blake2b(digest_size=4))
    rows = [(root, name) for root, path in chosen for name in _names(path)]
    if len(set(rows)) < len(rows):
        raise UserError(f"{lists} names an image twice", where="--data", do="join lists that have none in common")
    examples = []
    for number, (root, name) in enumerate(rows, start=1):
        image = _image_of(root, name)
        pixels = _read(image, "image")
        reading.hashed.update(f"{root.name}/{name}".encode() + pixels.tobytes())
        examples.append(reader(root, name, image, (pixels.shape[1], pixels.shape[2]), reading))
        if progress is not None:
            progress(number, len(rows))
    shown = "+".join(f"{_year_of(root)}{path.stem}" for root, path in chosen)
    return VocSet(shown, reading.classes, tuple(examples), reading.counts, reading.hashed.hexdigest())


def _years(folder: Path) -> dict[str, Path]:
    """The folders that hold ImageSets, by year; one without a year in its name goes by its name."""
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise UserError(what, where="--data", do=_GIVE)
    for place in (folder, folder / "VOCdevkit"):
        if (place / "ImageSets").is_dir():
            return {_year_of(place).rstrip("/") or place.name: place}
        inside = sorted(child for child in place.glob("*") if (child / "ImageSets").is_dir())
        if inside:
            return {_year_of(child).rstrip("/") or child.name: child for child in inside}
    raise UserError(f"{folder} holds no VOC data: there is no ImageSets folder", where="--data", do=_GIVE)


def _year_of(root: Path) -> str:
    """`2012/` for VOC2012, nothing for a folder of another name."""
    found = _YEAR.search(root.name)
    return f"{found[1]}/" if found else ""


def _chosen(part: str, years: dict[str, Path], kind: str) -> tuple[Path, Path]:
    """The folder of a year and the file of a list in it."""
    year, slash, name = part.rpartition("/")
    if not slash and len(years) > 1:
        do = f"say which: {', '.join(f'{known}/{name}' for known in sorted(years))}"
        raise UserError(f"there are several years with lists {name!r}", where="--data", do=do)
    if slash and year not in years:
        raise UserError(f"there is no year {year!r}", where="--data", do=did_you_mean(year, years))
    root = years[year] if slash else next(iter(years.values()))
    folder = root / "ImageSets" / kind
    path = folder / f"{name}.txt"
    if not path.is_file():
        there = sorted(found.stem for found in folder.glob("*.txt") if found.stem.rpartition("_")[0] not in CLASSES)
        do = did_you_mean(name, there) if there else "it needs ImageSets/Main for boxes, Segmentation for masks"
        raise UserError(f"there is no list {path}", where="--data", do=do)
    return root, path


def _classes(root: Path) -> tuple[str, ...]:
    """The 20 of VOC, or those that `classes.txt` names, one in a line."""
    path = root / "classes.txt"
    if not path.is_file():
        return CLASSES
    names = tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
    if not names or len(set(names)) < len(names) or len(names) >= IGNORED:
        raise UserError(f"{path} should name 1 to 254 classes, each once", where=str(path))
    return names


def _names(path: Path) -> list[str]:
    """The names of a list."""
    names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    if not names:
        raise UserError(f"the list {path} is empty", where=str(path))
    for name in names:
        if len(name.split()) > 1:
            do = "give the plain list, as train, not that of one class"
            raise UserError(f"{path} has more than a name in a line: {name!r}", where=str(path), do=do)
        if "/" in name or "\\" in name or name.startswith("."):
            raise UserError(f"{path} names {name!r}, which is not the plain name of an image", where=str(path))
    return names


def _image_of(root: Path, name: str) -> Path:
    places = [root / "JPEGImages" / f"{name}{ending}" for ending in _IMAGE_ENDINGS]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise UserError(f"there is no image {places[0]}", where=str(root), do="take it out of the list, or add it")
    return found


def _read(path: Path, what: str) -> ImageArray:
    try:
        return decode_numbers(path, MAX_PIXELS) if what == "mask" else decode_whole(path, MAX_PIXELS)
    except Unreadable as problem:
        do = "fix it or take it out of the list"
        raise UserError(f"the {what} {path} cannot be read: {problem}", where=str(path), do=do) from problem


# --- boxes


def _with_boxes(root: Path, name: str, image: Path, size: tuple[int, int], reading: _Reading) -> Example:
    path = root / "Annotations" / f"{name}.xml"
    if not path.is_file():
        do = "take the image out of the list; one without objects has an annotation without objects"
        raise UserError(f"there is no annotation {path}", where=str(root), do=do)
    tree = _parsed(path)
    _check_size(path, tree, image, size)
    found = [_box(path, item, size, reading) for item in tree.findall("object")]
    rows = [row for row in found if row is not None]
    boxes = Boxes(
        np.array([row[0] for row in rows], np.float32).reshape(-1, 4),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.bool_),
    )
    reading.counts["objects"] += len(boxes)
    reading.counts["difficult"] += int(boxes.difficult.sum())
    reading.counts["empty"] += int(not len(boxes))
    for values in (boxes.corners, boxes.labels, boxes.difficult):
        reading.hashed.update(values.tobytes())
    return Example(f"{_year_of(root)}{name}", image, size, boxes=boxes)


def _parsed(path: Path) -> ET.Element:
    """The annotation. A document type could define entities that grow without end, so there is none."""
    text = read_text(path, _LARGEST_ANNOTATION)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        do = "remove it: VOC has none"
        raise UserError(f"{path} defines a document type, which is not read", where=str(path), do=do)
    try:
        return ET.fromstring(text)
    except ET.ParseError as problem:
        raise UserError(f"{path} is not valid XML: {problem}", where=str(path)) from problem


def _check_size(path: Path, tree: ET.Element, image: Path, size: tuple[int, int]) -> None:
    """An annotation of an image of another size, or of the image turned, would put every box in a wrong place."""
    said = tuple(int(_number(path, tree, f"size/{key}", 0.0)) for key in ("height", "width"))
    if all(said) and said != size:
        raise UserError(
            f"{path} is for an image of {said[1]}×{said[0]}, {image.name} is {size[1]}×{size[0]}",
            where=str(path),
            do="scale boxes and image alike; EXIF orientation is not applied",
        )


def _box(
    path: Path, item: ET.Element, size: tuple[int, int], reading: _Reading
) -> tuple[list[float], int, bool] | None:
    """Corners, label and difficulty of an object; None for a box without area."""
    name = (item.findtext("name") or "").strip()
    if name not in reading.classes:
        do = f"{did_you_mean(name, reading.classes)} (other classes stand in classes.txt beside ImageSets)"
        raise UserError(f"{path} has an object of the unknown class {name!r}", where=str(path), do=do)
    left, top, right, bottom = (_number(path, item, f"bndbox/{key}") for key in ("xmin", "ymin", "xmax", "ymax"))
    height, width = size
    # 1-based and inclusive: pixel number p covers p - 1 to p.
    whole = np.array([left - 1, top - 1, right, bottom])
    clipped = whole.clip(0, [width, height, width, height])
    if clipped[2] <= clipped[0] or clipped[3] <= clipped[1]:
        reading.counts["dropped"] += 1
        return None
    reading.counts["clipped"] += int((clipped != whole).any())
    is_difficult = bool(_number(path, item, "difficult", 0.0))
    return clipped.tolist(), reading.classes.index(name) + 1, is_difficult


def _number(path: Path, item: ET.Element, key: str, default: float | None = None) -> float:
    text = item.findtext(key)
    if (text is None or not text.strip()) and default is not None:
        return default
    try:
        number = float(text or "")
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise UserError(f"{path} has {text!r} for {key}, which should be a number", where=str(path))
    return number


# --- masks


def _with_mask(root: Path, name: str, image: Path, size: tuple[int, int], reading: _Reading) -> Example:
    path = root / "SegmentationClass" / f"{name}.png"
    if not path.is_file():
        raise UserError(f"there is no mask {path}", where=str(root), do="take the image out of the list, or add it")
    numbers = _read(path, "mask")
    if numbers.shape != size:
        raise UserError(
            f"the mask {path} is {numbers.shape[1]}×{numbers.shape[0]}, {image.name} is {size[1]}×{size[0]}",
            where=str(path),
            do="scale the mask with nearest neighbors to the size of its image",
        )
    unknown = [int(number) for number in np.unique(numbers) if len(reading.classes) < number < IGNORED]
    if unknown:
        raise UserError(
            f"the mask {path} has the numbers {', '.join(map(str, unknown[:5]))} for {len(reading.classes)} classes",
            where=str(path),
            do=f"0 is background, 1 to {len(reading.classes)} are classes, {IGNORED} is ignored",
        )
    reading.counts["pixels"] += numbers.size
    reading.counts["ignored"] += int((numbers == IGNORED).sum())
    reading.hashed.update(numbers.tobytes())
    return Example(f"{_year_of(root)}{name}", image, size, mask=path)
