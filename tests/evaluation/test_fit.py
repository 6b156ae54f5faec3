"""The loop of fine-tuning, detection and segmentation: the order of steps, breaks, learning rates, losses."""

import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from iecl.console import ProgressLine
from iecl.errors import Interrupted, TrainingError, UserError
from iecl.evaluation import fit as module
from iecl.evaluation.fit import Fit, param_groups
from iecl.runs.checkpoint import load_checkpoint, write_checkpoint
from iecl.schedule import LR_SCHEDULES, Clock, lr_factor
from made_voc import Breaking

PER_EPOCH, EPOCHS = 3, 2


class PowerCutError(Exception):
    """Not foreseen by the code under test."""


def cut() -> None:
    raise PowerCutError


def ask_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def sgd(network: nn.Module) -> Optimizer:
    return SGD(network.parameters(), lr=0.1, momentum=0.9)


def adam(network: nn.Module) -> Optimizer:
    return Adam(network.parameters(), lr=0.01)


class Trial:
    """A small network that learns from numbered batches, with noise that torch draws."""

    def __init__(
        self,
        folder: Path | None = None,
        line: ProgressLine | None = None,
        make: Callable[[nn.Module], Optimizer] = sgd,
        **options: Any,
    ) -> None:
        self.network = nn.Linear(4, 2)
        with torch.no_grad():
            for weight in self.network.parameters():
                weight.fill_(0.5)
        words = {"epochs": EPOCHS, "steps_per_epoch": PER_EPOCH, "purpose": "trial", "seed": 0} | options
        quiet = line or ProgressLine(quiet=True)
        self.fit = Fit(network=self.network, optimizer=make(self.network), folder=folder, line=quiet, **words)
        self.seen: list[int] = []
        self.noise: list[float] = []
        self.lrs: list[list[float]] = []
        self.is_closed = False

    def batches(self, first: int) -> Generator[int, None, None]:
        try:
            yield from range(first, self.fit.steps)
        finally:
            self.is_closed = True

    def loss_of(self, batch: int) -> Tensor:
        noise = torch.rand(1)
        self.seen.append(batch)
        self.noise.append(noise.item())
        self.lrs.append([group["lr"] for group in self.fit.optimizer.param_groups])
        return (self.network(torch.full((1, 4), batch + 1.0)).square().mean() + noise * self.network.bias[0]).sum()

    def run(self) -> "Trial":
        self.fit.run(self.batches, self.loss_of)
        return self

    @property
    def result(self) -> tuple[Any, ...]:
        return self.network.weight.tolist(), self.network.bias.tolist(), self.fit.curve


def at(step: int) -> str:
    """What is shown after so many steps."""
    epoch, number = divmod(step - 1, PER_EPOCH)
    return f"epoch {epoch + 1}/{EPOCHS}  step {number + 1}/{PER_EPOCH}"


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("step", range(1, PER_EPOCH * EPOCHS))
def test_a_signal_after_any_step_loses_no_step_and_changes_no_bit(
    tmp_path: Path, step: int, make: Callable[[nn.Module], Optimizer]
) -> None:
    straight = Trial(make=make).run()
    stopped = Trial(tmp_path, Breaking(at(step), ask_to_stop), make)
    with pytest.raises(Interrupted, match=rf"stopped after step {step} of 6") as caught:
        stopped.run()
    assert caught.value.signal == signal.SIGTERM
    assert stopped.is_closed
    resumed = Trial(tmp_path, make=make).run()
    assert stopped.seen + resumed.seen == straight.seen == [0, 1, 2, 3, 4, 5]
    assert stopped.noise + resumed.noise == straight.noise
    assert resumed.result == straight.result


@pytest.mark.parametrize(("step", "again"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [3]), (6, [3, 4, 5])])
def test_after_a_power_cut_the_steps_since_the_last_epoch_are_taken_again(
    tmp_path: Path, step: int, again: list[int]
) -> None:
    broken = Trial(tmp_path, Breaking(at(step), cut))
    with pytest.raises(PowerCutError):
        broken.run()
    resumed = Trial(tmp_path).run()
    assert resumed.seen == [*again, *range(step, 6)]
    assert resumed.result == Trial().run().result


def test_checkpoints_of_short_epochs_are_not_all_written_but_the_last_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[int] = []
    monkeypatch.setattr(module, "save_checkpoint", lambda folder, state: saved.append(state["step"]))
    Trial(tmp_path, epochs=5).run()
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    Trial(tmp_path, epochs=5).run()
    assert saved == [3, 15, 3, 6, 9, 12, 15]


def test_a_training_that_is_done_takes_no_step(tmp_path: Path) -> None:
    first = Trial(tmp_path).run()
    again = Trial(tmp_path).run()
    assert again.seen == []
    assert again.result == first.result


def test_a_signal_in_the_last_step_does_not_stop_what_is_done(tmp_path: Path) -> None:
    trial = Trial(tmp_path, Breaking(at(6), ask_to_stop)).run()
    assert trial.result == Trial().run().result


def test_without_a_folder_signals_are_left_alone() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        Trial(line=Breaking(at(2), ask_to_stop)).run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("schedule", LR_SCHEDULES)
def test_each_group_follows_the_schedule_from_its_own_peak(schedule: str) -> None:
    def two(network: nn.Module) -> Optimizer:
        return SGD([{"params": [network.weight], "lr": 0.03}, {"params": [network.bias], "lr": 0.005}])

    trial = Trial(make=two, schedule=schedule, warmup_steps=2).run()
    factors = [lr_factor(Clock(0, step, 6, step // 3, 2), schedule, warmup=2) for step in range(6)]
    assert trial.lrs == [[0.03 * factor, 0.005 * factor] for factor in factors]


def test_the_curve_has_the_mean_loss_of_each_epoch() -> None:
    losses: list[float] = []
    trial = Trial()

    def told(batch: int) -> Tensor:
        loss = trial.loss_of(batch)
        losses.append(loss.item())
        return loss

    curve = trial.fit.run(trial.batches, told)
    assert curve == [pytest.approx(sum(losses[:3]) / 3), pytest.approx(sum(losses[3:]) / 3)]


def test_draws_of_torch_follow_from_seed_purpose_and_step_and_leave_its_generator_as_it_was() -> None:
    torch.manual_seed(5)
    first = Trial().run()
    torch.manual_seed(6)
    second, before = Trial(), torch.random.get_rng_state()
    assert second.run().noise == first.noise
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(set(first.noise)) == 6
    for other in ({"seed": 1}, {"purpose": "another"}):
        assert not set(Trial(**other).run().noise) & set(first.noise)


def test_a_loss_that_is_not_finite_ends_the_training_before_it_moves_a_weight(tmp_path: Path) -> None:
    trial = Trial(tmp_path)
    with pytest.raises(TrainingError, match=r"the loss is nan at step 0 \(epoch 1\); lower the learning rate"):
        trial.fit.run(trial.batches, lambda batch: trial.loss_of(batch) * float("nan"))
    assert trial.is_closed
    assert trial.network.weight.unique().tolist() == [0.5]
    assert not list(tmp_path.iterdir())


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "short moments": (
        lambda s: s["optimizer"]["state"][0].update(momentum_buffer=torch.zeros(2)),
        "momentum_buffer of",
    ),
    "another shape": (lambda s: s["network"].update(weight=torch.zeros(2, 3)), "weight is float32"),
    "a weight too few": (lambda s: s["network"].pop("bias"), "bias is missing"),
    "a later step": (lambda s: s.update(step=7), "step is 7 of 6"),
    "losses that are none": (lambda s: s.update(curve=["high"]), "curve is a list"),
    "no losses of this epoch": (lambda s: s.pop("partial"), "partial is None"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_loaded(tmp_path: Path, fault: str) -> None:
    Trial(tmp_path).run()
    (tmp_path / "previous.ckpt").unlink()
    state = load_checkpoint(tmp_path / "last.ckpt")
    FAULTS[fault][0](state)
    write_checkpoint(tmp_path / "last.ckpt", state)
    trial = Trial(tmp_path)
    with pytest.raises(UserError, match=rf"no checkpoint can be used: .*last.ckpt does not fit: .*{FAULTS[fault][1]}"):
        trial.run()
    assert (trial.fit.step, trial.seen) == (0, [])
    assert not trial.fit.optimizer.state
    assert trial.network.weight.unique().tolist() == [0.5]


def test_a_checkpoint_of_fine_tuning_that_counted_epochs_is_read(tmp_path: Path) -> None:
    with pytest.raises(PowerCutError):
        Trial(tmp_path, Breaking(at(4), cut)).run()
    state = load_checkpoint(tmp_path / "last.ckpt")
    former = {"step": 1, "network": state["network"], "optimizer": state["optimizer"]}
    write_checkpoint(tmp_path / "last.ckpt", former)
    resumed, straight = Trial(tmp_path).run(), Trial().run()
    assert resumed.seen == [3, 4, 5]
    assert resumed.result[:2] == straight.result[:2]
    assert resumed.fit.curve[1:] == straight.fit.curve[1:]


def test_kernels_are_decayed_and_biases_norms_and_frozen_weights_are_not() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1).requires_grad_(False))
    kernels, others = param_groups(network, 0.01)
    assert ([tuple(w.shape) for w in kernels["params"]], kernels["weight_decay"]) == ([(4, 3, 3, 3)], 0.01)
    assert ([tuple(w.shape) for w in others["params"]], others["weight_decay"]) == ([(4,), (4,), (4,)], 0.0)
