import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from images import save_solid

from iecl.data import defaults
from iecl.data.datasets import DATASETS, FACTS
from iecl.data.defaults import resolve_data
from iecl.data.settings import DataSettings
from iecl.errors import UserError


def folder_of(root: Path, *shapes: tuple[int, int]) -> DataSettings:
    """Settings for a folder with one image of each (width, height)."""
    for i, shape in enumerate(shapes):
        save_solid(root / f"{i}.png", size=shape)
    return DataSettings(name=str(root))


@pytest.mark.parametrize(
    ("short", "image_size", "decode_size"),
    [
        (8, 32, 32),
        (32, 32, 32),
        (40, 32, 40),
        (41, 64, 64),
        (80, 64, 80),
        (81, 96, 96),
        (112, 96, 112),
        (113, 128, 128),
        (160, 128, 160),
        (161, 224, 224),
        (301, 224, 301),
        (900, 224, 448),  # twice the view is enough
    ],
)
def test_sizes_follow_the_short_side_of_the_images(
    tmp_path: Path, short: int, image_size: int, decode_size: int
) -> None:
    resolved = resolve_data(folder_of(tmp_path, (short, short + 50)))
    assert (resolved.image_size, resolved.decode_size) == (image_size, decode_size)


def test_the_median_decides_and_unreadable_images_do_not_count(tmp_path: Path) -> None:
    settings = folder_of(tmp_path, (64, 500), (64, 64), (2000, 2000), (70, 64), (10, 10))
    for i in range(20):
        (tmp_path / f"bad{i}.jpg").write_text("no image")
    assert resolve_data(settings).image_size == 64


def test_values_that_were_given_stay(tmp_path: Path) -> None:
    given = replace(
        folder_of(tmp_path, (64, 64)),
        image_size=48,
        decode_size=50,
        labels="none",
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
        num_workers=3,
    )
    assert resolve_data(given) == given


def test_the_decoded_size_follows_an_image_size_that_was_given(tmp_path: Path) -> None:
    assert resolve_data(replace(folder_of(tmp_path, (64, 64)), image_size=16)).decode_size == 32


def test_nothing_is_left_open_and_resolving_twice_changes_nothing(tmp_path: Path) -> None:
    for i in range(2):
        save_solid(tmp_path / f"cats/{i}.png")
        save_solid(tmp_path / f"dogs/{i}.png")
    once = resolve_data(DataSettings(name=str(tmp_path)))
    assert once.labels == "folders"
    assert (once.mean, once.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert once.num_workers >= 1
    assert resolve_data(once) == once


def test_a_folder_without_classes_is_unlabeled(tmp_path: Path) -> None:
    assert resolve_data(folder_of(tmp_path, (8, 8), (8, 8))).labels == "none"


def test_the_training_part_decides(tmp_path: Path) -> None:
    save_solid(tmp_path / "train/a.png", size=(64, 64))
    save_solid(tmp_path / "test/a.png", size=(200, 200))
    assert resolve_data(DataSettings(name=str(tmp_path))).image_size == 64


def test_a_folder_s_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path / "cats", (8, 8))
    monkeypatch.chdir(tmp_path)
    assert resolve_data(DataSettings(name="cats")).name == str(tmp_path / "cats")


def test_a_named_dataset_brings_its_size_and_constants() -> None:
    resolved = resolve_data(DataSettings(name="cifar10"))
    assert (resolved.name, resolved.image_size, resolved.decode_size) == ("cifar10", 32, 32)
    assert resolved.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-3)
    assert (resolved.mean, resolved.std) == (FACTS["cifar10"].mean, FACTS["cifar10"].std)


def test_every_named_dataset_can_be_resolved_without_its_files() -> None:
    resolved = {name: resolve_data(DataSettings(name=name)) for name in DATASETS}
    sizes = {name: (settings.image_size, settings.decode_size) for name, settings in resolved.items()}
    assert sizes == {name: (FACTS[name].image_size, FACTS[name].decode_size) for name in DATASETS}


def test_a_folder_named_like_a_dataset_can_still_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path / "cifar10", (8, 8))
    monkeypatch.chdir(tmp_path)
    assert resolve_data(DataSettings(name="cifar10")).name == "cifar10"
    assert resolve_data(DataSettings(name="./cifar10")).name == str(tmp_path / "cifar10")


def test_a_misspelt_name_gets_a_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        resolve_data(DataSettings(name="cifar-10"))
    text = "there is no folder and no dataset called 'cifar-10' (--data); did you mean cifar10?"
    assert str(caught.value) == text


def test_a_missing_folder_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"there is no folder {tmp_path}/cats"):
        resolve_data(DataSettings(name=str(tmp_path / "cats")))


def test_a_folder_in_which_nothing_can_be_read_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.png").write_text("no image")
    (tmp_path / "3.png").touch()
    with pytest.raises(UserError, match=r"none of the 4 images in .* can be read: 3 not an image, 1 empty file"):
        resolve_data(DataSettings(name=str(tmp_path)))


def test_only_a_sample_of_the_headers_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = folder_of(tmp_path, *[(8, 8)] * 100)
    read: list[bytes] = []
    header_size = defaults.header_size
    monkeypatch.setattr(
        defaults, "header_size", lambda path, *limits: (read.append(path), header_size(path, *limits))[1]
    )
    resolve_data(settings)
    assert len(set(read)) == 64


@pytest.mark.parametrize(("cores", "workers"), [(3, 3), (200, 8)])
def test_there_are_as_many_workers_as_cores_but_at_most_eight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    monkeypatch.setattr(defaults, "usable_cores", lambda: cores)
    assert resolve_data(folder_of(tmp_path, (8, 8))).num_workers == workers


@pytest.mark.parametrize("module", ["listing", "labels", "decoder", "defaults"])
def test_what_the_command_needs_before_training_does_not_import_torch(module: str) -> None:
    code = f"import sys, iecl.data.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
