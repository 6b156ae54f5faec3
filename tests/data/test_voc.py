"""VOC folders: what is in them arrives as it is, and what is wrong with them is said."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from iecl.data.voc import CLASSES, VocSet, open_boxes, open_masks
from iecl.errors import UserError
from made_voc import MadeVoc, made_voc


@pytest.fixture
def voc(tmp_path: Path) -> MadeVoc:
    return made_voc(tmp_path)


def one(voc: MadeVoc) -> VocSet:
    """The set that holds p0 alone."""
    voc.lists("one", ["p0"])
    return open_boxes(voc.devkit, "one")


# --- where it lies


@pytest.mark.parametrize("place", [".", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_the_devkit_its_year_and_its_parent_are_the_same_set(voc: MadeVoc, place: str) -> None:
    opened = open_boxes(voc.devkit.parent / place, "train")
    assert [example.name for example in opened.examples] == ["2012/p0", "2012/p1", "2012/p2", "2012/p3"]
    assert (opened.name, opened.classes) == ("2012/train", CLASSES)


def test_two_years_are_told_apart_and_joined(tmp_path: Path) -> None:
    made_voc(tmp_path)
    older = MadeVoc(tmp_path, "VOC2007")
    older.add("p0", [("bird", (1, 1, 9, 9))])
    older.lists("trainval", ["p0"])
    both = open_boxes(tmp_path, "2007/trainval+2012/train")
    assert both.name == "2007/trainval+2012/train"
    assert [example.name for example in both.examples] == ["2007/p0", "2012/p0", "2012/p1", "2012/p2", "2012/p3"]
    with pytest.raises(UserError, match=r"several years .*2007/train, 2012/train"):
        open_boxes(tmp_path, "train")
    with pytest.raises(UserError, match=r"no year '2011' .*did you mean 2012\?|no year '2011' .*2007"):
        open_boxes(tmp_path, "2011/train")


@pytest.mark.parametrize(
    ("place", "words"), [("none", "there is no folder .*none"), ("file", "is a file"), ("empty", "no ImageSets folder")]
)
def test_a_folder_without_voc_data_is_refused(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=rf"{words}.* \(--data\); give a VOCdevkit folder"):
        open_boxes(tmp_path / place, "train")


def test_a_list_that_is_missing_comes_with_those_that_are_there(voc: MadeVoc) -> None:
    (voc.root / "ImageSets/Main/bird_train.txt").write_text("p0 -1\n")
    with pytest.raises(UserError, match=r"there is no list .*trian.txt \(--data\); did you mean train\?"):
        open_boxes(voc.devkit, "trian")
    with pytest.raises(UserError, match=r"one of: train, val$"):
        open_boxes(voc.devkit, "zzz")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "the list .*odd.txt is empty"),
        ("p0 -1\n", "more than a name in a line: 'p0 -1' .*the plain list"),
        ("../p0\n", r"names '../p0', which is not the plain name"),
        ("p0\np1\np0\n", "odd names an image twice"),
        ("p0\nq7\n", "there is no image .*q7.jpg .*take it out of the list"),
    ],
)
def test_an_odd_list_is_refused(voc: MadeVoc, content: str, words: str) -> None:
    (voc.root / "ImageSets/Main/odd.txt").write_text(content)
    with pytest.raises(UserError, match=words):
        open_boxes(voc.devkit, "odd")


# --- boxes


def test_boxes_cover_their_first_and_last_pixel(tmp_path: Path) -> None:
    voc = MadeVoc(tmp_path)
    voc.add("p0", [("bird", (1, 1, 1, 1)), ("person", (3, 5, 10, 20))], difficult=[1])
    (example,) = one(voc).examples
    assert example.boxes is not None
    assert example.boxes.corners.tolist() == [[0, 0, 1, 1], [2, 4, 10, 20]]
    assert example.boxes.labels.tolist() == [3, 15]
    assert example.boxes.difficult.tolist() == [False, True]
    assert example.size == (48, 64)
    # The rectangle was painted where the box says.
    assert (example.pixels()[:, 4:20, 2:10] == 250).all()
    assert not (example.pixels()[:, 4:20, 2:11] == 250).all()


def test_boxes_over_the_edge_are_clipped_and_boxes_without_area_are_left_out(tmp_path: Path) -> None:
    voc = MadeVoc(tmp_path)
    kinds = [(-3, 5, 70, 20), (30, 5, 20, 20), (5, 30, 20, 20), (66, 5, 80, 20), (2, 2, 64, 48)]
    voc.add("p0", [("bird", box) for box in kinds])
    opened = one(voc)
    boxes = opened.examples[0].boxes
    assert boxes is not None
    assert boxes.corners.tolist() == [[0, 4, 64, 20], [1, 1, 64, 48]]
    assert opened.counts == {"objects": 2, "difficult": 0, "clipped": 1, "dropped": 3, "empty": 0}


def test_an_image_without_objects_is_kept(tmp_path: Path) -> None:
    voc = MadeVoc(tmp_path)
    voc.add("p0", [])
    opened = one(voc)
    boxes = opened.examples[0].boxes
    assert boxes is not None
    assert (len(boxes), boxes.corners.shape, opened.counts["empty"]) == (0, (0, 4), 1)


def test_coordinates_with_a_fraction_and_boxes_of_body_parts_are_read_as_voc_means_them(tmp_path: Path) -> None:
    voc = MadeVoc(tmp_path)
    voc.add("p0", [("person", (3.5, 5, 10, 20))])
    part = "<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
    text = voc.annotation("p0").read_text().replace("</difficult>", f"</difficult>{part}")
    voc.annotation("p0").write_text(text)
    boxes = one(voc).examples[0].boxes
    assert boxes is not None
    assert boxes.corners.tolist() == [[2.5, 4, 10, 20]]


def replaced(old: str, new: str) -> Callable[[Path], None]:
    """Changes a file's text."""

    def change(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (Path.unlink, r"there is no annotation .*p0.xml .*has an annotation without objects"),
        (replaced("aeroplane", "airplane"), r"p0.xml has an object of the unknown class 'airplane' .*mean aeroplane\?"),
        (replaced("<name>aeroplane</name>", ""), "unknown class ''"),
        (replaced("<xmin>3</xmin>", "<xmin>left</xmin>"), "p0.xml has 'left' for bndbox/xmin"),
        (replaced("<xmin>3</xmin>", "<xmin>nan</xmin>"), "p0.xml has 'nan' for bndbox/xmin"),
        (replaced("<xmin>3</xmin>", ""), "p0.xml has None for bndbox/xmin"),
        (replaced("<width>64", "<width>48"), r"p0.xml is for an image of 48×48, p0.png is 64×48 .*EXIF"),
        (replaced("</annotation>", ""), "p0.xml is not valid XML"),
        (lambda path: path.write_bytes(b"\xff\xfe<"), "p0.xml is damaged: it is not text in UTF-8"),
        (lambda path: path.write_text(" " * 2**22 + "<a/>"), "p0.xml is too large: more than 4,194,304 bytes"),
        (
            replaced("<annotation>", '<!DOCTYPE a [<!ENTITY x "aeroplane">]><annotation>'),
            "p0.xml defines a document type, which is not read .*remove it",
        ),
    ],
)
def test_a_wrong_annotation_is_refused_with_its_name(voc: MadeVoc, spoil: Callable[[Path], None], words: str) -> None:
    spoil(voc.annotation("p0"))
    with pytest.raises(UserError, match=words):
        open_boxes(voc.devkit, "train")


def test_an_annotation_without_a_size_is_enough(voc: MadeVoc) -> None:
    replaced("<size><width>64</width><height>48</height><depth>3</depth></size>", "")(voc.annotation("p0"))
    assert len(one(voc)) == 1


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:900]), "truncated"),
        (lambda path: path.write_bytes(b""), "empty file"),
        (lambda path: path.write_text("no image"), "not an image"),
    ],
)
def test_an_image_that_cannot_be_read_is_refused_before_the_training(
    voc: MadeVoc, spoil: Callable[[Path], None], reason: str
) -> None:
    spoil(voc.image("p3"))
    for opener in (open_boxes, open_masks):
        with pytest.raises(UserError, match=rf"the image .*p3.png cannot be read: {reason} .*fix it"):
            opener(voc.devkit, "train")


def test_own_classes_stand_in_a_file(tmp_path: Path) -> None:
    voc = MadeVoc(tmp_path)
    voc.add("p0", [("gnome", (3, 5, 10, 20))])
    (voc.root / "classes.txt").write_text("garden\n\ngnome\n")
    opened = one(voc)
    assert opened.classes == ("garden", "gnome")
    assert opened.examples[0].boxes is not None
    assert opened.examples[0].boxes.labels.tolist() == [2]
    (voc.root / "classes.txt").write_text("gnome\ngnome\n")
    with pytest.raises(UserError, match=r"classes.txt should name 1 to 254 classes, each once"):
        one(voc)


def test_an_image_turned_by_its_exif_is_taken_as_it_is_stored(tmp_path: Path) -> None:
    voc = MadeVoc(tmp_path)
    voc.add("p0", [("bird", (1, 1, 64, 20))])
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(voc.image("p0")).save(voc.image("p0"), exif=exif)
    (example,) = one(voc).examples
    assert example.pixels().shape == (3, 48, 64)


# --- masks


def test_a_mask_is_the_numbers_of_its_palette(voc: MadeVoc) -> None:
    opened = open_masks(voc.devkit, "train")
    numbers = opened.examples[1].numbers()
    assert numbers.dtype == np.uint8
    assert np.unique(numbers).tolist() == [0, 2, 3, 255]
    # Image p1: its bird from 40, 10 to 61, 41.
    assert (numbers[9:41, 39:61] == 3).all()
    assert (numbers[0] == 255).all()
    assert opened.counts == {"pixels": 4 * 48 * 64, "ignored": 4 * 64}


def resaved(size: tuple[int, int] = (64, 48), mode: str = "L", value: int = 0) -> Callable[[Path], None]:
    return lambda path: Image.new(mode, size, value).save(path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (Path.unlink, "there is no mask .*p0.png"),
        (resaved((48, 64)), r"the mask .*p0.png is 48×64, p0.png is 64×48 .*nearest"),
        (
            resaved(value=21),
            r"the mask .*p0.png has the numbers 21 for 20 classes .*1 to 20 are classes, 255 is ignored",
        ),
        (resaved(value=254), "has the numbers 254 for 20 classes"),
        (resaved(mode="RGB"), "the mask .*p0.png cannot be read: its pixels are not numbers of 8 bits: mode RGB"),
        (lambda path: path.write_bytes(path.read_bytes()[:150]), "the mask .* cannot be read: (truncated|damaged)"),
    ],
)
def test_a_wrong_mask_is_refused_with_its_name(voc: MadeVoc, spoil: Callable[[Path], None], words: str) -> None:
    spoil(voc.mask("p0"))
    with pytest.raises(UserError, match=words):
        open_masks(voc.devkit, "train")


def test_greatest_class_and_ignored_are_legal_numbers(voc: MadeVoc) -> None:
    resaved(value=20)(voc.mask("p0"))
    resaved(value=255)(voc.mask("p1"))
    assert open_masks(voc.devkit, "train").counts["ignored"] == 48 * 64 + 2 * 64


def test_lists_of_boxes_and_of_masks_are_different_files(voc: MadeVoc) -> None:
    (voc.root / "ImageSets/Segmentation/train.txt").write_text("p2\n")
    assert (len(open_boxes(voc.devkit, "train")), len(open_masks(voc.devkit, "train"))) == (4, 1)
    (voc.root / "ImageSets/Segmentation/train.txt").unlink()
    with pytest.raises(UserError, match=re.escape("Segmentation/train.txt")):
        open_masks(voc.devkit, "train")


def test_the_fingerprint_changes_with_pixels_boxes_masks_and_order(voc: MadeVoc) -> None:
    boxes, masks = open_boxes(voc.devkit, "train"), open_masks(voc.devkit, "train")
    assert boxes.fingerprint == open_boxes(voc.root, "train").fingerprint
    replaced("<xmin>3</xmin>", "<xmin>4</xmin>")(voc.annotation("p0"))
    resaved(value=1)(voc.mask("p0"))
    changed = {open_boxes(voc.devkit, "train").fingerprint, open_masks(voc.devkit, "train").fingerprint}
    voc.lists("train", ["p1", "p0", "p2", "p3"])
    changed |= {open_boxes(voc.devkit, "train").fingerprint}
    resaved(mode="RGB")(voc.image("p2"))
    changed |= {open_boxes(voc.devkit, "train").fingerprint}
    assert len(changed | {boxes.fingerprint, masks.fingerprint}) == 6


def test_progress_counts_the_images(voc: MadeVoc) -> None:
    told: list[tuple[int, int]] = []
    open_boxes(voc.devkit, "train", lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
