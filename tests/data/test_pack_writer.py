import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, namedtuple
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from images import save_numbered, save_solid
from PIL import Image

import iecl
from iecl.data.defaults import has_test, resolve_data
from iecl.data.factory import open_source
from iecl.data.loader import Loader, in_order
from iecl.data.pack_format import FIRST, MAGIC, PRELUDE, checksum, open_packed, prelude_of
from iecl.data.packed_source import DAMAGED, PackedSource, plain_sums_of, sums_of
from iecl.data.settings import DataSettings
from iecl.data.source import Source
from iecl.errors import TrainingError, UserError
from iecl.evaluation.splits import names_of

SETS = ("data.num_workers=0",)


def settings_for(path: Path, **values: object) -> DataSettings:
    return DataSettings(name=str(path), num_workers=0, **values)  # type: ignore[arg-type]


def ignore(path: str, reason: str) -> None:
    """For tests that look at the images only."""


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """15 cats, 10 dogs, 5 eels of several shapes; one cat and one dog cannot be read."""
    for name, count, color in (("cat", 15, (200, 0, 0)), ("dog", 10, (0, 200, 0)), ("eel", 5, (0, 0, 200))):
        for i in range(count):
            save_solid(tmp_path / f"animals/{name}/{name}{i:02d}.png", color, size=(8 + i, 12))
    (tmp_path / "animals/cat/cat03.png").write_text("no image")
    (tmp_path / "animals/dog/dog09.png").write_bytes(b"")
    return tmp_path / "animals"


@pytest.fixture
def packed(animals: Path, tmp_path: Path) -> Path:
    iecl.pack(animals, tmp_path / "animals.iecl", sets=SETS)
    return tmp_path / "animals.iecl"


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """A folder with train and val; val lacks the first class and one of its images is bad."""
    for i, name in enumerate(("train/a/1", "train/a/2", "train/b/3", "train/b/4", "val/b/5", "val/b/6", "val/b/7")):
        save_solid(tmp_path / f"halves/{name}.png", (i, 0, 0))
    (tmp_path / "halves/val/b/6.png").write_text("no image")
    return tmp_path / "halves"


def everything(source: Source) -> dict[str, object]:
    """All that can be seen of a source."""
    batches = list(in_order(source, 7, on_bad=ignore))
    seen = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in vars(batches[0])}
    names = names_of(source, seen["index"])
    return {name: value.tolist() for name, value in seen.items()} | {"names": names, "classes": source.classes}


@pytest.mark.parametrize("split", ["pretrain", "train", "test", "train-part"])
@pytest.mark.parametrize("kind", ["animals", "halves"])
def test_a_packed_file_gives_what_its_folder_gives(
    kind: str, split: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(kind)
    made = iecl.pack(folder, tmp_path / "file", sets=SETS)
    assert made["parts"] == ({"train": 4, "test": 2} if kind == "halves" else {"all": 28})
    before, after = (resolve_data(settings_for(path)) for path in (folder, tmp_path / "file"))
    assert (before.image_size, before.decode_size, before.labels) == (after.image_size, after.decode_size, after.labels)
    assert has_test(DataSettings(name=str(folder))) == has_test(DataSettings(name=str(tmp_path / "file")))
    shown = [everything(open_source(settings, split, ignore)) for settings in (before, after)]
    assert shown[0] == shown[1]


def test_epochs_are_the_same_as_from_the_folder(animals: Path, packed: Path) -> None:
    epochs = []
    for path in (animals, packed):
        loader = Loader(open_source(settings_for(path), "pretrain", ignore), batch=5, seed=3)
        epochs.append([batch for number in (0, 1) for batch in loader.epoch(number)])
    for one, other in zip(*epochs, strict=True):
        assert all(torch.equal(value, vars(other)[name]) for name, value in vars(one).items())


def test_no_worker_is_needed(packed: Path) -> None:
    source = open_source(settings_for(packed), "pretrain", ignore)
    assert source.is_decoded
    assert open_source(settings_for(packed), "test", ignore).is_decoded


@pytest.mark.parametrize("split", ["pretrain", "train-part"])
@pytest.mark.parametrize("memory", [0, 2**40])
def test_the_system_is_told_of_images_before_they_are_read(
    split: str, memory: int, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, list[int]]] = []
    read, expect = PackedSource.read, PackedSource.expect

    def noting_read(self: PackedSource, index: np.ndarray) -> object:
        events.append(("read", index.tolist()))
        return read(self, index)

    def noting_expect(self: PackedSource, index: np.ndarray) -> None:
        events.append(("expect", index.tolist()))
        expect(self, index)

    monkeypatch.setattr(PackedSource, "read", noting_read)
    monkeypatch.setattr(PackedSource, "expect", noting_expect)
    monkeypatch.setattr("iecl.data.packed_source._memory", lambda: memory)
    loader = Loader(open_source(settings_for(packed), split, ignore), batch=4, seed=0)
    list(loader.epoch(0))
    told, seen = ([rows for kind, rows in events if kind == name] for name in ("expect", "read"))
    assert told == seen
    assert [kind for kind, _ in events[:5]] == ["expect", "expect", "expect", "read", "expect"]
    assert [kind for kind, _ in events[-3:]] == ["read"] * 3


def test_skipped_files_are_named_with_their_reasons_whenever_the_file_is_opened(animals: Path, tmp_path: Path) -> None:
    (animals / "eel/gone.png").symlink_to(tmp_path / "nowhere.png")
    made = iecl.pack(animals, tmp_path / "file", sets=SETS)
    reports: list[tuple[str, str]] = []
    open_source(settings_for(tmp_path / "file"), "pretrain", lambda *report: reports.append(report))
    assert made["skipped"] == 3
    assert sorted(reports) == [
        (f"{tmp_path}/file/cat/cat03.png", "not an image"),
        (f"{tmp_path}/file/dog/dog09.png", "empty file"),
        (f"{tmp_path}/file/eel/gone.png", "broken link"),
    ]


def test_hostile_names_survive(tmp_path: Path) -> None:
    for name in (b"\xff\xfe.png", b"new\nline.png"):
        save_solid(tmp_path / "folder" / os.fsdecode(name))
    iecl.pack(tmp_path / "folder", tmp_path / "file", sets=SETS)
    source = open_source(settings_for(tmp_path / "file"))
    assert isinstance(source, PackedSource)
    assert [source.listing.relative(i) for i in range(2)] == [b"new\nline.png", b"\xff\xfe.png"]
    assert source.path(0) == f"{tmp_path}/file/new\\nline.png"


def test_the_file_is_the_same_for_any_number_of_workers(animals: Path, tmp_path: Path) -> None:
    for workers in (0, 2):
        iecl.pack(animals, tmp_path / str(workers), sets=[f"data.num_workers={workers}"])
    assert (tmp_path / "0").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.mark.parametrize(("side", "image_size"), [(0, 32), (20, 20), (33, 32), (64, 32)])
def test_the_side_is_as_asked_or_as_pretraining_would_choose(
    animals: Path, tmp_path: Path, side: int, image_size: int
) -> None:
    made = iecl.pack(animals, tmp_path / "file", side=side, sets=SETS)
    settings = resolve_data(settings_for(tmp_path / "file"))
    assert (made["side"], settings.decode_size, settings.image_size) == (side or 32, side or 32, image_size)
    assert open_source(settings, on_bad=ignore).read(np.array([0])).images.shape == (1, 3, side or 32, side or 32)


def test_labels_can_be_left_out_when_packing_or_afterwards(animals: Path, packed: Path, tmp_path: Path) -> None:
    iecl.pack(animals, tmp_path / "file", sets=[*SETS, "data.labels=none"])
    for settings in (settings_for(tmp_path / "file"), settings_for(packed, labels="none")):
        source = open_source(settings, on_bad=ignore)
        assert (source.classes, set(source.labels.tolist())) == ((), {-1})
    labeled = open_source(settings_for(packed), on_bad=ignore)
    assert Counter(labeled.labels.tolist()) == {0: 14, 1: 9, 2: 5}
    with pytest.raises(UserError, match=r"was packed without classes \(data.labels = folders\); pack them again"):
        resolve_data(settings_for(tmp_path / "file", labels="folders"))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"decode_size": 48}, "holds images of 32 px (data.decode_size = 48); leave it out, or pack the images again"),
        ({"decode_size": 32}, ""),
        ({"image_size": 64}, ""),  # the originals are no larger either
    ],
)
def test_what_was_decided_when_packing_cannot_be_asked_for_differently(
    packed: Path, values: dict[str, object], what: str
) -> None:
    if not what:
        assert resolve_data(settings_for(packed, **values)).decode_size == 32
        return
    with pytest.raises(UserError) as caught:
        resolve_data(settings_for(packed, **values))
    assert what in str(caught.value)


def test_views_larger_than_what_was_kept_of_the_images_are_refused(tmp_path: Path) -> None:
    save_solid(tmp_path / "folder/a.png", size=(100, 100))
    iecl.pack(tmp_path / "folder", tmp_path / "file", side=32, sets=SETS)
    assert resolve_data(settings_for(tmp_path / "file", image_size=32)).image_size == 32
    with pytest.raises(UserError, match=r"holds images of 32 px, made of larger ones \(data.image_size = 96\)"):
        resolve_data(settings_for(tmp_path / "file", image_size=96))


# --- what can be wrong with a file


def refused(path: Path) -> str:
    """What is said of a file that cannot be opened."""
    with pytest.raises(UserError) as caught:
        resolve_data(settings_for(path))
    assert caught.value.where == "--data"
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"only text", b"\x89PNG\r\n\x1a\n" * 20, MAGIC[:-1], MAGIC.replace(b"\n", b"\r\n")]
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    expected = f"{tmp_path}/file is a file, not a folder, and not one that iecl pack wrote (--data); give the folder"
    assert refused(tmp_path / "file").startswith(expected)


@pytest.mark.parametrize("length", [8, 40, PRELUDE.size, FIRST, FIRST + 100, -5000, -1])
def test_a_file_that_is_cut_short_is_refused(packed: Path, length: int) -> None:
    os.truncate(packed, length if length >= 0 else packed.stat().st_size + length)
    assert "is damaged: it is cut short" in refused(packed)


def test_a_file_with_something_added_is_refused(packed: Path) -> None:
    with packed.open("ab") as file:
        file.write(b"more")
    assert "is damaged: something was added to it" in refused(packed)


def test_a_later_version_is_refused(packed: Path) -> None:
    with packed.open("r+b") as file:
        file.seek(8)
        file.write(b"\x03")
    assert "has version 3 of the packed form, this iecl reads versions up to 2 (--data); make it" in refused(packed)


def changed(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(bytes(content))


def test_a_changed_byte_anywhere_is_found(packed: Path) -> None:
    good = packed.read_bytes()
    _, _, _, start, _, _ = PRELUDE.unpack(good[: PRELUDE.size])
    pixels = open_packed(packed).part_for("train").count * 3 * 32 * 32
    places = [0, 9, 17, 25, 40, *range(FIRST + pixels, len(good), 97), start, len(good) - 1]
    for place in places:
        packed.write_bytes(good)
        changed(packed, place)
        padding = not any(good[place : place + 1]) and FIRST + pixels <= place < start
        if not padding:
            refused(packed)
    for place in range(FIRST, FIRST + pixels, 3 * 32 * 32 + 7):
        packed.write_bytes(good)
        changed(packed, place)
        source, row = open_source(settings_for(packed), on_bad=ignore), (place - FIRST) // (3 * 32 * 32)
        found = source.read(np.arange(28))
        assert found.bad == ((row, DAMAGED),)
        assert not found.images[row].any()
        assert source.read(np.array([row, row])).bad == ((0, DAMAGED), (1, DAMAGED))  # it does not become good


def test_a_changed_image_is_replaced_in_training_and_reported(packed: Path) -> None:
    changed(packed, FIRST + 5 * 3 * 32 * 32)
    reports: list[tuple[str, str]] = []
    source = open_source(settings_for(packed), "pretrain", ignore)
    loader = Loader(source, batch=28, seed=1, on_bad=lambda *report: reports.append(report))
    (batch,) = loader.epoch(0)
    assert 5 not in batch.index
    assert reports == [(source.path(5), DAMAGED)]


@pytest.mark.parametrize(
    "change",
    [
        {"parts": []},
        {"parts": 3},
        {"side": "x"},
        {"side": None},
        {"side": -8},
        {"side": True},
        {"side": 32.0},
        {"image_size": 0},
        {"image_size": 1},
        {"image_size": 33},
        {"image_size": "32"},
        {"short_side": 0},
        {"short_side": -1.0},
        {"short_side": float("inf")},
        {"short_side": float("nan")},
        {"classes": 5},
        {"classes": ["cat", "dog", 3]},
        {"classes": ["cat", "dog", "dog"]},
        {"parts": [{"name": 1}]},
    ],
)
def test_a_header_that_makes_no_sense_is_refused_even_if_its_checksum_is_right(
    packed: Path, change: dict[str, object]
) -> None:
    content = packed.read_bytes()
    _, _, _, start, _, _ = PRELUDE.unpack(content[: PRELUDE.size])
    header = json.dumps(json.loads(content[start:]) | change).encode()
    packed.write_bytes(prelude_of(start, header) + content[PRELUDE.size : start] + header)
    assert "is damaged: " in refused(packed)


def test_a_forbidden_file_is_refused(ordinary_user: Path) -> None:
    (ordinary_user / "file").write_bytes(MAGIC)
    (ordinary_user / "file").chmod(0)
    assert "cannot read" in refused(ordinary_user / "file")


def with_part(path: Path, change: dict[str, object], tables: dict[str, np.ndarray] | None = None) -> None:
    """Rewrite the header's row of the only part, and some tables, with every checksum right."""
    content = bytearray(path.read_bytes())
    _, _, _, start, _, _ = PRELUDE.unpack(content[: PRELUDE.size])
    header = json.loads(content[start:])
    for name, table in (tables or {}).items():
        place = header["parts"][0]["tables"][name]
        raw = np.ascontiguousarray(table)
        content[place["start"] : place["start"] + place["length"]] = raw.tobytes()
        place |= {"length": raw.nbytes, "checksum": checksum(raw)}
    header["parts"][0] |= change
    written = json.dumps(header).encode()
    path.write_bytes(prelude_of(start, written) + content[PRELUDE.size : start] + written)


@pytest.mark.parametrize(
    "change",
    [
        {"count": 0},
        {"count": True},
        {"count": 28.0},
        {"pixels": -4096},
        {"pixels": 0},
        {"pixels": 10**9},
        {"skipped": [["one.png"]]},
        {"skipped": [["one.png", 3]]},
        {"skipped": [[None, "empty file"]]},
    ],
)
def test_a_part_that_makes_no_sense_is_refused(packed: Path, change: dict[str, object]) -> None:
    with_part(packed, change)
    assert "is damaged: " in refused(packed)


@pytest.mark.parametrize(
    ("name", "row", "value", "words"),
    [
        ("labels", 3, 3, "a label is not one of its 3 classes"),
        ("labels", 3, -2, "a label is not one of its 3 classes"),
        ("sizes", (3, 0), 0, "an image has no height or no width"),
        ("sizes", (27, 1), 0, "an image has no height or no width"),
        ("held_out", 0, 2, "its table of held_out has other numbers than 0 and 1"),
        ("ends", 3, -5, "its names do not follow each other"),
        ("ends", 3, 10**6, "its names do not follow each other"),
        ("ends", 27, 10**6, "its names do not follow each other"),
        ("names", 2, 0, "a name is no path below a folder"),
        ("names", 0, ord("/"), "a name is no path below a folder"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused_even_if_its_checksum_is_right(
    packed: Path, name: str, row: int, value: int, words: str
) -> None:
    table = open_packed(packed).part_for("train").tables[name].copy()
    table[row] = value
    with_part(packed, {}, {name: table})
    assert f"is damaged: {words} (--data); make it again" in refused(packed)


@pytest.mark.parametrize("width", [3, 8, 24, 3072])
def test_a_sum_tells_every_changed_byte(width: int) -> None:
    rows = torch.arange(2 * width).to(torch.uint8).view(2, width)
    for sums in (sums_of, plain_sums_of):
        before = sums(rows)
        for place in range(0, width, 5):
            other = rows.clone()
            other[1, place] += 1
            assert (sums(other) == before).tolist() == [True, False]


@pytest.mark.parametrize("values", [[0, 255], [0, 128], [0, 1], list(range(256))])
@pytest.mark.parametrize("width", [3 * 9, 3 * 12**2, 3 * 32**2])
def test_a_sum_tells_every_exchange_of_words_and_bytes(width: int, values: list[int]) -> None:
    made = np.random.default_rng(0)
    row = made.choice(np.array(values, np.uint8), width)
    others = {row.tobytes()}
    for size in (1, 2, 4, 8):
        words = row[: width - width % size].reshape(-1, size)
        for _ in range(200):
            swapped, (one, other) = words.copy(), made.choice(len(words), 2, replace=False)
            swapped[[one, other]] = words[[other, one]]
            for changed_words in (swapped, made.permutation(words), np.roll(words, one, axis=0)):
                others.add(changed_words.tobytes() + row[changed_words.size :].tobytes())
    rows = torch.from_numpy(np.frombuffer(b"".join(others), np.uint8).reshape(-1, width).copy())
    assert len(rows) > 100
    assert len(sums_of(rows).unique()) == len(rows)


def test_words_that_were_shuffled_within_an_image_are_found(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    (tmp_path / "noise").mkdir()
    for number, image in enumerate(noise):
        Image.fromarray(image).save(tmp_path / f"noise/{number}.png")
    iecl.pack(tmp_path / "noise", tmp_path / "file", side=32, sets=SETS)
    content = bytearray(Path(tmp_path / "file").read_bytes())
    second = slice(FIRST + 3072, FIRST + 2 * 3072)
    words = np.frombuffer(bytes(content[second]), np.int64)
    content[second] = np.random.default_rng(1).permutation(words).tobytes()
    (tmp_path / "file").write_bytes(content)
    assert open_source(settings_for(tmp_path / "file")).read(np.arange(4)).bad == ((1, DAMAGED),)


def as_version_1(path: Path) -> None:
    """A packed file as it was written before sums knew the places of words."""
    file = open_packed(path)
    part = file.part_for("train")
    rows = file.content.read(part.pixels, part.count * 3 * file.side**2).reshape(part.count, -1)
    with_part(path, {}, {"sums": plain_sums_of(torch.from_numpy(rows)).numpy()})
    content = bytearray(path.read_bytes())
    content[8:12] = (1).to_bytes(4, "little")
    path.write_bytes(content)


def test_a_file_of_version_1_is_read_and_checked_by_its_own_sums(packed: Path) -> None:
    before = everything(open_source(settings_for(packed), "pretrain", ignore))
    as_version_1(packed)
    source = open_source(settings_for(packed), "pretrain", ignore)
    assert source.read(np.arange(28)).bad == ()
    assert everything(source) == before
    changed(packed, FIRST + 5 * 3 * 32 * 32)
    assert open_source(settings_for(packed), on_bad=ignore).read(np.arange(28)).bad == ((5, DAMAGED),)


# --- what happens to the file while it is used


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(FIRST)
        file.write(bytes(3072))


@pytest.mark.parametrize("harm", [overwritten, lambda path: os.truncate(path, FIRST + 3072)])
@pytest.mark.parametrize("jit", ["0", "1"])
def test_a_file_that_changes_while_it_is_used_stops_the_reader_with_one_line(
    packed: Path, harm: Callable[[Path], None], jit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if jit == "0":
        monkeypatch.setattr("iecl.data.packed_source.loops", lambda module, work: None)
    os.utime(packed, ns=(0, 0))  # some time ago: clocks of files tick a few hundred times in a second
    loader = Loader(open_source(settings_for(packed), "pretrain", ignore), batch=14, seed=1, on_bad=ignore)
    assert len(list(loader.epoch(0))) == 2  # every image was found good once
    harm(packed)
    with pytest.raises(TrainingError) as caught:
        list(loader.epoch(1))
    assert caught.value.what == f"the packed file {packed} changed while it was used"
    assert "make it again with iecl pack" in caught.value.do


def test_bytes_that_change_under_the_old_date_are_noticed_by_every_part_of_a_file(packed: Path) -> None:
    os.utime(packed, ns=(0, 0))
    file = open_packed(packed)
    sources = [PackedSource(file, file.part_for("train")) for _ in range(2)]
    index = np.arange(3)
    assert all(source.read(index).bad == () for source in sources)
    overwritten(packed)
    os.utime(packed, ns=(0, 0))
    assert all(source.read(index).bad == ((0, DAMAGED),) for source in sources)


def test_a_file_that_is_cut_short_while_it_is_used_does_not_kill_the_process(packed: Path) -> None:
    program = (
        "import os, sys, numpy as np\n"
        "from iecl.data.factory import open_source\n"
        "from iecl.data.settings import DataSettings\n"
        "from iecl.errors import TrainingError\n"
        "source = open_source(DataSettings(name=sys.argv[1], num_workers=0), on_bad=lambda *report: None)\n"
        "os.truncate(sys.argv[1], 0)\n"
        "assert source.path(27).endswith('.png') and source.labels.max() == 2\n"
        "try:\n    source.read(np.arange(28))\nexcept TrainingError as problem:\n    print(problem.what)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, packed], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"the packed file {packed} changed while it was used\n"), done.stderr


def test_a_file_whose_name_another_takes_is_used_on(animals: Path, packed: Path) -> None:
    source = open_source(settings_for(packed), "pretrain", ignore)
    before = everything(source)
    iecl.pack(animals, packed, side=16, sets=SETS, overwrite=True)
    assert everything(source) == before
    packed.unlink()
    assert everything(source) == before


def test_a_source_that_goes_closes_its_file(packed: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        open_source(settings_for(packed), "pretrain", ignore).read(np.arange(3))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- what can be wrong with the place


def test_a_file_that_is_there_is_replaced_only_when_told_to(animals: Path, packed: Path) -> None:
    before = packed.read_bytes()
    with pytest.raises(UserError, match=r"is there already \(out\); add overwrite=True"):
        iecl.pack(animals, packed, sets=SETS)
    assert packed.read_bytes() == before
    assert iecl.pack(animals, packed, side=16, sets=SETS, overwrite=True)["side"] == 16
    assert [path.name for path in packed.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("place", "what"), [("", "is a folder"), ("no/file", "there is no folder"), ("file.png/file", "there is no folder")]
)
def test_a_place_that_cannot_be_written_to_is_told_before_the_work(
    animals: Path, tmp_path: Path, place: str, what: str
) -> None:
    with pytest.raises(UserError, match=what):
        iecl.pack(animals, tmp_path / place, sets=SETS)


def test_too_little_space_is_told_before_the_work(
    animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 2**20))
    with pytest.raises(UserError, match=r"would take \d+ MB, 1 MB are free \(out\); name a place on another disk"):
        iecl.pack(animals, tmp_path / "file", sets=SETS)
    assert not list(tmp_path.glob(".file*"))


def test_a_disk_that_fills_up_leaves_nothing(animals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*file: No space left on device \(out\)"):
        iecl.pack(animals, tmp_path / "file", sets=SETS)
    assert [path.name for path in tmp_path.iterdir()] == ["animals"]


def test_two_processes_do_not_write_one_file_at_once(animals: Path, tmp_path: Path) -> None:
    with (tmp_path / ".file.1.part").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"another process is writing .*file \(out\); wait for it"):
            iecl.pack(animals, tmp_path / "file", sets=SETS)
        assert [path.name for path in tmp_path.glob(".file*")] == [".file.1.part"]


def test_a_killed_process_leaves_the_old_file_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    folder = save_numbered(tmp_path / "folder", 600)
    (tmp_path / "file").write_bytes(b"the old one")
    program = "import sys, iecl; iecl.pack(*sys.argv[1:], side=128, sets=['data.num_workers=0'], overwrite=True)"
    child = subprocess.Popen([sys.executable, "-c", program, str(folder), str(tmp_path / "file")])
    draft = tmp_path / f".file.{child.pid}.part"
    while child.poll() is None and not (draft.exists() and draft.stat().st_size > 10**6):
        time.sleep(0.002)
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert draft.exists()
    assert (tmp_path / "file").read_bytes() == b"the old one"
    made = iecl.pack(folder, tmp_path / "file", sets=SETS, overwrite=True)
    assert made["images"] == 600
    assert not draft.exists()
    assert open_source(settings_for(tmp_path / "file")).read(np.array([200])).images[0, :, 0, 0].tolist() == [200, 0, 0]


@pytest.mark.parametrize(
    ("data", "sets", "what"),
    [
        ("shapes", (), "shapes is decoded already (iecl pack); use it as it is: data shapes"),
        ("animals", ("training.epochs=3",), "packing has no setting training (sets); write data.key=value"),
        ("animals", ("data.color=1",), "[data] has no setting 'color'"),
        ("nowhere", (), "there is no folder"),
    ],
)
def test_what_cannot_be_packed_is_an_error(
    animals: Path, tmp_path: Path, data: str, sets: tuple[str, ...], what: str
) -> None:
    with pytest.raises(UserError) as caught:
        iecl.pack(tmp_path / data if data != "shapes" else data, tmp_path / "file", sets=sets)
    assert what in str(caught.value)
    assert not (tmp_path / "file").exists()


def test_a_packed_file_is_not_packed_again(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is decoded already"):
        iecl.pack(packed, tmp_path / "again")


def test_a_folder_without_one_good_image_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    for i in range(3):
        os.truncate(save_solid(tmp_path / f"folder/{i}.bmp", size=(64, 64)), 300)
    with pytest.raises(UserError, match=r"none of the 3 images in .* can be read: 3 truncated"):
        iecl.pack(tmp_path / "folder", tmp_path / "file", sets=SETS)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
