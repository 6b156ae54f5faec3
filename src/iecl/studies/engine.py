"""Runs cells in processes of their own: what is finished stays, what failed is kept apart, what was cut off goes on."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iecl.console import ProgressLine, TerminalHandler, counted, duration, log_to_terminal
from iecl.errors import Interrupted, UserError
from iecl.files import damaged
from iecl.studies.cell import Cell, Datasets, Names, full_config, names_of
from iecl.studies.estimate import Estimate, Kind, kind_of
from iecl.studies.folder import KEEP, StudyFolder
from iecl.training.config import RunConfig, without_effect
from iecl.training.signals import StopFlag

log = logging.getLogger("iecl.studies")
PAUSE = 0.2
"""Seconds between two looks at processes, and at cells that others work on."""
MOST_LETTERS = 500
"""Of an error in a record."""


@dataclass(frozen=True)
class CellStatus:
    """What is known of a cell."""

    kind: Kind
    config: RunConfig
    names: Names | None
    """None: nothing of the like was ever asked for here."""
    record: dict[str, Any]
    state: str
    """done, failed, running or waiting."""


def look_at_cells(cells: Sequence[Cell], folder: Path | str) -> list[CellStatus]:
    """What is known of cells, without torch and without running any."""
    place, datasets, found = StudyFolder(folder), Datasets(), []
    known = place.known_names()
    for cell in cells:
        config = cell.config(datasets)
        names = known.get(cell.request(config, datasets))
        if names and len(names.evaluations) != len(cell.evaluations):
            raise damaged(str(place.names), "a request has too many names, or too few")
        found.append(_found(place, kind_of(config, datasets.content(cell.data)), config, names))
    return found


def _found(place: StudyFolder, kind: Kind, config: RunConfig, names: Names | None) -> CellStatus:
    record = place.record(names.training) if names else {}
    state = _state(record, names.evaluations if names else ())
    is_busy = names is not None and state != "done" and place.is_locked(names.training)
    return CellStatus(kind, config, names, record, "running" if is_busy else state)


def _state(record: dict[str, Any], evaluations: Sequence[str]) -> str:
    if "error" in record:
        return "failed"
    return "done" if "training" in record and {*evaluations} <= {*record["evaluations"]} else "waiting"


def seconds_left(found: Sequence[CellStatus], workers: int) -> float | None:
    """What cells that are not done will take, as far as finished ones tell; None: they do not."""
    estimate = Estimate(one.record for one in found)
    times = [estimate.seconds(one.kind, one.config) for one in found if one.state != "done"]
    return None if None in times else sum(filter(None, times)) / max(1, workers)


def run_cells(
    cells: Sequence[Cell],
    folder: Path | str,
    *,
    workers: int = 1,
    threads: int = 1,
    retry: bool = False,
    keep: str = "weights",
    quiet: bool = True,
) -> list[CellStatus]:
    """Train and measure every cell that is not finished yet; the same call goes on after a break of any kind.

    Calls on the same folder at the same time share the work, and each returns when all cells are finished or failed.

    Args:
        cells: what to run, in this order.
        folder: where records and runs are kept.
        workers: cells at a time, each in a process of its own; 0: one after the other in this process, which saves
            seconds for each, and loses all if one of them crashes.
        threads: of each cell; on few cores several cells with one thread each are faster than one with several.
        retry: run cells again that failed before; they go on where they stopped.
        keep: what stays of a finished run: `none` (another evaluation then trains again), `weights` or `all`.
        quiet: show warnings only, and estimate nothing.

    Raises:
        UserError: a cell's settings are wrong; nothing was run.
        Interrupted: Ctrl-C or SIGTERM; running cells have saved themselves.
    """
    check_how(workers=workers, threads=threads, keep=keep)
    from iecl.training.machine import visible_gpus

    place, datasets, jobs = StudyFolder(folder), Datasets(), dict[str, _Job]()
    with StopFlag() as stop, log_to_terminal(quiet), ProgressLine(quiet) as line:
        light = [(cell, cell.config(datasets)) for cell in cells]  # what is wrong is told before torch is loaded
        full = [(cell, full_config(config)) for cell, config in light]
        names = [names_of(cell, config, datasets) for cell, config in full]
        requests = [cell.request(config, datasets) for cell, config in light]
        place.add_names(dict(zip(requests, names, strict=True)))
        for words in dict.fromkeys(words for cell, config in light for words in without_effect(config, cell.settings)):
            log.warning("has no effect: %s", words)
        for (cell, config), one in zip(full, names, strict=True):
            job = jobs.setdefault(one.training, _job(one.training, cell, config, datasets))
            for key, asked in zip(one.evaluations, cell.evaluations, strict=True):
                job.request["evaluations"][key] = asdict(asked) | {"label": asked.label}
                job.request["contents"][asked.data] = cell.measured_on(asked, datasets)
            job.request |= {"folder": str(place.path.absolute()), "keep": keep}
        runner = _Runner(place, list(jobs.values()), workers, threads, retry, line, visible_gpus())
        if not quiet:
            runner.announce()
        if not workers:
            runner.run_here()
        else:
            stop.is_polled = True
            runner.run(stop)
    return [_found(place, jobs[one.training].kind, jobs[one.training].config, one) for one in names]


def check_how(*, workers: int, threads: int, keep: str) -> None:
    """Refuse what cells cannot be run with.

    Raises:
        UserError: a number is too small, or `keep` is none of its words.
    """
    if keep not in KEEP or workers < 0 or threads < 1:
        do = f"keep is one of: {', '.join(KEEP)}; workers are at least 0, threads at least 1"
        raise UserError(f"keep={keep}, workers={workers}, threads={threads}", where="how cells are run", do=do)


@dataclass
class _Job:
    """A run, and all that is to be measured of it."""

    name: str
    kind: Kind
    config: RunConfig
    request: dict[str, Any]
    """What its process is told."""
    began: float = 0.0
    handle: int = -1
    gpu: str = ""
    """Where it runs, if there are several and it asks for one."""

    @property
    def evaluations(self) -> tuple[str, ...]:
        return tuple(self.request["evaluations"])


def _job(name: str, cell: Cell, config: RunConfig, datasets: Datasets) -> _Job:
    """A run of which nothing is to be measured yet; its record will say what the images are, not where they lie."""
    content = cell.images(datasets)
    record = {"content": content, "kind": kind_of(config, content), "recipe": cell.recipe, "seed": cell.seed}
    record["settings"] = cell.differences(config)
    if cell.init_from:
        record["init_from"] = datasets.weights(cell.init_from)
    request = {"name": name, "values": config.values(), "record": record, "contents": {"": content}, "evaluations": {}}
    request["init_from"] = str(Path(cell.init_from).absolute()) if cell.init_from else ""
    return _Job(name, kind_of(config, content), config, request)


@dataclass
class _Runner:
    """Processes at work."""

    place: StudyFolder
    waiting: list[_Job]
    workers: int
    threads: int
    retry: bool
    line: ProgressLine
    gpus: Sequence[str] = ()
    running: dict[subprocess.Popen[str], _Job] = field(default_factory=dict)
    estimate: Estimate = field(default_factory=Estimate)
    since: float = field(default_factory=time.time)
    ended: int = 0

    def announce(self) -> None:
        """Say what is to do, and how long it takes."""
        records = {job.name: self.place.record(job.name) for job in self.waiting}
        self.estimate = Estimate(records.values())
        todo = [job for job in self.waiting if self._is_open(job, records[job.name])]
        self.estimate.probe(((job.kind, job.config) for job in todo), self.threads)
        time_left = self._time(todo, f" with {counted(max(1, self.workers), 'worker')}")
        log.info("%s, %d to do%s", counted(len(records), "cell"), len(todo), time_left)

    def _time(self, todo: Sequence[_Job], what: str) -> str:
        """As in `, about 2 h 5 min left`; empty: unknown."""
        now = time.monotonic()
        whole = [(job, self.estimate.seconds(job.kind, job.config)) for job in (*todo, *self.running.values())]
        left = [max(0.0, one - (now - job.began if job.began else 0.0)) for job, one in whole if one is not None]
        return f", about {duration(sum(left) / max(1, self.workers))}{what}" if left else ""

    def _is_open(self, job: _Job, record: dict[str, Any]) -> bool:
        """Whether this call is to run a cell: a failure is tried again once, by one of several calls."""
        state = _state(record, job.evaluations)
        return state == "waiting" or (state == "failed" and self.retry and record["time"] < self.since)

    def run(self, stop: StopFlag) -> None:
        """Until every cell is finished or has failed, or somebody asks to stop."""
        total = len(self.waiting)
        try:
            while (self.waiting or self.running) and not stop.signal:
                for process in [process for process in self.running if process.poll() is not None]:
                    self._end(process)
                for job in self.waiting[:]:
                    if len(self.running) < self.workers:
                        self._begin(job)
                elsewhere = len(self.waiting) if len(self.running) < self.workers else 0
                shared = f", {elsewhere} elsewhere" if elsewhere else ""
                left = self._time(self.waiting, " left")
                self.line.show(f"cells {self.ended}/{total}, {len(self.running)} at work{shared}{left}")
                time.sleep(PAUSE)
        finally:
            for process in self.running:
                process.terminate()
            for process, job in self.running.items():
                process.communicate()
                os.close(job.handle)
        if stop.signal:
            done = f"stopped with {self.ended} of {counted(total, 'cell')} ended, the others saved"
            raise Interrupted(done, do="go on with the same words", signal=stop.signal)

    def run_here(self) -> None:
        """Every cell that nobody else works on, in this process."""
        import torch

        from iecl.studies.worker import work

        before, spoken = torch.get_num_threads(), logging.getLogger("iecl").handlers
        levels = [(handler, handler.level) for handler in spoken if isinstance(handler, TerminalHandler)]
        for handler, _ in levels:
            handler.setLevel(logging.WARNING)  # what a run says is in its log
        torch.set_num_threads(self.threads)
        try:
            for number, job in enumerate(self.waiting):
                handle = self.place.lock(job.name)
                self.line.show(f"cells {number}/{len(self.waiting)}", number / len(self.waiting))
                if handle is None:
                    continue
                try:
                    if self._is_open(job, self.place.record(job.name)):
                        work(job.request)
                except Interrupted:
                    raise
                except UserError as problem:
                    self._fail(job, problem.what)
                except (RuntimeError, ValueError) as problem:  # what torch raises
                    self._fail(job, f"{type(problem).__name__}: {problem}"[:MOST_LETTERS])
                finally:
                    os.close(handle)
        finally:
            torch.set_num_threads(before)
            for handler, level in levels:
                handler.setLevel(level)

    def _fail(self, job: _Job, error: str) -> None:
        record = self.place.record(job.name)
        self.place.write(job.name, job.request["record"] | record | {"error": error, "time": time.time()})

    def _begin(self, job: _Job) -> None:
        handle = self.place.lock(job.name)
        if handle is None:  # another call has it: it may finish it, or be killed
            return
        self.waiting.remove(job)
        if not self._is_open(job, self.place.record(job.name)):
            os.close(handle)
            self.ended += 1
            return
        environment = os.environ | {"OMP_NUM_THREADS": str(self.threads)}
        if len(self.gpus) > 1 and job.config.training.devices == 1:
            used = [one.gpu for one in self.running.values()]
            job.gpu = min(self.gpus, key=used.count)
            environment |= {"CUDA_VISIBLE_DEVICES": job.gpu}
        with (self.place.runs / f"{job.name}.log").open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "iecl.studies.worker"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which tells the others
                pass_fds=() if os.name == "nt" else (handle,),  # the lock lasts as long as either of us
            )
        self.running[process] = job
        job.handle, job.began = handle, time.monotonic()
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, which is noticed soon
            process.stdin.write(json.dumps(job.request) + "\n")
            process.stdin.flush()

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Note how a process ended; its lock is held until that is written down."""
        job, code = self.running.pop(process), process.returncode
        process.communicate()
        what, record = f"{job.name} ({job.kind[0]}, seed {job.config.training.seed})", self.place.record(job.name)
        taken = duration(time.monotonic() - job.began)
        self.ended += 1
        if code:
            error = self._reason(job, code)
            self._fail(job, error)
            log.warning("%s failed after %s: %s", what, taken, error)
        else:
            self.estimate.learn(record)
            log.info("%s done in %s", what, taken)
        os.close(job.handle)

    def _reason(self, job: _Job, code: int) -> str:
        if code < 0:
            return f"ended by signal {-code}" + (": most often the memory ran out" if code == -9 else "")
        lines = (self.place.runs / f"{job.name}.log").read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), f"code {code}")[:MOST_LETTERS]
