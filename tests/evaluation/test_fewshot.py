"""Few labels: the draws that were published, and scikit-learn's answers on them."""

import json
import math
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from iecl.console import ProgressLine
from iecl.errors import UserError
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.features import Features
from iecl.evaluation.fewshot import FewShot, FewShotSettings, few_shot
from iecl.evaluation.model import load_model
from iecl.evaluation.splits import fingerprint
from made_features import clouds
from made_runs import MadeRun

ONE_BUDGET = FewShotSettings(label_fractions=(), shots=(5,), trials=2)


def test_answers_are_those_of_scikit_learn_on_the_published_rows() -> None:
    train, test = clouds(300, seed=1, spread=1.5), clouds(200, seed=2, spread=1.5)
    (result,) = few_shot(train, test, ONE_BUDGET)
    mean, deviation = train.values.mean(dim=0), train.values.std(dim=0, correction=0)
    seen, asked = (((some.values - mean) / deviation / 4).double().numpy() for some in (train, test))  # 4 = sqrt(16)
    for rows, top1 in zip(result.parts, result.top1, strict=True):
        assert train.labels[rows].bincount().tolist() == [5] * 5
        reference = LogisticRegression(C=10.0, max_iter=1000).fit(seen[rows.numpy()], train.labels[rows].numpy())
        # Both stop at a tolerance of their own: one answer in two hundred may differ.
        assert top1 == pytest.approx(reference.score(asked, test.labels.numpy()), abs=0.0051)
    assert result.parts[0].tolist() != result.parts[1].tolist()
    assert 0.4 < result.top1[0] < 1


def test_more_labels_give_better_answers() -> None:
    train, test = clouds(1000, seed=3, spread=1.5), clouds(500, seed=4, spread=1.5)
    results = few_shot(train, test, FewShotSettings(label_fractions=(0.01, 0.5), shots=(1, 10), trials=3))
    means = {result.budget.name: sum(result.top1) / 3 for result in results}
    assert list(means) == ["1pct", "50pct", "1shot", "10shot"]
    assert means["1shot"] < means["10shot"] < means["50pct"]
    assert means["1pct"] < means["10shot"]


def test_the_deviation_is_that_of_a_sample_of_tries() -> None:
    train, test = clouds(100, seed=5, spread=1.5), clouds(100, seed=6, spread=1.5)
    (result,) = few_shot(train, test, ONE_BUDGET)
    first, second = result.top1
    assert result.std == pytest.approx(abs(first - second) / math.sqrt(2))
    (alone,) = few_shot(train, test, FewShotSettings(label_fractions=(), shots=(5,), trials=1))
    assert (alone.top1, alone.std) == ((first,), 0.0)


def test_labels_of_test_images_and_of_other_images_are_not_used() -> None:
    train, test = clouds(100, seed=7, spread=1.5), clouds(100, seed=8, spread=1.5)
    (result,) = few_shot(train, test, ONE_BUDGET)
    hidden = torch.ones(100, dtype=torch.bool)
    hidden[torch.cat(result.parts)] = False
    values = train.values.clone()
    values[hidden] = values[hidden].roll(1, dims=0)  # whose image an unlabeled one is does not matter
    (again,) = few_shot(Features(values, train.labels, train.index), test, ONE_BUDGET)
    assert again.top1 == result.top1


def test_one_image_of_each_class_is_enough() -> None:
    train = Features(torch.eye(3), torch.arange(3), torch.arange(3))
    results = few_shot(train, train, FewShotSettings(trials=1))
    assert [result.top1 for result in results] == [(1.0,)] * 5
    assert [result.misfits for result in results] == [3, 3, 0, 3, 3]  # less than one, fewer than five and ten


def test_a_class_that_was_never_seen_is_never_answered() -> None:
    train, test = clouds(90, seed=9, spread=0.1, classes=4), clouds(60, seed=10, spread=0.1, classes=4)
    train = train.rows((train.labels != 3).nonzero()[:, 0])
    (result,) = few_shot(train, test, ONE_BUDGET)
    assert set(result.top1) == {(test.labels != 3).double().mean().item()}


def test_images_of_one_class_are_refused() -> None:
    train = clouds(20, seed=11, spread=1.0)
    with pytest.raises(UserError, match=r"the train images are all of one class \(--data\); give images of two"):
        few_shot(Features(train.values, torch.full((20,), 2), train.index), train)


def test_features_that_are_not_finite_are_refused() -> None:
    train = clouds(20, seed=12, spread=1.0)
    broken = Features(train.values.clone().fill_(torch.nan), train.labels, train.index)
    with pytest.raises(UserError, match="20 of 20 features of the train images are not finite"):
        few_shot(broken, train)


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="label_fractions and shots are both empty"):
        FewShotSettings(label_fractions=(), shots=())


def test_the_result_publishes_its_splits_by_name(made_run: MadeRun, images: Path) -> None:
    context = EvaluationContext(
        load_model(made_run.directory.path), made_run.directory.path, None, ProgressLine(quiet=True)
    )
    evaluation = FewShot(FewShotSettings(label_fractions=(0.1,), shots=(2,), trials=2))
    scores = evaluation.measure(context)
    assert evaluation.summary == "fewshot/1 logistic C=10 standardized 2 tries"
    assert list(scores.values) == ["top1_10pct", "top1_2shot"]
    lists = scores.lists
    assert [len(part) for part in lists["2shot"]] == [6, 6]
    assert all((images / name).is_file() for part in lists["2shot"] for name in part)
    assert scores.details["splits"]["2shot"] == [fingerprint(part) for part in lists["2shot"]]
    assert scores.details["small_classes"] == {}
    assert scores.details["images"] == {"10pct": 3, "2shot": 6}
    assert scores.details["tries"]["2shot"][0] >= 1 / 3
    json.dumps(scores.details)  # plain types
