"""Planted shortcuts: bits that all views of an image share, whatever it shows."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from iecl.data.defaults import resolve_data
from iecl.data.factory import open_source
from iecl.data.pack_writer import pack
from iecl.data.settings import DataSettings
from iecl.data.shortcuts import BITS, PATTERNS, Shortcut, parse_shortcut
from iecl.errors import UserError

GREY = torch.full((64, 3, 32, 32), 128, dtype=torch.uint8)
INDEX = torch.arange(64)


@pytest.mark.parametrize("kind", PATTERNS)
def test_images_differ_by_their_bits_alone_and_always_by_the_same(kind: str) -> None:
    planted = Shortcut(kind, 0.25).plant(GREY, INDEX, "train")
    assert planted.dtype == torch.uint8
    assert torch.equal(planted[40:], Shortcut(kind, 0.25).plant(GREY[40:], INDEX[40:], "train"))
    assert 32 < len(planted.flatten(1).unique(dim=0)) <= 2**BITS
    assert not torch.equal(planted, Shortcut(kind, 0.25).plant(GREY, INDEX, "test"))
    assert (planted.int() - 128).abs().max() <= round(127.5 * 0.25) + 1


@pytest.mark.parametrize("kind", PATTERNS)
def test_strength_and_bits_are_dials_from_nothing_on(kind: str) -> None:
    assert torch.equal(Shortcut(kind, 0.0).plant(GREY, INDEX, "train"), GREY)
    few = Shortcut(kind, 0.5, bits=2).plant(GREY, INDEX, "train")
    assert len(few.flatten(1).unique(dim=0)) == 4
    none = Shortcut(kind, 0.5, bits=0).plant(GREY, INDEX, "train")
    assert len(none.flatten(1).unique(dim=0)) == 1
    sizes = [(Shortcut(kind, s).plant(GREY, INDEX, "train").float() - 128).abs().mean() for s in (0.1, 0.2, 0.4)]
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.parametrize("text", ["stripe=0.2", "stripes", "stripes=2", "stripes=0.1,9", "stripes=a", "stripes=nan"])
def test_what_cannot_be_planted_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"shortcut|strength"):
        parse_shortcut(text)


def test_a_packed_file_holds_planted_images_and_says_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (32, 32), (128, 128, 128)).save(tmp_path / "photos" / name / f"{number}.png")
    pack(str(tmp_path / "photos"), tmp_path / "planted.iecl", plant="tint=0.5")
    source = open_source(resolve_data(DataSettings(name=str(tmp_path / "planted.iecl"))), "pretrain")
    images = source.read(np.arange(len(source))).images
    expected = Shortcut("tint", 0.5).plant(torch.full_like(images, 128), torch.arange(8), "all")
    for image in images:
        assert any(torch.equal(image, one) for one in expected)
    assert b'"shortcut": "tint=0.5"' in (tmp_path / "planted.iecl").read_bytes()
