"""Asks questions one after the other and keeps what they find."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import QUESTIONS
from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.report import reached_in_words, shown, write_page, write_result
from iecl.allocation import give_back_freed_memory, keep_freed_memory
from iecl.console import log_to_terminal
from iecl.errors import UserError
from iecl.launch import usable_cores
from iecl.registry import resolve

log = logging.getLogger("iecl.bench")


def bench(
    questions: Sequence[str] = (),
    out: str | Path = "bench",
    *,
    data: str | Path = "",
    quick: bool = False,
    rounds: int = 0,
    quiet: bool = True,
) -> dict[str, Any]:
    """Ask each question and write what it finds: see `iecl.bench`."""
    chosen = {name: resolve(name, QUESTIONS, "question", "QUESTION") for name in questions or QUESTIONS}
    folder, images = Path(out), Path(data) if data else None
    if images is not None and not images.is_dir():
        raise UserError(f"there is no folder {images}", where="--data", do="name a folder of images")
    if rounds < 0:
        raise UserError(f"{rounds} rounds cannot be measured", where="--rounds", do="give 1 or more")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UserError(f"cannot write to {folder}: {problem.strerror}", where="--out") from problem
    found: dict[str, Any] = {}
    with log_to_terminal(quiet):
        load = _load()
        keep_freed_memory()  # for the whole process, as training does: no arm may depend on which question came before
        try:
            for name, entry in chosen.items():
                log.info("%s: %s", name, entry.summary)
                keeper = _Keeper(folder, name, entry.summary, {"is_quick": True} if quick else {}, load)
                effort = Effort(quick, rounds, images, keeper.keep, keeper.left_out)
                content = entry.load()(effort)
                path = keeper.keep(content, is_unfinished=False)
                found[name] = {"file": str(path), "results": content.get("results", {})}
                give_back_freed_memory()
        finally:  # what was found before an error or Ctrl-C is worth a page too
            page = write_page(folder)
    return {"page": str(page), "questions": found}


def _load() -> float | None:
    """Processes that wanted a core in the last minute, before we did anything; says so where they were many."""
    if not hasattr(os, "getloadavg"):
        return None
    load, cores = os.getloadavg()[0], usable_cores()
    if load > cores / 2:
        log.warning("the machine is busy (load %.1f on %d cores): ratios are noisy", load, cores)
    return load


class _Keeper:
    """Writes what a question found so far, and says which rows are new."""

    def __init__(self, out: Path, name: str, question: str, marks: Content, load: float | None) -> None:
        self.out, self.name, self.question, self.marks = out, name, question, dict(marks)
        self.marks["allocation"] = "freed memory is kept, in every arm of this process"
        self.left_out: list[str] = []
        self._said: set[str] = set()
        if load is not None:
            self.marks["load_before"] = load

    def keep(self, content: Content, is_unfinished: bool = True) -> Path:
        """Write the file, and a line for each row that was not there before."""
        for row, values in content.get("results", {}).items():
            if row not in self._said:
                self._said.add(row)
                goal = f", {values['goal']}: {reached_in_words(values)}" if "goal" in values else ""
                log.info("  %s: %s%s", row, shown(values["median"]), goal)
        marks = self.marks | ({"is_unfinished": True} if is_unfinished else {})
        marks |= {"left_out": self.left_out} if self.left_out else {}
        return write_result(self.out, self.name, self.question, marks | content)
