"""Fine-tuning: a copy learns, in steps that a break does not change; the model handed in stays as it was."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from iecl.console import ProgressLine
from iecl.errors import TrainingError, UserError
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.fewshot import FewShot, FewShotSettings
from iecl.evaluation.finetune import Course, FineTune, FineTuneSettings, Lesson
from iecl.evaluation.model import load_model
from iecl.runs.checkpoint import load_checkpoint, write_checkpoint
from made_runs import MadeRun

SHORT = FineTuneSettings(epochs=3, batch_size=8, lr=0.1, backbone_lr=0.02)


def bench_of(run: MadeRun, data: Path | None = None, work: Path | None = None) -> EvaluationContext:
    path = run.directory.path
    return EvaluationContext(
        load_model(path), path, None if data is None else str(data), ProgressLine(quiet=True), work=work
    )


def tuned(context: EvaluationContext, settings: FineTuneSettings, epochs: int | None = None) -> Course:
    """A course after so many epochs; None: all of them."""
    course = Course(context, settings, Lesson.of(context, settings))
    course.run(epochs)
    return course


def same(one: Course, other: Course) -> bool:
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
    course = tuned(context, SHORT)
    start = context.model.backbone.state_dict()
    still = [name for name, tensor in course.network.backbone.state_dict().items() if torch.equal(tensor, start[name])]
    assert still == []


def test_a_backbone_with_rate_0_keeps_its_weights(made_run: MadeRun) -> None:
    context = bench_of(made_run)
    course = tuned(context, replace(SHORT, backbone_lr=0.0))
    start = dict(context.model.backbone.named_parameters())
    assert all(torch.equal(weight, start[name]) for name, weight in course.network.backbone.named_parameters())
    assert course.network.head.weight.abs().sum() > 0


def test_steps_are_those_of_torch_written_out(made_run: MadeRun) -> None:
    context = bench_of(made_run)
    settings = replace(SHORT, epochs=1, weight_decay=0.01)
    lesson = Lesson.of(context, settings)
    course = Course(context, settings, lesson)
    with torch.no_grad():  # a head that is not zero, so that the first step moves the backbone
        course.network.head.weight.copy_(torch.randn(3, 128, generator=torch.Generator().manual_seed(0)) / 10)
    weights = [weight.detach().clone() for weight in course.network.parameters()]
    x, labels = next(course._crops(lesson.loader.epoch(0)))
    course.network.train()
    loss = nn.functional.cross_entropy(course.network(x), labels)
    slopes = torch.autograd.grad(loss, list(course.network.parameters()))
    expected = []
    for number, (weight, slope) in enumerate(zip(weights, slopes, strict=True)):
        push = slope + 0.01 * weight
        rate = 0.1 if number >= len(weights) - 2 else 0.02  # the head is last; the first step has the whole rate
        expected.append(weight - rate * (push + 0.9 * push))  # Nesterov's first step
    course.network.zero_grad()
    course._set_rates(0)
    nn.functional.cross_entropy(course.network(x), labels).backward()
    course.optimizer.step()
    for weight, wanted in zip(course.network.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.detach(), wanted, atol=1e-5, rtol=1e-4)


def test_a_break_after_any_epoch_changes_no_bit(made_run: MadeRun, tmp_path: Path) -> None:
    straight = tuned(bench_of(made_run), SHORT)
    tuned(bench_of(made_run, work=tmp_path / "work"), SHORT, epochs=1)
    resumed = tuned(bench_of(made_run, work=tmp_path / "work"), SHORT)
    assert same(straight, resumed)
    assert not same(straight, tuned(bench_of(made_run), replace(SHORT, seed=1)))


def test_a_course_that_is_done_is_not_trained_again(
    made_run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = FineTune(SHORT).measure(bench_of(made_run, work=tmp_path))
    monkeypatch.setattr(Course, "_pass", lambda self: pytest.fail("an epoch was taken again"))
    assert FineTune(SHORT).measure(bench_of(made_run, work=tmp_path)) == first


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_loaded(made_run: MadeRun, tmp_path: Path) -> None:
    context = bench_of(made_run, work=tmp_path / "work")
    tuned(context, SHORT, epochs=1)
    (last,) = (tmp_path / "work").rglob("last.ckpt")
    state = load_checkpoint(last)
    state["optimizer"]["state"][0]["momentum_buffer"] = torch.zeros(2)
    write_checkpoint(last, state)
    course = Course(context, SHORT, Lesson.of(context, SHORT))
    with pytest.raises(UserError, match=r"no checkpoint can be used: .*momentum_buffer of backbone.conv1.weight is"):
        course.restore()
    assert course.epoch == 0
    assert not course.optimizer.state


def test_other_settings_weights_or_images_start_anew(made_run: MadeRun, images: Path, tmp_path: Path) -> None:
    tuned(bench_of(made_run, work=tmp_path / "work"), SHORT, epochs=1)

    def start(run: MadeRun, settings: FineTuneSettings) -> int:
        context = bench_of(run, work=tmp_path / "work")
        course = Course(context, settings, Lesson.of(context, settings))
        course.restore()
        return course.epoch

    assert start(made_run, SHORT) == 1
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
    lesson = Lesson.of(bench_of(made_run), replace(SHORT, batch_size=batch))
    assert lesson.loader.batch == used
    assert 24 - lesson.loader.steps * used < lesson.loader.steps


def test_a_broken_file_is_named_and_does_no_harm(made_run: MadeRun, images: Path) -> None:
    for number in range(5):
        shutil.copy(images / "green" / "broken.png", images / "green" / f"also broken {number}.png")
    context = bench_of(made_run)
    assert FineTune(SHORT).measure(context).values["top1"] == 1.0
    assert {Path(path).name for path in context.skipped} == {f"also broken {n}.png" for n in range(5)} | {"broken.png"}


def test_rates_that_are_too_high_are_told(made_run: MadeRun) -> None:
    with pytest.raises(TrainingError, match=r"diverged in epoch \d+ \(finetune.lr, finetune.backbone_lr\); lower"):
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
    tuned(context, SHORT, epochs=1)
    assert torch.equal(torch.random.get_rng_state(), before)
