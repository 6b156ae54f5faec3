import math
import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from iecl.data import shapes
from iecl.data.datasets import FACTS
from iecl.data.drawing import color, noise, outline, texture
from iecl.data.settings import DataSettings
from iecl.errors import UserError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the test images are kept, in a new cache folder."""
    monkeypatch.setenv("IECL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shapes-test.npz"


@pytest.fixture(scope="module")
def all_of_test() -> Tensor:
    return torch.cat([shapes.draw("test", part) for part in torch.arange(2000).split(250)])


# --- what is drawn


@pytest.mark.parametrize(("split", "digest"), [("train", "c17259e937fdc1d0"), ("test", "393559e6e0999fb9")])
def test_the_first_hundred_images_have_not_moved_by_a_bit(split: str, digest: str) -> None:
    images = shapes.draw(split, torch.arange(100))
    assert blake2b(images.numpy().tobytes(), digest_size=8).hexdigest() == digest


def test_an_image_depends_on_its_own_number_only() -> None:
    together = shapes.draw("train", torch.arange(40))
    apart = shapes.draw("train", torch.tensor([31, 7]))
    assert torch.equal(apart, together[[31, 7]])


def test_train_and_test_share_no_image() -> None:
    train, test = (shapes.draw(split, torch.arange(200)).flatten(1).float() for split in ("train", "test"))
    assert torch.cdist(train, test).min() > 255  # the root of the sum of squares: far beyond rounding


@pytest.mark.parametrize(("split", "each"), [("train", 1000), ("test", 200)])
def test_every_class_has_equally_many_images_in_no_order(split: str, each: int) -> None:
    labels = shapes.labels(split)
    assert np.bincount(labels).tolist() == [each] * 10
    # Two neighbors share a class by chance in one of ten cases; the deviation of the share is below 0.007 here.
    assert abs((labels[1:] == labels[:-1]).mean() - 0.1) < 5 * math.sqrt(0.09 / len(labels))


def test_class_names_tell_the_shape_and_the_texture_of_every_image() -> None:
    factors = shapes.factors("test")
    told = [
        f"{shapes.TEXTURES[t]} {shapes.SHAPES[s]}" for t, s in zip(factors["texture"], factors["shape"], strict=True)
    ]
    assert told == [shapes.CLASSES[label] for label in factors["label"]]
    assert len(set(shapes.CLASSES)) == 10


@pytest.mark.parametrize("name", shapes.RANGES)
def test_no_nuisance_tells_the_class(name: str) -> None:
    factors = shapes.factors("train")
    values = factors[name].astype(float)
    means = [values[factors["label"] == label].mean() for label in range(10)]
    assert np.ptp(means) < 6 * values.std() / math.sqrt(1000)  # ten means of a thousand spread by three deviations


def test_a_plain_object_has_the_tone_and_the_light_that_its_factors_tell(all_of_test: Tensor) -> None:
    factors = shapes.factors("test")
    (rows,) = np.nonzero((factors["label"] == 0) & (factors["occlusion"] == 0))  # discs, whose center is not empty
    told = {name: values[rows] for name, values in factors.items()}
    row, column = (np.rint(told[axis] + 15.5).astype(int) for axis in "yx")

    weights = np.array([0.299, 0.587, 0.114])
    seen = all_of_test.numpy()[rows, :, row, column] @ weights / 255
    tone = told["brightness"] + np.sign(told["lighter"]) * told["contrast"] / 2
    along = (column - 15.5) * np.cos(told["light"]) + (row - 15.5) * np.sin(told["light"])
    expected = tone * (1 + told["light_strength"] * along / 16)

    is_clipped = (all_of_test.numpy()[rows, :, row, column] % 255 == 0).any(axis=1)
    assert (~is_clipped).sum() > 50
    assert np.abs(seen - expected)[~is_clipped].max() < 1 / 255  # three rounded channels


def test_a_band_hides_a_part_of_the_object_where_and_only_where_occlusion_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    positions = torch.arange(200)
    drawn = shapes.draw("test", positions)
    monkeypatch.setattr(shapes, "_COVERED_SHARE", 0)
    changed = (drawn != shapes.draw("test", positions)).flatten(1).any(dim=1)
    monkeypatch.undo()
    assert changed.tolist() == (shapes.factors("test")["occlusion"][:200] > 0).tolist()


AREAS: dict[str, float] = {
    "disc": math.pi * 0.86**2,
    "ring": math.pi * (0.94**2 - 0.42**2),
    "square": 1.52**2,
    "frame": 1.64**2 - 0.76**2,
    "bar": 2 * 0.84,
    "cross": 1.96 * 0.66 * 2 - 0.66**2,
    "triangle": 3 * math.sqrt(3) * 0.56**2,
    # A pentagon of inradius 0.36 and five triangles on its sides.
    "star": 5 * math.tan(math.pi / 5) * 0.36**2 * (1 + math.tan(math.radians(72)) * math.tan(math.pi / 5)),
    # A unit disc without the segment beyond 0.25.
    "dome": math.pi - (math.acos(0.25) - 0.25 * math.sqrt(1 - 0.25**2)),
}


@pytest.mark.parametrize("shape", AREAS)
def test_an_outline_encloses_the_area_of_its_figure(shape: str) -> None:
    line = (torch.arange(600, dtype=torch.float64) + 0.5) / 200 - 1.5
    v, u = torch.meshgrid(line, line, indexing="ij")
    inside = outline(shape, u[None], v[None]) < 0
    assert inside.sum().item() / 200**2 == pytest.approx(AREAS[shape], abs=0.02)  # pixels at the edge


def test_a_moon_is_a_disc_with_a_bite() -> None:
    points = torch.tensor([[[-0.9, 0.0, 0.9, -1.0]]], dtype=torch.float64)
    assert (outline("moon", points, torch.zeros_like(points)) < 0).flatten().tolist() == [True, False, False, False]


@pytest.mark.parametrize(("kind", "share"), [("plain", 0.0), ("striped", 0.5), ("checked", 0.5), ("speckled", 0.5)])
def test_a_texture_shows_its_second_tone_on_a_fixed_share(kind: str, share: float) -> None:
    line = torch.arange(400, dtype=torch.float64) / 40  # ten whole periods
    b, a = torch.meshgrid(line, line, indexing="ij")
    grain = noise(1, torch.arange(400), (16,))[:, :20, :20].reshape(1, 400, 400)
    tone = texture(kind, a[None], b[None], grain)
    assert tone.mean().item() == pytest.approx(share, abs=0.02)  # the noise has a finite sample


def test_spots_cover_less_than_their_ground() -> None:
    line = torch.arange(400, dtype=torch.float64) / 40
    b, a = torch.meshgrid(line, line, indexing="ij")
    assert 0.2 < texture("spotted", a[None], b[None], a[None]).mean() < 0.4


def test_background_noise_has_the_spectrum_of_natural_images() -> None:
    fields = noise(7, torch.arange(400), (2, 4, 8, 16, 32))
    power = torch.fft.fft2(fields).abs().square().mean(dim=0)
    steps = torch.fft.fftfreq(32, 1 / 32)
    radius = (steps[:, None].square() + steps.square()).sqrt()
    rings = torch.arange(1, 16)
    mean_power = torch.stack([power[(radius >= ring - 0.5) & (radius < ring + 0.5)].mean() for ring in rings])
    slope = np.polyfit(rings.log().numpy(), mean_power.log().numpy(), 1)[0]
    assert slope == pytest.approx(-2, abs=0.5)  # amplitude 1/f is power 1/f^2; grids of whole octaves only approach it


def test_a_hue_changes_the_color_but_not_the_luminance() -> None:
    hue = torch.arange(12, dtype=torch.float64) / 12
    colors = color(torch.full_like(hue, 0.5), 0.2, hue)[:, :, 0, 0]
    luminance = colors @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    assert luminance.tolist() == pytest.approx([0.5] * 12)
    assert torch.cdist(colors, colors).fill_diagonal_(1).min() > 0.1


# --- how hard it is


def pixel_knn(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Share of test images whose class the 20 most similar training images tell, similarity weighted."""
    mean = train.float().mean(dim=0)
    reference, query = (normalize((images - mean).flatten(1)) for images in (train, test))
    similarity, nearest = (query @ reference.T).topk(20)
    votes = torch.zeros(len(query), 10).scatter_add_(1, train_labels[nearest], (similarity / 0.07).exp())
    return (votes.argmax(dim=1) == test_labels).float().mean().item()


def test_raw_pixels_of_some_images_hardly_tell_the_class(all_of_test: Tensor) -> None:
    labels = torch.from_numpy(shapes.labels("test"))
    assert pixel_knn(all_of_test[:1500], labels[:1500], all_of_test[1500:], labels[1500:]) < 0.35


@pytest.mark.slow
def test_raw_pixels_of_all_images_hardly_tell_the_class(all_of_test: Tensor, cache: Path) -> None:
    train, test = (torch.from_numpy(shapes.labels(split)) for split in ("train", "test"))
    assert pixel_knn(shapes.load("train"), train, all_of_test, test) < 0.35


@pytest.mark.slow
def test_the_constants_are_those_of_the_training_images(cache: Path) -> None:
    images = shapes.load("train").double() / 255
    assert images.mean(dim=(0, 2, 3)).tolist() == pytest.approx(FACTS["shapes"].mean, abs=5e-5)
    assert images.std(dim=(0, 2, 3)).tolist() == pytest.approx(FACTS["shapes"].std, abs=5e-5)


def test_the_constants_are_about_those_of_the_test_images(all_of_test: Tensor) -> None:
    images = all_of_test.double() / 255
    # 2,000 images whose brightness has a deviation of about 0.13: a standard error of 0.003.
    assert images.mean(dim=(0, 2, 3)).tolist() == pytest.approx(FACTS["shapes"].mean, abs=0.012)
    assert images.std(dim=(0, 2, 3)).tolist() == pytest.approx(FACTS["shapes"].std, abs=0.012)


# --- the cache


def test_images_are_drawn_once_and_read_afterwards(
    cache: Path, all_of_test: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shapes.load("test")
    monkeypatch.delattr(shapes, "draw")
    again = shapes.load("test")
    assert torch.equal(first, all_of_test)
    assert torch.equal(again, all_of_test)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_pixel(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_text(path: Path) -> None:
    path.write_text("no archive")


def age(path: Path) -> None:
    np.savez(path, version=shapes.VERSION - 1, images=np.zeros((2000, 3, 32, 32), np.uint8))


def shorten(path: Path) -> None:
    np.savez(path, version=shapes.VERSION, images=np.zeros((1, 3, 32, 32), np.uint8))


def drop_the_version(path: Path) -> None:
    np.savez(path, images=np.zeros((2000, 3, 32, 32), np.uint8))


@pytest.mark.parametrize(
    "damage", [cut, flip_a_pixel, empty, replace_by_text, age, shorten, drop_the_version], ids=lambda f: f.__name__
)
def test_a_cache_that_cannot_be_right_is_made_again(
    damage: Callable[[Path], None], cache: Path, all_of_test: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.mkdir()
    np.savez(cache, version=shapes.VERSION, images=all_of_test.numpy())
    damage(cache)
    monkeypatch.setattr(shapes, "draw", lambda split, positions: all_of_test[positions])

    assert torch.equal(shapes.load("test"), all_of_test)

    monkeypatch.delattr(shapes, "draw")
    assert torch.equal(shapes.load("test"), all_of_test)
    assert list(cache.parent.iterdir()) == [cache]


def test_without_a_place_to_keep_them_images_are_drawn_and_the_log_says_so(
    tmp_path: Path, all_of_test: Tensor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("IECL_CACHE", str(tmp_path / "file" / "cache"))
    assert torch.equal(shapes.load("test"), all_of_test)
    assert "drawn again next time" in caplog.text


# --- the source


def test_the_source_gives_images_with_their_classes(cache: Path, all_of_test: Tensor) -> None:
    source = shapes.open_shapes(DataSettings(), "test")
    read = source.read(np.array([1999, 3]))
    assert torch.equal(read.images, all_of_test[[1999, 3]])
    assert (source.labels == shapes.factors("test")["label"]).all()
    assert source.classes[source.labels[3]] == shapes.CLASSES[shapes.labels("test")[3]]


def test_pretraining_sees_the_training_images(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "load", lambda split: torch.zeros(FACTS["shapes"].train, 3, 32, 32, dtype=torch.uint8))
    assert (shapes.open_shapes(DataSettings(), "pretrain").labels == shapes.labels("train")).all()


def test_a_split_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match=r"shapes has no split 'unlabeled' \(split\); one of: train, test, pretrain"):
        shapes.open_shapes(DataSettings(), "unlabeled")
