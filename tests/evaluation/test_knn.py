"""Weighted kNN: the same answers as a slow second derivation and as scikit-learn, in any chunks."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from iecl.errors import UserError
from iecl.evaluation.features import Features
from iecl.evaluation.knn import STANDARD, knn, knn_by_each
from iecl.evaluation.neighbors import nearest, top_by_tensors, top_columns


def features(values: Tensor, labels: list[int] | Tensor) -> Features:
    return Features(values.float(), torch.as_tensor(labels), torch.arange(len(values)))


def clouds(count: int, seed: int, classes: int = 7, width: int = 12) -> Features:
    """Overlapping clouds around centers that are the same for every seed."""
    made = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, width, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(classes, (count,), generator=made)
    return features(centers[labels] + 1.5 * torch.randn(count, width, generator=made), labels)


def slow_votes(bank: Features, query: Tensor, k: int, temperature: float) -> dict[int, float]:
    """Votes by class, in Python's own numbers, one neighbor after the other."""

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b) or 1.0)

    near = sorted(
        ((-cosine(query.tolist(), row.tolist()), i) for i, row in enumerate(bank.values)),
        key=lambda pair: (round(pair[0], 6), pair[1]),  # equal up to rounding: the earlier row
    )[:k]
    votes: dict[int, float] = {}
    for negative, i in near:
        label = int(bank.labels[i])
        votes[label] = votes.get(label, 0.0) + math.exp(-negative / temperature)
    return votes


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (5, 0.07), (20, 0.1), (40, 1.0)])
def test_answers_are_those_of_a_slow_second_derivation(k: int, temperature: float) -> None:
    bank, queries = clouds(60, seed=1), clouds(40, seed=2)
    result = knn(bank, queries, k, temperature, chunk=(7, 13))
    votes = [slow_votes(bank, query, k, temperature) for query in queries.values]
    order = [sorted(vote, key=lambda label: (-vote[label], label)) for vote in votes]
    assert result.predictions.tolist() == [classes[0] for classes in order]
    hits = [label in classes[:5] for label, classes in zip(queries.labels.tolist(), order, strict=True)]
    assert result.top5 == sum(hits) / 40
    assert result.top1 == int((result.predictions == queries.labels).sum()) / 40
    assert 0.2 < result.top1 < 1  # neither hopeless nor trivial: the comparison means something


@pytest.mark.parametrize("k", [1, 20])
def test_answers_are_those_of_scikit_learn(k: int) -> None:
    bank, queries = clouds(500, seed=3), clouds(300, seed=4)
    reference = KNeighborsClassifier(k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    reference.fit(bank.values.numpy(), bank.labels.numpy())
    assert knn(bank, queries, k).predictions.tolist() == reference.predict(queries.values.numpy()).tolist()


@pytest.mark.parametrize("k", [3, 20, 200])
def test_plain_votes_are_those_of_scikit_learn(k: int) -> None:
    bank, queries = clouds(500, seed=23), clouds(300, seed=24)
    reference = KNeighborsClassifier(k, metric="cosine", weights="uniform")
    reference.fit(bank.values.numpy(), bank.labels.numpy())
    found = knn(bank, queries, k, weights="uniform")
    assert found.predictions.tolist() == reference.predict(queries.values.numpy()).tolist()


def test_one_search_serves_all_ways_to_vote() -> None:
    bank, queries = clouds(400, seed=25), clouds(100, seed=26)
    together = knn_by_each(bank, queries, STANDARD, chunk=(30, 150))
    alone = [knn(bank, queries, vote.k, vote.temperature, vote.weights) for vote in STANDARD]
    assert [one.predictions.tolist() for one in together] == [one.predictions.tolist() for one in alone]
    assert len({tuple(one.predictions.tolist()) for one in alone}) == 3  # the three do differ here
    assert [(one.top1, one.top5) for one in together] == [(one.top1, one.top5) for one in alone]


@pytest.mark.parametrize("top", [top_columns, top_by_tensors])
@pytest.mark.parametrize(("n", "k"), [(300, 1), (301, 5), (1000, 20), (257, 100), (40, 39), (40, 20), (7001, 200)])
def test_the_greatest_scores_are_found_among_ties(top: Callable[..., tuple[Tensor, Tensor]], n: int, k: int) -> None:
    made = torch.Generator().manual_seed(n)
    rough = torch.randint(12, (50, n), generator=made).float()  # a dozen values: ties everywhere
    fine = torch.randn(50, n, generator=made)
    same, rising = torch.zeros(50, n), fine.sort(dim=1).values
    for scores in (rough, fine, -rough, same, rising, -rising, rough.T.contiguous().T):
        expected = scores.argsort(dim=1, descending=True, stable=True)[:, :k]
        values, columns = top(scores, k)
        assert torch.equal(columns, expected)
        assert torch.equal(values, scores.gather(1, expected))


def test_the_greatest_scores_are_the_same_with_any_number_of_threads() -> None:
    scores, before = torch.randn(37, 2000, generator=torch.Generator().manual_seed(1)), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(top_columns(scores, 50)[1])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_without_numba_neighbors_are_found_by_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iecl.evaluation.neighbors.loops", lambda *_: None)
    bank, queries = clouds(500, seed=3), clouds(300, seed=4)
    expected = knn(bank, queries, 20)
    monkeypatch.undo()
    assert knn(bank, queries, 20).predictions.tolist() == expected.predictions.tolist()


def test_neighbors_come_nearest_first() -> None:
    bank, queries = clouds(90, seed=27).values, clouds(10, seed=28).values
    (found,) = nearest(bank, queries, k=7, chunk=(100, 40))
    assert (found.cosine.diff(dim=1) <= 0).all()
    expected = torch.nn.functional.cosine_similarity(queries[:, None], bank[found.index], dim=2)
    torch.testing.assert_close(found.cosine, expected)


def test_with_one_class_every_answer_is_that_class() -> None:
    bank, queries = clouds(9, seed=29, classes=1), clouds(4, seed=30, classes=1)
    assert (knn(bank, queries).top1, knn(bank, queries).predictions.tolist()) == (1.0, [0] * 4)


def test_a_collapsed_backbone_is_at_chance() -> None:
    bank, queries = features(torch.ones(3000, 8), [0, 1] * 1500), features(torch.ones(40, 8), [0, 1] * 20)
    result = knn(bank, queries, k=20)
    assert result.predictions.tolist() == [0] * 40  # ten votes each: the lower number
    assert result.top1 == 0.5


def directions(count: int, seed: int) -> Features:
    """Rows along one of four axes: nearly everything is a tie, and every cosine is exact."""
    made = torch.Generator().manual_seed(seed)
    axes = torch.randint(4, (count,), generator=made)
    return features(torch.eye(4)[axes] * 3, torch.randint(5, (count,), generator=made))


@pytest.mark.parametrize("chunk", [(1, 1), (5, 7), (16, 50), (100, 1000)])
def test_of_equally_near_rows_the_earlier_ones_vote_in_any_chunks(chunk: tuple[int, int]) -> None:
    bank, queries = directions(60, seed=5), directions(16, seed=6)
    result = knn(bank, queries, k=4, chunk=chunk)
    votes = [slow_votes(bank, query, 4, 0.07) for query in queries.values]
    assert result.predictions.tolist() == [min(vote, key=lambda label: (-vote[label], label)) for vote in votes]


@pytest.mark.parametrize("chunk", [(1, 400), (64, 9), (9, 64), (300, 500)])
def test_chunks_change_nothing(chunk: tuple[int, int]) -> None:
    bank, queries = clouds(400, seed=7), clouds(200, seed=8)
    small, whole = knn(bank, queries, chunk=chunk), knn(bank, queries)
    assert small.predictions.tolist() == whole.predictions.tolist()
    assert (small.top1, small.top5) == (whole.top1, whole.top5)


def test_the_length_of_a_feature_does_not_matter() -> None:
    bank, queries = clouds(100, seed=9), clouds(50, seed=10)
    stretched = features(bank.values * torch.linspace(0.01, 100, 100)[:, None], bank.labels)
    assert knn(stretched, queries).predictions.tolist() == knn(bank, queries).predictions.tolist()


def test_of_classes_with_equal_votes_the_lower_number_wins() -> None:
    bank = features(torch.tensor([[1.0, 0], [1.0, 0]]), [4, 2])
    assert knn(bank, features(torch.tensor([[1.0, 0]]), [2]), k=2).predictions.tolist() == [2]


def test_a_small_bank_votes_as_a_whole() -> None:
    bank, queries = clouds(5, seed=11), clouds(20, seed=12)
    assert knn(bank, queries, k=1000).predictions.tolist() == knn(bank, queries, k=5).predictions.tolist()


def test_with_one_neighbor_top_five_is_top_one() -> None:
    result = knn(clouds(50, seed=13), clouds(200, seed=14), k=1)
    assert result.top1 == result.top5 < 1


def test_a_class_without_a_vote_is_never_among_the_five() -> None:
    bank = features(torch.eye(2), [0, 1])
    queries = features(torch.eye(2), [1, 2])  # class 1 has a vote for the first, class 2 exists in no bank
    result = knn(bank, queries, k=2)
    assert (result.top1, result.top5) == (0.0, 0.5)


def test_a_tiny_temperature_is_the_nearest_neighbor_and_not_a_number_out_of_range() -> None:
    bank, queries = clouds(100, seed=15), clouds(50, seed=16)
    cold = knn(bank, queries, k=20, temperature=1e-6)
    assert cold.predictions.tolist() == knn(bank, queries, k=1).predictions.tolist()


def test_unlabeled_rows_neither_vote_nor_count() -> None:
    bank = features(torch.tensor([[1.0, 0], [1.0, 0.1]]), [-1, 3])
    queries = features(torch.tensor([[1.0, 0], [0.0, 1]]), [3, -1])
    result = knn(bank, queries, k=1)
    assert (result.top1, result.n) == (1.0, 1)


def test_a_bank_without_labels_is_refused() -> None:
    with pytest.raises(UserError, match="the train images have no labels"):
        knn(features(torch.eye(2), [-1, -1]), features(torch.eye(2), [0, 1]))


def test_features_that_are_not_finite_are_counted_and_refused() -> None:
    broken = features(torch.tensor([[1.0, torch.nan], [torch.inf, 0], [1, 1]]), [0, 1, 1])
    with pytest.raises(UserError, match="2 of 3 features of the test images are not finite"):
        knn(features(torch.eye(2), [0, 1]), broken)


def test_features_of_different_lengths_are_refused() -> None:
    with pytest.raises(UserError, match="of length 2 and 3 cannot be compared"):
        knn(features(torch.eye(2), [0, 1]), features(torch.eye(3), [0, 1, 1]))
