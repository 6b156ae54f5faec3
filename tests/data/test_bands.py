"""Gray images and images with more channels than three."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import iecl
from iecl.data.decoder import Unreadable, decode, header_size

SHORT = ["training.loggers=[]", "data.num_workers=0", "training.precision=32-true", "training.meter_steps=1000"]
HOW: dict[str, Any] = {"quiet": True, "backbone": "resnet10-w16", "batch_size": 16, "epochs": 1, "image_size": 16}
NOISE = np.random.default_rng(0)


def array(channels: int, number: int = 0) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 255, (channels, 16, 20), dtype=np.uint8)


def save_pages(path: Path, pages: np.ndarray) -> None:
    first, *rest = map(Image.fromarray, pages)
    first.save(path, save_all=True, append_images=rest)


@pytest.mark.parametrize("kind", ["first", "last", "uint16", "float", "pages"])
def test_five_channels_are_read_as_they_are(kind: str, tmp_path: Path) -> None:
    expected, path = array(5), tmp_path / ("a.tif" if kind == "pages" else "a.npy")
    if kind == "pages":
        save_pages(path, expected)
    else:
        made = {
            "first": expected,
            "last": expected.transpose(1, 2, 0),
            "uint16": expected.astype(np.uint16) * 257,
            "float": expected / np.float32(255),
        }
        np.save(path, made[kind])
    assert header_size(path, 10**6) == (16, 20)
    found, size = decode(path, 16, 10**6, np.empty((5, 16, 16), np.uint8))
    assert size == (16, 20)
    squeezed = torch.nn.functional.interpolate(
        torch.from_numpy(expected)[None], (16, 16), mode="bicubic", antialias=True
    )
    np.testing.assert_array_equal(found, squeezed[0].numpy())


def test_one_channel_is_the_gray_of_any_image(tmp_path: Path) -> None:
    color = Image.fromarray(NOISE.integers(0, 255, (16, 16, 3), dtype=np.uint8))
    color.save(tmp_path / "a.png")
    found, _ = decode(tmp_path / "a.png", 16, 10**6, np.empty((1, 16, 16), np.uint8))
    np.testing.assert_array_equal(found[0], np.asarray(color.convert("L")))


@pytest.mark.parametrize(
    ("save", "words"),
    [
        (lambda path: np.save(path, array(4)), "4 channels, 5 are wanted"),
        (lambda path: np.save(path, np.array([{}], dtype=object), allow_pickle=True), "damaged"),
        (lambda path: np.save(path, np.zeros((5, 1500, 1500), np.uint8)), "too large: 1500x1500"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00"), "truncated|damaged"),
    ],
)
def test_an_array_that_cannot_be_used_has_a_reason(save: Any, words: str, tmp_path: Path) -> None:
    save(tmp_path / "a.npy")
    with pytest.raises(Unreadable, match=words):
        decode(tmp_path / "a.npy", 16, 10**6, np.empty((5, 16, 16), np.uint8))


@pytest.mark.parametrize("channels", [1, 5])
def test_a_folder_of_arrays_trains_and_its_weights_know_their_channels(
    channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scans").mkdir()
    for number in range(40):
        np.save(tmp_path / "scans" / f"{number:02d}.npy", array(channels, number))
    sets = [*SHORT, f"data.channels={channels}"]
    run = iecl.pretrain(tmp_path / "scans", tmp_path / "run", sets=sets, **HOW)
    assert run.settings["augmentation"]["policy"] == "crop"
    snippet = run.export(tmp_path / "scans.safetensors")["snippet"]
    found = iecl.embed(tmp_path / "scans.safetensors", tmp_path / "scans")
    assert found["features"].shape == (40, 128)
    np.testing.assert_array_equal(found["features"], run.embed()["features"])
    monkeypatch.chdir(tmp_path)
    alone: dict[str, Any] = {}
    exec(snippet, alone)
    images = torch.randn(2, channels, 16, 16)
    with torch.no_grad():
        assert torch.equal(alone["model"].eval()(images), run.backbone(images))
    arrays = np.stack([array(channels, number) for number in range(40)])
    again = iecl.pretrain(arrays, tmp_path / "again", sets=sets, **HOW)
    assert again.summary["last"]["loss"] == run.summary["last"]["loss"]


def test_operators_on_colors_are_refused_by_name(tmp_path: Path) -> None:
    arrays = np.stack([array(5, number) for number in range(20)])
    how = HOW | {"sets": [*SHORT, "data.channels=5"], "batch_size": 8}
    with pytest.raises(
        iecl.UserError, match="color_jitter_prob and grayscale_prob of simclr-small need red, green and blue"
    ):
        iecl.pretrain(arrays, tmp_path / "run", augmentation="simclr-small", **how)
    with pytest.raises(iecl.UserError, match=r"^grayscale_prob of simclr-small need"):
        iecl.pretrain(
            arrays,
            tmp_path / "run",
            augmentation="simclr-small",
            settings={"augmentation": {"color_jitter_prob": 0.0}},
            **how,
        )
    settings = {"augmentation": {"gaussian_blur_prob": 0.5, "solarize_prob": 0.5}}
    assert iecl.pretrain(arrays, tmp_path / "run", settings=settings, **how).summary["finished"]


def test_named_datasets_have_three_channels() -> None:
    with pytest.raises(iecl.UserError, match="shapes has 3 channels"):
        iecl.pretrain("shapes", sets=["data.channels=1"])
