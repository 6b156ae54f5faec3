"""SwAV: who gets gradient, the queue, prototypes that rest and stay on the sphere."""

import pytest
import torch
from stepping import clock, gradients, make, views_of

from iecl.losses.swapped_prediction import sinkhorn, swapped_prediction
from iecl.methods.swav import SwAV

SMALL = {"hidden_dim": 16, "out_dim": 8, "num_prototypes": 6}
ROWS = list(range(8))


def loss_of(method: SwAV, *, step: int = 0, epoch: int = 0, seed: int = 1) -> torch.Tensor:
    return method.step(views_of(ROWS, method.views.local_crops, seed), clock(step, epoch)).losses["swap"]


def test_backbone_projector_and_prototypes_receive_gradient() -> None:
    method = make(SwAV, **SMALL)
    loss_of(method).backward()
    assert gradients(method) == {"backbone", "projector", "prototypes"}


def test_an_input_block_learns_through_its_prediction_on_either_view() -> None:
    method, given = make(SwAV, **SMALL), views_of(ROWS)
    full = tuple(x.requires_grad_() for x in given.global_crops)
    method.step(given.with_global_crops(*full), clock()).losses["swap"].backward()
    assert all(x.grad.abs().sum() > 0 for x in full)
    assert method.online == {"anchor", "query"}


def test_prototypes_rest_for_the_first_epochs_only() -> None:
    method = make(SwAV, **SMALL, freeze_epochs=2)
    for epoch, rests in ((0, True), (1, True), (2, False)):
        loss_of(method, epoch=epoch).backward()
        method.after_backward(clock(epoch=epoch))
        assert (method.prototypes.weight.grad is None) == rests


def test_prototypes_have_length_one_before_every_forward_pass() -> None:
    method = make(SwAV, **SMALL, freeze_epochs=0)
    optimizer = torch.optim.SGD(method.parameters(), lr=10.0)
    start = method.prototypes.weight.detach().clone()
    for step in range(3):
        assert torch.allclose(method.prototypes.weight.norm(dim=1), torch.ones(6), atol=1e-6)
        optimizer.zero_grad()
        loss_of(method, step=step).backward()
        optimizer.step()
        method.after_step(clock(step + 1))
    assert not torch.allclose(method.prototypes.weight, start, atol=1e-3)


@pytest.mark.parametrize(("step", "epoch", "in_use"), [(9, 0, False), (1, 1, False), (2, 1, True)])
def test_the_queue_joins_the_balancing_from_its_epoch_on_and_only_when_full(
    step: int, epoch: int, in_use: bool
) -> None:
    settings = {**SMALL, "queue_size": 16, "queue_start_epoch": 1}  # two batches of 8 fill it
    loss = loss_of(make(SwAV, **settings), step=step, epoch=epoch)
    alone = loss_of(make(SwAV, **SMALL), step=step, epoch=epoch)
    assert (loss.item() != alone.item()) == in_use


def test_the_queue_holds_past_projections_of_its_own_view_and_not_yet_the_present() -> None:
    method = make(SwAV, **SMALL, queue_size=8, queue_start_epoch=0)
    first = method.step(views_of(ROWS, seed=1), clock(0))
    for view, name in enumerate(("anchor", "query")):
        wanted = torch.nn.functional.normalize(first.projections[name], dim=1)
        assert torch.allclose(method.queues[view].rows, wanted, atol=1e-6)
    past = [queue.read() for queue in method.queues]
    second = method.step(views_of(ROWS, seed=2), clock(1))
    scores = torch.stack([method.prototypes(second.projections[name]) for name in ("anchor", "query")])
    codes = [
        sinkhorn(torch.cat([scores[v], method.prototypes(past[v])]), 0.05, 3)[:8] for v in range(2)
    ]  # the rows of the batch come first
    assert second.losses["swap"].item() == pytest.approx(swapped_prediction(scores, torch.stack(codes), 0.1).item())


def test_small_views_change_the_crops_of_the_full_ones() -> None:
    spec = make(SwAV, **SMALL, local_crops=6).views
    assert (spec.global_crops, spec.local_crops, spec.global_scale, spec.local_scale) == (
        2,
        6,
        (0.14, 1.0),
        (0.05, 0.14),
    )
    assert make(SwAV, **SMALL).views.global_scale is None


def test_features_are_those_of_the_full_views() -> None:
    made = make(SwAV, **SMALL, local_crops=2).step(views_of(ROWS, small=2), clock())
    assert made.features.shape == (16, 128)
    assert made.projections["anchor"].shape == made.projections["query"].shape == (8, 8)
