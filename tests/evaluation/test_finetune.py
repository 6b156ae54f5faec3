"""Fine-tuning: a copy learns, in steps that a break does not change; the model handed in stays as it was."""

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from iecl.console import ProgressLine
from iecl.errors import Interrupted, TrainingError, UserError
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.fewshot import FewShot, FewShotSettings
from iecl.evaluation.finetune import FineTune, FineTuneSettings, FineTuning, LabeledImages
from iecl.evaluation.model import load_model
from made_runs import MadeRun
from made_voc import Breaking

SHORT = FineTuneSettings(epochs=3, batch_size=8, lr=0.1, backbone_lr=0.02)


class PowerCutError(Exception):
    """Not foreseen by the code under test."""


def cut() -> None:
    raise PowerCutError


def bench_of(
    run: MadeRun, data: Path | None = None, work: Path | None = None, line: ProgressLine | None = None
) -> EvaluationContext:
    path, quiet = run.directory.path, line or ProgressLine(quiet=True)
    return EvaluationContext(load_model(path), path, None if data is None else str(data), quiet, work=work)


def fine_tuning(context: EvaluationContext, settings: FineTuneSettings = SHORT) -> FineTuning:
    return FineTuning(context, settings, LabeledImages.of(context, settings))


def tuned(context: EvaluationContext, settings: FineTuneSettings = SHORT) -> FineTuning:
    tuning = fine_tuning(context, settings)
    tuning.run()
    return tuning


def broken_off(run: MadeRun, work: Path, at: str = "epoch 2/3  step 1/") -> None:
    """A fine-tuning that ends without a word."""
    with pytest.raises(PowerCutError):
        tuned(bench_of(run, work=work, line=Breaking(at, cut)))


def same(one: FineTuning, other: FineTuning) -> bool:
    first, second = one.network.state_dict(), other.network.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


def test_colors_are_learnt_and_the_model_stays_as_it_was(made_run: MadeRun) -> None:
    context = bench_of(made_run)
    before = {name: tensor.clone() for name, tensor in context.model.backbone.state_dict().items()}
    scores = FineTune(SHORT).measure(context)
    assert scores.values == {"top1": 1.0}
    assert scores.counts == {"n_train": 24, "n_test": 6, "classes": 3}
    assert scores.details == {"batch_used": 8}
    after = context.model.backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(part.training for part in context.model.backbone.modules())
    assert all(weight.grad is None for weight in context.model.backbone.parameters())


def test_every_weight_moves_and_batch_norm_learns_its_statistics(made_run: MadeRun) -> None:
    context = bench_of(made_run)
    tuning = tuned(context)
    start = context.model.backbone.state_dict()
    still = [name for name, tensor in tuning.network.backbone.state_dict().items() if torch.equal(tensor, start[name])]
    assert still == []


def test_a_backbone_with_rate_0_keeps_its_weights(made_run: MadeRun) -> None:
    context = bench_of(made_run)
    tuning = tuned(context, replace(SHORT, backbone_lr=0.0))
    start = dict(context.model.backbone.named_parameters())
    assert all(torch.equal(weight, start[name]) for name, weight in tuning.network.backbone.named_parameters())
    assert tuning.network.head.weight.abs().sum() > 0


def test_steps_are_those_of_torch_written_out(made_run: MadeRun) -> None:
    context = bench_of(made_run)
    tuning = fine_tuning(context, replace(SHORT, epochs=1, weight_decay=0.01))
    with torch.no_grad():  # a head that is not zero, so that the first step moves the backbone
        tuning.network.head.weight.copy_(torch.randn(3, 128, generator=torch.Generator().manual_seed(0)) / 10)
    weights = [weight.detach().clone() for weight in tuning.network.parameters()]
    x, labels = next(tuning.batches(0))
    loss = nn.functional.cross_entropy(tuning.network(x), labels)
    slopes = torch.autograd.grad(loss, list(tuning.network.parameters()))
    expected = []
    for number, (weight, slope) in enumerate(zip(weights, slopes, strict=True)):
        push = slope + 0.01 * weight
        lr = 0.1 if number >= len(weights) - 2 else 0.02  # the head is last; the first step has the whole rate
        expected.append(weight - lr * (push + 0.9 * push))  # Nesterov's first step
    tuning.fit.take(tuning.loss_of, (x, labels))
    for weight, wanted in zip(tuning.network.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.detach(), wanted, atol=1e-5, rtol=1e-4)


def test_a_break_in_any_epoch_changes_no_bit(made_run: MadeRun, tmp_path: Path) -> None:
    straight = tuned(bench_of(made_run))
    broken_off(made_run, tmp_path / "work")
    resumed = tuned(bench_of(made_run, work=tmp_path / "work"))
    assert same(straight, resumed)
    assert not same(straight, tuned(bench_of(made_run), replace(SHORT, seed=1)))


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_signal_the_next_batch_is_the_next_of_the_epoch(
    made_run: MadeRun, tmp_path: Path, workers: int
) -> None:
    straight = tuned(bench_of(made_run))
    line = Breaking("epoch 2/3  step 1/", lambda: os.kill(os.getpid(), signal.SIGINT))
    context = bench_of(made_run, work=tmp_path / "work", line=line)
    context.data = replace(context.data, num_workers=workers)
    with pytest.raises(
        Interrupted, match=r"stopped after step 4 of 9 \(.*work.*\); the same command goes on from there"
    ):
        tuned(context)
    shown: list[str] = []
    resumed = tuned(bench_of(made_run, work=tmp_path / "work", line=Breaking("step", lambda: shown.append(""))))
    assert len(shown) == 5
    assert same(straight, resumed)


def test_a_fine_tuning_that_is_done_is_not_done_again(
    made_run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FineTune(SHORT).measure(bench_of(made_run, work=tmp_path))
    monkeypatch.setattr(FineTuning, "loss_of", lambda *_: pytest.fail("a step was taken again"))
    assert FineTune(SHORT).measure(bench_of(made_run, work=tmp_path)) == first


def test_other_settings_weights_or_images_start_anew(made_run: MadeRun, images: Path, tmp_path: Path) -> None:
    broken_off(made_run, tmp_path / "work")

    def start(run: MadeRun, settings: FineTuneSettings) -> int:
        tuning = fine_tuning(bench_of(run, work=tmp_path / "work"), settings)
        tuning.fit.restore()
        return tuning.fit.step

    assert start(made_run, SHORT) == 3
    assert start(made_run, replace(SHORT, lr=0.2)) == 0
    (images / "blue" / "0.png").rename(images / "blue" / "zero.png")
    assert start(made_run, SHORT) == 0
    (images / "blue" / "zero.png").rename(images / "blue" / "0.png")
    made_run.method = made_run.make_method(seed=2)
    made_run.save_weights()
    assert start(made_run, SHORT) == 0


def test_a_share_of_the_labels_is_that_of_few_shot(made_run: MadeRun) -> None:
    context = bench_of(made_run)
    scores = FineTune(replace(SHORT, epochs=1, label_fraction=0.4)).measure(context)
    same_draw = FewShot(FewShotSettings(label_fractions=(0.4,), shots=(), trials=1)).measure(context)
    assert scores.lists["40pct"] == same_draw.lists["40pct"]
    assert scores.details["splits"] == same_draw.details["splits"]
    assert scores.counts["n_train"] == 9  # three of eight of each class


@pytest.mark.parametrize(("batch", "used"), [(256, 12), (16, 12), (11, 8), (10, 8), (2, 2)])
def test_batches_have_about_one_size_and_few_images_are_lost(made_run: MadeRun, batch: int, used: int) -> None:
    loader = LabeledImages.of(bench_of(made_run), replace(SHORT, batch_size=batch)).loader
    assert loader.batch == used
    assert 24 - loader.steps * used < loader.steps


def test_a_broken_file_is_named_and_does_no_harm(made_run: MadeRun, images: Path) -> None:
    for number in range(5):
        shutil.copy(images / "green" / "broken.png", images / "green" / f"also broken {number}.png")
    context = bench_of(made_run)
    assert FineTune(SHORT).measure(context).values["top1"] == 1.0
    assert {Path(path).name for path in context.skipped} == {f"also broken {n}.png" for n in range(5)} | {"broken.png"}


def test_learning_rates_that_are_too_high_are_told(made_run: MadeRun) -> None:
    with pytest.raises(
        TrainingError, match=r"the loss is (nan|inf) at step \d+ \(epoch \d+\); lower the learning rate"
    ):
        tuned(bench_of(made_run), replace(SHORT, lr=1e20, backbone_lr=1e20))


def test_one_label_of_each_class_can_be_learnt_from(made_run: MadeRun, tmp_path: Path) -> None:
    for split, count in (("train", 2), ("test", 3)):
        for label, color in enumerate(("blue", "green")):
            (tmp_path / "few" / split / color).mkdir(parents=True)
            for number in range(count):
                pixels = np.full((16, 16, 3), 20 + number, np.uint8)
                pixels[..., 2 - label] = 200
                Image.fromarray(pixels).save(tmp_path / "few" / split / color / f"{number}.png")
    scores = FineTune(replace(SHORT, epochs=10, label_fraction=0.01)).measure(bench_of(made_run, tmp_path / "few"))
    assert scores.counts == {"n_train": 2, "n_test": 6, "classes": 2}
    assert scores.values["top1"] >= 0.5


def test_images_of_one_class_are_refused(made_run: MadeRun, tmp_path: Path, images: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(images / "blue", tmp_path / "one" / split / "blue")
        (tmp_path / "one" / split / "red").mkdir()
        shutil.copy(images / "green" / "broken.png", tmp_path / "one" / split / "red")
    with pytest.raises(UserError, match=r"the train images are all of one class \(--data\)"):
        FineTune(SHORT).measure(bench_of(made_run, tmp_path / "one"))


def test_no_random_number_of_torch_is_drawn(made_run: MadeRun) -> None:
    context = bench_of(made_run)
    before = torch.random.get_rng_state()
    tuned(context, replace(SHORT, epochs=1))
    assert torch.equal(torch.random.get_rng_state(), before)
