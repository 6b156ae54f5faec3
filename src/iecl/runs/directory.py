"""The run directory: one folder, readable by a person, that holds everything a run was and became.

- `settings.toml`: every setting as it was resolved: enough to repeat the run
- `environment.json`: versions, hardware, git commit, command
- `metrics.jsonl`: one object per line: step, loss terms, meters
- `log.txt`: what was printed
- `skipped.txt`: files that could not be read, with the reason
- `checkpoints/`: last.ckpt, previous.ckpt, best.ckpt: to resume; epoch-5.ckpt and so on, where moments were kept;
  shards-5 and so on: tensors that belong to them, where several processes shared them out
- `weights.safetensors`: the backbone, with plain torchvision or timm names
- `summary.json`: the verdict and the last readings
- `neighbors.png`: some images and the nearest to each, by the trained and by an untrained backbone
- `evaluations/`: one file for each evaluation
- `history.jsonl`: when it was started, resumed or extended, and what from
- `start.safetensors`: the weights that a run started from, if there were any
- `forecast.json`: what `iecl forecast` predicted, if it was asked
- `.lock`: who writes here, see `iecl.runs.claim`
- `failed-1`: what a run that should have overwritten this one wrote before it failed
"""

import json
import math
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from iecl.console import json_escaped
from iecl.errors import TrainingError, UserError
from iecl.files import is_open_at, parse_json, read_text, write_atomically
from iecl.names import current_settings
from iecl.runs.records import read_metrics, read_summary
from iecl.settings import read_toml


def refuse_missing(target: str | Path, where: str = "MODEL", other: str = "random") -> None:
    """Raise a `UserError` if there are no weights of this name; `other` is a word that may stand in their place."""
    if not Path(target).exists():
        do = f"give a run directory, a file of weights, or {other}"
        raise UserError(f"there is no run and no file {target}", where=where, do=do)


class RunDirectory:
    """Paths in a run directory, and the few ways to read and write it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.settings = self.path / "settings.toml"
        self.environment = self.path / "environment.json"
        self.metrics = self.path / "metrics.jsonl"
        self.log = self.path / "log.txt"
        self.skipped = self.path / "skipped.txt"
        self.checkpoints = self.path / "checkpoints"
        self.weights = self.path / "weights.safetensors"
        self.summary = self.path / "summary.json"
        self.neighbors = self.path / "neighbors.png"
        self.evaluations = self.path / "evaluations"
        self.history = self.path / "history.jsonl"
        self.start = self.path / "start.safetensors"
        former = self.path / "plan.json"
        self.forecast = former if former.exists() else self.path / "forecast.json"
        self.lock = self.path / ".lock"
        self.overwritten = self.path / ".overwritten"
        self.moving = self.path / ".moving"
        self._watched = -1

    @property
    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return self.settings.is_file()

    @classmethod
    def existing(cls, path: Path | str, where: str = "RUN") -> "RunDirectory":
        """A directory that holds a run, or a `UserError`."""
        run = cls(path)
        if not run.path.exists():
            raise UserError(f"there is no run in {path}", where=where, do="give the folder that iecl pretrain wrote")
        if run.overwritten.exists() or run.moving.exists():
            from iecl.runs.claim import recover

            recover(run)
        if not run.holds_run:
            raise UserError(f"{path} is not a run directory: it has no settings.toml", where=where)
        return run

    @classmethod
    def fresh(cls, path: Path | str) -> "RunDirectory":
        """A directory for a new run: it may exist but must not hold a run."""
        run = cls(path)
        run.refuse_another()
        run.make_folders()
        return run

    def refuse_another(self) -> None:
        """Raise a `UserError` if this is no place for a new run."""
        if self.holds_run:
            raise UserError(
                f"{self.path} already holds a run",
                where="--out",
                do="add --resume to continue it, --overwrite, or another --out",
            )
        if files := self.files():
            raise UserError(
                f"{self.path} holds {files[0].relative_to(self.path)}, which a run would write over",
                where="--out",
                do="name another folder, or add --overwrite",
            )

    def make_folders(self) -> None:
        """Make what is missing of the directory."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file", where="--out", do="name a folder")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.evaluations.mkdir(exist_ok=True)
        except OSError as problem:
            raise UserError(f"cannot write to {self.path}: {problem.strerror}", where="--out") from problem

    def files(self) -> list[Path]:
        """Everything here that a run wrote, and nothing else; what was predicted of a run belongs to it."""
        files = [self.settings, self.environment, self.metrics, self.log, self.skipped, self.weights, self.summary]
        files += [self.neighbors, self.history, self.start, *([self.forecast] if self.holds_run else [])]
        files += [*self.checkpoints.glob("*.ckpt"), *self.checkpoints.glob("shards-*/*")]
        files += [*self.evaluations.rglob("*.json"), self.evaluations / "card.md"]
        files += [*self.path.glob("tensorboard/events.out.tfevents.*")]
        return [file for file in files if file.exists()]

    def kept_checkpoint(self, epoch: int) -> Path:
        """The checkpoint that stays of the end of an epoch; of epoch 0: of the start."""
        return self.checkpoints / f"epoch-{epoch}.ckpt"

    def kept_epochs(self) -> list[int]:
        """Epochs whose checkpoints were kept."""
        numbers = (path.stem.removeprefix("epoch-") for path in self.checkpoints.glob("epoch-*.ckpt"))
        return sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())

    def drop_overwritten(self) -> None:
        """Remove the run that this one replaced."""
        if self.overwritten.exists():
            shutil.rmtree(self.overwritten)

    def discard(self) -> None:
        """Remove a run that could not begin, with its folder if nothing else is in it; a forecast stays."""
        for file in self.files():
            if file != self.forecast:
                file.unlink(missing_ok=True)
        self.remove_folders()

    def remove_folders(self) -> None:
        """Remove the folders of the directory that are empty."""
        shards = self.checkpoints.glob("shards-*")
        for folder in (*shards, self.checkpoints, self.evaluations, self.path / "tensorboard"):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        if self.path.is_dir() and all(entry == self.lock for entry in self.path.iterdir()):
            self.lock.unlink(missing_ok=True)
            self.path.rmdir()

    def read_settings(self) -> dict[str, Any]:
        """Every setting by section, under the names of today."""
        return current_settings(read_toml(self.settings))

    def watch(self) -> None:
        """Remember the lock by which this place is ours: what is written later must not go into another run."""
        with suppress(FileNotFoundError):
            self._watched = os.open(self.lock, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            weakref.finalize(self, os.close, self._watched)

    @property
    def is_replaced(self) -> bool:
        """Whether somebody removed the run while it was written, and began another one in its place."""
        return self._watched >= 0 and self.lock.exists() and not is_open_at(self._watched, self.lock)

    def refuse_replaced(self) -> None:
        """Raise a `TrainingError` if this place belongs to another run by now."""
        if self.is_replaced:
            raise TrainingError(
                f"{self.path} was removed, and another run has taken its place",
                where=str(self.lock),
                do="that one is left as it is; start this one again in another --out",
            )

    def append_history(self, row: Mapping[str, Any]) -> None:
        """Note what begins now, and where it comes from."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": now, **row}) + "\n")

    def last_launch(self) -> list[str]:
        """What started the run the last time, if it was something that starts it again when it ends too early."""
        try:
            row = parse_json(read_text(self.history).splitlines()[-1], str(self.history))
        except (UserError, OSError, IndexError):
            return []
        said = row.get("launch")
        return [name for name in said if isinstance(name, str)] if isinstance(said, list) else []

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
        self.refuse_replaced()
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(strict_json(row) + "\n")

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """The rows of metrics.jsonl; a last line that a crash cut short is left out."""
        return read_metrics(self.metrics) if os.path.lexists(self.metrics) else iter(())

    def forget_after(self, step: int) -> None:
        """Drop metrics of steps after `step`: a resumed run takes them again."""
        rows = [row for row in self.read_metrics() if row["step"] <= step]
        write_atomically(self.metrics, "".join(strict_json(row) + "\n" for row in rows))

    def read_summary(self) -> dict[str, Any]:
        """The verdict and the last readings, or nothing if they were not written yet."""
        return read_summary(self.summary)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write one JSON file, whole or not at all."""
    write_atomically(path, strict_json(content, indent=2) + "\n")


def strict_json(content: Any, indent: int | None = None) -> str:
    """JSON that every reader takes and every terminal: numbers that are not finite are text, "NaN" or "Infinity"."""
    return json_escaped(json.dumps(_worded(content), indent=indent, allow_nan=False, ensure_ascii=False, default=str))


def _worded(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _worded(item) for key, item in value.items()}
    return [_worded(item) for item in value] if isinstance(value, list | tuple) else value
