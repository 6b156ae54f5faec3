"""The linear probe: the steps that were promised, and the optimum that scikit-learn finds."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from iecl import counter
from iecl.errors import UserError
from iecl.evaluation.features import Features
from iecl.evaluation.linear import LinearSettings, empty_head, fit, linear


def clouds(count: int, seed: int, spread: float, classes: int = 5, width: int = 16) -> Features:
    """Gaussian clouds around centres that are the same for every seed."""
    made = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(classes, (count,), generator=made)
    return Features(centres[labels] + spread * torch.randn(count, width, generator=made), labels, torch.arange(count))


def test_weights_are_those_of_sgd_written_out() -> None:
    data = clouds(10, seed=1, spread=1.0, classes=3, width=4)
    settings = LinearSettings(epochs=3, batch=4, rate=0.5, momentum=0.8, weight_decay=0.1, seed=7)
    head = empty_head(4, 3)
    fit(head, lambda epoch: data, settings)

    x, y = data.values.double().numpy(), np.eye(3)[data.labels.numpy()]
    x = np.concatenate([x, np.ones((10, 1))], axis=1)  # the last column is the bias
    weights, velocity = np.zeros((3, 5)), np.zeros((3, 5))
    for step in range(9):  # 3 epochs of 4, 4 and 2 rows
        epoch, number = divmod(step, 3)
        order = counter.permutation(counter.key(7, "probe/order", epoch), 10).numpy()[4 * number : 4 * number + 4]
        raised = np.exp(x[order] @ weights.T)
        slope = (raised / raised.sum(axis=1, keepdims=True) - y[order]).T @ x[order] / len(order)
        velocity = 0.8 * velocity + slope + 0.1 * weights
        weights = weights - 0.5 * (1 + np.cos(np.pi * step / 9)) / 2 * velocity
    # Float32 against float64 over nine steps.
    np.testing.assert_allclose(head.weight.detach().numpy(), weights[:, :4], atol=1e-5)
    np.testing.assert_allclose(head.bias.detach().numpy(), weights[:, 4], atol=1e-5)


def test_separable_classes_are_separated() -> None:
    result = linear(clouds(400, seed=2, spread=0.2), clouds(200, seed=3, spread=0.2))
    assert (result.top1, result.train_top1, result.n, result.epochs) == (1.0, 1.0, 200, 200)


@pytest.mark.parametrize("spread", [1.5, 2.5])
def test_accuracy_is_that_of_logistic_regression_on_overlapping_classes(spread: float) -> None:
    train, test = clouds(2000, seed=4, spread=spread), clouds(2000, seed=5, spread=spread)
    reference = LogisticRegression(C=1e4, max_iter=1000).fit(train.values.numpy(), train.labels.numpy())
    expected = reference.score(test.values.numpy(), test.labels.numpy())
    result = linear(train, test)
    # One deviation of a share of 2000 is 0.011; both see the same pictures, so that half of it is generous.
    assert result.top1 == pytest.approx(expected, abs=0.006)
    assert 0.4 < expected < 0.97


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not() -> None:
    data = clouds(50, seed=6, spread=2.0)
    heads = [empty_head(16, 5) for _ in range(3)]
    for head, seed in zip(heads, (1, 1, 2), strict=True):
        fit(head, lambda epoch: data, LinearSettings(epochs=2, batch=8, seed=seed))
    assert torch.equal(heads[0].weight, heads[1].weight)
    assert not torch.equal(heads[0].weight, heads[2].weight)


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

    settings = LinearSettings(epochs=20, batch=32)
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
