import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from images import save_solid

from iecl.data.datasets import DATASETS, FACTS
from iecl.data.defaults import resolve_data
from iecl.data.factory import is_test_fifth, open_source
from iecl.data.folder import FolderSource
from iecl.data.listing import list_images
from iecl.data.loader import in_order
from iecl.data.pack_writer import pack
from iecl.data.settings import DataSettings
from iecl.data.source import ArraySource, Source, name_in
from iecl.errors import UserError
from iecl.registry import Entry


def settings_for(folder: Path, **values: object) -> DataSettings:
    return DataSettings(name=str(folder), num_workers=0, **values)  # type: ignore[arg-type]


def names(source: Source) -> list[str]:
    return [Path(source.path(i)).stem for i in range(len(source))]


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """15 cats, 10 dogs, 5 eels, one folder each, red, green and blue."""
    for name, count, color in (("cat", 15, (200, 0, 0)), ("dog", 10, (0, 200, 0)), ("eel", 5, (0, 0, 200))):
        for i in range(count):
            save_solid(tmp_path / f"animals/{name}/{name}{i}.png", color)
    return tmp_path / "animals"


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """A folder with train and val; val lacks the first class."""
    for name in ("train/a/1", "train/a/2", "train/b/3", "train/b/4", "val/b/5"):
        save_solid(tmp_path / f"{name}.png")
    return tmp_path


def test_a_folder_without_splits_is_all_for_training(animals: Path) -> None:
    source = open_source(settings_for(animals))
    assert len(source) == 30
    assert source.classes == ("cat", "dog", "eel")
    assert Counter(source.labels.tolist()) == {0: 15, 1: 10, 2: 5}
    assert source.read(np.array([0, 29])).images[:, :, 0, 0].tolist() == [[200, 0, 0], [0, 0, 200]]


def test_a_folder_without_splits_gives_a_fifth_of_each_class_for_testing(animals: Path) -> None:
    test, train = (open_source(settings_for(animals), split) for split in ("test", "train-part"))
    assert Counter(test.labels.tolist()) == {0: 3, 1: 2, 2: 1}
    assert Counter(train.labels.tolist()) == {0: 12, 1: 8, 2: 4}
    assert not set(names(test)) & set(names(train))
    assert test.classes == train.classes == ("cat", "dog", "eel")


def test_the_fifth_of_a_folder_is_the_same_wherever_it_lies_and_hardly_moves_when_it_grows(animals: Path) -> None:
    before = names(open_source(settings_for(animals), "test"))
    moved = animals.rename(animals.with_name("moved"))
    assert names(open_source(settings_for(moved), "test")) == before
    save_solid(moved / "cat/another.png")
    after = names(open_source(settings_for(moved), "test"))
    assert len(set(before) - set(after)) <= 1  # the new one may take a place


@pytest.mark.parametrize(("count", "expected"), [(1, 0), (2, 1), (9, 1), (10, 2), (14, 2)])
def test_the_fifth_is_rounded_down_but_at_least_one_of_two(tmp_path: Path, count: int, expected: int) -> None:
    for i in range(count):
        (tmp_path / f"{i}.png").touch()
    assert is_test_fifth(list_images(tmp_path), np.full(count, -1)).sum() == expected


@pytest.mark.parametrize(
    ("split", "expected"), [("train", "1234"), ("pretrain", "1234"), ("train-part", "1234"), ("test", "5")]
)
def test_splits_of_a_folder_are_used_as_they_are(halves: Path, split: str, expected: str) -> None:
    assert "".join(names(open_source(settings_for(halves), split))) == expected


def test_pretraining_on_a_folder_without_splits_sees_all_of_it(animals: Path) -> None:
    assert len(open_source(settings_for(animals), "pretrain")) == 30


def test_an_unknown_split_of_a_folder_is_an_error(animals: Path) -> None:
    with pytest.raises(UserError, match=r"a folder has no split 'trian' \(split\); did you mean train\?"):
        open_source(settings_for(animals), "trian")


def test_test_labels_are_the_numbers_of_the_training_classes(halves: Path) -> None:
    test = open_source(settings_for(halves), "test")
    assert (test.classes, test.labels.tolist()) == (("a", "b"), [1])


def test_labels_can_be_switched_off(animals: Path) -> None:
    source = open_source(settings_for(animals, labels="none"))
    assert source.classes == ()
    assert set(source.labels.tolist()) == {-1}


# 30 images of 3 x 260 x 260 bytes are 5.8 times 2^20.
@pytest.mark.parametrize(("megabytes", "kind"), [(6, ArraySource), (5, FolderSource), (0, FolderSource)])
def test_images_are_kept_in_memory_up_to_the_size_allowed(animals: Path, megabytes: int, kind: type) -> None:
    settings = settings_for(animals, decode_size=260, image_size=128, cache_megabytes=megabytes)
    assert type(open_source(settings)) is kind


def test_both_kinds_give_the_same_images(animals: Path) -> None:
    kept, decoded = (open_source(settings_for(animals, cache_megabytes=size)) for size in (100, 0))
    for one, other in zip(in_order(kept, 7), in_order(decoded, 7), strict=True):
        assert all(bool((vars(one)[name] == vars(other)[name]).all()) for name in vars(one))


def test_bad_files_are_reported_and_left_out_and_progress_is_told(animals: Path) -> None:
    (animals / "cat/cat3.png").write_text("no image")
    reports: list[tuple[str, str]] = []
    seen: list[tuple[int, int]] = []
    source = open_source(settings_for(animals), on_bad=lambda *r: reports.append(r), progress=lambda *p: seen.append(p))
    assert len(source) == 29
    assert reports == [(str(animals / "cat/cat3.png"), "not an image")]
    assert seen[-1] == (30, 30)


def test_unless_told_otherwise_a_bad_file_is_logged(animals: Path, caplog: pytest.LogCaptureFixture) -> None:
    (animals / "cat/cat3.png").write_bytes(b"")
    open_source(settings_for(animals))
    assert caplog.messages == [f"skipped {animals}/cat/cat3.png: empty file"]


def test_a_folder_whose_headers_are_good_and_bodies_bad_is_an_error(tmp_path: Path) -> None:
    for i in range(3):
        path = save_solid(tmp_path / f"{i}.bmp", size=(64, 64))
        os.truncate(path, 300)
    with pytest.raises(UserError, match=r"none of the 3 images in .* can be read: 3 truncated"):
        open_source(settings_for(tmp_path), on_bad=lambda path, reason: None)


def test_a_forbidden_sub_folder_is_reported(ordinary_user: Path) -> None:
    save_solid(ordinary_user / "good/a.png")
    save_solid(ordinary_user / "closed/b.png").parent.chmod(0)
    reports: list[tuple[str, str]] = []
    source = open_source(settings_for(ordinary_user), on_bad=lambda *r: reports.append(r))
    assert len(source) == 1
    assert reports == [(str(ordinary_user / "closed"), "permission denied")]


@pytest.mark.parametrize(("split", "asked"), [("train", "train"), ("train-part", "train"), ("test", "test")])
def test_a_named_dataset_is_opened_by_its_own_function(monkeypatch: pytest.MonkeyPatch, split: str, asked: str) -> None:
    monkeypatch.setitem(DATASETS, "tiny", Entry("images:open_tiny", "two black images"))
    monkeypatch.setitem(FACTS, "tiny", FACTS["cifar10"])
    source = open_source(DataSettings(name="tiny"), split)
    assert (source.name, source.read(np.array([1])).images.shape) == (f"tiny {asked}", (1, 3, 32, 32))


DATA = os.environ.get("IECL_TEST_DATA", "")


@pytest.mark.skipif(not DATA, reason="IECL_TEST_DATA does not name the folder with the datasets")
@pytest.mark.parametrize(
    ("folder", "image_size", "classes", "train", "test"),
    [
        ("cifar100-mini", 32, 100, 1117, 916),
        ("imagenette-natural", 224, 10, 40, 10),  # 4 of each class, of which one is held out
        ("nasty/tree", 64, 6, None, None),
    ],
)
def test_real_folders_open_with_the_sizes_and_counts_they_are_known_for(
    folder: str, image_size: int, classes: int, train: int | None, test: int | None
) -> None:
    settings = resolve_data(settings_for(Path(DATA) / folder, cache_megabytes=0))
    source = open_source(settings)
    assert settings.image_size == image_size
    assert len(source.classes) == classes
    assert train in (None, len(source))
    assert test in (None, len(open_source(settings, "test")))


PARTS = ("pretrain", "train", "train-part", "test")


def validated(name: Path | str, **values: object) -> dict[str, set[str]]:
    """What each split holds when a tenth is kept for validation, by names that the folder has no part in."""
    settings = DataSettings(name=str(name), num_workers=0, validation=True, **values)  # type: ignore[arg-type]
    sources = {split: open_source(settings, split) for split in PARTS}
    return {split: {name_in(source, i) for i in range(len(source))} for split, source in sources.items()}


@pytest.mark.parametrize("cache_megabytes", [0, 100])
def test_validation_keeps_a_tenth_of_the_training_images_and_never_opens_test_images(
    tmp_path: Path, cache_megabytes: int
) -> None:
    for number in range(120):
        save_solid(tmp_path / f"set/train/{number % 2}/{number}.png")
    save_solid(tmp_path / "set/test/0/secret.png")
    found = validated(tmp_path / "set", cache_megabytes=cache_megabytes)
    assert found["pretrain"] == found["train"] == found["train-part"]
    assert not found["test"] & found["train"]
    assert len(found["test"] | found["train"]) == 120
    assert 6 <= len(found["test"]) <= 20
    assert not any("secret" in name for name in found["test"])


def test_a_folder_without_splits_keeps_its_fifth_untouched_by_validation(animals: Path) -> None:
    (fifth,) = (names(open_source(settings_for(animals), "test")),)
    found = validated(animals)
    assert all(not set(fifth) & {Path(name).stem for name in part} for part in found.values())
    assert len(found["test"] | found["train"]) == 24


def test_the_validation_tenth_is_the_same_packed_copied_and_without_labels(animals: Path, tmp_path: Path) -> None:
    whole = validated(animals)
    pack(str(animals), tmp_path / "animals.iecl")
    copied = animals.rename(tmp_path / "elsewhere")
    assert validated(tmp_path / "animals.iecl") == validated(copied) == whole
    assert not validated(copied, labels="none")["train"] & whole["test"]  # whoever ignores classes keeps it too


def test_a_packed_file_cannot_lack_a_tenth(animals: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds all images \(data.validation\)"):
        pack(str(animals), tmp_path / "animals.iecl", sets=["data.validation=true"])


def test_a_named_dataset_has_a_validation_tenth_too() -> None:
    found = validated("digits")
    assert len(found["train"]) + len(found["test"]) == FACTS["digits"].train
    assert len(found["test"]) == pytest.approx(FACTS["digits"].train / 10, rel=0.2)


def test_a_tenth_of_two_images_is_refused(halves: Path) -> None:
    with pytest.raises(UserError, match=r"too few images to keep a tenth of them \(data.validation\)"):
        validated(halves)
