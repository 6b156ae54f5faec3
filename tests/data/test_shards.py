"""Tar shards: what is in them is what was in the folder, wherever they lie; damage has a name."""

import io
import json
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from benchmarks.shard_server import served
from PIL import Image
from webdataset.tariterators import group_by_keys, tar_file_expander

import iecl
from iecl.data import loader, shard_files, shard_source, tar_samples
from iecl.data.batch import Batch
from iecl.data.defaults import resolve_data
from iecl.data.factory import open_source
from iecl.data.loader import Loader, in_order
from iecl.data.settings import DataSettings
from iecl.data.shard_writer import pack_shards
from iecl.data.source import Source
from iecl.errors import TrainingError, UserError
from made_shards import make_shards


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IECL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shard_files, "FIRST_WAIT", 0.0)


@pytest.fixture
def shards(image_folder: Path, tmp_path: Path) -> Path:
    return make_shards(image_folder, tmp_path / "shards")


def streamed(name: Path | str, split: str = "pretrain", **options: object) -> Source:
    return open_source(DataSettings(name=str(name), cache_megabytes=0, num_workers=0, **options), split)


def by_name(source: Source) -> dict[str, tuple[bytes, str]]:
    """Pixels and class of each image."""
    pixels = source.read(np.arange(len(source)))
    assert not pixels.bad
    names = [source.path(i).removeprefix(source.name) for i in range(len(source))]
    classes = [source.classes[label] if label >= 0 else "" for label in source.labels]
    return {n: (p.numpy().tobytes(), c) for n, p, c in zip(names, pixels.images, classes, strict=True)}


@pytest.mark.parametrize("split", ["pretrain", "test", "train-part"])
@pytest.mark.parametrize("validation", [False, True])
def test_shards_hold_the_images_classes_and_parts_of_the_folder(
    image_folder: Path, shards: Path, split: str, validation: bool
) -> None:
    assert len(list(shards.glob("all-*.tar"))) > 2
    found = by_name(streamed(shards, split, validation=validation))
    assert found == by_name(streamed(image_folder, split, validation=validation))
    assert {name.split("/")[1] for name in found} == {"red", "blue"}


def test_a_train_and_a_test_folder_stay_apart(image_folder: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(image_folder, whole / "train")
    shutil.copytree(image_folder / "red", whole / "val" / "red")
    made = pack_shards(str(whole), tmp_path / "out")
    assert made["parts"] == {"train": 40, "test": 20}
    assert by_name(streamed(tmp_path / "out", "test")) == by_name(streamed(whole, "test"))
    assert len(streamed(tmp_path / "out", "train-part")) == 40


def by_webdataset(folder: Path) -> Iterator[dict[str, Any]]:
    """Every sample as WebDataset finds it; it leaves files open that it opens itself."""
    for path in sorted(folder.glob("*.tar")):
        with path.open("rb") as stream:
            yield from group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}]))


def test_webdataset_reads_our_shards(image_folder: Path, shards: Path) -> None:
    found = {one["__key__"]: one for one in by_webdataset(shards)}
    files = sorted(image_folder.rglob("*.png"))
    assert len(found) == len(files)
    for path in files:
        sample = found[f"{path.parent.name}/{path.stem}"]
        assert sample["png"] == path.read_bytes()
        assert sample["cls"] == str(["blue", "red"].index(path.parent.name)).encode()


def encoded(number: int, kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (20 + number, 16), (number * 5, 0, 0)).save(buffer, {"jpg": "JPEG"}.get(kind, kind.upper()))
    return buffer.getvalue()


def write_foreign(path: Path, label: str, count: int = 12) -> None:
    with webdataset.TarWriter(str(path)) as writer:
        for number in range(count):
            kind = ("jpg", "png", "webp")[number % 3]
            about: dict[str, object] = {"txt": "a caption", "depth.npy": b"no image of it"}
            if label == "cls":
                about["cls"] = str(number % 4).encode()
            elif label == "json":
                about["json"] = json.dumps({"label": ["cat", "dog"][number % 2], "width": 7}).encode()
            writer.write({"__key__": f"deep/folder.d/{number:04d}", kind: encoded(number, kind), **about})


@pytest.mark.parametrize(("label", "classes"), [("cls", ("0", "1", "2", "3")), ("json", ("cat", "dog")), ("none", ())])
def test_shards_of_webdataset_are_read_as_they_are(tmp_path: Path, label: str, classes: tuple[str, ...]) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for number in range(2):
        write_foreign(folder / f"{number:03d}.tar", label)
    source = streamed(folder / "{000..001}.tar")
    assert (len(source), source.classes) == (24, classes)
    for i in range(24):
        here = source.read(np.array([i]))
        assert here.sizes.tolist() == [[16, 20 + i % 12]]
        assert abs(float(here.images[0, 0].float().mean()) - i % 12 * 5) < 3
        assert source.labels[i] == (i % 12 % len(classes) if classes else -1)
    assert len(streamed(folder / "*.tar")) == len(streamed(folder)) == 24


def test_a_list_of_shards_and_parts_by_their_names(tmp_path: Path) -> None:
    write_foreign(tmp_path / "x-train-0.tar", "cls")
    write_foreign(tmp_path / "x-validation-0.tar", "cls", 4)
    (tmp_path / "list.txt").write_text("x-train-0.tar\nx-validation-0.tar\n")
    assert (len(streamed(tmp_path / "list.txt")), len(streamed(tmp_path / "list.txt", "test"))) == (12, 4)


def test_an_index_is_made_once_and_again_when_a_shard_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_foreign(tmp_path / "a.tar", "cls")
    assert len(streamed(tmp_path / "a.tar")) == 12
    with monkeypatch.context() as patch:
        patch.setattr("iecl.data.shard_set.IndexWriter.add", lambda *_: pytest.fail("read again"))
        assert len(streamed(tmp_path / "a.tar")) == 12
    write_foreign(tmp_path / "a.tar", "cls", 9)
    assert len(streamed(tmp_path / "a.tar")) == 9


# --- batches


def batches(name: Path | str, epoch: int = 0, first: int = 0, **options: int) -> Iterator[Batch]:
    loader = Loader(streamed(name), **{"batch": 4, "seed": 5, **options})
    yield from loader.epoch(epoch, first)
    loader.close()


def test_batches_are_the_same_with_workers_in_memory_and_from_any_step_on(shards: Path) -> None:
    whole = list(batches(shards))
    assert sorted(int(i) for batch in whole for i in batch.index) == list(range(40))
    kept = open_source(DataSettings(name=str(shards), num_workers=0), "pretrain")
    assert kept.is_decoded
    for others in (batches(shards, workers=1), batches(shards, workers=2), Loader(kept, batch=4, seed=5).epoch(0)):
        for one, other in zip(whole, others, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(vars(one).values(), vars(other).values(), strict=True))
    for one, other in zip(whole[6:], batches(shards, first=6, workers=1), strict=True):
        assert torch.equal(one.images, other.images)
    halves = [list(batches(shards, batch=2, rank=rank, world=2)) for rank in range(2)]
    for one, *parts in zip(whole, *halves, strict=True):
        assert torch.equal(one.images, torch.cat([part.images for part in parts]))
    assert [b.index.tolist() for b in batches(shards, epoch=1)] != [b.index.tolist() for b in whole]


def test_pieces_are_fetched_ahead_of_their_use_many_at_a_time(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, lock, now, most, count = shard_source.read_range, threading.Lock(), 0, 0, 0

    def slow(*where: object) -> bytes:
        nonlocal now, most, count
        with lock:
            now, count = now + 1, count + 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return read(*where)

    monkeypatch.setattr(shard_source, "read_range", slow)
    source = streamed(shards)
    for _ in range(2):
        assert len(list(Loader(source, batch=4, seed=0).epoch(0))) == 10
    blocks = len(source.bounds) - 1
    assert blocks > 6
    assert most > 4
    assert count == 2 * blocks  # each once an epoch, and none is kept beyond it
    assert not source._cache._held


def test_what_is_fetched_ahead_is_limited_by_its_bytes(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    for most in (2**28, 1):
        monkeypatch.setattr(loader, "_FETCHED_BYTES", most)
        source = streamed(shards)
        running = Loader(source, batch=4, seed=0).epoch(0)
        next(running)
        held.append(len(source._cache._held))
        running.close()
    assert 0 < held[1] < held[0] / 2


# --- damage


def damage(shards: Path, how: str) -> Path:
    path = sorted(shards.glob("*.tar"))[1]
    content = path.read_bytes()
    if how == "it is not there":
        path.unlink()
    elif how == "it is cut short":
        path.write_bytes(content[: len(content) // 3])
    else:
        path.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    return path


HOW = ["it is not there", "it is cut short", "it is not what it was when its index was made"]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", HOW)
def test_a_bad_shard_is_named_and_ends_the_work(shards: Path, how: str, workers: int) -> None:
    path = damage(shards, how)
    with pytest.raises(TrainingError) as caught:
        list(batches(shards, workers=workers))
    assert str(path) in str(caught.value)
    assert how in str(caught.value)
    assert "data.bad_shards=skip" in str(caught.value)


@pytest.mark.parametrize("how", HOW)
def test_a_bad_shard_is_skipped_if_asked_for(shards: Path, how: str) -> None:
    path = damage(shards, how)
    told: dict[str, str] = {}
    source = streamed(shards, bad_shards="skip")
    whole = list(Loader(source, batch=4, seed=5, on_bad=told.__setitem__).epoch(0))
    assert 0 < len(told) < 40
    assert set(told.values()) == {f"shard {path}: {how}"}
    lost = {i for i in range(40) if source.path(i) in told}
    seen = [int(i) for batch in whole for i in batch.index]
    assert len(seen) == 40
    assert not set(seen) & lost
    assert set(seen) == set(range(40)) - lost  # the rest of it is there, and some twice
    again = list(
        Loader(streamed(shards, bad_shards="skip"), batch=4, seed=5, workers=1, on_bad=lambda *_: None).epoch(0)
    )
    assert [b.index.tolist() for b in again] == [b.index.tolist() for b in whole]


def test_shards_without_an_index_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    write_foreign(tmp_path / "a-0.tar", "cls")
    (tmp_path / "a-1.tar").write_bytes(b"this is no archive" * 100)
    with pytest.raises(UserError, match=r"a-1\.tar cannot be used: it is no tar file"):
        streamed(tmp_path / "a-{0..1}.tar")
    assert len(streamed(tmp_path / "a-{0..1}.tar", bad_shards="skip")) == 12
    with pytest.raises(UserError, match=r"a-2\.tar cannot be used: it is not there"):
        streamed(tmp_path / "a-2.tar")
    with pytest.raises(UserError, match="matches no shard"):
        streamed(tmp_path / "b-*.tar")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        *(
            ({"short_side": side}, "its images have a shorter side of")
            for side in ("Infinity", "-Infinity", "NaN", -1.0)
        ),
        *(({"shards": [name] * 9}, "a shard in it is called as no file can be") for name in ("\ud800", "a\0.tar")),
    ],
)
def test_an_index_that_says_what_cannot_be_is_refused(change: dict[str, Any], what: str, shards: Path) -> None:
    path = shards / "index-all.npz"
    with np.load(path) as opened:
        tables = dict(opened)
    about = json.loads(tables["about"].tobytes()) | change
    np.savez(path, **tables | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)})
    with pytest.raises(UserError, match=what):
        streamed(shards)


@pytest.mark.parametrize("draw", range(24))
def test_damaged_bytes_of_a_shard_or_an_index_give_clean_errors(shards: Path, draw: int) -> None:
    """Whatever a file holds, the images are those that were packed, or somebody says what is wrong."""
    drawn = np.random.default_rng(draw)
    path = shards / "index-all.npz" if draw % 2 else sorted(shards.glob("*.tar"))[0]
    raw = bytearray(path.read_bytes())
    for place in drawn.integers(0, len(raw), int(drawn.integers(1, 4))):
        raw[place] ^= 1 << int(drawn.integers(8))
    path.write_bytes(raw[: len(raw) if draw % 3 else int(drawn.integers(len(raw)))])
    good = make_good(shards)
    with suppress(UserError):
        assert by_name(streamed(shards)) == good
    if draw % 2 == 0:  # as if it had no index: what is read then is all there is
        with suppress(UserError):
            streamed(path).read(np.arange(4))


_GOOD: list[dict[str, tuple[bytes, str]]] = []


def make_good(shards: Path) -> dict[str, tuple[bytes, str]]:
    if not _GOOD:
        _GOOD.append(by_name(streamed(shards.parent / "images")))
    return _GOOD[0]


# --- other machines


def test_shards_are_read_from_a_server(shards: Path) -> None:
    with served(shards) as url:
        assert by_name(streamed(url)) == by_name(streamed(shards))
        assert len(streamed(f"{url}/all-{{000000..000001}}.tar")) > 4
        for one, other in zip(batches(shards), batches(url, workers=1), strict=True):
            assert torch.equal(one.images, other.images)
        with pytest.raises(UserError, match=r"nothing\.tar cannot be used: it is not there"):
            streamed(f"{url}/nothing.tar")


def test_a_server_that_sends_whole_files_is_named_as_such(shards: Path) -> None:
    with served(shards, ranges=False) as url, pytest.raises(UserError, match=r"HTTP Range"):
        by_name(streamed(url))


def test_a_server_that_does_not_answer_is_named_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "SILENCE", 0.2)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/a.tar"
        began = time.monotonic()
        with pytest.raises(UserError, match=r"a\.tar cannot be used: sockettimeouterror: timeout"):
            streamed(url)
        assert time.monotonic() - began < 20


def test_a_server_that_refuses_for_a_moment_is_asked_again(shards: Path) -> None:
    answers = iter([True, True, True, False, True, True] + [False] * 1000)
    with served(shards, refuses=lambda: next(answers)) as url:
        assert by_name(streamed(url)) == by_name(streamed(shards))


def test_any_url_of_fsspec_will_do(shards: Path) -> None:
    assert by_name(streamed(f"file://{shards}")) == by_name(streamed(shards))
    assert len(streamed(f"file://{shards}/all-*.tar")) == 40
    with pytest.raises(UserError, match="fsspec does not know URLs that begin with wrong://"):
        streamed("wrong://a/b.tar")


SECRETS = [
    "http://me:pa55word@host/a.tar",
    "https://host/a.tar?X-Signature=pa55word",
    "simplecache::http://pa55word@host/a.tar",
]


@pytest.mark.parametrize("url", SECRETS)
def test_a_url_with_a_secret_is_refused_before_it_is_written_anywhere(url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="password or a key") as caught:
        iecl.pretrain(url, out=tmp_path / "run")
    assert "pa55word" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    (tmp_path / "list.txt").write_text(f"a.tar\n{url}\n")
    with pytest.raises(UserError, match="password or a key") as caught:
        streamed(tmp_path / "list.txt")
    assert "pa55word" not in str(caught.value)


# --- packing


def test_packing_refuses_what_is_there_and_replaces_shards_if_asked_for(image_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert pack_shards(str(image_folder), out)["images"] == 40
    with pytest.raises(UserError, match=r"is there already.*--overwrite"):
        pack_shards(str(image_folder), out)
    (image_folder / "red" / "00.png").unlink()
    assert pack_shards(str(image_folder), out, overwrite=True)["images"] == 39
    with pytest.raises(UserError, match=r"is there already.*not there yet"):
        pack_shards(str(image_folder), image_folder, overwrite=True)
    with pytest.raises(UserError, match="in shards already"):
        pack_shards(str(out), tmp_path / "again")
    assert {path.name for path in tmp_path.iterdir()} == {"images", "out"}


def test_what_a_killed_process_left_is_removed_and_a_living_one_is_waited_for(
    image_folder: Path, tmp_path: Path
) -> None:
    left = tmp_path / ".out.part"
    left.mkdir()
    (left / "all-000000.tar").write_bytes(b"half of it")
    with (left / ".writing").open("wb") as held:
        from iecl.files import lock

        assert lock(held.fileno())
        with pytest.raises(UserError, match="another process is writing"):
            pack_shards(str(image_folder), tmp_path / "out")
    assert pack_shards(str(image_folder), tmp_path / "out")["images"] == 40
    assert not left.exists()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["all-000000.tar", "index-all.npz"]


def test_names_that_webdataset_would_join_stay_apart(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("a.png", "a.jpg", "a.b.png", "a_b.png", "ü" * 60 + ".png", "x" * 150 + ".PNG"):
        Image.new("RGB", (9, 9), (len(name), 0, 0)).save(folder / name)
    pack_shards(str(folder), tmp_path / "out")
    assert by_name(streamed(tmp_path / "out")) == by_name(streamed(folder))
    assert len(list(by_webdataset(tmp_path / "out"))) == 6


def test_files_that_are_no_images_are_left_out_and_counted(image_folder: Path, tmp_path: Path) -> None:
    (image_folder / "red" / "bad.png").write_bytes(b"no image")
    assert pack_shards(str(image_folder), tmp_path / "out")["skipped"] == 1
    assert len(streamed(tmp_path / "out")) == 40


def test_shards_can_be_packed_into_one_file(image_folder: Path, shards: Path, tmp_path: Path) -> None:
    iecl.pack(shards, tmp_path / "a.iecl")
    assert by_name(streamed(tmp_path / "a.iecl")) == by_name(streamed(image_folder))


def test_settings_are_chosen_as_for_the_folder(image_folder: Path, shards: Path) -> None:
    one, other = (resolve_data(DataSettings(name=str(name))) for name in (image_folder, shards))
    assert (one.image_size, one.decode_size, one.labels) == (other.image_size, other.decode_size, other.labels)


def test_a_long_sample_is_a_block_of_its_own_and_pieces_of_any_size_give_the_same_blocks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_foreign(tmp_path / "a.tar", "cls", 30)
    raw = (tmp_path / "a.tar").read_bytes()
    monkeypatch.setattr(tar_samples, "BLOCK", 3000)
    whole = [(b.start, b.data) for b in tar_samples.blocks_of([raw])]
    assert len(whole) > 3
    for size in (100, 512, 7777):
        pieces = (raw[i : i + size] for i in range(0, len(raw), size))
        assert [(b.start, b.data) for b in tar_samples.blocks_of(pieces)] == whole


def test_every_image_in_order(shards: Path) -> None:
    found = [int(i) for batch in in_order(streamed(shards), 7, workers=1) for i in batch.index]
    assert found == list(range(40))
