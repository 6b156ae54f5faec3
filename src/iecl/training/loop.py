"""The one loop: views, step, backward, optimizer, what follows the step, record, save. It runs any method."""

import logging
import shlex
from collections.abc import Generator, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from iecl import counter, parallel
from iecl.console import ProgressLine, counted
from iecl.data.batch import Batch
from iecl.data.factory import open_source
from iecl.data.loader import Loader
from iecl.data.source import Source
from iecl.errors import Interrupted, TrainingError, UserError
from iecl.methods.contract import Method, Step
from iecl.parts.queue import equal_buffers
from iecl.runs.checkpoint import BROKEN, FORMAT, NAMES, check_disk, newest_checkpoint, save_checkpoint, write_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.schedule import Clock, lr_factor
from iecl.training.callbacks import Callbacks, Moment
from iecl.training.checkpoint_check import check_checkpoint
from iecl.training.config import RunConfig
from iecl.training.factory import batch_per_process, build_method
from iecl.training.online_eval import FixedSample
from iecl.training.optimizers import forget, make_optimizer, moment_bytes, recall
from iecl.training.recomputation import sees_chunks
from iecl.training.recorder import Recorder, SkippedFiles
from iecl.training.sharding import placed_like, put_shards, whole
from iecl.training.signals import StopFlag
from iecl.training.survey import survey_source
from iecl.views.pipeline import Views, make_views
from iecl.weights.file import load_weights

log = logging.getLogger("iecl.training")


def finish(batches: Generator[Batch, None, None]) -> None:
    """Let an epoch's batches come to their end: workers of one that is broken off are ended, and started anew."""
    if next(batches, None) is not None:  # some fill no optimizer step
        batches.close()


class Trainee(nn.Module):
    """A method behind dicts: what wraps a module for several processes takes no frozen dataclass apart.

    Views, clock and step go through as all the fields that they have, under their names.
    """

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method
        self._ddp_params_and_buffers_to_ignore = equal_buffers(self)  # torch's name: a queue is megabytes in each step

    def forward(self, *given: tuple[type[Any], dict[str, Any]]) -> dict[str, Any]:
        """One step of the method; of nothing, nothing."""
        if not given:
            return {}
        return vars(self.method.step(*(kind(**values) for kind, values in given)))


def take_step(trainee: nn.Module, views: Views, clock: Clock) -> Step:
    """A step of the method in a `Trainee`, wrapped or not."""
    return Step(**trainee(*((type(whole), vars(whole)) for whole in (views, clock))))


class Loop:
    """Everything that lives as long as a run does in one process."""

    def __init__(
        self, fabric: Fabric, config: RunConfig, run: RunDirectory, line: ProgressLine, source: Source | None = None
    ) -> None:
        """Open the data and build the method; `source` are images that are open already."""
        self.fabric, self.config, self.run, training = fabric, config, run, config.training
        self.skipped = SkippedFiles(run)
        if source is None:
            shown = line.count("reading images")
            listed = str(run.skipped)
            source = open_source(config.data, "pretrain", self.skipped.add, shown, is_shared=True, listed=listed)
        self.source = source
        self.skipped.watch(source, config.data.max_unreadable)
        self.loader = Loader(
            self.source,
            batch=batch_per_process(config, fabric.world_size),
            seed=training.seed,
            rank=fabric.global_rank,
            world=fabric.world_size,
            workers=config.data.num_workers,
            on_bad=self.skipped.add,
        )
        self.steps_per_epoch = self._count_steps()
        self.steps = self.steps_per_epoch * training.epochs
        self.peak = config.optimizer.peak(training.batch_size * training.grad_accumulation)
        facts = {"samples": len(self.source), "classes": len(self.source.classes)}
        facts["unlabeled"] = int((self.source.labels < 0).sum()) if self.source.classes else 0
        start = load_weights(run.start)[0] if run.start.exists() else None
        self.method = build_method(config, fabric.world_size, **facts, start=start)
        # Once its weights are shared out, no copy can be made of it for a first look.
        self._untrained = deepcopy(self.method.encoder()) if training.strategy == "fsdp" else self.method.encoder()
        self.layout = torch.channels_last if training.channels_last else torch.contiguous_format
        self.bare = Trainee(self.method).to(memory_format=self.layout)
        self.trainee = fabric.setup_module(self.bare)
        optimizer = make_optimizer(self.method.param_groups(), config.optimizer, self.peak)  # of shares, if there are
        self.optimizer: Any = fabric.setup_optimizers(optimizer)
        self.recorder = Recorder(fabric, self.run, config, line, self.method)
        self.sample = FixedSample(self.source, config, fabric.device)
        self.is_one_image = False
        self.callbacks = Callbacks(fabric.is_global_zero)
        self.step, self.best = 0, float("-inf")
        self.first = 0
        """The step that this process began with: more than 0 in a run that goes on."""

    def _count_steps(self) -> int:
        steps = self.loader.steps // self.config.training.grad_accumulation
        if steps == 0:
            raise UserError(
                f"{len(self.source)} images do not fill one optimizer step of "
                f"{self.config.training.grad_accumulation} × {self.config.training.batch_size}",
                where="training.grad_accumulation",
                do="lower it, or training.batch_size",
            )
        return steps

    def clock(self, step: int) -> Clock:
        """The time after `step` optimizer steps."""
        training = self.config.training
        epoch = min(step // self.steps_per_epoch, training.epochs - 1)
        return Clock(training.seed, step, self.steps, epoch, training.epochs)

    def train(self, stop: StopFlag) -> None:
        """From the newest checkpoint, or the start, to the last step, or until somebody asks to stop."""
        self.restore()
        if self.fabric.is_global_zero:
            check_disk(self.run.checkpoints, self._checkpoint_bytes())
        self._keep()  # the start; or a moment that a kill kept from being kept
        log.info("%s", self.describe())
        self.is_one_image = self.sample.is_one_image()
        if self.is_one_image:
            log.warning("all images are the same: there is nothing to learn from them")
        chunk = self.config.training.grad_cache
        if 0 < chunk < self.loader.batch and sees_chunks(self.method.encoder()):
            log.warning("batch norm sees %d images at a time, not the batch (training.grad_cache)", chunk)
        self.recorder.line.begin()
        if self.step == 0 and self.sample.is_possible and self.config.training.online_eval_epochs:
            untrained = self._untrained.to(self.fabric.device)
            self._record_look(self.sample.look_at_untrained(untrained), epoch=0)
        del self._untrained
        stop.is_polled = True
        while self.step < self.steps:
            self._epoch(self.step // self.steps_per_epoch, stop)
        self.loader.close()

    def describe(self) -> str:
        """First line of a run: what is trained on what."""
        config, count = self.config, sum(p.numel() for p in self.method.encoder().parameters())
        start = f", from step {self.step}" if self.step else ""
        return (
            f"{config.title} trains {config.backbone.name} ({count / 1e6:.1f} M parameters) on "
            f"{counted(len(self.source), 'image')} of {config.data.image_size} px: "
            f"{counted(config.training.epochs, 'epoch')} of {counted(self.steps_per_epoch, 'step')}{start}"
        )

    def begin_epoch(self) -> Generator[Batch, None, None]:
        """What comes before an epoch's first step, and the batches of the epoch that are left."""
        epoch, done = divmod(self.step, self.steps_per_epoch)
        if done == 0:
            survey = partial(survey_source, self.source, self.config, self.fabric.device)
            with whole(self.bare):
                drawn = {id(weight) for weight in self.method.before_epoch(survey, self.clock(self.step))}
                names = [name for name, weight in self.method.named_parameters() if id(weight) in drawn]
            forget(self.optimizer, map(self.method.get_parameter, names))
        return self.loader.epoch(epoch, done * self.config.training.grad_accumulation)

    def _epoch(self, epoch: int, stop: StopFlag) -> None:
        training = self.config.training
        batches = self.begin_epoch()
        while self.step < (epoch + 1) * self.steps_per_epoch:
            self.optimize(batches)
            is_last_of_epoch = self.step % self.steps_per_epoch == 0
            if training.checkpoint_steps and self.step % training.checkpoint_steps == 0 and not is_last_of_epoch:
                self.save()
            number = parallel.largest(stop.signal or int(self.skipped.are_too_many))
            if number:
                batches.close()
                self.skipped.share()  # where there are too many, this raises
                self._leave(number)
        finish(batches)
        self._end_epoch(epoch)

    def optimize(self, batches: Iterator[Batch]) -> None:
        """One optimizer step over `accumulate` batches, and what follows it."""
        training, clock = self.config.training, self.clock(self.step)
        optimizer = self.config.optimizer
        warmup = optimizer.warmup_steps(self.steps_per_epoch, self.steps)
        share = lr_factor(clock, warmup=warmup, floor=optimizer.min_lr_ratio)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * (1.0 if group["is_constant"] else share)
        made = None
        for number in range(training.grad_accumulation):
            batch = self.recorder.next_batch(batches)
            drawn = counter.key(clock.seed, "training/step", clock.step, number, parallel.rank())  # dropout, if any
            with counter.seeded(drawn, self.fabric.device):
                made = self._backward(batch, clock, is_last=number == training.grad_accumulation - 1)
            try:
                self.recorder.check(self.step + 1, made.losses)
            except TrainingError:
                self._keep_broken(batch)
                raise
        assert made is not None
        if self.step == 0:
            self._check_gradients()
        self.method.after_backward(clock)
        if self.config.optimizer.grad_clip:
            # To ask whether the norm is finite is to wait for it; where 16-bit gradients are not, a scaler sees to it.
            self.fabric.clip_gradients(
                self.trainee, self.optimizer, max_norm=self.config.optimizer.grad_clip, error_if_nonfinite=False
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        with whole(self.bare):
            self.method.after_step(replace(clock, step=self.step))
            self.recorder.after_step(replace(clock, step=self.step), made, self.peak * share)
        if self.callbacks:
            losses = {name: value.detach() for name, value in made.losses.items()}
            self.callbacks.call("on_step_end", self._moment(clock.epoch, losses=losses))

    def _backward(self, batch: Batch, clock: Clock, is_last: bool) -> Step:
        config = self.config
        look: dict[str, Any] = {"size": config.data.image_size, "mean": config.data.mean, "std": config.data.std}
        look |= {"seed": clock.seed, "epoch": clock.epoch, "layout": self.layout, "device": self.fabric.device}
        policies = config.augmentation.policies(self.method.views)
        views = make_views(batch, policies, self.method.views, **look)
        with self.fabric.no_backward_sync(self.trainee, enabled=not is_last):
            made = take_step(self.trainee, views, clock)
            total = torch.stack([value.float() for value in made.losses.values()]).sum()
            self.fabric.backward(total / config.training.grad_accumulation)
        return made

    def _check_gradients(self) -> None:
        """A trainable weight that no loss reaches is a mistake in the settings: say so at the first step."""
        named = self.method.named_parameters()
        lost = [name for name, p in named if p.requires_grad and p.grad is None]
        if lost:
            raise TrainingError(
                f"no loss reaches {len(lost)} trainable weights, first {lost[0]}",
                where=self.config.title,
                do="this is a fault of the method, please report it",
            )

    def _end_epoch(self, epoch: int) -> None:
        """The online evaluation, the best checkpoint so far, the last one."""
        self.skipped.share()
        score = self._score(epoch)
        is_best = score > self.best
        self.best = max(self.best, score)
        self.save(is_best)
        self._keep()
        self.callbacks.call("on_epoch_end", self._moment(epoch))

    def _moment(self, epoch: int, **more: Any) -> Moment:
        epochs, run = self.config.training.epochs, self.run.path
        return Moment(self.step, self.steps, epoch, epochs, run, self.method, **more)

    def _score(self, epoch: int) -> float:
        """What `best` means: online kNN where there are labels, else the mean loss, the best judge that was found."""
        training, found = self.config.training, dict[str, float]()
        looks = self.sample.is_possible and training.online_eval_epochs > 0
        if looks and ((epoch + 1) % training.online_eval_epochs == 0 or epoch + 1 == training.epochs):
            with whole(self.bare):
                found = self.sample.look(self.method.encoder())
            self._record_look(found, epoch)
        if "knn" in found:
            log.info("epoch %d: online kNN %.1f %% (leave-one-out on training images)", epoch + 1, 100 * found["knn"])
            return found["knn"]
        if looks and self.sample.has_classes:
            return float("-inf")
        rows = [row["loss"] for row in self.run.read_metrics() if row.get("epoch") == epoch and "loss" in row]
        return -sum(rows) / len(rows) if rows else float("-inf")

    def _record_look(self, found: dict[str, float], epoch: int) -> None:
        row = {"step": self.step, "epoch": epoch, **found}
        if self.fabric.is_global_zero:
            self.run.append_metrics(row)
            self.recorder.log(row)

    def save(self, is_best: bool = False) -> None:
        """Write a checkpoint; every process waits until it is on the disk."""
        self.recorder.flush()
        state = self._state()
        if self.fabric.is_global_zero:
            self.run.refuse_replaced()
            save_checkpoint(self.run.checkpoints, state, is_best=is_best)
            self.run.drop_overwritten()
            file = self.run.checkpoints / "last.ckpt"
            self.callbacks.call("on_checkpoint", self._moment(self.clock(self.step - 1).epoch, checkpoint=file))
        parallel.barrier()

    def _keep(self) -> None:
        """Write a checkpoint that stays, if this is a moment that was asked for."""
        epoch, rest = divmod(self.step, self.steps_per_epoch)
        path = self.run.kept_checkpoint(epoch)
        is_wanted = not rest and epoch in self.config.training.kept_epochs()
        if is_wanted and not parallel.largest(int(path.exists())):
            state = self._state()
            if self.fabric.is_global_zero:
                write_checkpoint(path, state)
            parallel.barrier()

    def _state(self) -> dict[str, Any]:
        """Everything that decides how the run goes on, in plain types; shares of it are on the disk then."""
        state = {
            "format": FORMAT,
            "step": self.step,
            "steps": self.steps,
            "best": self.best,
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
        }
        return put_shards(self.run.checkpoints, state)

    def _checkpoint_bytes(self) -> int:
        """What `_state` will take once every weight has moved."""
        weights: int = sum(t.numel() * t.element_size() for t in self.method.state_dict().values())
        return weights + moment_bytes(self.optimizer.optimizer)

    def _keep_broken(self, batch: Batch) -> None:
        """Keep what a step that failed was given, so that it can be taken again and looked at."""
        state = self._state()
        if self.fabric.is_global_zero:
            samples = {"index": batch.index.tolist(), "positions": batch.positions.tolist()}
            write_checkpoint(self.run.checkpoints / BROKEN, state | {"samples": samples})

    def restore(
        self, folder: Path | None = None, names: Sequence[str] = NAMES, until: int | None = None
    ) -> Path | None:
        """Continue from the newest checkpoint that fits, if there is one; returns its path.

        By default one of the run's own; with `until`, one that is not after that step.
        """
        found = newest_checkpoint(folder or self.run.checkpoints, self._check, names, until)
        if found is not None:
            state = found[1]
            own = self.method.state_dict()
            own.update({name: placed_like(state["method"][name], own[name]) for name in own})
            self.method.load_state_dict(own)  # with the versions of layers, which a checkpoint does not hold
            recall(self.optimizer, state["optimizer"], placed_like)
            self.fabric.strategy.precision.load_state_dict(state["precision"])
            self.step, self.best = state["step"], state["best"]
        self.first = self.step
        steps = parallel.gather_objects(self.step)
        if len(set(steps)) > 1:
            raise UserError(
                f"the processes found checkpoints of different steps: {steps}",
                where=str(self.run.checkpoints),
                do="give all machines the same run directory, on a disk that they share",
            )
        if self.fabric.is_global_zero:
            self.run.forget_after(self.step if self.step else -1)  # nothing is kept of a start without a checkpoint
        return None if found is None else found[0]

    def _check(self, state: dict[str, Any]) -> None:
        precision = self.fabric.strategy.precision.state_dict()
        check_checkpoint(state, self.method, self.optimizer, steps=self.steps, precision=precision)

    def _leave(self, signal: int) -> None:
        self.save()
        raise Interrupted(
            f"stopped after step {self.step} of {self.steps}, all of it saved",
            do=f"continue with: iecl pretrain --out {shlex.quote(str(self.run.path))} --resume",
            signal=signal,
        )
