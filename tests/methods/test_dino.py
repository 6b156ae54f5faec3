"""DINO: who gets gradient, the center, the teacher's temperature, what rests and what follows."""

import pytest
import torch
from stepping import clock, gradients, make, views_of
from torch import nn

from iecl.methods.dino import DINO
from iecl.schedule import Ramp

SMALL = {"hidden_dim": 16, "out_dim": 8, "num_prototypes": 6}
ROWS = list(range(8))


def test_the_student_receives_gradient_and_the_teacher_none() -> None:
    method = make(DINO, **SMALL)
    method.step(views_of(ROWS), clock()).losses["distill"].backward()
    assert gradients(method) == {"backbone", "projector", "last"}
    assert not any(p.requires_grad for p in method.teacher.parameters())


def test_an_input_block_learns_on_either_view() -> None:
    method, given = make(DINO, **SMALL), views_of(ROWS)
    full = tuple(x.requires_grad_() for x in given.global_crops)
    method.step(given.with_global_crops(*full), clock()).losses["distill"].backward()
    assert all(x.grad.abs().sum() > 0 for x in full)


def test_the_center_moves_after_the_loss_towards_the_mean_of_both_teacher_views() -> None:
    method = make(DINO, **SMALL)
    twin = make(DINO, **SMALL)
    given = views_of(ROWS)
    mean = twin.teacher(torch.cat(given.global_crops)).mean(0)
    first = method.step(given, clock()).losses["distill"].item()
    assert torch.allclose(method.center, 0.1 * mean, atol=1e-6)
    with torch.no_grad():
        twin.center.copy_(method.center)
    assert twin.step(given, clock()).losses["distill"].item() != pytest.approx(first, abs=1e-7)
    assert torch.allclose(twin.center, 0.19 * mean, atol=1e-6)


def test_a_known_center_follows_from_known_outputs() -> None:
    one = [[0.9, 0.1, -0.2], [0.2, 0.8, 0.1], [-0.1, 0.3, 0.7], [0.6, 0.5, 0.1]]
    two = [[0.8, 0, 0.1], [0.1, 0.9, -0.3], [0.2, 0.1, 0.6], [0.4, 0.7, 0]]
    method = make(DINO, hidden_dim=16, out_dim=8, num_prototypes=3)
    method.teacher.forward = lambda x: torch.tensor(one + two)  # type: ignore[method-assign]
    method.step(views_of([0, 1, 2, 3]), clock())
    assert method.center.tolist() == pytest.approx([0.03875, 0.0425, 0.01375], abs=1e-7)


def test_the_center_is_saved() -> None:
    assert "center" in make(DINO, **SMALL).state_dict()


def test_the_teacher_temperature_warms_up_by_epoch() -> None:
    method = make(DINO, **SMALL, teacher_temperature_start=0.04, teacher_temperature=0.07, teacher_warmup_epochs=4)
    found = [method.teacher_temperature(clock(epoch=epoch)) for epoch in range(6)]
    assert found == pytest.approx([0.04, 0.05, 0.06, 0.07, 0.07, 0.07])
    constant = make(DINO, **SMALL, teacher_temperature_start=0.02, teacher_temperature=0.07)
    assert constant.teacher_temperature(clock()) == 0.07


def test_the_last_layer_rests_for_the_first_epochs_only() -> None:
    method = make(DINO, **SMALL, freeze_epochs=1)
    for epoch, rests in ((0, True), (1, False)):
        method.step(views_of(ROWS), clock(epoch=epoch)).losses["distill"].backward()
        method.after_backward(clock(epoch=epoch))
        assert (method.last.weight.grad is None) == rests
        assert method.projector[0].weight.grad is not None


def test_the_teacher_follows_the_moved_student_in_every_part() -> None:
    method = make(DINO, **SMALL, ema_momentum=Ramp.constant(0.9))
    before = {name: p.clone() for name, p in method.teacher.named_parameters()}
    with torch.no_grad():
        for p in method.parameters():
            if p.requires_grad:
                p.add_(1.0)
    method.after_step(clock(1))
    assert all(torch.allclose(p, before[name] + 0.1, atol=1e-5) for name, p in method.teacher.named_parameters())


def test_the_teacher_sees_full_views_only_and_keeps_its_own_statistics() -> None:
    method = make(DINO, **SMALL, local_crops=3)
    seen = []
    method.teacher.parts[0].register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    method.step(views_of(ROWS, small=3), clock())
    assert seen == [(16, 3, 16, 16)]
    own, theirs = method.backbone.bn1.running_mean, method.teacher.parts[0].bn1.running_mean
    assert theirs.abs().sum() > 0
    assert not torch.equal(own, theirs)  # the student's also saw the small views


def test_full_and_small_crops_part_at_the_split() -> None:
    spec = make(DINO, **SMALL, local_crops=8, crop_split=0.4).views
    assert (spec.local_crops, spec.global_scale, spec.local_scale) == (8, (0.4, 1.0), (0.05, 0.4))
    assert make(DINO, **SMALL).views.global_scale is None


def test_the_head_starts_small_and_without_a_common_direction() -> None:
    for norm in (False, True):
        layers = [part for part in make(DINO, **SMALL, norm=norm).projector if isinstance(part, nn.Linear)]
        assert all(0.015 < layer.weight.std() < 0.025 for layer in layers)
        assert not any(layer.bias.any() for layer in layers if layer.bias is not None)
