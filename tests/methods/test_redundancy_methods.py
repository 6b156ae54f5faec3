"""Barlow Twins, VICReg, W-MSE and Matrix-SSL: what is theirs beyond the contract."""

import pytest
import torch
from torch import nn

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.losses.matrix_cross_entropy import matrix_alignment, matrix_uniformity
from iecl.losses.whitening import whitened_mse
from iecl.methods.barlow_twins import BarlowTwins, BarlowTwinsSettings
from iecl.methods.contract import Method
from iecl.methods.matrix_ssl import MatrixSSL, MatrixSSLSettings
from iecl.methods.vicreg import VICReg, VICRegSettings
from iecl.methods.w_mse import WMSE, WMSESettings
from iecl.schedule import Clock, Ramp
from iecl.settings import build
from iecl.training.optimizers import make_optimizer
from iecl.training.settings import OptimizerSettings
from iecl.views.pipeline import Views

CLOCK = Clock(seed=0, step=0, steps=10, epoch=0, epochs=1)
CASES = {
    "barlow-twins": (BarlowTwins, BarlowTwinsSettings(hidden_dim=16, out_dim=8)),
    "vicreg": (VICReg, VICRegSettings(hidden_dim=16, out_dim=8)),
    "w-mse": (WMSE, WMSESettings(hidden_dim=16, out_dim=2, whitening_size=4)),
    "w-mse of the whole batch": (WMSE, WMSESettings(hidden_dim=16, out_dim=4, num_views=3)),
    "matrix-ssl": (MatrixSSL, MatrixSSLSettings(hidden_dim=16, out_dim=8, predictor_hidden_dim=8)),
}


def make(case: str) -> Method:
    torch.manual_seed(0)
    cls, settings = CASES[case]
    made: Method = cls(make_backbone("resnet10-w16", 0), settings)
    return made


def views(count: int = 8, full: int = 3) -> Views:
    noise = torch.Generator().manual_seed(0)
    images = tuple(torch.randn(count, 3, 16, 16, generator=noise) for _ in range(full))
    number = torch.arange(count)
    return Views(images, number, torch.full_like(number, -1), number)


# --- Barlow Twins ---


def test_barlow_twins_scales_both_terms() -> None:
    terms = []
    for scale in (1.0, 0.1):
        torch.manual_seed(0)
        method = BarlowTwins(
            make_backbone("resnet10-w16", 0), BarlowTwinsSettings(hidden_dim=16, out_dim=8, scale=scale)
        )
        terms.append(method.step(views(), CLOCK).losses)
    assert terms[1]["invariance"].item() == pytest.approx(terms[0]["invariance"].item() / 10)
    assert terms[1]["redundancy"].item() == pytest.approx(terms[0]["redundancy"].item() / 10)


def test_barlow_twins_gives_biases_and_norms_a_rate_of_their_own() -> None:
    settings = BarlowTwinsSettings(hidden_dim=16, out_dim=8, bias_lr=0.5)
    method = BarlowTwins(make_backbone("resnet10-w16", 0), settings)
    optimizer = make_optimizer(method.param_groups(), OptimizerSettings(name="lars", lr=2.0), 2.0)
    rates = {p.ndim > 1: group["peak"] for group in optimizer.param_groups for p in group["params"]}
    assert rates == {True: 2.0, False: 0.5}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(method.parameters()))


# --- VICReg ---


def test_vicreg_is_blind_to_nothing_but_a_common_shift() -> None:
    method = make("vicreg")
    step = method.step(views(), CLOCK)
    last = method.projector[-1]
    assert isinstance(last, nn.Linear)
    assert isinstance(last.weight, nn.Parameter)
    with torch.no_grad():
        last.bias += 3
        shifted = method.step(views(), CLOCK).losses
        last.weight *= 2
        longer = method.step(views(), CLOCK).losses
    assert {n: v.item() for n, v in shifted.items()} == pytest.approx(
        {n: v.item() for n, v in step.losses.items()}, 1e-3
    )
    assert longer["invariance"].item() == pytest.approx(4 * step.losses["invariance"].item(), rel=1e-3)
    assert longer["covariance"].item() == pytest.approx(16 * step.losses["covariance"].item(), rel=1e-3)


# --- W-MSE ---


@pytest.mark.parametrize(
    ("out", "group", "batch", "expected"), [(2, 0, 8, 4), (3, 0, 8, 8), (2, 0, 15, 5), (2, 8, 16, 8)]
)
def test_w_mse_chooses_the_least_group_that_divides_the_batch(out: int, group: int, batch: int, expected: int) -> None:
    method = WMSE(make_backbone("resnet10-w16", 0), WMSESettings(hidden_dim=16, out_dim=out, whitening_size=group))
    assert method._group(batch) == expected


@pytest.mark.parametrize(
    ("group", "batch", "message"),
    [(0, 3, "a batch of 3 images cannot be cut into groups of 4 or more"), (6, 8, "into groups of 6 ")],
)
def test_w_mse_refuses_a_batch_it_cannot_cut(group: int, batch: int, message: str) -> None:
    method = WMSE(make_backbone("resnet10-w16", 0), WMSESettings(hidden_dim=16, out_dim=2, whitening_size=group))
    with pytest.raises(UserError, match=message) as caught:
        method.step(views(count=batch, full=2), CLOCK)
    assert caught.value.where == "training.batch_size"
    assert "use a multiple of" in caught.value.do


def test_w_mse_refuses_groups_below_twice_the_width() -> None:
    with pytest.raises(
        UserError, match=r"whitening 64 dimensions needs groups of at least 128 images, method.whitening_size is 100"
    ):
        build(WMSESettings, {"out_dim": 64, "whitening_size": 100}, "method")


def test_w_mse_needs_a_group_of_images() -> None:
    assert WMSE(make_backbone("resnet10-w16", 0), WMSESettings(hidden_dim=16, out_dim=8)).min_batch == 16


def test_w_mse_groups_change_with_the_epoch_and_are_the_same_in_every_view() -> None:
    method = make("w-mse")
    positions = torch.arange(8)
    first, second = (method._order(positions, Clock(0, 0, 10, epoch, 2), 0) for epoch in (0, 1))
    assert not torch.equal(first, second)
    assert sorted(first.tolist()) == list(range(8))
    given = views()
    same = given.with_global_crops(given.global_crops[0], given.global_crops[0])
    assert method.step(same, CLOCK).losses["whitened"].item() == pytest.approx(0, abs=1e-4)


def test_w_mse_averages_over_repeated_groupings() -> None:
    torch.manual_seed(0)
    method = WMSE(
        make_backbone("resnet10-w16", 0), WMSESettings(hidden_dim=16, out_dim=2, whitening_size=4, whitening_repeats=3)
    )
    made = method.step(views(full=2), CLOCK)
    rows = [made.projections[name] for name in ("anchor", "query")]
    orders = [method._order(torch.arange(8), CLOCK, repeat) for repeat in range(3)]
    each = [whitened_mse(*(z[order] for z in rows), group=4).item() for order in orders]
    assert len(set(each)) == 3
    assert made.losses["whitened"].item() == pytest.approx(sum(each) / 3, rel=1e-5)


@pytest.mark.parametrize("count", [2, 4])
def test_w_mse_sends_gradient_to_every_view(count: int) -> None:
    torch.manual_seed(0)
    method = WMSE(make_backbone("resnet10-w16", 0), WMSESettings(hidden_dim=16, out_dim=2, num_views=count))
    assert method.views.global_crops == count
    given = views(full=count)
    images = [x.requires_grad_() for x in given.global_crops]
    method.step(given, CLOCK).losses["whitened"].backward()
    assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in images)


@pytest.mark.parametrize("count", [2, 4])
def test_w_mse_normalizes_all_views_together_in_its_head(count: int) -> None:
    # htdt/self-supervised, methods/w_mse.py: the head runs once, on the concatenated features of all views.
    torch.manual_seed(0)
    method, seen = WMSE(make_backbone("resnet10-w16", 0), WMSESettings(out_dim=2, num_views=count)), []
    norm = next(part for part in method.projector.modules() if isinstance(part, nn.BatchNorm1d))
    norm.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    encoded = method.backbone.register_forward_hook(lambda *_: seen.append(0))
    made = method.step(views(full=count), CLOCK)
    encoded.remove()
    assert seen == [0] * count + [8 * count]
    assert all(
        torch.equal(made.projections[name], z)
        for name, z in zip(("anchor", "query"), method.projector(made.features).chunk(count), strict=False)
    )


# --- Matrix-SSL ---


def test_matrix_ssl_compares_each_view_with_the_slow_copy_of_the_other() -> None:
    method = make("matrix-ssl").eval()  # so that a second forward pass sees the same statistics
    given = views(full=2)
    losses = method.step(given, CLOCK).losses
    with torch.no_grad():
        z = [method.predictor(method.project(x)) for x in given.global_crops]
        k = [method.momentum(x) for x in given.global_crops]
    pairs = [(k[1], z[0]), (k[0], z[1])]
    uniformity = sum(matrix_uniformity(*pair).item() for pair in pairs) / 2
    alignment = sum(matrix_alignment(*pair).item() for pair in pairs) / 2
    assert losses["uniformity"].item() == pytest.approx(uniformity, rel=1e-5)
    assert losses["alignment"].item() == pytest.approx(alignment, rel=1e-5)


def test_matrix_ssl_sends_no_gradient_through_the_slow_copy() -> None:
    method = make("matrix-ssl")
    sum(method.step(views(), CLOCK).losses.values()).backward()
    assert all(p.grad is None for p in method.momentum.parameters())
    assert all(p.grad is not None for part in (method.backbone, method.predictor) for p in part.parameters())


def test_matrix_ssl_moves_the_slow_copy_after_the_step_only() -> None:
    torch.manual_seed(0)
    settings = MatrixSSLSettings(hidden_dim=16, out_dim=8, predictor_hidden_dim=8, ema_momentum=Ramp.constant(0.75))
    method = MatrixSSL(make_backbone("resnet10-w16", 0), settings)
    slow, fast = method.momentum.parts[0].conv1.weight, method.backbone.conv1.weight
    before = slow.clone()
    method.step(views(), CLOCK)
    assert torch.equal(slow, before)
    with torch.no_grad():
        fast += 1
    method.after_step(CLOCK)
    assert torch.allclose(slow, before + 0.25, atol=1e-6)


def test_matrix_ssl_refuses_a_ridge_for_which_the_series_diverges() -> None:
    with pytest.raises(UserError, match=r"method.ridge is 1.5, it must be at most 1"):
        build(MatrixSSLSettings, {"ridge": 1.5}, "method")
