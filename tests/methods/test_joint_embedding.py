"""SimCLR, BYOL, SimSiam, MoCo-v3, NNCLR: which weights learn, which targets are held still, and in what order."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from iecl.losses.info_nce import info_nce
from iecl.losses.nt_xent import nt_xent
from iecl.losses.prediction import negative_cosine, unit_distance
from iecl.methods.byol import BYOL, BYOLSettings
from iecl.methods.contract import Method
from iecl.methods.moco_v3 import MoCoV3, MoCoV3Settings
from iecl.methods.nnclr import NNCLR, NNCLRSettings
from iecl.methods.simclr import SimCLR, SimCLRSettings
from iecl.methods.simsiam import SimSiam, SimSiamSettings
from iecl.parts.neighbors import nearest_rows
from iecl.schedule import Clock, Ramp
from iecl.views.pipeline import Views

CLOCK = Clock(seed=0, step=0, steps=10, epoch=0, epochs=1)
HALF = Ramp.constant(0.5)


class Flat(nn.Module):
    """A backbone without batch norm: what it makes of an image depends on that image alone."""

    num_features = 12

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 4 * 4, 12)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x.flatten(1)).tanh()
        return made


def build(cls: type[Method], settings: Any) -> Any:
    torch.manual_seed(0)
    return cls(Flat(), settings)


def simclr(**choices: Any) -> SimCLR:
    return build(SimCLR, SimCLRSettings(hidden_dim=16, out_dim=8, **choices))


def byol(**choices: Any) -> BYOL:
    return build(BYOL, BYOLSettings(hidden_dim=16, out_dim=8, predictor_hidden_dim=16, **choices))


def simsiam(**choices: Any) -> SimSiam:
    return build(SimSiam, SimSiamSettings(hidden_dim=16, out_dim=8, predictor_hidden_dim=4, **choices))


def moco_v3(**choices: Any) -> MoCoV3:
    return build(MoCoV3, MoCoV3Settings(hidden_dim=16, out_dim=8, predictor_hidden_dim=16, **choices))


def nnclr(**choices: Any) -> NNCLR:
    return build(
        NNCLR, NNCLRSettings(hidden_dim=16, out_dim=8, predictor_hidden_dim=16, **{"queue_size": 24, **choices})
    )


def views(seed: int = 0, count: int = 6) -> Views:
    noise = torch.Generator().manual_seed(seed)
    full = tuple(torch.randn(count, 3, 4, 4, generator=noise) for _ in range(2))
    return Views(full, torch.arange(count), torch.full((count,), -1), torch.arange(count))


def total(method: Method, given: Views | None = None) -> Tensor:
    return torch.stack(list(method.step(given or views(), CLOCK).losses.values())).sum()


# --- the loss is the one of the algorithm box ---


def test_simclr_is_nt_xent_of_projections_whose_norms_saw_both_views() -> None:
    method, (anchor, query) = simclr(temperature=0.3), views().global_crops
    z = simclr().projector(simclr().backbone(torch.cat([anchor, query])))
    assert total(method).item() == pytest.approx(nt_xent(z[:6], z[6:], 0.3).item(), rel=1e-5)


def test_simclrs_last_norm_learns_a_scale_and_no_shift() -> None:
    last = simclr().projector[-1]
    assert isinstance(last, nn.BatchNorm1d)
    assert (last.weight.requires_grad, last.bias.requires_grad) == (True, False)
    assert not [part for part in simclr(norm=False).projector if isinstance(part, nn.BatchNorm1d)]


def test_byol_adds_the_two_directions_and_crosses_the_views() -> None:
    method, (anchor, query) = byol(), views().global_crops
    p = [method.predictor(method.project(x)) for x in (anchor, query)]
    k = [method.momentum(x) for x in (anchor, query)]
    expected = unit_distance(p[0], k[1]) + unit_distance(p[1], k[0])
    straight = unit_distance(p[0], k[0]) + unit_distance(p[1], k[1])
    assert total(method).item() == pytest.approx(expected.item(), rel=1e-5)
    assert abs(total(method).item() - straight.item()) > 1e-3


def test_simsiam_takes_the_mean_of_the_two_directions() -> None:
    method, (anchor, query) = simsiam(), views().global_crops
    z = [method.project(x) for x in (anchor, query)]
    expected = (negative_cosine(method.predictor(z[0]), z[1]) + negative_cosine(method.predictor(z[1]), z[0])) / 2
    assert total(method).item() == pytest.approx(expected.item(), rel=1e-5)


def test_moco_v3_adds_two_directions_each_times_twice_the_temperature() -> None:
    method, (anchor, query) = moco_v3(temperature=0.3), views().global_crops
    p = [method.predictor(method.project(x)) for x in (anchor, query)]
    k = [method.momentum(x) for x in (anchor, query)]
    expected = 0.6 * (info_nce(p[0], k[1], 0.3) + info_nce(p[1], k[0], 0.3))
    assert total(method).item() == pytest.approx(expected.item(), rel=1e-5)


def test_nnclr_finds_predictions_by_the_neighbors_of_the_other_view() -> None:
    method, (anchor, query) = nnclr(temperature=0.3), views().global_crops
    past, z = method.queue.read(), [method.project(x) for x in (anchor, query)]
    near, p = [nearest_rows(x, past)[:, 0] for x in z], [method.predictor(x) for x in z]
    expected = (info_nce(near[0], p[1], 0.3) + info_nce(near[1], p[0], 0.3)) / 2
    assert total(method).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("make", [simclr, byol, simsiam, moco_v3])
def test_the_views_may_change_places(make: Any) -> None:
    given = views()
    turned = given.with_global_crops(*reversed(given.global_crops))
    assert total(make(), given).item() == pytest.approx(total(make(), turned).item(), rel=1e-5)


# --- what receives gradient ---


@pytest.mark.parametrize("make", [byol, moco_v3])
def test_the_momentum_copy_learns_nothing_from_the_loss(make: Any) -> None:
    method = make()
    total(method).backward()
    assert all(p.grad is None and not p.requires_grad for p in method.momentum.parameters())
    assert all(p.grad is not None for p in method.predictor.parameters())


def test_simsiams_target_is_held_still() -> None:
    # Gradient of the encoder through predictions alone: with the targets replaced by constants nothing changes.
    method, (anchor, query) = simsiam(), views().global_crops
    total(method).backward()
    made = method.backbone.layer.weight.grad.clone()
    method.zero_grad()
    z = [method.project(x) for x in (anchor, query)]
    fixed = [x.detach().clone() for x in z]
    loss = sum(
        -(normalize(method.predictor(a), dim=1) * normalize(b, dim=1)).sum(1).mean() / 2
        for a, b in ((z[0], fixed[1]), (z[1], fixed[0]))
    )
    loss.backward()
    assert torch.allclose(method.backbone.layer.weight.grad, made, atol=1e-6)


def test_simsiams_last_projector_norm_has_no_weights_and_its_predictor_ends_plain() -> None:
    method = simsiam()
    assert not method.projector[-1].affine
    assert isinstance(method.predictor[-1], nn.Linear)


@pytest.mark.parametrize("is_constant", [True, False])
def test_only_simsiams_predictor_keeps_its_rate(is_constant: bool) -> None:
    method = simsiam(constant_predictor=is_constant)
    groups = {group.name: group for group in method.param_groups()}
    assert {name: group.is_constant for name, group in groups.items()} == {"weights": False, "predictor": is_constant}
    assert {id(p) for p in groups["predictor"].parameters} == {id(p) for p in method.predictor.parameters()}
    assert sum(len(group.parameters) for group in groups.values()) == len(list(method.parameters()))


def test_a_neighbor_carries_no_gradient() -> None:
    method = nnclr()
    given = views()
    anchor = given.global_crops[0].requires_grad_()
    loss = method._contrast(method.project(anchor), torch.randn(6, 8), method.queue.read())
    assert not loss.requires_grad


# --- order of what changes ---


@pytest.mark.parametrize("make", [byol, moco_v3])
def test_the_momentum_copy_follows_after_the_step_by_the_share_of_that_time(make: Any) -> None:
    method = make(ema_momentum=Ramp(start=0.0, end=1.0, shape="linear"))
    nn.init.constant_(method.backbone.layer.weight, 1.0)
    before = method.momentum.parts[0].layer.weight.clone()
    total(method).backward()
    assert torch.equal(method.momentum.parts[0].layer.weight, before)
    method.after_step(Clock(seed=0, step=8, steps=10, epoch=0, epochs=1))
    assert torch.allclose(method.momentum.parts[0].layer.weight, 0.8 * before + 0.2)


@pytest.mark.parametrize("make", [byol, moco_v3])
def test_the_projector_is_followed_too(make: Any) -> None:
    method = make(ema_momentum=HALF)
    before = method.momentum.parts[1][0].weight.clone()
    nn.init.constant_(method.projector[0].weight, 1.0)
    method.after_step(CLOCK)
    assert torch.allclose(method.momentum.parts[1][0].weight, (before + 1) / 2)


def test_anchors_enter_the_queue_as_unit_rows_once_their_neighbors_were_sought() -> None:
    method = nnclr(queue_size=6)
    past, z = method.queue.read(), [method.project(x) for x in views().global_crops]
    near, p = [nearest_rows(x, past)[:, 0] for x in z], [method.predictor(x) for x in z]
    expected = (info_nce(near[0], p[1], 0.1) + info_nce(near[1], p[0], 0.1)) / 2
    made = method.step(views(), CLOCK)
    assert made.losses["contrast"].item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(method.queue.rows, normalize(made.projections["anchor"].detach(), dim=1), atol=1e-6)
