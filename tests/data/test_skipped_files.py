"""Data of which much cannot be read: few lines, one error, and a folder that is gone is not a folder of bad files."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from images import save_numbered

import iecl
from iecl.data import folder as folders
from iecl.data.factory import open_source
from iecl.data.folder import FolderSource
from iecl.data.listing import list_images
from iecl.data.loader import Loader, in_order
from iecl.data.settings import DataSettings
from iecl.data.skipped_files import NAMED, Skipping, refuse_too_many
from iecl.errors import TrainingError


def open_folder(folder: Path) -> FolderSource:
    listing = list_images(folder)
    return FolderSource(listing, np.full(len(listing), -1), (), side=8, max_pixels=1000)


def test_a_flood_of_bad_files_becomes_a_few_names_and_rare_counts(caplog: pytest.LogCaptureFixture) -> None:
    tell = Skipping(listed="skipped.txt")
    for number in range(12_345):
        tell(f"{number}.png", "empty file")
    assert caplog.messages[:NAMED] == [f"skipped {number}.png: empty file" for number in range(NAMED)]
    assert caplog.messages[NAMED:] == [
        f"{count} files skipped so far, listed in skipped.txt" for count in ("100", "1,000", "10,000")
    ]


def test_a_source_without_a_listener_tells_the_log_of_few_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = open_folder(save_numbered(tmp_path, 40, bad=tuple(range(30))))
    list(in_order(source, 8))
    list(Loader(source, batch=8, seed=0).epoch(0))
    assert len(caplog.messages) == 2 * NAMED


@pytest.mark.parametrize(("bad", "share"), [(2, 0.5), (3, 0.5), (4, 0.5), (6, 0.99), (0, 0.0), (1, 0.0), (5, 1.0)])
def test_more_bad_files_than_allowed_are_refused_and_no_fewer(tmp_path: Path, bad: int, share: float) -> None:
    save_numbered(tmp_path / "data", 6, bad=tuple(range(1, 1 + bad)) if bad < 6 else (1, 2, 3, 4, 5))
    settings = DataSettings(
        name=str(tmp_path / "data"), num_workers=0, max_unreadable=share, decode_size=8, image_size=8
    )
    told: list[tuple[str, str]] = []
    if min(bad, 5) <= share * 6:
        assert len(open_source(settings, on_bad=lambda *report: told.append(report))) == 6 - min(bad, 5)
        return
    with pytest.raises(TrainingError) as caught:
        open_source(settings, on_bad=lambda *report: told.append(report), listed="LIST")
    assert caught.value.what == f"{bad} of the 6 files in {tmp_path / 'data'} cannot be read: {bad} not an image"
    assert caught.value.where == f"data.max_unreadable={share:g}"
    assert caught.value.do == "fix or remove them (listed in LIST), or raise data.max_unreadable"
    assert len(told) == bad  # all are told first, so that they are listed


def test_the_error_names_the_commonest_reasons() -> None:
    reasons = Counter({"truncated": 1, "not an image": 30_000, "empty file": 2})
    with pytest.raises(TrainingError, match=r"30,003 of the 50,000 .*: 30,000 not an image, 2 empty file, 1 truncated"):
        refuse_too_many("cats", reasons, 50_000, 0.5)


def test_a_folder_that_is_mostly_unreadable_is_not_packed(tmp_path: Path) -> None:
    save_numbered(tmp_path / "data", 6, bad=(1, 2, 3, 4))
    with pytest.raises(TrainingError, match=r"4 of the 6 files in .* cannot be read: 4 not an image"):
        iecl.pack(tmp_path / "data", tmp_path / "out", sets=["data.num_workers=0"])
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    packed = iecl.pack(tmp_path / "data", tmp_path / "out", sets=["data.num_workers=0", "data.max_unreadable=1"])
    assert (packed["images"], packed["skipped"]) == (2, 4)
    assert len(open_source(DataSettings(name=str(tmp_path / "out")), on_bad=lambda *report: None)) == 2


# --- a folder that is gone


def renamed(folder: Path) -> Callable[[], object]:
    away = folder.with_name("away")
    folder.rename(away)
    return lambda: away.rename(folder)


def emptied(folder: Path) -> Callable[[], object]:
    """As a mount point without its drive."""
    away = folder.with_name("away")
    folder.rename(away)
    folder.mkdir()
    return lambda: (folder.rmdir(), away.rename(folder))


def not_a_folder(folder: Path) -> Callable[[], object]:
    away = folder.with_name("away")
    folder.rename(away)
    folder.touch()
    return lambda: (folder.unlink(), away.rename(folder))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("harm", [renamed, emptied, not_a_folder])
def test_a_folder_that_comes_back_soon_costs_no_file(
    tmp_path: Path, harm: Callable[[Path], Callable[[], object]], workers: int
) -> None:
    told: list[tuple[str, str]] = []
    source = open_folder(save_numbered(tmp_path / "data", 48))
    expected = [batch.index.tolist() for batch in Loader(source, batch=4, seed=1).epoch(0)]
    loader = Loader(source, batch=4, seed=1, workers=workers, on_bad=lambda *report: told.append(report))
    batches = loader.epoch(0)
    found = [next(batches).index.tolist()]
    restore = threading.Timer(0.3, harm(tmp_path / "data"))
    restore.start()
    found += [batch.index.tolist() for batch in batches]
    restore.join()
    loader.close()
    assert (found, told) == (expected, [])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (shutil.rmtree, "no such file or directory"),
        (emptied, "there is nothing in it"),
        (not_a_folder, "not a directory"),
    ],
)
def test_a_folder_that_stays_away_is_one_error_and_no_bad_file(
    tmp_path: Path, harm: Callable[[Path], object], reason: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "PATIENCE", 0.2)
    told: list[tuple[str, str]] = []
    source = open_folder(save_numbered(tmp_path / "data", 48))
    batches = Loader(source, batch=4, seed=1, workers=workers, on_bad=lambda *report: told.append(report)).epoch(0)
    next(batches)
    harm(tmp_path / "data")
    with pytest.raises(TrainingError) as caught:
        list(batches)
    assert caught.value.what == f"the folder {tmp_path / 'data'} is gone: {reason}"
    assert told == []


def test_a_folder_that_may_not_be_entered_any_more_is_no_folder_of_bad_files(
    ordinary_user: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "PATIENCE", 0.1)
    source = open_folder(save_numbered(ordinary_user / "data", 4))
    (ordinary_user / "data").chmod(0)
    try:
        with pytest.raises(TrainingError, match=r"the folder .*data is gone: permission denied"):
            source.read(np.arange(4))
    finally:
        (ordinary_user / "data").chmod(0o700)


def test_files_that_vanish_one_by_one_are_bad_files(tmp_path: Path) -> None:
    source = open_folder(save_numbered(tmp_path / "data", 4))
    (tmp_path / "data/001.png").unlink()
    (tmp_path / "data/003.png").unlink()
    assert source.read(np.arange(4)).bad == ((1, "file is gone"), (3, "file is gone"))
