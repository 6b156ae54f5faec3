"""Faults of data and of files of weights: each function does one kind many times and returns (tried, survived, lost).

Survived: one clear error, or the right result in spite of the fault. Lost: wrong numbers in silence, any other
exception, or a process that died. What may kill a process is done in one of its own.
"""

import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

import iecl
from iecl.data import folder as folders
from iecl.data.factory import open_source
from iecl.data.loader import Loader
from iecl.data.pack_format import FIRST, PRELUDE, checksum, open_packed, prelude_of
from iecl.data.settings import DataSettings
from iecl.errors import TrainingError, UserError
from iecl.evaluation.model import load_model
from iecl.weights.external import random_model
from iecl.weights.model import save_model

Outcome = tuple[int, int, int]
"""How many times a fault was tried, survived, and lost."""
COUNT, SIDE = 48, 32
BYTES = 3 * SIDE**2
BACKBONE = "resnet10-w16"
_READER = """
import os, sys
from iecl.data.loader import Loader
from iecl.data.factory import open_source
from iecl.data.settings import DataSettings
from iecl.errors import TrainingError
loader = Loader(open_source(DataSettings(name=sys.argv[1], workers=0)), batch=8, seed=0)
list(loader.epoch(0))
os.truncate(sys.argv[1], int(sys.argv[2]))
try:
    list(loader.epoch(1))
except TrainingError:
    sys.exit(7)
"""


def truncated_while_used(times: int = 8) -> Outcome:
    """A packed file that is cut short at different places while a process reads from it."""

    def one(number: int, scratch: Path) -> bool:
        packed = _packed(scratch)
        length = int(packed.stat().st_size * number / times)
        done = subprocess.run([sys.executable, "-c", _READER, packed, str(length)], capture_output=True, check=False)
        return done.returncode == 7

    return _outcome(times, one)


def overwritten_while_used(times: int = 20) -> Outcome:
    """Bytes of a packed file exchanged in place after every image was found good; the size stays."""

    def one(number: int, scratch: Path) -> bool:
        packed = _packed(scratch)
        loader = Loader(open_source(_settings(packed)), batch=8, seed=number)
        list(loader.epoch(0))
        with packed.open("r+b") as file:
            file.seek(FIRST + number % COUNT * BYTES)
            file.write(np.random.default_rng(number).bytes(BYTES))
        return _raises(TrainingError, lambda: list(loader.epoch(1)))

    return _outcome(times, one)


def shuffled_words(times: int = 100) -> Outcome:
    """Words of one image of a packed file in another order, or two of them exchanged, before it is opened."""

    def one(number: int, scratch: Path) -> bool:
        packed, made = _packed(scratch), np.random.default_rng(number)
        content, row = bytearray(packed.read_bytes()), number % COUNT
        place = slice(FIRST + row * BYTES, FIRST + (row + 1) * BYTES)
        words = np.frombuffer(bytes(content[place]), np.int64).copy()
        if number % 2:
            words = made.permutation(words)
        else:
            first, second = made.choice(len(words), 2, replace=False)
            words[[first, second]] = words[[second, first]]
        if words.tobytes() == bytes(content[place]):
            return True  # two equal words: nothing was done
        content[place] = words.tobytes()
        packed.write_bytes(content)
        return [bad for bad, _ in open_source(_settings(packed)).read(np.arange(COUNT)).bad] == [row]

    return _outcome(times, one)


def bad_tables() -> Outcome:
    """Tables of a packed file that make no sense, each under a right checksum."""
    changes: list[tuple[str, object, int]] = [
        ("labels", 5, 2),
        ("labels", 5, -2),
        ("sizes", (5, 0), 0),
        ("sizes", (5, 1), 0),
        ("held_out", 5, 7),
        ("ends", 5, -1),
        ("ends", 5, 2**40),
        ("ends", COUNT - 1, 3),
        ("names", 0, 0),
        ("names", 0, ord("/")),
    ]

    def one(number: int, scratch: Path) -> bool:
        name, row, value = changes[number]
        packed = _packed(scratch)
        table = open_packed(packed).part_for("train").tables[name].copy()
        table[row] = value
        content = bytearray(packed.read_bytes())
        _, _, _, start, _, _ = PRELUDE.unpack(content[: PRELUDE.size])
        header = json.loads(content[start:])
        place = header["parts"][0]["tables"][name]
        content[place["start"] : place["start"] + place["length"]] = table.tobytes()
        place["checksum"] = checksum(table)
        written = json.dumps(header).encode()
        packed.write_bytes(prelude_of(start, written) + content[PRELUDE.size : start] + written)
        return _raises(UserError, lambda: open_packed(packed))

    return _outcome(len(changes), one)


def tampered_metadata() -> Outcome:
    """Every entry beside the tensors of an exported file changed, and removed."""
    with tempfile.TemporaryDirectory() as folder:
        names = sorted(_header(_exported(Path(folder)))[0]["__metadata__"])

    def one(number: int, scratch: Path) -> bool:
        path, name = _exported(scratch), names[number // 2]
        header, rest = _header(path)
        if number % 2:
            del header["__metadata__"][name]
        else:
            header["__metadata__"][name] += "0"
        written = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(written)) + written + rest)
        return _raises(UserError, lambda: load_model(path))

    return _outcome(2 * len(names), one)


def unreadable_majority() -> Outcome:
    """A folder of which nine tenths cannot be read: decoded at the start, or in each epoch, with workers or without."""
    ways = [{"cache_megabytes": 4096, "num_workers": 0}, *({"cache_megabytes": 0, "num_workers": n} for n in (0, 2))]

    def one(number: int, scratch: Path) -> bool:
        data = _images(scratch)
        for bad in range(9 * COUNT):
            (data / f"bad{bad:04d}.png").write_bytes(b"no image" * (bad % 2))
        settings = {
            "data": {**ways[number], "image_size": SIDE, "decode_size": SIDE},
            "training": {"online_eval_epochs": 0},
        }
        how = {"method": "simclr", "backbone": BACKBONE, "epochs": 1, "batch_size": 8, "settings": settings}
        stopped = _raises(TrainingError, lambda: iecl.pretrain(data, scratch / "run", quiet=True, **how))
        return stopped and (scratch / "run/skipped.txt").is_file()

    return _outcome(len(ways), one)


def vanishing_folder(times: int = 6) -> Outcome:
    """A data folder that is renamed away while an epoch is read: one error, and no file is called bad."""

    def one(number: int, scratch: Path) -> bool:
        data, bad = _images(scratch), list[str]()
        settings = DataSettings(name=str(data), cache_megabytes=0, num_workers=2 * (number % 2), image_size=SIDE)
        loader = Loader(open_source(settings), batch=4, seed=number, workers=settings.num_workers, on_bad=_noting(bad))
        batches = loader.epoch(0)
        next(batches)
        data.rename(scratch / "away")
        return _raises(TrainingError, lambda: list(batches)) and not bad

    patience, folders.PATIENCE = folders.PATIENCE, 0.2
    try:
        return _outcome(times, one)
    finally:
        folders.PATIENCE = patience


FAULTS: dict[str, Callable[[], Outcome]] = {
    "packed file truncated while used": truncated_while_used,
    "packed file overwritten while used": overwritten_while_used,
    "words shuffled in a packed file": shuffled_words,
    "tables of a packed file that make no sense": bad_tables,
    "tampered metadata of exported weights": tampered_metadata,
    "unreadable majority of files": unreadable_majority,
    "vanishing data folder": vanishing_folder,
}


def _outcome(times: int, one: Callable[[int, Path], bool]) -> Outcome:
    survived = 0
    for number in range(times):
        with tempfile.TemporaryDirectory() as scratch:
            survived += one(number, Path(scratch))
    return times, survived, times - survived


def _raises(kind: type[UserError], work: Callable[[], object]) -> bool:
    """Whether work ends with this error; anything else that it raises counts as lost."""
    try:
        work()
    except kind:
        return True
    except Exception:
        return False
    return False


def _noting(bad: list[str]) -> Callable[[str, str], None]:
    return lambda path, reason: bad.append(path)


def _settings(path: Path) -> DataSettings:
    return DataSettings(name=str(path), num_workers=0)


def _images(scratch: Path) -> Path:
    """A folder of noise in two classes."""
    made = np.random.default_rng(0)
    for number in range(COUNT):
        path = scratch / f"images/{'ab'[number % 2]}/{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(made.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(path)
    return scratch / "images"


def _packed(scratch: Path) -> Path:
    iecl.pack(_images(scratch), scratch / "packed", side=SIDE, sets=["data.num_workers=0"])
    return scratch / "packed"


def _exported(scratch: Path) -> Path:
    path = scratch / "out.safetensors"
    save_model(path, random_model(BACKBONE, image_size=SIDE))
    return path


def _header(path: Path) -> tuple[dict[str, dict[str, str]], bytes]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]
