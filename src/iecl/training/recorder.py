"""What a run writes down while it trains: rows of metrics, meters, speed, skipped files."""

import logging
import math
import os
import shlex
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from iecl import parallel
from iecl.console import ProgressLine, duration, one_line, speed_of
from iecl.data.batch import Batch
from iecl.data.skipped_files import Skipping, refuse_too_many
from iecl.data.source import Source
from iecl.errors import TrainingError
from iecl.files import read_lines
from iecl.meters.embedding import read_embedding
from iecl.methods.contract import Method, Step
from iecl.runs.directory import RunDirectory
from iecl.schedule import Clock
from iecl.training.config import RunConfig

log = logging.getLogger("iecl.training")
LATER = 2**62
"""No step comes after it."""
SPEED_STEPS = 100


class Recorder:
    """Turns steps into rows of metrics.jsonl, loggers and the progress line; stops a run whose loss is not finite."""

    def __init__(
        self, fabric: Fabric, run: RunDirectory, config: RunConfig, line: ProgressLine, method: Method
    ) -> None:
        self.fabric, self.run, self.line, self.method = fabric, run, line, method
        self.settings, self.rate = config.training, config.optimizer.lr
        self._times: deque[tuple[float, float]] = deque(maxlen=SPEED_STEPS)
        """When each of the last steps ended, and how long had been waited for data until then."""
        self._waited = 0.0
        self._row: dict[str, Any] = {}
        self._pending: list[tuple[int, dict[str, Tensor]]] = []
        self._check_each_step = fabric.device.type == "cpu"  # on a GPU reading a loss waits for the device

    def check(self, step: int, losses: dict[str, Tensor]) -> None:
        """Remember the losses of a step, and look at them now (CPU) or at the next row (GPU)."""
        self._pending.append((step, {name: value.detach() for name, value in losses.items()}))
        if self._check_each_step:
            self.flush()

    def flush(self) -> None:
        """Stop at the first step whose loss is not finite, before anything is saved."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        every = torch.stack([value.float() for _, losses in pending for value in losses.values()])
        finite = iter(every.isfinite().tolist())  # a GPU is waited for once
        bad = [(step, [name for name in losses if not next(finite)]) for step, losses in pending]
        first = -parallel.largest(-min((step for step, names in bad if names), default=LATER))
        if first != LATER:
            self._stop(first, [name for step, names in bad if step == first for name in names])

    def _stop(self, step: int, bad: list[str]) -> None:
        terms = " and ".join(f"loss/{name}" for name in bad) or "a loss of another process"
        if self.fabric.is_global_zero:
            self.run.append_metrics({"step": step, "loss": math.nan, **{f"loss/{name}": math.nan for name in bad}})
        kept, folder = self.run.checkpoints / "last.ckpt", self.run.path
        saved = f"the last good checkpoint is {kept}" if kept.exists() else "no checkpoint was written yet"
        quoted = shlex.quote(str(folder))
        again = f"iecl pretrain --recipe {quoted} --out {shlex.quote(f'{folder}-again')}"
        again += f" --set optimizer.lr={self.rate / 10:g}"
        raise TrainingError(
            f"{terms} became NaN or infinite at step {step}",
            where=saved,
            do=f"lower the learning rate: {again}{f' --init-from {quoted}' if kept.exists() else ''}; "
            "or add optimizer.warmup_epochs, set optimizer.grad_clip=1 or training.precision=32-true; "
            f"look at the step with: iecl replay {quoted} --step {step}",
        )

    def next_batch(self, batches: Iterator[Batch]) -> Batch:
        """The next batch; the time until it is there is time in which nothing is trained."""
        began = time.perf_counter()
        batch = next(batches)
        self._waited += time.perf_counter() - began
        return batch

    def after_step(self, clock: Clock, made: Step, rate: float) -> None:
        """Record optimizer step `clock.step` (counted from 1)."""
        self._times.append((time.perf_counter(), self._waited))
        settings = self.settings
        is_edge = clock.step in (1, clock.steps)
        if is_edge or clock.step % settings.log_steps == 0 or clock.step % settings.meter_steps == 0:
            self.flush()
            self._write_row(clock, made, rate, is_edge or clock.step % settings.meter_steps == 0)
        if self._row:
            self.line.show(self._progress(clock, self._row), clock.step / clock.steps)

    def _write_row(self, clock: Clock, made: Step, rate: float, with_meters: bool) -> None:
        readings = {f"loss/{name}": value for name, value in made.losses.items()}
        readings["loss"] = torch.stack([value.detach().float() for value in made.losses.values()]).sum()
        readings |= made.readings
        if len(self._times) > 1:  # of every process: the others wait for the one that waits for its data
            readings["data_wait"] = torch.tensor(self.data_wait(), device=self.fabric.device)
        if with_meters:
            anchor = made.projections.get("anchor")
            other = made.projections.get("query", made.projections.get("key", anchor))
            readings |= read_embedding(made.features, anchor, other)
            readings |= self.method.meters(clock.step // self.settings.meter_steps)
        names = list(readings)
        values = parallel.average(torch.stack([readings[name].detach().float() for name in names])).tolist()
        row: dict[str, Any] = {"step": clock.step, "epoch": clock.epoch, **dict(zip(names, values, strict=True))}
        row |= {"lr": rate, "images_per_second": round(self.images_per_second(), 1)}
        if not self.fabric.is_global_zero:
            return
        self.run.append_metrics(row)
        self.log(row)
        self._row = row

    def log(self, row: dict[str, Any]) -> None:
        """Hand a row to TensorBoard and the other loggers."""
        self.fabric.log_dict({k: v for k, v in row.items() if k not in ("step",)}, step=row["step"])

    def images_per_second(self) -> float:
        """Speed over the last 100 steps, all processes together."""
        images = self.settings.batch_size * self.settings.grad_accumulation * (len(self._times) - 1)
        return images / self._window()[0] if images > 0 else 0.0

    def data_wait(self) -> float:
        """The share of the time of the last 100 steps in which this process had no batch to train on."""
        seconds, waited = self._window()
        return min(1.0, waited / seconds)

    def _window(self) -> tuple[float, float]:
        """Seconds of the last steps, and those of them that were waited for data."""
        (start, before), (end, after) = self._times[0], self._times[-1]
        return max(1e-9, end - start), after - before

    def _progress(self, clock: Clock, row: dict[str, Any]) -> str:
        terms = "  ".join(f"{k.removeprefix('loss/')} {v:.3f}" for k, v in row.items() if k.startswith("loss/"))
        speed = self.images_per_second()
        left = (
            (clock.steps - clock.step) * self.settings.batch_size * self.settings.grad_accumulation / speed
            if speed
            else 0.0
        )
        wait = f"  data wait {100 * self.data_wait():.0f} %" if speed else ""
        ending = f"  {speed_of(speed)}{wait}  {duration(left)} left" if speed else ""
        loss = f"loss {row['loss']:.3f}" + (f" ({terms})" if terms.count("  ") else "")
        return f"epoch {clock.epoch + 1}/{clock.epochs}  step {clock.step}/{clock.steps}{ending}  {loss}"


class SkippedFiles:
    """Files that could not be read: listed in skipped.txt, counted, a few of them named; too many stop the run."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run
        self.reasons: dict[str, str] = {}
        if os.path.lexists(run.skipped):  # a resumed run has named these already
            lines = (line.rstrip("\r\n") for _, line in read_lines(run.skipped))
            self.reasons = dict(line.split("\t", 1) for line in lines if "\t" in line)
        self._tell = Skipping(str(run.skipped), log)
        self._met: dict[str, str] = {}
        """Those of the source that this run, since it was started or resumed, could not read."""
        self._fresh: dict[str, str] = {}
        """Those that the other processes have not heard of."""
        self._watched = ("", 0, 1.0)
        self._handle = -1

    def watch(self, source: Source, share: float) -> None:
        """From now on count files against this share of a source; what was left out before is no part of it."""
        self._watched = (source.name, len(source), share)
        self._met.clear()
        self._fresh.clear()

    def add(self, path: str, reason: str) -> None:
        """List a file, once."""
        path, reason = one_line(path).replace("\t", " "), one_line(reason)  # a packed file may call one anything
        self._met[path] = self._fresh[path] = reason
        if path not in self.reasons:
            self._tell(path, reason)
            self._list({path: reason})

    def _list(self, fresh: dict[str, str]) -> None:
        self.reasons |= fresh
        if parallel.rank() == 0 and fresh:
            if self._handle < 0:  # it stays open: fifty thousand files would be opened fifty thousand times
                self._handle = os.open(self.run.skipped, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
                weakref.finalize(self, os.close, self._handle)
            os.write(self._handle, "".join(f"{path}\t{reason}\n" for path, reason in fresh.items()).encode())

    @property
    def are_too_many(self) -> bool:
        """Whether this process has met more than the run may do without."""
        _, total, share = self._watched
        return len(self._met) > share * total

    def share(self) -> None:
        """Bring together what every process has met; all of them must call it.

        Raises:
            TrainingError: together they are too many.
        """
        for found in parallel.gather_objects(self._fresh):
            self._met = found | self._met
            self._list({path: reason for path, reason in found.items() if path not in self.reasons})
        self._fresh.clear()
        name, total, share = self._watched
        refuse_too_many(name, Counter(self._met.values()), total, share, str(self.run.skipped))
