"""Planted shortcuts: bits that all views of an image share, whatever it shows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import iecl
from iecl.data.factory import open_source
from iecl.data.pack_writer import pack
from iecl.data.planted_source import PATTERNS, plant
from iecl.data.settings import DataSettings
from iecl.data.shortcuts import BITS, KINDS, Shortcut, parse_shortcut
from iecl.errors import UserError

GREY = torch.full((64, 3, 32, 32), 128, dtype=torch.uint8)
NAMES = torch.arange(64)


def test_every_shortcut_that_is_offered_has_a_pattern() -> None:
    assert set(KINDS) == set(PATTERNS)


@pytest.mark.parametrize("kind", PATTERNS)
def test_images_differ_by_their_bits_alone_and_always_by_the_same(kind: str) -> None:
    planted = plant(Shortcut(kind, 0.25), GREY, NAMES)
    assert planted.dtype == torch.uint8
    assert torch.equal(planted[40:], plant(Shortcut(kind, 0.25), GREY[40:], NAMES[40:]))
    assert 32 < len(planted.flatten(1).unique(dim=0)) <= 2**BITS
    assert not torch.equal(planted, plant(Shortcut(kind, 0.25), GREY, NAMES + 64))
    assert (planted.int() - 128).abs().max() <= round(127.5 * 0.25) + 1


@pytest.mark.parametrize("kind", PATTERNS)
def test_strength_and_bits_are_dials_from_nothing_on(kind: str) -> None:
    assert torch.equal(plant(Shortcut(kind, 0.0), GREY, NAMES), GREY)
    few = plant(Shortcut(kind, 0.5, bits=2), GREY, NAMES)
    assert len(few.flatten(1).unique(dim=0)) == 4
    none = plant(Shortcut(kind, 0.5, bits=0), GREY, NAMES)
    assert len(none.flatten(1).unique(dim=0)) == 1
    sizes = [(plant(Shortcut(kind, s), GREY, NAMES).float() - 128).abs().mean() for s in (0.1, 0.2, 0.4)]
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize("text", ["stripe=0.2", "stripes", "stripes=2", "stripes=0.1,9", "stripes=a", "stripes=nan"])
def test_what_cannot_be_planted_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"shortcut|strength"):
        parse_shortcut(text)


def make_photos(folder: Path) -> str:
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (32, 32), (128, 128, 128)).save(folder / name / f"{number}.png")
    return str(folder)


def by_name(settings: DataSettings, split: str) -> dict[str, list[float]]:
    source = open_source(settings, split)
    images = source.read(np.arange(len(source))).images
    return {Path(source.path(i)).name + str(source.labels[i]): images[i].tolist() for i in range(len(source))}


def test_an_image_has_the_same_bits_in_every_split_in_memory_or_not_and_in_a_packed_file(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    pack(photos, tmp_path / "photos.iecl")
    every = [
        by_name(DataSettings(name=name, plant="tint=0.5", cache_megabytes=memory), split)
        for name, memory in ((photos, 4096), (photos, 0), (str(tmp_path / "photos.iecl"), 0))
        for split in ("pretrain", "train-part", "test")
    ]
    whole = every[0]
    assert len({str(image) for image in whole.values()}) > 10
    assert all(whole[name] == image for part in every for name, image in part.items())
    assert len(every[1]) + len(every[2]) == len(whole)


def test_a_run_is_trained_and_measured_on_planted_images_and_says_so(tmp_path: Path, tiny: list[str]) -> None:
    photos = make_photos(tmp_path / "photos")
    shared = {"method": "simclr", "backbone": "resnet10-w16", "epochs": 1, "batch_size": 8, "quiet": True}
    run = iecl.pretrain(photos, tmp_path / "run", **shared, sets=[*tiny, "data.plant=stripes=0.5"])
    assert run.settings["data"]["plant"] == "stripes=0.5"
    assert run.evaluate("knn")["data"].endswith(" with stripes=0.5 planted")


def test_what_has_no_place_for_a_shortcut_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds images as they are"):
        pack(make_photos(tmp_path / "photos"), tmp_path / "x.iecl", sets=["data.plant=tint=0.5"])
    with pytest.raises(ValueError, match="three channels"):
        DataSettings(plant="tint=0.5", channels=1)
