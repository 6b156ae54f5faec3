"""Neighbors, and what a transformer makes of them."""

import pytest
import torch
from torch.nn.functional import normalize

from iecl.errors import UserError
from iecl.parts.neighbors import nearest_rows
from iecl.parts.sequence_summary import SequenceSummary


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_neighbors_are_those_a_loop_finds_nearest_first() -> None:
    z, rows = draw(4, 3), draw(10, 3, seed=1)
    for i, found in enumerate(nearest_rows(z, rows, count=3)):
        cosines = [torch.dot(z[i], row) / z[i].norm() / row.norm() for row in rows]
        order = sorted(range(10), key=lambda j: -cosines[j])[:3]
        assert torch.equal(found, rows[order])


def test_no_gradient_passes_a_look_up() -> None:
    z, rows = draw(4, 3).requires_grad_(), draw(10, 3, seed=1).requires_grad_()
    assert not nearest_rows(z, rows).requires_grad


def test_a_look_up_inside_autocast_has_full_precision() -> None:
    rows = normalize(torch.tensor([[1.0, 0.001], [1.0, 0.0]]), dim=1)  # apart by less than bf16 can tell
    with torch.autocast("cpu", torch.bfloat16):
        found = nearest_rows(torch.tensor([[1.0, 0.001]]), rows)
    assert torch.equal(found[0, 0], rows[0])


def test_a_summary_depends_on_the_place_of_each_vector() -> None:
    torch.manual_seed(0)
    summary = SequenceSummary(8, 5, layers=2, heads=2)
    x = draw(3, 5, 8)
    turned = x[:, [0, 2, 1, 3, 4]]
    assert summary(x).shape == (3, 8)
    assert not torch.allclose(summary(x), summary(turned), atol=1e-4)


def test_a_summary_draws_no_random_numbers() -> None:
    torch.manual_seed(0)
    summary = SequenceSummary(8, 5, layers=1, heads=2).train()
    before = torch.get_rng_state()
    first, second = summary(draw(3, 5, 8)), summary(draw(3, 5, 8))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_width_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(UserError, match=r"vectors of 10 .* 4 attention heads \(method.out_dim\); use a multiple of 4"):
        SequenceSummary(10, 5, layers=1, heads=4)
