"""Runs on data of which much cannot be read: where they stop, and what they leave."""

from pathlib import Path

import pytest

import iecl
from iecl import parallel
from iecl.data import folder as folders
from iecl.data.source import Source
from iecl.errors import TrainingError
from iecl.runs.directory import RunDirectory
from iecl.training.loop import Loop
from iecl.training.recorder import SkippedFiles

SMALL = {"method": {"hidden_dim": 16, "out_dim": 8}}
RUN = {"backbone": "resnet10-w16", "epochs": 3, "batch_size": 8, "settings": SMALL}


def spoil(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / "red" / f"bad{number:03d}.png").write_bytes(b"no image")


@pytest.mark.parametrize("megabytes", [4096, 0])
def test_a_run_stops_where_most_files_are_unreadable_and_keeps_the_list(
    image_folder: Path, tmp_path: Path, tiny: list[str], megabytes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil(image_folder, 200)
    sets = [*tiny, f"data.cache_megabytes={megabytes}", "data.image_size=16", "data.decode_size=16"]
    with pytest.raises(TrainingError) as caught:
        iecl.pretrain(image_folder, tmp_path / "run", sets=sets, **RUN)
    listed = (tmp_path / "run/skipped.txt").read_text().splitlines()
    total = 200 + 40
    assert caught.value.what.startswith(f"{len(listed)} of the {total} files in {image_folder} cannot be read: ")
    assert len(listed) == 200 if megabytes else len(listed) > total / 2
    assert str(tmp_path / "run/skipped.txt") in caught.value.do
    summary = RunDirectory(tmp_path / "run").read_summary()
    assert summary["stopped"] == str(caught.value)
    shown = capfd.readouterr().err
    assert shown.count("skipped /") == 10
    assert "100 files skipped so far, listed in " in shown


def test_a_run_goes_on_where_it_is_told_that_all_files_may_be_unreadable(
    image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    spoil(image_folder, 100)
    sets = [*tiny, "data.cache_megabytes=0", "data.image_size=16", "data.decode_size=16", "data.max_unreadable=1"]
    run = iecl.pretrain(image_folder, tmp_path / "run", sets=sets, quiet=True, **RUN)
    assert run.summary["finished"]
    assert run.summary["skipped"] == 100


class TenFiles:
    name = "ten"

    def __len__(self) -> int:
        return 10


def watching(path: Path, share: float) -> SkippedFiles:
    run = RunDirectory(path)
    run.make_folders()
    skipped = SkippedFiles(run)
    source: Source = TenFiles()  # type: ignore[assignment]
    skipped.watch(source, share)
    return skipped


def test_what_several_processes_met_counts_together_and_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = watching(tmp_path / "run", 0.5)
    for number in range(4):
        skipped.add(f"{number}.png", "empty file")
    others = {f"{number}.png": "truncated" for number in range(3, 5)}
    monkeypatch.setattr(parallel, "gather_objects", lambda own: [own, others])
    skipped.share()  # five of ten
    assert not skipped.are_too_many
    others = {"9.png": "truncated"}
    with pytest.raises(TrainingError, match=r"6 of the 10 files in ten cannot be read: 4 empty file, 2 truncated"):
        skipped.share()
    assert len((tmp_path / "run/skipped.txt").read_text().splitlines()) == 6


def test_a_resumed_run_does_not_count_files_that_were_mended(tmp_path: Path) -> None:
    for number in range(9):
        watching(tmp_path / "run", 1.0).add(f"{number}.png", "empty file")
    resumed = watching(tmp_path / "run", 0.5)
    assert len(resumed.reasons) == 9
    resumed.share()
    resumed.add("3.png", "empty file")
    assert not resumed.are_too_many
    assert len((tmp_path / "run/skipped.txt").read_text().splitlines()) == 9


def test_what_was_left_out_on_opening_is_no_part_of_the_source(tmp_path: Path) -> None:
    skipped = SkippedFiles(RunDirectory.fresh(tmp_path / "run"))
    for number in range(30):
        skipped.add(f"{number}.png", "skipped when packed")
    source: Source = TenFiles()  # type: ignore[assignment]
    skipped.watch(source, 0.5)
    skipped.share()
    assert not skipped.are_too_many


def test_very_many_files_are_listed_through_one_handle(tmp_path: Path) -> None:
    skipped = watching(tmp_path / "run", 1.0)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(20_000):
        skipped.add(f"{number}.png", "empty file")
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    del skipped
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len((tmp_path / "run/skipped.txt").read_text().splitlines()) == 20_000


def test_a_folder_that_is_gone_stops_the_run_and_poisons_no_list(
    image_folder: Path, tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "PATIENCE", 0.1)
    save = Loop.save

    def save_and_lose(self: Loop, is_best: bool = False) -> None:
        save(self, is_best)
        image_folder.rename(tmp_path / "away")

    monkeypatch.setattr(Loop, "save", save_and_lose)
    sets = [*tiny, "data.cache_megabytes=0"]
    with pytest.raises(TrainingError, match=r"the folder .* is gone: no such file or directory"):
        iecl.pretrain(image_folder, tmp_path / "run", sets=sets, quiet=True, **RUN)
    assert not (tmp_path / "run/skipped.txt").exists()
    monkeypatch.setattr(Loop, "save", save)
    (tmp_path / "away").rename(image_folder)
    run = iecl.pretrain(image_folder, tmp_path / "run", resume=True, quiet=True)
    assert (run.summary["finished"], run.summary["skipped"]) == (True, 0)
