"""Does `iecl pretrain --data FOLDER` run, whatever the folder, and what does it choose?

    python -m benchmarks.first_hour --data PHOTOGRAPHS [--seconds 60] [--rival lightly-train/bin/python]

Folders of several kinds are made from a folder of photographs, and the command is started on each with nothing but
`--data`, its output going to a file. A run that lasts longer than `--seconds` after its first line of progress is
interrupted, as a person would with Ctrl-C: it saves itself and ends with code 130. With `--rival`, a Python that has
lightly-train installed, its first run on the same 200 photographs is put beside it. Rows that were measured before and
are not asked for (`--only`) stay.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.bench.report import machine_name
from benchmarks.result import RESULTS, write
from iecl.files import read_json

CHOSEN = ("image size", "backbone", "batch size", "epochs")
PROGRESS = "epoch 1/"
RIVAL = (
    "import sys, lightly_train\n"
    "lightly_train.train(out=sys.argv[2], data=sys.argv[1], model='torchvision/resnet18', method='simclr',"
    " accelerator='cpu')"
)
"""SimCLR, since its default method first downloads the weights of a teacher."""


def _copies(count: int) -> Callable[[list[Path], Path], None]:
    def make(photos: list[Path], folder: Path) -> None:
        for number in range(count):  # names differ, photographs come again where there are too few
            shutil.copy(photos[number % len(photos)], folder / f"{number:05d}.jpg")

    return make


def _gray(photos: list[Path], folder: Path) -> None:
    for number, path in enumerate(photos[:40]):
        Image.open(path).convert("L").save(folder / f"{number}.png")


def _mixed(photos: list[Path], folder: Path) -> None:
    for number, path in enumerate(photos[:40]):
        Image.open(path).resize((30 + 17 * number, 500 - 11 * number)).save(folder / f"{number}.png")


def _huge(photos: list[Path], folder: Path) -> None:
    _copies(20)(photos, folder)
    Image.open(photos[0]).resize((10_000, 8_000)).save(folder / "huge.jpg")


def _same(photos: list[Path], folder: Path) -> None:
    _copies(40)(photos[:1], folder)


def _broken(photos: list[Path], folder: Path) -> None:
    _copies(24)(photos, folder)
    for number in range(10):
        (folder / f"broken-{number}.jpg").write_bytes(b"no image")


def _four_channels(photos: list[Path], folder: Path) -> None:
    for number, path in enumerate(photos[:40]):
        image = np.asarray(Image.open(path).convert("RGB").resize((96, 96)))
        np.save(folder / f"{number}.npy", np.concatenate([image, image[..., :1]], 2))


MORE = {"40 arrays of four channels": ["--set", "data.channels=4"]}
"""What the command needs besides the folder."""
FOLDERS: dict[str, Callable[[list[Path], Path], None]] = {
    "1 photograph": _copies(1),
    "3 photographs": _copies(3),
    "40 photographs": _copies(40),
    "200 photographs": _copies(200),
    "2,000 photographs": _copies(2000),
    "40 gray images": _gray,
    "40 images of 40 sizes": _mixed,
    "20 photographs and one of 10,000×8,000": _huge,
    "the same photograph 40 times": _same,
    "24 photographs and 10 broken files": _broken,
    "40 arrays of four channels": _four_channels,
}


def started(command: list[str], folder: Path, seconds: float, progress: str) -> dict[str, Any]:
    """Run a command until it ends, or so long after its first line of progress; what it said and how long it took."""
    began, first, log = time.monotonic(), None, folder / "output.txt"
    with log.open("w") as file:
        child = subprocess.Popen(
            command,
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's job may ignore it
        )
    while child.poll() is None:
        time.sleep(0.1)
        if first is None and progress in log.read_text(errors="replace"):
            first = time.monotonic() - began
        if first is not None and time.monotonic() - began > first + seconds:
            child.send_signal(signal.SIGINT)
            child.wait()
    total, lines = time.monotonic() - began, log.read_text(errors="replace").splitlines()
    if first is None and any(progress in line for line in lines):
        first = total
    return {
        "seconds_to_progress": None if first is None else round(first, 1),
        "seconds": round(total, 1),
        "code": child.returncode,
        "lines": lines,
    }


def row_of(name: str, photos: list[Path], scratch: Path, seconds: float) -> dict[str, Any]:
    """One folder: what the command chose, and how it ended."""
    folder = scratch / name.replace(" ", "-").replace(",", "")
    (folder / "photos").mkdir(parents=True)
    FOLDERS[name](photos, folder / "photos")
    words, load = ["pretrain", "--data", "photos", *MORE.get(name, ())], os.getloadavg()[0]
    made = started([sys.executable, "-m", "iecl", *words], folder, seconds, PROGRESS)
    lines = made.pop("lines")
    said = {line.strip()[:14].strip(): line.strip()[16:].split("  ")[0] for line in lines if line.startswith("  ")}
    estimate = next((line for line in lines if line.startswith("estimate:")), "")
    last = lines[-1] if made["code"] else next((line for line in lines if line.startswith("verdict:")), "")
    shutil.rmtree(folder)
    return {
        "arm": name,
        "command": " ".join(["iecl", *words]),
        "load": round(load, 1),
        **made,
        "chosen": ", ".join(f"{what} {said[what]}" for what in CHOSEN if what in said),
        "estimate": estimate.removeprefix("estimate: ").partition(";")[0],
        "last_line": last.replace(str(scratch), ""),
    }


def beside(python: str, photos: list[Path], scratch: Path, seconds: float) -> list[dict[str, Any]]:
    """The first run of iecl and of lightly-train on the same 200 photographs."""
    commands = {
        "iecl": ([sys.executable, "-m", "iecl", "pretrain", "--data", "photos", "--out", "out"], PROGRESS),
        "lightly-train": ([python, "-c", RIVAL, "photos", "out"], "train_loss="),
    }
    rows = []
    for name, (command, progress) in commands.items():
        folder = scratch / f"beside-{name}"
        (folder / "photos").mkdir(parents=True)
        _copies(200)(photos, folder / "photos")
        made = started(command, folder, seconds, progress)
        files = sorted(str(path.relative_to(folder / "out")) for path in (folder / "out").rglob("*") if path.is_file())
        rows.append({"arm": name, **made, "lines": len(made["lines"]), "files": files[:20]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, type=Path, help="folder of photographs")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which a run is interrupted")
    parser.add_argument("--only", nargs="*", default=list(FOLDERS))
    parser.add_argument("--rival", default="", help="a Python that has lightly-train")
    args = parser.parse_args()
    photos = sorted(path for path in args.data.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    before = read_json(RESULTS / "first_hour" / f"{machine_name()}.json")
    rows = {row["arm"]: row for row in before.get("rows", [])}
    content: dict[str, Any] = {
        "setting": f"interrupted {args.seconds:g} s after the first line of progress unless it had ended",
        "threads": int(os.environ.get("OMP_NUM_THREADS", 0)) or os.cpu_count(),
        "beside": before.get("beside", []),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.only:
            rows[name] = row_of(name, photos, Path(scratch), args.seconds)
            print(rows[name], flush=True)
        if args.rival:
            content["beside"] = beside(args.rival, photos, Path(scratch), args.seconds)
            print(content["beside"], flush=True)
    content["rows"] = [rows[name] for name in FOLDERS if name in rows]
    write("first_hour", "does one command on a folder run, whatever the folder?", content)


if __name__ == "__main__":
    main()
