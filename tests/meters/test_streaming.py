"""Accumulated entropies equal those of all rows at once, however the rows were split."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from iecl import entropy
from iecl.errors import UserError
from iecl.meters.streaming import MOMENTS, SAMPLED, Moments, StreamedMoments, StreamedSample

AT_ONCE: dict[str, Callable[[Tensor], Tensor]] = {
    "gaussian-logdet": entropy.log_det_entropy,
    "coding-rate": entropy.coding_rate,
    "von-neumann": entropy.von_neumann_entropy,
    "effective-rank": entropy.effective_rank,
    "renyi": entropy.renyi_entropy,
    "knn": entropy.nearest_entropy,
    "uniformity": entropy.uniformity_entropy,
    "vmf-kde": entropy.vmf_entropy,
}


def draw(rows: int, dim: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


def test_every_streamed_entropy_has_an_estimator_to_be_compared_with() -> None:
    assert set(AT_ONCE) == {*MOMENTS, *SAMPLED}


@pytest.mark.parametrize("name", AT_ONCE)
@settings(derandomize=True, deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_however_the_rows_are_split_the_value_is_that_of_all_at_once(name: str, seed: int, cuts: list[int]) -> None:
    z, numbers = draw(40, seed=seed), torch.arange(40)
    parts = torch.tensor_split(torch.arange(40), sorted(cuts))
    meters = [entropy.streamed(name, 6) for _ in parts]
    for meter, rows in zip(meters, parts, strict=True):
        for half in rows.chunk(2):
            meter.update(z[half], numbers[half])
    for other in meters[:0:-1]:
        meters[0].merge(other)
    assert meters[0].value().item() == pytest.approx(AT_ONCE[name](z).item(), abs=1e-9)


@pytest.mark.parametrize("name", MOMENTS)
def test_fewer_rows_than_columns_give_the_same_too(name: str) -> None:
    z, meter = draw(5, 30), entropy.streamed(name, 30)
    meter.update(z[:2])
    meter.update(z[2:])
    assert meter.value().item() == pytest.approx(AT_ONCE[name](z).item(), abs=1e-9)


@pytest.mark.parametrize("order", [0.5, 1.0, 3.0])
def test_every_order_of_renyi_is_streamed(order: float) -> None:
    z, meter = draw(20), StreamedMoments("renyi", 6, order=order)
    meter.update(z)
    assert meter.value().item() == pytest.approx(entropy.renyi_entropy(z, order).item(), abs=1e-9)


def test_a_large_common_mean_does_not_drown_the_covariance() -> None:
    # Sums of squares would lose all digits: 1e8 squared leaves none for a deviation of 1.
    z, meter = draw(50) + 1e8, Moments(6)
    for rows in z.chunk(7):
        meter.update(rows)
    assert torch.allclose(meter.scatter / 49, torch.cov(z.T), atol=1e-6)


def test_a_sample_depends_on_the_numbers_of_the_rows_and_not_on_their_order() -> None:
    z, numbers = draw(100), torch.arange(100) * 7
    forward, backward = (StreamedSample("uniformity", capacity=16) for _ in range(2))
    forward.update(z, numbers)
    for rows in torch.arange(99, -1, -1).chunk(9):
        backward.update(z[rows], numbers[rows])
    assert torch.equal(forward.positions, backward.positions)
    assert len(forward.positions) == 16
    assert forward.value().item() == backward.value().item()
    assert forward.value().item() == pytest.approx(entropy.uniformity_entropy(z[forward.positions // 7]).item())


def test_every_row_has_the_same_chance_to_be_kept() -> None:
    kept = torch.zeros(20)
    for seed in range(400):
        meter = StreamedSample("uniformity", capacity=5, seed=seed)
        meter.update(draw(20), torch.arange(20))
        kept[meter.positions] += 1
    # A quarter of 400 each, with a deviation of 8.7.
    assert (kept - 100).abs().max() < 4 * 8.7


def test_a_row_that_comes_twice_counts_once() -> None:
    z = draw(10)
    once, twice = StreamedSample("knn"), StreamedSample("knn")
    once.update(z, torch.arange(10))
    twice.update(torch.cat([z, z[:4]]), torch.arange(14) % 10)
    assert twice.value().item() == once.value().item()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: entropy.streamed("spread", 4), r"no meter is called 'spread' \(name\); one of: coding-rate, "),
        (lambda: StreamedMoments("knn", 4), r"'knn' is no function of moments \(name\); one of: coding-rate"),
        (lambda: StreamedSample("renyi"), r"'renyi' is not measured on a sample \(name\); one of: knn"),
        (lambda: Moments(4).update(torch.ones(2, 3)), r"rows of width 4 \(embeddings of shape \(2, 3\)\); build it"),
        (lambda: StreamedMoments("renyi", 4).value(), r"renyi needs at least 2 rows \(0 rows so far\)"),
        (lambda: StreamedSample("knn").value(), r"knn needs at least 2 rows \(0 rows so far\)"),
        (
            lambda: StreamedMoments("renyi", 4).merge(StreamedMoments("coding-rate", 4)),
            r"meter of renyi cannot take in one of coding-rate \(merge\); build both with the same arguments",
        ),
    ],
)
def test_what_cannot_be_measured_says_so(act: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        act()
