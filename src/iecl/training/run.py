"""A run from its configuration to its summary: processes are started here, and end here."""

import logging
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import torch

from iecl import parallel
from iecl.allocation import give_back_freed_memory
from iecl.backbones.factory import width_of
from iecl.brought import at_hand, to_hand_on
from iecl.console import LineFormatter, ProgressLine, counted, duration, log_to_terminal, speed_of, visible
from iecl.errors import Interrupted, LostPeer, TrainingError, UserError
from iecl.files import write_atomically
from iecl.launch import WARNINGS, Launch, joined, outside_launch, rank_at_start, requeue
from iecl.meters.outcome import outcome_table
from iecl.meters.verdict import ONE_IMAGE, UNTRAINED, Verdict, verdict
from iecl.runs.claim import Claim
from iecl.runs.directory import RunDirectory, write_json
from iecl.runs.environment import describe_environment
from iecl.training.config import RunConfig, config_from_values, with_norms
from iecl.training.factory import batch_per_process
from iecl.training.forecast import comparison, held_against
from iecl.training.loop import Loop
from iecl.training.machine import deterministic, lightning_quiet, make_fabric, on_this_machine, peak_memory
from iecl.training.outcome import what_came_out
from iecl.training.processes import run_in_processes
from iecl.training.sharding import put_together
from iecl.training.signals import StopFlag
from iecl.training.trained_backbone import trained_backbone
from iecl.weights.model import save_model

log = logging.getLogger("iecl.training")


def start(config: RunConfig, claim: Claim, *, quiet: bool = False) -> dict[str, Any]:
    """Train (or go on training) in a directory that this process has claimed, and return the run's summary."""
    run = claim.run
    config = with_norms(replace(config, training=on_this_machine(config.training)))
    world = config.training.devices * config.training.nodes
    batch_per_process(config, world)  # refused before processes start
    make_fabric(config.training, run.path)  # what it refuses must not leave half a run behind
    if rank_at_start() == 0 and not run.holds_run:
        header = "Every setting of this run, resolved. Use it again: iecl pretrain --recipe THIS_FOLDER"
        write_atomically(run.settings, config.to_toml(header))
        write_json(run.environment, describe_environment() | {"device": _device_name(config)})
    request = (config.values(), str(run.path), quiet)  # plain values, as a new process takes them
    if world > 1 and outside_launch() is None:
        if config.training.nodes > 1:
            log.info("waiting for %d machines with %d processes each", config.training.nodes, config.training.devices)
        devices, nodes = config.training.devices, config.training.nodes
        handed = (*request, to_hand_on())
        result = run_in_processes(train_rank, handed, devices=devices, nodes=nodes, lock=claim.handle)
        if isinstance(result, TrainingError):
            _note(run, str(result))
    else:
        result = train_rank(*request)
    if isinstance(result, Interrupted) and result.signal in WARNINGS and config.training.requeue:
        _ask_for_more()
    if isinstance(result, UserError):
        raise result
    return result


def _ask_for_more() -> None:
    """Ask the scheduler that takes the machine away to start this command again, once for all processes."""
    problem = requeue() if rank_at_start() == 0 else ""
    if problem:
        log.warning("the job is not run again: %s", problem)


def _device_name(config: RunConfig) -> str:
    return torch.cuda.get_device_name() if config.training.accelerator == "cuda" else config.training.accelerator


def train_rank(
    values: dict[str, Any], out: str, quiet: bool, things: Mapping[str, Any] | None = None
) -> dict[str, Any] | UserError:
    """One process of a run, from its start to its end; an error is handed back, since it may have to travel.

    `things` are what names of Python's objects stand for in a process that is new.
    """
    run, config, launch = RunDirectory(out), config_from_values(values), outside_launch()
    is_first = launch is None or launch.rank == 0
    quiet = quiet or not is_first
    with (
        StopFlag(is_launched=launch is not None) as stop,
        log_to_terminal(quiet),
        lightning_quiet(),
        deterministic(config.training.deterministic),
        joined(launch),
        at_hand(things or {}),
        ProgressLine(quiet) as line,
        _LogFile(run, is_first),
    ):
        try:
            return _Training(config, run, line, launch).run_to_its_end(stop)
        except UserError as problem:
            if launch is not None and not is_first:
                _note(run, f"process {launch.rank}: {problem}")
            return problem
        except Exception as problem:
            if launch is None:
                raise
            _note(run, f"process {launch.rank}: {traceback.format_exc()}")
            words = f"process {launch.rank} failed: {type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
            return TrainingError(words, where=str(run.log))


class _Training:
    """What one process does in a run."""

    def __init__(self, config: RunConfig, run: RunDirectory, line: ProgressLine, launch: Launch | None) -> None:
        self.config, self.run, self.line, self.launch = config, run, line, launch
        self.run.watch()
        self.fabric = make_fabric(config.training, run.path, launch)
        self.loop: Loop | None = None

    def run_to_its_end(self, stop: StopFlag) -> dict[str, Any]:
        """Train and write the results; whatever ends the run early is one line, also in the log."""
        try:
            if self.launch is not None and self.launch.world > 1:
                parallel.meet_again("nccl" if self.config.training.accelerator == "cuda" else "gloo")
            self.fabric.launch()
            return self._train(stop)
        except (UserError, OSError, RuntimeError) as raised:
            problem = self._as_user_error(raised)
            if problem is None:
                raise
            if self.launch is not None and not isinstance(problem, LostPeer | Interrupted):
                parallel.leave_word(self.launch.rank, problem.what)
            with suppress(OSError, UserError):  # the run directory may be what is gone
                if isinstance(problem, TrainingError) and self.fabric.is_global_zero and not self.run.is_replaced:
                    _write_summary(self.run, {"finished": False, "stopped": str(problem)})
            log.error("%s", problem, extra={"in_file_only": True})  # whoever catches it shows it
            raise problem from raised
        finally:
            for logger in self.fabric.loggers:
                with suppress(OSError):
                    logger.finalize("ended")  # or its thread would write on while the process goes
            parallel.leave()
            give_back_freed_memory()

    def _as_user_error(self, problem: Exception) -> UserError | None:
        """The error as a user reads it; None: it is ours."""
        go_on = "fix it and continue with --resume"
        if isinstance(problem, OSError):
            where = str(problem.filename or self.run.path)
            gone = "" if self.run.path.is_dir() else f", {self.run.path} is gone"
            return TrainingError(f"{(problem.strerror or str(problem)).lower()}{gone}", where=where, do=go_on)
        if isinstance(problem, RuntimeError):
            if "does not have a deterministic implementation" in str(problem):
                words = str(problem).partition(".")[0]
                return UserError(words, where="training.deterministic", do="set it to false, or take another method")
            if self.launch is None or not parallel.is_lost_peer(problem):
                return None
            return LostPeer(parallel.who_is_lost(self.launch.rank, self.launch.world), do="continue with --resume")
        was_trained = self.loop is not None and self.loop.step > self.loop.first
        if was_trained and isinstance(problem, UserError) and not isinstance(problem, TrainingError | Interrupted):
            return TrainingError(problem.what, where=problem.where, do=problem.do)  # nobody's spelling: it has worked
        return problem if isinstance(problem, UserError) else None

    def _train(self, stop: StopFlag) -> dict[str, Any]:
        began, config = time.monotonic(), self.config
        loop = self.loop = Loop(self.fabric, config, self.run, self.line)
        loop.train(stop)
        loop.skipped.share()
        state = put_together(loop.method.state_dict())
        if not self.fabric.is_global_zero:
            return {}
        seconds, steps = time.monotonic() - began, loop.steps - loop.first
        epochs, file = config.training.epochs, self.run.weights
        trained = trained_backbone(config, state, loop.step, epochs, checkpoint="final", where=str(file))
        save_model(file, trained)
        summary: dict[str, Any] = {
            "finished": True,
            "steps": loop.steps,
            "steps_before": loop.first,
            "images": len(loop.source),
            "skipped": len(loop.skipped.reasons),
            "seconds": round(seconds, 1),
            "images_per_second": round(
                steps * config.training.batch_size * config.training.grad_accumulation / seconds, 1
            ),
            "peak_memory_megabytes": peak_memory(self.fabric.device),
        }
        try:
            held = held_against(self.run, config, summary, steps / loop.steps)
        except UserError as problem:  # a forecast that cannot be read is no reason to lose what was trained
            log.warning("the forecast cannot be compared: %s", problem)
            held = {}
        if held:
            summary["forecast"] = held
        if config.training.outcome and loop.sample.is_possible:
            self.line.show("what came out")
            seen = loop.steps * config.training.batch_size * config.training.grad_accumulation
            try:
                summary["outcome"] = what_came_out(config, self.run, loop.sample, trained.backbone, seen)
            except (UserError, OSError) as problem:  # the weights are written, and stay
                log.warning("what came out cannot be shown: %s", problem)
        known = ONE_IMAGE if loop.is_one_image else None if loop.method.online else UNTRAINED
        return _write_summary(self.run, summary, width_of(loop.method.encoder()), known)


def _note(run: RunDirectory, text: str) -> None:
    """Put into the log what the first process cannot put there."""
    with suppress(OSError), run.log.open("a", encoding="utf-8") as file:
        file.write(f"{datetime.now().strftime('%Y-%m-%d %H:%M:%S')} ERROR {visible(text)}\n")


def _write_summary(
    run: RunDirectory, summary: dict[str, Any], width: int | None = None, known: Verdict | None = None
) -> dict[str, Any]:
    """The verdict, unless it is `known` without a look, and the last value of everything that was measured."""
    rows = list(run.read_metrics())
    outcome = summary.get("outcome")
    judged = known or verdict(rows, width, outcome)
    last = {name: value for row in rows for name, value in row.items() if name not in ("step", "epoch")}
    summary |= {"verdict": judged.word, "reasons": list(judged.reasons), "advice": judged.advice, "last": last}
    if rows and rows[0]["step"] == 0 and "knn" in rows[0]:
        summary["untrained_knn"] = rows[0]["knn"]
    write_json(run.summary, summary)
    if summary["finished"]:
        log.info("%s: %s", judged.word, "; ".join(judged.reasons) or "all readings are normal")
        if judged.advice and judged.word != "healthy":
            log.info("try: %s", judged.advice)
        listed = f", listed in {run.skipped}" if summary["skipped"] else ""
        log.info("%s skipped%s", counted(summary["skipped"], "file"), listed)
        log.info(
            "%s in %s, %s; backbone in %s",
            counted(summary["steps"] - summary["steps_before"], "step"),
            duration(summary["seconds"]),
            speed_of(summary["images_per_second"]),
            run.weights,
        )
        if "forecast" in summary:
            log.info("%s", comparison(summary["forecast"]))
        if outcome is not None:
            for line in (*outcome_table(outcome), f"nearest neighbors: {run.neighbors}"):
                log.info("%s", line)
    return summary


class _LogFile(logging.FileHandler):
    """Writes log lines to RUN/log.txt while a run lasts; a disk that is full must not end a run in a log line."""

    def __init__(self, run: RunDirectory, is_on: bool) -> None:
        super().__init__(run.log, encoding="utf-8", delay=True)
        self.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
        self.is_on, self.has_failed = is_on, False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Say it once, and on the terminal alone."""
        if not self.has_failed:
            self.has_failed = True
            log.warning("log.txt cannot be written")

    def __enter__(self) -> None:
        if self.is_on:
            logging.getLogger("iecl").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("iecl").removeHandler(self)
        with suppress(OSError):
            self.close()
