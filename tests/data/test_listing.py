import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iecl.data.labels import class_folders, numbered
from iecl.data.listing import Listing, list_images, printable, splits
from iecl.errors import UserError


def touch(root: Path, *names: str | bytes) -> Path:
    for name in names:
        path = root / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def relative(folder: Path) -> list[bytes]:
    listing = list_images(folder)
    return [listing.relative(i) for i in range(len(listing))]


def test_images_of_all_depths_come_in_byte_order(tmp_path: Path) -> None:
    touch(tmp_path, "b/2.png", "b/10.png", "a/x/y/z.JPG", "c.webp", "B.tiff", "a.gif")
    assert relative(tmp_path) == [b"B.tiff", b"a.gif", b"a/x/y/z.JPG", b"b/10.png", b"b/2.png", b"c.webp"]


def test_hidden_names_and_resource_forks_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", ".b.png", "._a.png", ".git/c.png", "__MACOSX/d.png", "x/.d/e.png")
    assert relative(tmp_path) == [b"a.png"]


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    touch(tmp_path, "data/a.png", "elsewhere/b.png", "elsewhere/more/c.png")
    (tmp_path / "data/class").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/linked.png").symlink_to(tmp_path / "elsewhere/b.png")
    assert relative(tmp_path / "data") == [b"a.png", b"class/b.png", b"class/more/c.png", b"linked.png"]


def test_links_to_folders_have_their_place_in_byte_order(tmp_path: Path) -> None:
    touch(tmp_path, "data/a.png", "data/b/1.png", "data/b/c/2.png", "data/b.png", "data/b0.png", "data/z.png")
    touch(tmp_path, "far/x.png", "far/y/z.png", "further/x.png", "further/y.png", "data/b/c0.png")
    (tmp_path / "data/b/bb").symlink_to(tmp_path / "far")
    (tmp_path / "data/m").symlink_to(tmp_path / "further")
    (tmp_path / "far/n").symlink_to(tmp_path / "data")  # seen already
    (tmp_path / "far/y.y").symlink_to(tmp_path / "further")  # its path is the smaller one, but it is found later
    found = relative(tmp_path / "data")
    assert found == sorted(found)
    assert found == [
        *[b"a.png", b"b.png", b"b/1.png", b"b/bb/x.png", b"b/bb/y.y/x.png", b"b/bb/y.y/y.png", b"b/bb/y/z.png"],
        *[b"b/c/2.png", b"b/c0.png", b"b0.png", b"z.png"],
    ]


def test_of_two_links_to_one_folder_the_first_in_byte_order_counts(tmp_path: Path) -> None:
    touch(tmp_path, "data/k.png", "far/x.png")
    for name in ("b", "a", "c"):
        (tmp_path / "data" / name).symlink_to(tmp_path / "far")
    assert relative(tmp_path / "data") == [b"a/x.png", b"k.png"]


def test_the_order_is_by_bytes_of_the_whole_path_however_folders_and_files_are_mixed(tmp_path: Path) -> None:
    letters = ["a", "a-", "a.", "a0", "b", "ab"]
    names = [f"{first}/{second}.png" for first in letters for second in letters] + [f"{one}.png" for one in letters]
    names += [f"{one}/{one}/{one}.png" for one in letters]
    found = relative(touch(tmp_path, *names))
    assert found == sorted(name.encode() for name in names)


def test_a_folder_that_links_lead_back_to_is_listed_once_under_its_own_name(tmp_path: Path) -> None:
    touch(tmp_path, "m/a.png", "m/deep/b.png")
    (tmp_path / "m/deep/up").symlink_to(tmp_path)
    (tmp_path / "first").symlink_to(tmp_path / "m")  # sorts before the real folder
    assert relative(tmp_path) == [b"m/a.png", b"m/deep/b.png"]


def test_pipes_folders_and_broken_links_with_an_image_name_are_no_images(tmp_path: Path) -> None:
    touch(tmp_path, "good.png", "folder.png/inside.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "itself.png").symlink_to(tmp_path / "itself.png")
    listing = list_images(tmp_path)
    assert [listing.relative(i) for i in range(len(listing))] == [b"folder.png/inside.png", b"good.png"]
    assert listing.others == {"broken link": 2, "not a regular file": 1}


@pytest.mark.parametrize("name", [b"\xff\xfe.png", b"new\nline.png", b"\x1b[31m.png", "\u202egnp.png".encode()])
def test_a_hostile_name_is_kept_as_bytes_and_shown_on_one_harmless_line(tmp_path: Path, name: bytes) -> None:
    listing = list_images(touch(tmp_path, name))
    assert listing.path(0) == os.fsencode(tmp_path) + b"/" + name
    assert Path(os.fsdecode(listing.path(0))).exists()
    assert listing.name(0).isprintable()
    assert listing.name(0).encode("utf-8")


def test_a_listing_costs_its_names_and_one_number_for_each(tmp_path: Path) -> None:
    names = [f"class_{i % 7}/{i:06d}.jpeg" for i in range(300)]
    listing = list_images(touch(tmp_path, *names))
    assert len(listing.names) + listing.ends.nbytes == sum(map(len, names)) + 8 * len(names)
    assert [listing.relative(i).decode() for i in range(300)] == sorted(names)


def test_a_selection_keeps_the_order_it_was_given(tmp_path: Path) -> None:
    listing = list_images(touch(tmp_path, "a.png", "bb.png", "ccc.png")).select(np.array([2, 0]))
    assert [listing.relative(i) for i in range(len(listing))] == [b"ccc.png", b"a.png"]


@given(st.lists(st.integers(0, 24), max_size=60))
def test_any_selection_has_the_paths_it_names(index: list[int]) -> None:
    paths = [f"{i % 5}/{'x' * (i % 7)}{i}.png".encode() for i in range(25)]
    whole = Listing(b"/root", b"".join(paths), np.cumsum([len(path) for path in paths]), {})
    some = whole.select(np.array(index, np.int64))
    assert [some.relative(i) for i in range(len(some))] == [paths[i] for i in index]


@pytest.mark.parametrize(
    ("files", "folders"),
    [
        (["a.png", "b.png"], [(b"", 0, 1), (b"", 1, 2)]),
        (["a/1.png", "a/2/3.png", "b/1.png"], [(b"a", 0, 2), (b"b", 2, 3)]),
        (["a/1.png", "a.png", "a0/1.png", "a-/1.png"], [(b"a-", 0, 1), (b"", 1, 2), (b"a", 2, 3), (b"a0", 3, 4)]),
    ],
)
def test_the_folders_right_below_the_root_are_ranges(
    tmp_path: Path, files: list[str], folders: list[tuple[bytes, int, int]]
) -> None:
    assert list(list_images(touch(tmp_path, *files)).first_folders()) == folders


def test_a_listing_survives_the_way_to_another_process(tmp_path: Path) -> None:
    listing = list_images(touch(tmp_path, "a.png", "b/c.png"))
    again = pickle.loads(pickle.dumps(listing))
    assert [again.path(i) for i in range(2)] == [listing.path(i) for i in range(2)]


def test_listing_holds_the_names_of_one_folder_at_a_time(tmp_path: Path) -> None:
    names = [f"{folder:02d}/{'n' * 40}{i:04d}.png" for folder in range(40) for i in range(250)]
    for folder in range(40):
        (tmp_path / f"{folder:02d}").mkdir()
    for name in names:
        os.close(os.open(tmp_path / name, os.O_CREAT))
    list_images(tmp_path)
    tracemalloc.start()
    listing = list_images(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = len(listing.names) + listing.ends.nbytes
    assert peak < 1.6 * kept  # a list of 10,000 names alone would be 1.6 times as much, its sorted copy more


def make_file(root: Path) -> Path:
    return touch(root, "file.png") / "file.png"


def make_empty(root: Path) -> Path:
    return root


def make_texts(root: Path) -> Path:
    return touch(root, "a.txt", "b/c.TXT", "d.pdf", "README", ".hidden.png")


def make_missing(root: Path) -> Path:
    return root / "cats\n"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (make_missing, r"there is no folder {root}/cats\n"),
        (make_file, "{root}/file.png is a file, not a folder"),
        (make_empty, "there is no image in {root}: it is empty"),
        (
            make_texts,
            "there is no image in {root}: 5 files: 2 .txt, 1 .pdf, 1 hidden, 1 without extension",
        ),
    ],
)
def test_a_folder_without_images_is_an_error_of_one_line_that_says_what_is_there(
    tmp_path: Path, make: object, what: str
) -> None:
    assert callable(make)
    with pytest.raises(UserError) as caught:
        list_images(make(tmp_path))
    assert caught.value.what == what.format(root=tmp_path)
    assert caught.value.where == "--data"
    assert caught.value.do
    assert "\n" not in str(caught.value)


def test_a_forbidden_sub_folder_is_noted_and_the_rest_listed(ordinary_user: Path) -> None:
    closed = touch(ordinary_user, "good/a.png", "closed/b.png") / "closed"
    closed.chmod(0)
    listing = list_images(ordinary_user)
    assert (len(listing), listing.unreadable) == (1, ((str(closed), "permission denied"),))
    with pytest.raises(UserError, match=r"cannot list .*closed: permission denied"):
        list_images(closed)


@pytest.mark.parametrize(
    ("files", "train", "test"),
    [
        (["train/a/1.png", "test/a/2.png"], "train", "test"),
        (["train/a/1.png", "val/a/2.png"], "train", "val"),
        (["train/1.png", "valid/2.png", "validation/3.png"], "train", "valid"),
        (["train/a/1.png", "val/a/2.png", "test/a/3.png"], "train", "test"),
        (["train/a/1.png", "val/a/2.png", "test/3.png"], "train", "val"),  # ImageNet: the test part has no classes
        (["Train/1.png", "TEST/2.png"], "Train", "TEST"),
    ],
)
def test_train_and_test_folders_are_splits(tmp_path: Path, files: list[str], train: str, test: str) -> None:
    assert splits(touch(tmp_path, *files)) == {"train": tmp_path / train, "test": tmp_path / test}


@pytest.mark.parametrize(
    "files",
    [
        ["a/1.png", "b/2.png"],
        ["train/1.png"],
        ["test/1.png", "val/2.png"],
        ["train/1.png", "test/readme.txt"],
        ["train/notes.txt", "test/1.png"],
    ],
)
def test_a_folder_without_images_in_both_parts_is_one_part(tmp_path: Path, files: list[str]) -> None:
    assert splits(touch(tmp_path, *files)) == {"all": tmp_path}


def test_splits_leave_it_to_the_listing_to_complain(tmp_path: Path) -> None:
    assert splits(tmp_path / "missing") == {"all": tmp_path / "missing"}


@pytest.mark.parametrize(
    ("files", "labels", "classes"),
    [
        (["a/1.png", "a/2.png", "b/x/3.png", "b/4.png"], "auto", (b"a", b"b")),
        (["a/1.png", "a/2.png", "b/3.png"], "auto", ()),  # less than two for each class
        (["a/1.png", "a/2.png"], "auto", ()),  # one class
        (["a/1.png", "a/2.png", "b/3.png", "b/4.png", "loose.png"], "auto", ()),
        (["a/1.png", "b/2.png", "loose.png"], "folders", (b"a", b"b")),
        (["a/1.png", "a/2.png", "b/3.png", "b/4.png"], "none", ()),
    ],
)
def test_class_folders_are_taken_as_the_setting_says(
    tmp_path: Path, files: list[str], labels: str, classes: tuple[bytes, ...]
) -> None:
    assert class_folders(list_images(touch(tmp_path, *files)), labels) == classes


def test_folders_as_labels_need_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no class folders \(data.labels = folders\); set it to none"):
        class_folders(list_images(touch(tmp_path, "1.png")), "folders")


def test_labels_are_numbers_of_the_training_classes_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.png", "train/b/1.png", "train/c/1.png", "test/c/1.png", "test/b/1.png", "test/0.png")
    classes = class_folders(list_images(tmp_path / "train"), "folders")
    assert numbered(list_images(tmp_path / "test"), classes).tolist() == [-1, 1, 2]
    assert numbered(list_images(tmp_path / "test"), ()).tolist() == [-1, -1, -1]


def test_a_test_class_that_was_never_trained_on_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "test/a/1.png", "test/new/1.png")
    with pytest.raises(UserError, match=r"1 class folder\(s\) that the training images lack: new"):
        numbered(list_images(tmp_path / "test"), (b"a",))


def test_an_ordinary_name_is_shown_as_it_is() -> None:
    assert printable("Käse und Brötchen (中文).png".encode()) == "Käse und Brötchen (中文).png"


def test_an_image_that_is_a_broken_link_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(b"a listing does not look inside")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    found = list_images(tmp_path)
    assert len(found) == 1
    assert sorted(found.unreadable) == [(str(tmp_path / name), "broken link") for name in ("gone.png", "loop.png")]
