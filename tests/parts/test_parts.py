"""Momentum copy, queue, reversed gradient, mlp."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from iecl.parts.gradient_reversal import reverse_gradient
from iecl.parts.mlp import mlp
from iecl.parts.momentum_copy import MomentumCopy
from iecl.parts.queue import Queue


def test_the_copy_moves_by_the_share_that_is_not_kept() -> None:
    online = nn.Linear(2, 2)
    copy = MomentumCopy(online)
    start = copy.parts[0].weight.clone()
    nn.init.constant_(online.weight, 10.0)
    copy.follow(online, keep=0.9)
    assert torch.allclose(copy.parts[0].weight, 0.9 * start + 1.0)


def test_the_copy_never_receives_a_gradient() -> None:
    online = nn.Linear(2, 2)
    copy = MomentumCopy(online)
    out = copy(torch.randn(3, 2, requires_grad=True))
    assert not out.requires_grad
    assert not any(p.requires_grad for p in copy.parameters())


def test_the_copy_keeps_its_own_batch_norm_statistics() -> None:
    online = nn.Sequential(nn.BatchNorm1d(2))
    copy = MomentumCopy(online)
    online(torch.full((4, 2), 7.0) + torch.randn(4, 2))
    copy.follow(online, keep=0.0)
    assert torch.equal(copy.parts[0][0].running_mean, torch.zeros(2))
    copy(torch.full((4, 2), -7.0) + torch.randn(4, 2))
    assert (copy.parts[0][0].running_mean < 0).all()


def test_the_oldest_keys_are_overwritten_first() -> None:
    queue = Queue(4, 2)
    keys = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1], [3, 4], [4, 3]])
    queue.push(keys[:3])
    queue.push(keys[3:])  # one fits, two wrap round
    assert torch.allclose(queue.rows, normalize(keys[[4, 5, 2, 3]], dim=1))
    assert queue.next == 2


def test_more_keys_than_places_leave_the_newest() -> None:
    queue = Queue(2, 2)
    queue.push(torch.tensor([[1.0, 0], [0, 1], [-1, 0]]))
    assert sorted(queue.rows.tolist()) == [[-1.0, 0.0], [0.0, 1.0]]


def test_a_queue_starts_with_unit_rows_and_is_saved() -> None:
    queue = Queue(8, 3)
    assert torch.allclose(queue.rows.norm(dim=1), torch.ones(8))
    assert set(queue.state_dict()) == {"rows", "next"}


def test_what_was_read_does_not_change_when_keys_come_in() -> None:
    queue = Queue(2, 2)
    read = queue.read()
    before = read.clone()
    queue.push(torch.ones(2, 2))
    assert torch.equal(read, before)


def test_the_reversed_gradient_leaves_values_alone() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = reverse_gradient(x)
    (y * torch.tensor([3.0, 5.0])).sum().backward()
    assert torch.equal(y, x)
    assert x.grad.tolist() == [-3.0, -5.0]


@pytest.mark.parametrize(("layers", "linears", "norms"), [(1, 1, 0), (2, 2, 1), (3, 3, 2)])
def test_an_mlp_has_a_norm_after_every_layer_but_the_last(layers: int, linears: int, norms: int) -> None:
    head = mlp(4, 8, 2, layers=layers)
    kinds = [type(part) for part in head]
    assert (kinds.count(nn.Linear), kinds.count(nn.BatchNorm1d)) == (linears, norms)
    assert head(torch.randn(3, 4)).shape == (3, 2)


@pytest.mark.parametrize("has_weights", [False, True])
def test_a_last_norm_has_scale_and_shift_only_when_asked(has_weights: bool) -> None:
    last = mlp(4, 8, 2, last_norm=True, last_affine=has_weights)[-1]
    assert isinstance(last, nn.BatchNorm1d)
    assert last.affine == has_weights


def test_gelu_takes_the_place_of_relu() -> None:
    kinds = [type(part) for part in mlp(4, 8, 2, layers=3, norm=False, gelu=True)]
    assert kinds == [nn.Linear, nn.GELU, nn.Linear, nn.GELU, nn.Linear]
