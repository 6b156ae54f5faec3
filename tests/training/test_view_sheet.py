"""A sheet of views: what its rows are, what they show, and that it is written as an image."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

import iecl
from iecl.cli.command import main
from iecl.data.defaults import resolve_data
from iecl.errors import UserError
from iecl.training.config import RunConfig, make_config, with_data
from iecl.training.view_sheet import GAP, MARGIN, TILE, draw_sheet
from iecl.views import native
from iecl.views.operators import OPERATORS


@pytest.fixture(autouse=True)
def _by_tensors() -> Iterator[None]:
    """Without compiled loops, which take seconds to load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "kernel", lambda: None)
        yield


def config_of(folder: Path, *sets: str, method: str = "simclr", policy: str = "none") -> RunConfig:
    flags = {"data": {"name": str(folder), "image_size": 16}, "augmentation": {"policy": policy}}
    made = make_config(method=method, flags=flags, sets=["backbone.name=resnet10-w16", *sets])
    return with_data(made, resolve_data(made.data))


def test_nothing_that_is_off_has_a_row(image_folder: Path) -> None:
    lines = draw_sheet(config_of(image_folder), 3)
    assert [(line.name, line.note) for line in lines] == [
        ("original", "16 x 16 pixels"),
        ("view 1: anchor", "epoch 1"),
        ("view 1: anchor", "epoch 2"),
        ("view 2: query", "epoch 1"),
        ("view 2: query", "epoch 2"),
    ]
    assert all(torch.allclose(line.images, lines[0].images, atol=1e-5) for line in lines)


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_that_is_on_has_a_row_of_its_own(image_folder: Path, name: str) -> None:
    lines = draw_sheet(config_of(image_folder, f"augmentation.{name}_prob=0.25"), 3)
    assert (lines[1].name, lines[1].note.split(", ")[-1]) == (name, "chance 0.25")
    assert len(lines) == 6


def test_rows_say_what_differs_between_the_views(image_folder: Path) -> None:
    sets = ["augmentation.query.hue=0.3", "augmentation.saturation=0"]
    lines = draw_sheet(config_of(image_folder, *sets, policy="byol"), 1)
    assert [f"{line.name}: {line.note}" for line in lines[1:-4]] == [
        "crop: scale 0.08 to 1, ratio 0.75 to 1.33",
        "hflip: chance 0.5",
        "brightness: up to 0.4, chance 0.8",
        "contrast: up to 0.4, chance 0.8",
        "hue, anchor: up to 0.1, chance 0.8",
        "hue, query: up to 0.3, chance 0.8",
        "grayscale: chance 0.2",
        "gaussian_blur: sigma 0.1 to 2, chance 1 and 0.1",
        "solarize: chance 0 and 0.2",
    ]


def test_an_operator_alone_does_nothing_else(image_folder: Path) -> None:
    lines = {line.name: line.images for line in draw_sheet(config_of(image_folder, policy="byol"), 3)}
    plain = lines["original"]
    assert torch.allclose(lines["solarize"], torch.where(plain >= 128 / 255, 1 - plain, plain), atol=1e-5)
    assert torch.allclose(lines["hflip"], plain.flip(3), atol=1e-5)
    ratio = lines["brightness"].mean(dim=(1, 2, 3)) / plain.mean(dim=(1, 2, 3))
    assert ((ratio - 1).abs() > 1e-3).all()


def test_local_crops_have_rows(image_folder: Path) -> None:
    lines = draw_sheet(config_of(image_folder, "method.local_crops=1", method="swav"), 2)
    assert [line.name for line in lines[-2:]] == ["view 3: local crop"] * 2
    assert lines[-1].images.shape == (2, 3, 7, 7)


def test_the_command_writes_an_image_and_says_what_is_off(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sheet.png"
    words = ["views", "--data", str(image_folder), "--method", "simclr", "--image-size", "16", "--images", "2"]
    words += ["--backbone", "resnet10-w16", "--set", "augmentation.policy=crop", "--set", "augmentation.query.hue=0"]
    assert main([*words, "--out", str(out), "--json"]) == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out.splitlines()[-1])
    assert [row["name"] for row in told["rows"][:3]] == ["original", "crop", "hflip"]
    assert "color_jitter, grayscale, gaussian_blur, solarize, vflip" in shown.err
    with Image.open(out) as image:
        assert image.size == (MARGIN + 2 * (TILE + GAP), 7 * (TILE + GAP) + GAP)


def test_a_sheet_of_everything_says_that_nothing_is_off(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["gaussian_blur", "solarize", *OPERATORS]
    words = [f"--set=augmentation.{name}_prob=0.5" for name in names]
    words += ["--method", "simclr", "--image-size", "16", "--backbone", "resnet10-w16", "--images", "1"]
    assert main(["views", "--data", str(image_folder), "--out", str(tmp_path / "sheet.png"), *words]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'sheet.png'}: {8 + 2 + 9 + 4} rows, images: 1\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which views?"),
        (["runs/a", "--data", "photos"], "which views?"),
        (["runs/a"], "which step?"),
        (["--data", "IMAGES", "--images", "0"], "a sheet shows 1 to 12 images, not 0"),
        (["--data", "IMAGES", "--out", "sheet.gif", "--images", "1"], "name a file that ends in .png"),
        (["--data", "IMAGES", "--set", "views.hue=0"], "did you mean augmentation.hue?"),
    ],
)
def test_a_sheet_that_cannot_be_is_one_line(
    image_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["views", *[str(image_folder) if word == "IMAGES" else word for word in words]]) == 2
    assert message in capsys.readouterr().err


def test_images_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(3):
        Image.new("RGB", (20, 20), (90 * number, 0, 0)).save(folder / f"{number}.png")
    (folder / "4.png").write_bytes(b"no image")
    assert len(draw_sheet(config_of(folder), 4)[0].images) == 3


def test_a_folder_without_a_readable_image_is_told(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").write_bytes(b"no image")
    with pytest.raises(UserError):
        iecl.preview(tmp_path / "images", tmp_path / "sheet.png", image_size=16)
