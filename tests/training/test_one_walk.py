"""A folder is walked once for each piece of work, and anew for the next one."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import iecl
from iecl.data.defaults import resolve_data
from iecl.data.factory import open_source
from iecl.data.listing import list_images, one_walk
from iecl.data.settings import DataSettings

LOOKS = {".": 1}
"""At its first names, once: is it a folder of tar shards?"""
RUN: dict[str, Any] = {"method": "simclr", "backbone": "resnet10-w16", "epochs": 1, "batch_size": 16, "quiet": True}


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each folder was scanned."""
    counted: Counter[str] = Counter()
    scandir = os.scandir

    def counting(place: Any = ".") -> Any:
        counted[str(place) if isinstance(place, int) else os.fsdecode(place).rstrip("/")] += 1
        return scandir(place)

    monkeypatch.setattr("os.scandir", counting)
    return counted


def below(scans: Counter[str], folder: Path) -> dict[str, int]:
    return {str(Path(path).relative_to(folder)): n for path, n in scans.items() if Path(path).is_relative_to(folder)}


@pytest.fixture
def halves(image_folder: Path, tmp_path: Path) -> Path:
    """The images as a training part, and as a test part."""
    for part in ("train", "test"):
        shutil.copytree(image_folder, tmp_path / "halves" / part)
    return tmp_path / "halves"


@pytest.mark.parametrize("megabytes", [0, 4096])
def test_a_run_walks_a_folder_once(
    image_folder: Path, tmp_path: Path, tiny: list[str], scans: Counter[str], megabytes: int
) -> None:
    iecl.pretrain(image_folder, tmp_path / "run", sets=[*tiny, f"data.cache_megabytes={megabytes}"], **RUN)
    classes = [path.name for path in image_folder.iterdir()]
    assert below(scans, image_folder) == {".": 1 + LOOKS["."]} | dict.fromkeys(classes, 1)


def test_a_run_walks_the_training_part_once_and_the_test_part_to_its_first_image(
    halves: Path, tmp_path: Path, tiny: list[str], scans: Counter[str]
) -> None:
    iecl.pretrain(halves, tmp_path / "run", sets=tiny, **RUN)
    first, second = sorted(path.name for path in (halves / "train").iterdir())
    train = {"train": 1, f"train/{first}": 1, f"train/{second}": 1}
    assert below(scans, halves) == LOOKS | train | {"test": 1, f"test/{first}": 1}


def test_an_evaluation_walks_a_folder_once(
    image_folder: Path, tmp_path: Path, tiny: list[str], scans: Counter[str]
) -> None:
    iecl.pretrain(image_folder, tmp_path / "run", sets=tiny, **RUN)
    scans.clear()
    iecl.evaluate("knn", tmp_path / "run", str(image_folder))
    assert list(below(scans, image_folder).values()) == [1 + LOOKS["."], 1, 1]


def test_the_next_run_sees_what_was_added_since(image_folder: Path, tmp_path: Path, tiny: list[str]) -> None:
    counts = []
    for number in range(2):
        run = iecl.pretrain(image_folder, tmp_path / str(number), sets=tiny, **RUN)
        counts.append(run.summary["images"])
        first = min(image_folder.rglob("*.png"))
        shutil.copy(first, first.with_name("another.png"))
    assert counts == [40, 41]


def test_settings_that_were_resolved_earlier_open_the_folder_as_it_is_now(image_folder: Path) -> None:
    settings = resolve_data(DataSettings(name=str(image_folder), num_workers=0))
    min(image_folder.rglob("*.png")).unlink()
    assert len(open_source(settings)) == 39


def test_a_walk_within_another_is_the_same_and_is_forgotten_with_the_outer_one(image_folder: Path) -> None:
    with one_walk():
        first = list_images(image_folder)
        with one_walk():
            assert list_images(image_folder) is first
        assert list_images(image_folder) is first
    assert list_images(image_folder) is not first


def test_wrong_data_fail_before_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, iecl\n"
        f"try: iecl.pretrain({str(tmp_path / 'nowhere')!r}, {str(tmp_path / 'run')!r}, quiet=True)\n"
        "except iecl.UserError as problem: print(problem, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (
        done.stdout
        == f"there is no folder {tmp_path / 'nowhere'} (data); give the folder that holds the images False\n"
    )
