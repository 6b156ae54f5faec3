"""The folder of a study: small records of cells that stay, runs that may go, images that were decoded once.

- `cells/NAME.json`: what a cell gave: scores with their protocols, verdict, speed, versions; or why it failed
- `runs/NAME/`: its run directory, `NAME.log`: what its process said, `NAME.lock`: who works on it
- `data/`: packed images
- `names.json`: what was asked for, and the names of its results
"""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iecl.errors import UserError
from iecl.files import check, damaged, read_json
from iecl.runs.claim import lock_file
from iecl.runs.directory import RunDirectory, write_json
from iecl.studies.cell import Names

RECORD: dict[str, Any] = {"training": dict, "evaluations": dict, "error": str, "kind": list, "time": float}
NEEDED = {"training": ("evaluations", "kind"), "error": ("time",)}
"""What a record that has the one must have besides."""
SPEED: dict[str, Any] = {"images": int, "images_per_second": float}
NAME = re.compile("[0-9a-f]{16}")
MEASURED: dict[str, Any] = {"numbers": dict, "protocol_hash": str, "seconds": float}
KEEP = ("none", "weights", "all")


class StudyFolder:
    """Paths in the folder of a study, and the ways to read and write it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.cells, self.runs, self.data = (self.path / name for name in ("cells", "runs", "data"))
        self.names = self.path / "names.json"

    def record(self, name: str) -> dict[str, Any]:
        """What is known of a cell; empty: nothing."""
        file = self.cells / f"{name}.json"
        found = read_json(file)
        needed = {other: RECORD[other] for one, others in NEEDED.items() if one in found for other in others}
        check(found, str(file), needed=needed, known=RECORD)
        if not all(type(word) in (str, int) for word in found.get("kind", [])):
            raise damaged(str(file), "kind is not a list of words and whole numbers")
        if found.get("training", {}).get("images_per_second") is not None:
            check(found["training"], f"training in {file}", needed=SPEED)
        evaluations = found.get("evaluations", {})
        check(evaluations, str(file), known=dict.fromkeys(evaluations, dict))
        for key, measured in evaluations.items():
            check(measured, f"{key} in {file}", needed=MEASURED)
        return found

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Write down what is known of a cell."""
        write_json(self.cells / f"{name}.json", record)

    def lock(self, name: str) -> int | None:
        """The lock of a cell, or None: somebody else works on it."""
        try:
            return lock_file(self.runs / f"{name}.lock", patience=0)
        except UserError:
            return None

    def is_locked(self, name: str) -> bool:
        """Whether somebody works on a cell."""
        handle = self.lock(name) if (self.runs / f"{name}.lock").exists() else -1
        if handle is not None and handle >= 0:
            os.close(handle)
        return handle is None

    def known_names(self) -> dict[str, Names]:
        """The names of what was asked for before."""
        found = read_json(self.names)
        check(found, str(self.names), known=dict.fromkeys(found, list[str]))
        if not all(found.values()):
            raise damaged(str(self.names), "a request has no names")
        if not all(NAME.fullmatch(name) for names in found.values() for name in names):
            raise damaged(str(self.names), "a name in it is none of a cell")  # they become names of files
        return {request: Names(first, tuple(others)) for request, (first, *others) in found.items()}

    def add_names(self, names: dict[str, Names]) -> None:
        """Remember names; of two runners at once one may forget those of the other, who writes the same."""
        for folder in (self.cells, self.runs, self.data):
            folder.mkdir(parents=True, exist_ok=True)
        every = self.known_names() | names
        write_json(self.names, {request: [one.training, *one.evaluations] for request, one in every.items()})

    def tidy(self, name: str, keep: str) -> None:
        """Remove what a finished cell need not keep: checkpoints and event files, or its whole run directory.

        Checkpoints of `training.keep_epochs` were asked for: they stay with the weights.
        """
        run = RunDirectory(self.runs / name)
        kept = {run.kept_checkpoint(epoch) for epoch in run.kept_epochs()}
        for folder in {"none": [run.path], "weights": [run.path / "tensorboard"], "all": []}[keep]:
            shutil.rmtree(folder, ignore_errors=True)
        if keep == "weights" and run.checkpoints.is_dir():
            for file in {*run.checkpoints.iterdir()} - kept:
                file.unlink(missing_ok=True)
            if not kept:
                run.checkpoints.rmdir()

    def megabytes(self) -> float:
        """What all of it takes on the disk."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file()) / 2**20
