"""The run directory: one folder, readable by a person, that holds everything a run was and became.

- `settings.toml`: every setting as it was resolved: enough to repeat the run
- `environment.json`: versions, hardware, git commit, command
- `metrics.jsonl`: one object per line: step, loss terms, meters
- `log.txt`: what was printed
- `skipped.txt`: files that could not be read, with the reason
- `checkpoints/`: last.ckpt, previous.ckpt, best.ckpt: to resume
- `weights.safetensors`: the backbone, with plain torchvision or timm names
- `summary.json`: the verdict and the last readings
- `evaluations/`: one file for each evaluation
- `history.jsonl`: when it was started, resumed or extended, and what from
- `start.safetensors`: the weights that a run began with, if it was told to begin with some
- `plan.json`: what `iecl plan` foretold, if it was asked
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from iecl.console import json_escaped
from iecl.errors import UserError
from iecl.runs.records import read_metrics, read_summary


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
        self.evaluations = self.path / "evaluations"
        self.history = self.path / "history.jsonl"
        self.start = self.path / "start.safetensors"
        self.plan = self.path / "plan.json"

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
        if not run.holds_run:
            raise UserError(f"{path} is not a run directory: it has no settings.toml", where=where)
        return run

    @classmethod
    def fresh(cls, path: Path | str, overwrite: bool = False) -> "RunDirectory":
        """A directory for a new run: it may exist but must not hold a run, unless that run may be overwritten."""
        run = cls(path)
        if run.path.exists() and not run.path.is_dir():
            raise UserError(f"{path} is a file", where="--out", do="name a folder")
        if run.holds_run and not overwrite:
            raise UserError(
                f"{path} already holds a run",
                where="--out",
                do="add --resume to continue it, --overwrite, or another --out",
            )
        try:
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            run.evaluations.mkdir(exist_ok=True)
        except OSError as problem:
            raise UserError(f"cannot write to {path}: {problem.strerror}", where="--out") from problem
        if overwrite:
            run.clear()
        return run

    def clear(self) -> None:
        """Remove what a former run wrote here, with what was foretold of it, and nothing else."""
        if self.holds_run:  # without a run, the forecast is of one to come
            self.plan.unlink(missing_ok=True)
        self._remove_run()

    def _remove_run(self) -> None:
        files = [self.settings, self.environment, self.metrics, self.log, self.skipped, self.weights, self.summary]
        files += [self.history, self.start]
        files += [*self.checkpoints.glob("*.ckpt"), *self.evaluations.rglob("*.json"), self.evaluations / "card.md"]
        files += [*self.path.glob("tensorboard/events.out.tfevents.*")]
        for file in files:
            file.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove a run that could not begin, with its folder if nothing else is in it."""
        self._remove_run()
        for folder in (self.checkpoints, self.evaluations, self.path):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def append_history(self, row: Mapping[str, Any]) -> None:
        """Note what begins now, and where it comes from."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with self.history.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": now, **row}) + "\n")

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl."""
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


def rank_at_start() -> int:
    """The number of this process if torchrun or SLURM started several of the same command, else 0.

    The first one alone makes and clears directories, writes settings and speaks; the others join it to train.
    """
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


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


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside, flush to the disk, rename: a reader sees the old file or the new one, never a part."""
    raw = content.encode("utf-8") if isinstance(content, str) else content
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in this folder survive a power cut, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder cannot be opened on Windows, where a rename is durable by itself
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
