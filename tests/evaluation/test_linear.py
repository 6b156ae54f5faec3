"""The linear probe: the steps that were promised, and the optimum that scikit-learn finds."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import cross_entropy

from iecl.console import ProgressLine
from iecl.errors import UserError
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.features import CROPS, Features
from iecl.evaluation.linear import Linear, LinearSettings, Scale, linear
from iecl.evaluation.linear_heads import Hyperparameters, LinearHeads, train_heads
from iecl.evaluation.model import load_model
from iecl.evaluation.splits import split_for_validation
from made_features import clouds, skewed
from made_runs import MadeRun


def test_separable_classes_are_separated() -> None:
    result = linear(clouds(400, seed=2, spread=0.2), clouds(200, seed=3, spread=0.2))
    assert (result.top1, result.train_top1, result.n) == (1.0, 1.0, 200)


@pytest.mark.parametrize("spread", [1.5, 2.5])
def test_accuracy_is_that_of_logistic_regression_on_overlapping_classes(spread: float) -> None:
    train, test = clouds(2000, seed=4, spread=spread), clouds(2000, seed=5, spread=spread)
    reference = LogisticRegression(C=1e4, max_iter=1000).fit(train.values.numpy(), train.labels.numpy())
    expected = reference.score(test.values.numpy(), test.labels.numpy())
    result = linear(train, test)
    # One deviation of a share of 2000 is 0.011; both see the same images, so that half of it is generous.
    assert result.top1 == pytest.approx(expected, abs=0.006)
    assert 0.4 < expected < 0.97


def test_no_random_number_of_torch_is_drawn() -> None:
    before = torch.random.get_rng_state()
    linear(clouds(20, seed=7, spread=1.0), clouds(20, seed=8, spread=1.0), LinearSettings(epochs=1))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_features_are_left_as_they_were() -> None:
    train, test = clouds(30, seed=9, spread=1.0), clouds(30, seed=10, spread=1.0)
    copies = train.values.clone(), test.values.clone()
    linear(train, test, LinearSettings(epochs=2))
    assert torch.equal(train.values, copies[0])
    assert torch.equal(test.values, copies[1])


def test_features_of_each_epoch_are_what_is_learnt() -> None:
    train, test = clouds(100, seed=11, spread=0.2), clouds(100, seed=12, spread=0.2)
    asked: list[int] = []

    def mirrored(epoch: int) -> Features:
        asked.append(epoch)
        return Features(-train.values, train.labels, train.index)

    settings = LinearSettings(epochs=20, batch_size=32)
    result = linear(train, test, settings, of_epoch=mirrored)
    assert asked == list(range(20))
    assert result.train_top1 == 1.0
    # What holds for mirrored features is wrong for the test features as they are.
    assert result.top1 < 0.1 < linear(train, test, settings).top1


def test_the_answer_does_not_depend_on_what_was_learnt_before() -> None:
    train, test = clouds(60, seed=13, spread=2.0), clouds(60, seed=14, spread=2.0)
    first = linear(train, test, LinearSettings(epochs=3))
    linear(test, train, LinearSettings(epochs=1))
    assert linear(train, test, LinearSettings(epochs=3)) == first


def test_with_three_classes_every_answer_is_among_the_first_five() -> None:
    train, test = clouds(30, seed=15, spread=9.0, classes=3), clouds(30, seed=16, spread=9.0, classes=3)
    result = linear(train, test, LinearSettings(epochs=1))
    assert result.top1 < result.top5 == 1.0


def test_progress_counts_the_epochs() -> None:
    data = clouds(20, seed=17, spread=1.0)
    told: list[tuple[int, int]] = []
    linear(data, data, LinearSettings(epochs=3), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_images_of_one_class_are_refused() -> None:
    train = clouds(20, seed=18, spread=1.0)
    one = Features(train.values, torch.full((20,), 2), train.index)
    with pytest.raises(UserError, match="the train images are all of one class"):
        linear(one, train)


def test_images_without_labels_are_refused() -> None:
    train = clouds(20, seed=19, spread=1.0)
    with pytest.raises(UserError, match="the test images have no labels"):
        linear(train, Features(train.values, torch.full((20,), -1), train.index))


def test_features_that_are_not_finite_are_refused() -> None:
    train = clouds(20, seed=20, spread=1.0)
    broken = Features(train.values.clone().fill_(torch.inf), train.labels, train.index)
    with pytest.raises(UserError, match="20 of 20 features of the train images are not finite"):
        linear(broken, train)


# --- the sweep and its reference ---


def _loss(fit: Features, rest: Features, settings: LinearSettings) -> float:
    """Mean cross-entropy on `rest` of a head that learned from `fit`, by torch's own function."""
    heads = LinearHeads.empty(1, 10, fit.values.shape[1])
    train_heads(heads, lambda epoch: fit, [settings.hyperparameters], settings)
    return cross_entropy(heads.scores(rest.values)[:, 0], rest.labels).item()


QUICK = LinearSettings(mode="sweep", epochs=8, lrs=(0.003, 0.03, 0.3), weight_decays=(1e-5, 1e-2))
GRID = [Hyperparameters(lr, decay) for lr in QUICK.lrs for decay in QUICK.weight_decays]


def test_a_sweep_chooses_by_the_held_out_tenth_and_learns_from_all() -> None:
    train, test = skewed(600, seed=21), skewed(400, seed=22)
    result = linear(train, test, QUICK)
    scaled = Scale.of(train.values).apply(train)
    fit, rest = (scaled.rows(rows) for rows in split_for_validation(train.labels, train.index))
    ways = [asdict(one) for one in GRID]
    alone = [linear(fit, rest, LinearSettings(epochs=8, batch_size=result.batch, **way)).top1 for way in ways]
    assert list(result.held_out.values()) == pytest.approx(alone, abs=1e-9)
    losses = [_loss(fit, rest, replace(QUICK, mode="cached", batch_size=result.batch, **way)) for way in ways]
    assert result.hyperparameters == GRID[losses.index(min(losses))]
    assert max(alone) > min(alone)
    chosen = asdict(result.hyperparameters)
    whole = LinearSettings(epochs=8, batch_size=result.batch, **chosen, normalize="standardize")
    assert result.top1 == pytest.approx(linear(train, test, whole).top1, abs=0.0026)  # one image: rounding
    assert result.batch == 30  # twenty steps in an epoch of 600


def test_labels_of_test_images_do_not_change_the_choice() -> None:
    train, test = skewed(300, seed=23), skewed(200, seed=24)
    swapped = Features(test.values, test.labels.roll(1), test.index)
    assert linear(train, test, QUICK).hyperparameters == linear(train, swapped, QUICK).hyperparameters


@pytest.mark.parametrize("spread", [1.0, 2.5])
def test_a_sweep_comes_within_two_tenths_of_a_point_of_the_optimum(spread: float) -> None:
    # Ten thousand test rows: both classifiers see the same ones, and a tenth of a point is ten of them.
    train, test = skewed(2000, seed=25, spread=spread), skewed(10_000, seed=26, spread=spread)
    result = linear(train, test, LinearSettings(mode="sweep", epochs=40, reference=True))
    assert result.optimum is not None
    assert result.optimum.is_converged
    assert result.top1 >= result.optimum.metrics.top1 - 0.002
    assert 0.3 < result.top1 < 0.98


def test_the_optimum_is_that_of_scikit_learn() -> None:
    train, test = clouds(400, seed=27, spread=2.0), clouds(300, seed=28, spread=2.0)
    result = linear(train, test, LinearSettings(epochs=1, reference=True))
    assert result.optimum is not None
    reference = LogisticRegression(C=result.optimum.strength, max_iter=1000)
    reference.fit(train.values.double().numpy(), train.labels.numpy())
    assert result.optimum.metrics.top1 == reference.score(test.values.double().numpy(), test.labels.numpy())


def test_the_optimum_of_two_classes_is_found_too() -> None:
    train, test = (clouds(200, seed=seed, spread=0.3, classes=2) for seed in (29, 30))
    result = linear(train, test, LinearSettings(epochs=1, reference=True))
    assert result.optimum is not None
    assert result.optimum.metrics.top1 == 1.0


def test_standardized_features_have_mean_0_and_deviation_1_and_a_constant_one_stays_finite() -> None:
    train = clouds(50, seed=31, spread=3.0)
    train.values[:, 3] = 7.0
    scaled = Scale.of(train.values).apply(train).values
    torch.testing.assert_close(scaled.mean(dim=0), torch.zeros(16), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std(dim=0, correction=0), (torch.arange(16) != 3).float(), atol=1e-5, rtol=0)


def test_features_of_any_scale_give_the_same_answers_when_standardized() -> None:
    train, test = clouds(200, seed=32, spread=2.0), clouds(200, seed=33, spread=2.0)
    stretch = torch.logspace(-3, 3, 16)
    wide = [Features(some.values * stretch + 5, some.labels, some.index) for some in (train, test)]
    settings = LinearSettings(epochs=20, normalize="standardize")
    assert linear(*wide, settings).top1 == pytest.approx(linear(train, test, settings).top1, abs=0.005)
    assert linear(*wide, LinearSettings(epochs=20)).top1 < linear(train, test, settings).top1 - 0.1


def test_with_one_image_of_each_class_there_is_nothing_to_choose_by() -> None:
    train = Features(torch.eye(3), torch.arange(3), torch.arange(3))
    with pytest.raises(UserError, match=r"nothing can be held out .*\(linear.mode, .*\); use mode=cached"):
        linear(train, train, QUICK)
    assert linear(train, train).top1 == 1.0


def test_classes_of_only_one_side_do_no_harm() -> None:
    train, test = clouds(90, seed=34, spread=0.1, classes=4), clouds(60, seed=35, spread=0.1, classes=4)
    train, test = train.rows((train.labels != 3).nonzero()[:, 0]), test.rows((test.labels != 0).nonzero()[:, 0])
    for settings in (LinearSettings(lr=0.3), LinearSettings(mode="sweep", epochs=50, reference=True)):
        result = linear(train, test, settings)
        assert result.top1 == (test.labels != 3).double().mean().item()  # class 3 was never seen
        assert result.optimum is None or result.optimum.metrics.top1 == result.top1


def test_what_a_sweep_found_is_in_the_result(made_run: MadeRun) -> None:
    context = EvaluationContext(
        load_model(made_run.directory.path), made_run.directory.path, None, ProgressLine(quiet=True)
    )
    evaluation = Linear(LinearSettings(mode="sweep", epochs=5, lrs=(0.01, 0.1), weight_decays=(1e-5,), reference=True))
    scores = evaluation.measure(context)
    assert evaluation.summary == "linear/1 sgd lr=swept wd=swept batch=512 epochs=5 sweep standardized"
    assert scores.values["top1"] == scores.details["optimum"]["top1"] == 1.0
    assert list(scores.details["sweep"]["held_out_top1"]) == ["0.01, 1e-05", "0.1, 1e-05"]
    assert scores.details["sweep"]["lr"] in (0.01, 0.1)
    assert scores.details["sweep"]["batch"] == 2  # 24 images


def test_a_sweep_counts_the_epochs_of_both_rounds() -> None:
    data = clouds(40, seed=36, spread=1.0)
    told: list[tuple[int, int]] = []
    linear(data, data, LinearSettings(mode="sweep", epochs=2), progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("stop", [0, 1, 5])
def test_a_probe_with_features_of_its_own_goes_on_after_a_break(tmp_path: Path, stop: int) -> None:
    train, test = clouds(60, seed=13, spread=2.0), clouds(60, seed=14, spread=2.0)
    settings = LinearSettings(epochs=6)

    def of_epoch(epoch: int) -> Features:
        return replace(train, values=train.values * (1 + 0.1 * epoch))

    def broken(epoch: int) -> Features:
        if epoch == stop:
            raise KeyboardInterrupt
        return of_epoch(epoch)

    whole = linear(train, test, settings, of_epoch=of_epoch)
    with pytest.raises(KeyboardInterrupt):
        linear(train, test, settings, of_epoch=broken, folder=tmp_path / "work")
    asked: list[int] = []
    resumed = linear(
        train, test, settings, of_epoch=lambda epoch: asked.append(epoch) or of_epoch(epoch), folder=tmp_path / "work"
    )
    assert asked == list(range(stop, 6))
    assert resumed == whole
    finished = linear(train, test, settings, of_epoch=of_epoch, folder=tmp_path / "work")
    assert finished == whole


def test_the_literal_probe_of_a_run_leaves_its_checkpoints_where_it_is_told_to(
    made_run: MadeRun, tmp_path: Path
) -> None:
    context = EvaluationContext(
        load_model(made_run.directory.path), made_run.directory.path, None, ProgressLine(quiet=True)
    )
    context.work = tmp_path / "work"
    Linear(LinearSettings(mode="literal", epochs=2)).measure(context)
    (kept,) = context.work.iterdir()
    assert kept.name.startswith("linear-")
    assert (kept / "last.ckpt").exists()


def test_kept_crops_are_those_of_the_literal_probe_taken_in_turn(
    made_run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = EvaluationContext(
        load_model(made_run.directory.path), made_run.directory.path, None, ProgressLine(quiet=True)
    )
    literal = Linear(LinearSettings(mode="literal", epochs=2, lr=1e-4)).measure(context)
    kept = Linear(LinearSettings(crops=2, epochs=2, lr=1e-4)).measure(context)
    assert kept.details == literal.details  # the accuracy on the crops of the last epoch
    assert kept.values == literal.values
    asked: list[int] = []
    monkeypatch.setattr(
        context, "crops", lambda seed, epoch: asked.append(epoch) or EvaluationContext.crops(context, seed, epoch)
    )
    evaluation = Linear(LinearSettings(crops=2, epochs=5))
    evaluation.measure(context)
    assert asked == [0, 1]
    assert evaluation.summary.endswith("epochs=5 cached crops=2")


@pytest.mark.parametrize("mode", ["literal", "sweep"])
def test_kept_crops_belong_to_the_cached_probe(mode: str) -> None:
    with pytest.raises(ValueError, match="crops is 2, it belongs to mode=cached"):
        LinearSettings(mode=mode, crops=2)


def test_what_is_called_the_papers_protocol_is_the_literal_probe() -> None:
    # The paper: SGD, batch 512, lr 0.03, momentum 0.9, weight decay 1e-5, 200 epochs, the last one, crops and flips.
    assert "`mode=literal` is the protocol of the IE-CL paper; the default is not" in (LinearSettings.__doc__ or "")
    literal = Linear(LinearSettings(mode="literal"))
    assert literal.summary == "linear/1 sgd lr=0.03 wd=1e-05 batch=512 epochs=200 literal"
    assert literal.settings.momentum == 0.9
    assert literal.rereads
    assert not Linear(LinearSettings()).rereads
    assert [(one.scale, one.hflip_prob, one.color_jitter_prob) for one in CROPS] == [((0.08, 1.0), 0.5, 0.0)]
