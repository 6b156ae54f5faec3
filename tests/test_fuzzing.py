"""Damaged files of every kind that is not text: what is read is what was written, or one clean error, and soon.

`damaged`: bytes anywhere, which checksums must notice. `rewritten`: what is said in a file is something else and every
checksum is right, so that only the readers' own questions are left; nothing is known of what is read then. Text files
are in `test_files.py` and `cli/test_hostile_files.py`.
"""

import io
import json
import random
import signal
import struct
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.faults.readers import mutated
from benchmarks.faults.trees import edited
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import iecl
from iecl.data import block_cache, shard_files
from iecl.data.factory import open_source
from iecl.data.pack_format import PRELUDE, prelude_of
from iecl.data.settings import DataSettings
from iecl.data.voc import open_boxes, open_masks
from iecl.errors import UserError
from iecl.runs.checkpoint import load_checkpoint, write_checkpoint
from iecl.weights.file import load_weights, save_weights
from made_shards import make_shards
from made_voc import MadeVoc

SECONDS = 20
"""A reader that works for so long on a few kilobytes hangs."""
Change = Callable[[bytes, random.Random], bytes]


@dataclass
class Target:
    """A file, and everything that is read of it, by name."""

    path: Path
    read: Callable[[], dict[str, Any]]
    rewrite: Change | None = None


def images_of(path: Path) -> dict[str, Any]:
    """Pixels, size and class of every image that can be read; the others are reported, and that will do."""
    source = open_source(DataSettings(name=str(path), cache_megabytes=0, num_workers=0, bad_shards="skip"), "pretrain")
    pixels, bad = source.read(np.arange(len(source))), set[int]()
    for row, _ in pixels.bad:
        bad.add(row)
    rows = [row for row in range(len(source)) if row not in bad]
    found = {}
    for row in rows:
        label = source.classes[source.labels[row]] if source.labels[row] >= 0 else ""
        name = source.path(row).removeprefix(source.name)
        found[name] = (pixels.images[row].numpy().tobytes(), pixels.sizes[row].tolist(), label)
    return found


def make_images(folder: Path) -> Path:
    drawn = np.random.default_rng(0)
    for number in range(12):
        path = folder / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawn.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    return folder


def packed(folder: Path) -> Target:
    path = folder / "packed"
    iecl.pack(make_images(folder / "images"), path, side=8, sets=["data.num_workers=0"])

    def rewrite(raw: bytes, drawn: random.Random) -> bytes:
        _, _, _, start, _, _ = PRELUDE.unpack(raw[: PRELUDE.size])
        header = edited(raw[start:], drawn)
        return prelude_of(start, header) + raw[PRELUDE.size : start] + header

    return Target(path, lambda: images_of(path), rewrite)


def shard(folder: Path) -> Target:
    shards = make_shards(make_images(folder / "images"), folder / "shards", block=3000, megabytes=0.01)
    return Target(sorted(shards.glob("*.tar"))[0], lambda: images_of(shards))


def shard_index(folder: Path) -> Target:
    shards = make_shards(make_images(folder / "images"), folder / "shards", block=3000, megabytes=0.01)

    def rewrite(raw: bytes, drawn: random.Random) -> bytes:
        with np.load(io.BytesIO(raw)) as opened:
            tables = dict(opened)
        name = drawn.choice(sorted(tables))
        if name == "about":
            tables[name] = np.frombuffer(edited(tables[name].tobytes(), drawn), np.uint8)
        else:
            flat = tables[name].reshape(-1).copy()
            info = np.iinfo(flat.dtype)
            number = drawn.choice([0, 1, -1, 7, info.max, info.min, 2**20])
            flat[drawn.randrange(len(flat))] = min(max(number, info.min), info.max)
            tables[name] = flat.reshape(tables[name].shape)
        made = io.BytesIO()
        np.savez(made, **tables)
        return made.getvalue()

    return Target(shards / "index-all.npz", lambda: images_of(shards), rewrite)


def foreign_shard(folder: Path) -> Target:
    """Without an index: what is in it now is all that anybody knows, so that only errors are looked at."""
    path = folder / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for number, image in enumerate(sorted(make_images(folder / "images").rglob("*.png"))):
            for ending, content in (("png", image.read_bytes()), ("json", json.dumps({"label": number}).encode())):
                about = tarfile.TarInfo(("long" * 40 if number % 3 else "") + f"{number}.{ending}")
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))

    def rewrite(raw: bytes, drawn: random.Random) -> bytes:
        made = bytearray(raw)
        for _ in range(drawn.randint(1, 3)):  # a header, and its sum
            start = 512 * drawn.randrange(len(made) // 512)
            field, length = drawn.choice([(0, 100), (124, 12), (156, 1), (257, 8), (345, 155)])
            made[start + field + drawn.randrange(length)] = drawn.choice(b"\0 07L9xgK\x80\xff/a")
            header = made[start : start + 512]
            header[148:156] = b" " * 8
            made[start + 148 : start + 156] = b"%06o\0 " % sum(header)
        return bytes(made)

    return Target(path, lambda: {"": len(images_of(path)) >= 0}, rewrite)


def checkpoint(folder: Path) -> Target:
    path = folder / "last.ckpt"
    state = {"format": 1, "step": 3, "steps": 9, "best": 0.5, "precision": {}}
    state |= {"method": {"a": torch.arange(12.0).view(3, 4)}, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}
    write_checkpoint(path, state)

    def read() -> dict[str, Any]:
        found = load_checkpoint(path)
        return found | {"method": {name: value.tolist() for name, value in found["method"].items()}}

    return Target(path, read)


def weights(folder: Path) -> Target:
    path = folder / "a.safetensors"
    save_weights(
        path, {"a": torch.arange(24.0).view(2, 3, 4), "n": torch.tensor(7)}, {"method": "moco-v2", "step": "3"}
    )

    def read() -> dict[str, Any]:
        state, metadata = load_weights(path)
        return metadata | {f"tensor {name}": value.tolist() for name, value in state.items()}

    def rewrite(raw: bytes, drawn: random.Random) -> bytes:
        (length,) = struct.unpack("<Q", raw[:8])
        header = edited(raw[8 : 8 + length], drawn)
        return struct.pack("<Q", len(header)) + header + raw[8 + length :]

    return Target(path, read, rewrite)


def annotation(folder: Path) -> Target:
    voc = MadeVoc(folder)
    voc.add("p0", [("aeroplane", (3, 5, 10, 20)), ("bird", (30, 10, 60, 40))])
    voc.lists("train", ["p0"])
    return Target(voc.annotation("p0"), lambda: {"": open_boxes(voc.devkit, "train") is not None})


def mask(folder: Path) -> Target:
    voc = MadeVoc(folder)
    voc.add("p0", [("aeroplane", (3, 5, 10, 20))])
    voc.lists("train", ["p0"])
    return Target(voc.mask("p0"), lambda: {"": open_masks(voc.devkit, "train") is not None})


TARGETS: dict[str, Callable[[Path], Target]] = {
    "packed file": packed,
    "shard": shard,
    "index of shards": shard_index,
    "shard without an index": foreign_shard,
    "checkpoint": checkpoint,
    "weights": weights,
    "annotation": annotation,
    "mask": mask,
}
REWRITTEN = ("packed file", "index of shards", "shard without an index", "weights")


class Hangs(BaseException):
    """Raised in a reader that takes too long, which must not take it for an error of a file."""


@contextmanager
def deadline() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Hangs

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def survives(target: Target, change: Change, count: int, *, is_repeatable: bool, is_known: bool) -> int:
    """Read so many changed contents of a file; returns how many were refused."""
    raw, good, refused = target.path.read_bytes(), target.read(), 0
    longest = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

    @settings(max_examples=count, derandomize=is_repeatable, **longest)
    @given(st.randoms(use_true_random=False))
    def attempt(drawn: random.Random) -> None:
        nonlocal refused
        target.path.write_bytes(change(raw, drawn))
        try:
            with deadline():
                found = target.read()
        except UserError as problem:
            refused, words = refused + 1, str(problem)
        else:
            words, found = "read", found if is_known else {}
            assert found.items() <= good.items()
        assert words
        assert "\n" not in words

    attempt()
    return refused


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IECL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(block_cache, "THREADS", 2)
    monkeypatch.setattr(shard_files, "FIRST_WAIT", 0.0)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_bytes_are_refused_or_reported(name: str, tmp_path: Path) -> None:
    refused = survives(TARGETS[name](tmp_path), mutated, 60, is_repeatable=True, is_known=True)
    assert refused > 5 or name == "shard"  # whose blocks are reported one by one


@pytest.mark.parametrize("name", REWRITTEN)
def test_what_is_said_under_right_checksums_is_read_or_refused(name: str, tmp_path: Path) -> None:
    target = TARGETS[name](tmp_path)
    assert target.rewrite is not None
    assert survives(target, target.rewrite, 60, is_repeatable=True, is_known=False) > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_ten_thousand_damaged_files_are_refused_or_reported(name: str, tmp_path: Path) -> None:
    survives(TARGETS[name](tmp_path), mutated, 10_000, is_repeatable=False, is_known=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", REWRITTEN)
def test_ten_thousand_things_under_right_checksums_are_read_or_refused(name: str, tmp_path: Path) -> None:
    target = TARGETS[name](tmp_path)
    assert target.rewrite is not None
    survives(target, target.rewrite, 10_000, is_repeatable=False, is_known=False)
