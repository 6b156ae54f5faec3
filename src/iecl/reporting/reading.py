"""What a run directory says of a run, in plain values: nothing is computed, and nothing in it may stop the page.

A directory may be one that is being written, was left in the middle, is damaged, or was made by somebody else: what
cannot be read is a line in `problems`.
"""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from iecl.comparison.differences import interval
from iecl.comparison.results import Result, read_result, read_results, result_files
from iecl.console import counted, duration
from iecl.errors import UserError
from iecl.files import open_plain, read_json, read_lines
from iecl.meters.outcome import NUMBERS, ROWS, SHARES
from iecl.meters.verdict import verdict
from iecl.methods import METHODS
from iecl.runs.claim import is_being_written
from iecl.runs.directory import RunDirectory

MOST_LISTED = 500
"""Skipped files that the page lists."""
LOG_LINES, LOG_BYTES = 15, 2**14
Row = dict[str, Any]


class RunReader:
    """Reads one run directory, and keeps count of what cannot be read."""

    def __init__(self, path: Path | str) -> None:
        self.run = RunDirectory.existing(path)
        self.problems: list[str] = []
        found = self._tried(self.run.read_settings, {})
        self.settings = {name: table for name, table in found.items() if isinstance(table, Mapping)}
        self.summary = self._tried(self.run.read_summary, {})
        self.environment = self._tried(lambda: read_json(self.run.environment), {})
        self.rows: list[Row] = []
        self._tried(self._read_rows, None)

    def _tried(self, read: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return read()
        except UserError as problem:
            self.problems.append(problem.what)
            return otherwise

    def _read_rows(self) -> None:
        for row in self.run.read_metrics():  # what comes before a damaged line is kept
            self.rows.append(row)

    def setting(self, place: str) -> Any:
        """The value of `section.key`; None where there is none."""
        section, _, key = place.partition(".")
        return self.settings.get(section, {}).get(key)

    def read(self) -> dict[str, Any]:
        """Everything but the curves."""
        state = self.state()
        judged = self.judged(state)
        return {
            "path": str(self.run.path),
            "state": state,
            "verdict": judged,
            "outcome": self.outcome(),
            "sentence": self.sentence(state),
            "progress": None if state == "finished" else self.progress(),
            "facts": self.facts(),
            "evaluations": self.evaluations(),
            "checkpoints": self.checkpoints(judged["word"]),
            "skipped": self._tried(self.skipped, {"count": 0, "reasons": [], "files": []}),
            "commands": self.commands(),
            "log": [] if state == "finished" else self._tried(self.last_lines, []),
            "problems": self.problems,  # last: whatever could not be read above is in it
        }

    # --- how it stands

    def state(self) -> str:
        """finished, running or interrupted."""
        if self.summary.get("finished"):
            return "finished"
        return "running" if is_being_written(self.run) else "interrupted"

    def judged(self, state: str) -> dict[str, Any]:
        """The verdict that the run wrote down, or the one that its rows allow so far."""
        if "verdict" in self.summary:
            word, reasons = self.summary["verdict"], self.summary.get("reasons", [])
            return {"word": word, "reasons": reasons, "advice": self.summary.get("advice", ""), "is_final": True}
        found = verdict(self.rows)
        advice = found.advice
        if state == "interrupted":
            advice = f"go on with: iecl pretrain --resume --out {shlex.quote(str(self.run.path))}"
        if state == "running" and found.word in ("healthy", "too short"):
            advice = "wait: it is being trained"
        return {"word": found.word, "reasons": list(found.reasons), "advice": advice, "is_final": False}

    def outcome(self) -> dict[str, Any] | None:
        """Scores of the trained network beside doing nothing, for the bars at the top."""
        found = self.summary.get("outcome")
        if not found:
            return self._online()
        scores = found["scores"]
        columns = [name for name in SHARES | NUMBERS if any(name in row for row in scores.values())]
        rows = [
            {"name": words, "values": [scores[row].get(name) for name in columns]}
            for row, words in ROWS.items()
            if row in scores
        ]
        heads = [{"name": (SHARES | NUMBERS)[name], "is_share": name in SHARES} for name in columns]
        main = columns.index("knn") if "knn" in columns else 0
        return {"images": found["images"], "columns": heads, "rows": rows, "main": main}

    def _online(self) -> dict[str, Any] | None:
        """The same from readings along the way, where the run has labels and is not at its end."""
        seen = [row["knn"] for row in self.rows if "knn" in row and math.isfinite(row["knn"])]
        if len(seen) < 2:
            return None
        rows = [{"name": "now", "values": [seen[-1]]}, {"name": "untrained", "values": [seen[0]]}]
        return {"images": 0, "columns": [{"name": "online kNN", "is_share": True}], "rows": rows, "main": 0}

    # --- what it was

    def sentence(self, state: str) -> str:
        """What was trained on what, for how long."""
        epochs, images = self.setting("training.epochs"), self.summary.get("images")
        data = str(self.setting("data.name"))
        data = f"{images:,} images of {data}" if type(images) is int and images else data
        step = self.rows[-1]["step"] if self.rows else 0
        verb = "trains" if state == "running" else "trained"
        said = f"{self._method_name()} {verb} {self.setting('backbone.name')} on {data}"
        if state == "finished":
            seconds = self.summary.get("seconds")
            took = f" in {duration(seconds)}" if _is_finite(seconds) else ""
            return f"{said} for {counted(epochs, 'epoch') if type(epochs) is int else 'some epochs'}{took}."
        seen = [int(row["epoch"]) + 1 for row in self.rows if _is_finite(row.get("epoch"))]
        epoch, left = seen[-1] if seen else 0, self._seconds_left(step)
        ending = f"; about {duration(left)} left" if left and _is_finite(left) and state == "running" else ""
        where = "" if state == "running" else f"{state}, "
        return f"{said}: {where}epoch {epoch} of {epochs}, step {step:,}{ending}."

    def progress(self) -> float | None:
        """The share of its steps that a run has taken; None: it does not say."""
        epochs, steps = self.setting("training.epochs"), self._steps_of_an_epoch()
        if type(epochs) is not int or epochs < 1 or not steps:
            return None
        return round(min(1.0, int(self.rows[-1]["step"]) / (steps * epochs)), 4)

    def _steps_of_an_epoch(self) -> int:
        """By the last readings of epochs, which are rarely at their ends: the more epochs, the surer; 0: unknown."""
        known = [row for row in self.rows if _is_finite(row.get("epoch")) and row["epoch"] >= 0]
        if not known or known[-1]["epoch"] < 1:
            return 0
        return max(math.ceil(int(row["step"]) / (int(row["epoch"]) + 1)) for row in known)

    def _method_name(self) -> str:
        method, host = self.setting("method.name"), self.setting("method.host")
        return f"{method} around {host}" if host else f"{method or 'an unknown method'}"

    def _seconds_left(self, step: int) -> float | None:
        """From the length of the epochs so far and the last speed."""
        epochs, batch = self.setting("training.epochs"), self.setting("training.batch_size")
        accumulated = self.setting("training.grad_accumulation") or 1
        speeds = [row["images_per_second"] for row in self.rows if row.get("images_per_second", 0) > 0]
        steps = self._steps_of_an_epoch()
        if not (speeds and steps) or not all(type(value) is int for value in (epochs, batch, accumulated)):
            return None
        return float(max(0, steps * epochs - step) * batch * accumulated / speeds[-1])

    def facts(self) -> list[list[str]]:
        """Rows of the table under the sentence."""
        method = self.setting("method.host") or self.setting("method.name")
        about = METHODS[method].summary if isinstance(method, str) and method in METHODS else ""
        step = max((row["step"] for row in self.rows), default=0)
        packages = self.environment.get("packages")
        versions = packages if isinstance(packages, Mapping) else {}
        found = {
            "method": self._method_name(),
            "what it does": about,
            "input block": self.setting("saib.form"),
            "backbone": self.setting("backbone.name"),
            "images": self.setting("data.name"),
            "left out": self.setting("data.exclude") and f"those listed in {self.setting('data.exclude')}",
            "image size": f"{self.setting('data.image_size')} px",
            "augmentation": self.setting("augmentation.policy"),
            "epochs": self.setting("training.epochs"),
            "steps": f"{step:,}",
            "batch size": self.setting("training.batch_size"),
            "optimizer": f"{self.setting('optimizer.name')}, lr {self.setting('optimizer.lr')}",
            "seed": self.setting("training.seed"),
            "device": self.environment.get("device"),
            "processor": self.environment.get("processor"),
            "peak memory": _megabytes(self.summary.get("peak_memory_megabytes")),
            "versions": ", ".join(f"{name} {versions[name]}" for name in ("iecl", "torch") if name in versions),
        }
        return [[name, str(value)[:400]] for name, value in found.items() if value not in (None, "", "none")]

    # --- what came of it

    def evaluations(self) -> list[dict[str, Any]]:
        """Results with their intervals, protocols and baselines."""
        return [row for file in result_files(self.run) for row in self._tried(partial(_result, file), [])]

    def checkpoints(self, word: str) -> dict[str, Any]:
        """The weights that there are, which of them to use, and why."""
        run, rows = self.run, [row for row in self.rows if "knn" in row]
        there = [str(path.relative_to(run.path)) for path in (run.weights,) if path.exists()]
        there += [
            f"checkpoints/{name}.ckpt" for name in ("best", "last") if (run.checkpoints / f"{name}.ckpt").exists()
        ]
        there += [f"checkpoints/epoch-{epoch}.ckpt" for epoch in run.kept_epochs()]
        if not there:
            return {"use": "", "why": "There are no weights yet: the first checkpoint is still to come.", "files": []}
        best, final = "checkpoints/best.ckpt", there[0]
        by = "online kNN" if rows else "training loss"
        if best in there and word in ("collapsing", "unlearning", "diverged"):
            return {
                "use": best,
                "why": f"The run is {word}: the best checkpoint by {by} is from before.",
                "files": there,
            }
        chosen = [result for result in self._all_results() if result.is_chosen]
        why = "The weights at the end, chosen by nothing: what papers report, and no look at a test set is needed."
        if best in there and not chosen:
            why += f" {best} is the best by {by} of a sample of the training images; measure it with --checkpoint best."
        return {"use": final, "why": why, "files": there}

    def _all_results(self) -> list[Result]:
        files = result_files(self.run)
        return [one for file in files for one in self._tried(partial(_results, file), [])]

    def skipped(self) -> dict[str, Any]:
        """Files that could not be read, counted by reason."""
        if not self.run.skipped.exists():
            return {"count": 0, "reasons": [], "files": []}
        lines = [line.rstrip("\r\n").partition("\t") for _, line in read_lines(self.run.skipped)]
        files = [[path, reason] for path, _, reason in lines]
        reasons = Counter(reason for _, reason in files).most_common(12)
        return {"count": len(files), "reasons": [list(pair) for pair in reasons], "files": files[:MOST_LISTED]}

    def commands(self) -> list[str]:
        """What repeats the run, and the measurements that it has."""
        words, folder = self.environment.get("command"), shlex.quote(str(self.run.path))
        again = shlex.quote(f"{self.run.path}-again")
        words = [str(word) for word in words[1:]] if isinstance(words, list) else []
        first = [f"iecl {shlex.join(words)}  # as it was started"] if words else []
        names = dict.fromkeys(str(row["evaluation"]) for row in self.evaluations())
        return [
            *first,
            f"iecl pretrain --recipe {folder} --out {again}  # the same settings, all of them",
            *(f"iecl evaluate {shlex.quote(name)} {again}" for name in names),
            f"iecl report {again}",
        ]

    def last_lines(self) -> list[str]:
        """The end of the log, for a run that is not finished."""
        if not self.run.log.exists():
            return []
        with open_plain(self.run.log) as file:
            file.seek(max(0, self.run.log.stat().st_size - LOG_BYTES))
            return file.read(LOG_BYTES).decode(errors="replace").splitlines()[-LOG_LINES:]


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _megabytes(value: Any) -> str:
    return f"{value:,} MB" if _is_finite(value) else ""


def _results(file: Path) -> list[Result]:
    return list(read_results(str(file)))


def _result(file: Path) -> list[dict[str, Any]]:
    raw, (result,) = read_result(file), read_results(str(file))
    sure, held = interval(result), raw.get("baselines")
    return [
        {
            "evaluation": result.evaluation,
            "number": result.number,
            "value": result.value,
            "low": sure.low if sure else None,
            "high": sure.high if sure else None,
            "way": sure.way if sure else "",
            "n_test": result.n_test,
            "n_train": raw["n_train"],
            "data": raw["data"],
            "protocol_id": raw["protocol_id"],
            "protocol_hash": result.protocol_hash,
            "protocol": [[str(key), str(value)[:200]] for key, value in raw["protocol"].items()],
            "baselines": _baselines(held, result.number) if isinstance(held, list) else [],
        }
    ]


def _baselines(held: Sequence[Any], number: str) -> list[dict[str, Any]]:
    rows = [row for row in held if isinstance(row, Mapping) and type(row.get(number)) is float]
    return [{"name": str(row.get("model", "")), "value": row[number]} for row in rows]
