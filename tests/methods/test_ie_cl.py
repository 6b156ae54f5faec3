"""IE-CL around a host: which gradient reaches which weights, and that nothing happens where nothing was asked for."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.meters.jacobian import log_abs_det
from iecl.methods.ie_cl import IECL
from iecl.methods.moco_v2 import MoCoV2, MoCoV2Settings
from iecl.objective.settings import ObjectiveSettings
from iecl.parts.spectral_norm import spectral_scales
from iecl.saib.certified import CertifiedSAIB
from iecl.saib.printed import SAIB
from iecl.saib.settings import SAIBSettings
from iecl.schedule import Clock, Ramp
from iecl.views.pipeline import Views

CLOCK = Clock(seed=0, step=0, steps=10, epoch=0, epochs=1)
PRINTED = {"symmetric": False, "queue_size": 0}
SYMMETRIC = {"symmetric": True, "queue_size": 0}


def host(seed: int = 0, **choices: object) -> MoCoV2:
    torch.manual_seed(seed)
    settings = MoCoV2Settings(hidden_dim=16, out_dim=8, norm=True, **choices)
    return MoCoV2(make_backbone("resnet10-w16", seed), settings)


def views(count: int = 8, seed: int = 0, like: torch.nn.Module | None = None) -> Views:
    noise, kind = torch.Generator().manual_seed(seed), torch.float if like is None else next(like.parameters()).dtype
    full = tuple(torch.randn(count, 3, 16, 16, generator=noise).to(kind) for _ in range(2))
    return Views(full, torch.arange(count), torch.full((count,), -1), torch.arange(count))


def printed_block() -> SAIB:
    torch.manual_seed(1)
    return SAIB(image_size=16, batch=8, patch_size=4)


def certified_block() -> CertifiedSAIB:
    torch.manual_seed(1)
    return CertifiedSAIB(image_size=16, patch_size=4, hidden_dim=4)


def gradients(method: IECL, terms: str | None = None) -> dict[str, torch.Tensor]:
    """Gradients by parameter after one step; `terms` picks one loss."""
    losses = method.step(views(like=method), CLOCK).losses
    method.zero_grad()
    (sum(losses.values()) if terms is None else losses[terms]).backward()
    return {name: p.grad for name, p in method.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}


def reached(method: IECL, terms: str | None = None) -> set[str]:
    """First words of the names of the parameters that a loss moves."""
    return {name.removeprefix("host.").split(".")[0] for name in gradients(method, terms)}


BLOCK = ("side", "weights", "host_gradient", "weight_decay", "probability", "strength")


def with_terms(block: Callable[[], torch.nn.Module], host_choices: dict[str, object], **choices: object) -> IECL:
    saib = SAIBSettings(**{name: choices.pop(name) for name in BLOCK if name in choices})
    settings = ObjectiveSettings(**{"entropy": "coding-rate", "kl": "gaussian-diag", **choices})
    return IECL(host(**host_choices), block(), settings, saib)


def test_as_printed_the_block_learns_from_the_entropy_alone() -> None:
    method = with_terms(printed_block, PRINTED, kl_gradient="anchor")
    assert method.placement.side == "query"
    assert reached(method, "contrast") == {"backbone", "projector"}
    assert reached(method, "iecl/kl") == {"backbone", "projector"}
    assert reached(method, "iecl/entropy") == {"backbone", "projector", "saib"}


@pytest.mark.parametrize("gradient", ["none", "cooperative", "reversed"])
@pytest.mark.parametrize("choices", [PRINTED, SYMMETRIC], ids=["one-sided", "symmetric"])
def test_the_momentum_copy_never_receives_a_gradient(gradient: str, choices: dict[str, object]) -> None:
    method = with_terms(printed_block, choices, host_gradient=gradient)
    assert "momentum" not in reached(method)
    assert not any(p.requires_grad for p in method.host.momentum.parameters())


@pytest.mark.parametrize(("gradient", "is_reached"), [("none", False), ("cooperative", True), ("reversed", True)])
def test_the_contrast_moves_the_block_only_where_the_setting_says_so(gradient: str, is_reached: bool) -> None:
    method = with_terms(printed_block, SYMMETRIC, host_gradient=gradient)
    assert ("saib" in reached(method, "contrast")) == is_reached


@pytest.mark.parametrize("weights", ["frozen", "redrawn"])
def test_a_block_that_is_not_learned_is_reached_by_nothing(weights: str) -> None:
    assert "saib" not in reached(with_terms(certified_block, SYMMETRIC, weights=weights))


def test_a_reversed_gradient_is_the_cooperative_one_turned_round_for_the_block_alone() -> None:
    mine, other = (
        gradients(with_terms(certified_block, SYMMETRIC, host_gradient=kind), "contrast")
        for kind in ("reversed", "cooperative")
    )
    assert torch.allclose(mine["saib.layers.0.coarse"], -other["saib.layers.0.coarse"], atol=1e-7)
    assert torch.allclose(mine["host.backbone.conv1.weight"], other["host.backbone.conv1.weight"], atol=1e-7)


# --- what each term does to the block, by the sign of its slope along the step that an optimizer takes ---


def slope(method: IECL, term: str) -> float:
    """How fast a term's own value changes when the block alone makes the optimizer's step for that term."""
    found = gradients(method, term)
    block = {name: g for name, g in found.items() if name.startswith("saib")}
    size, values = 1e-3 / max(g.norm().item() for g in block.values()), []
    for sign in (1, -1):
        copy = deepcopy(method)
        with torch.no_grad():
            for name, p in copy.named_parameters():
                if name in block:
                    p.sub_(sign * size * block[name])
        made = copy.step(views(like=copy), CLOCK)
        values.append(made.losses["contrast"].item() if term == "contrast" else made.readings[term].item())
    return values[0] - values[1]


@pytest.mark.parametrize("host_choices", [PRINTED, SYMMETRIC], ids=["one-sided", "symmetric"])
@pytest.mark.parametrize("host_gradient", ["none", "cooperative", "reversed"])
@pytest.mark.parametrize(("term", "sign"), [("iecl/entropy", 1), ("iecl/kl", -1)])
def test_the_block_climbs_entropy_and_descends_the_divergence_whatever_the_hosts_loss_does(
    host_choices: dict[str, object], host_gradient: str, term: str, sign: int
) -> None:
    method = with_terms(
        certified_block, host_choices, host_gradient=host_gradient, side="query", entropy_on="both", kl_gradient="both"
    )
    assert sign * slope(method.double(), term) > 0


@pytest.mark.parametrize(("host_gradient", "sign"), [("reversed", 1), ("cooperative", -1)])
def test_the_block_climbs_or_descends_the_hosts_loss_as_the_setting_says(host_gradient: str, sign: int) -> None:
    method = with_terms(certified_block, SYMMETRIC, host_gradient=host_gradient)
    assert sign * slope(method.double(), "contrast") > 0


@pytest.mark.parametrize("host_gradient", ["none", "reversed"])
@pytest.mark.parametrize("term", ["iecl/entropy", "iecl/kl"])
def test_a_gate_for_the_hosts_loss_changes_nothing_of_our_terms(host_gradient: str, term: str) -> None:
    choices = {"entropy_on": "both", "kl_gradient": "both"}
    gated, plain = (
        gradients(with_terms(certified_block, SYMMETRIC, host_gradient=kind, **choices).double(), term)
        for kind in (host_gradient, "cooperative")
    )
    assert gated.keys() == plain.keys()
    assert all(torch.allclose(gated[name], plain[name], atol=1e-12) for name in plain)


@pytest.mark.parametrize(("kl_gradient", "is_reached"), [("anchor", False), ("query", True), ("both", True)])
def test_the_divergence_moves_the_block_only_through_the_query(kl_gradient: str, is_reached: bool) -> None:
    method = with_terms(printed_block, PRINTED, kl_gradient=kl_gradient)
    assert ("saib" in reached(method, "iecl/kl")) == is_reached


def test_a_block_that_nothing_would_train_is_refused() -> None:
    with pytest.raises(UserError, match="nothing trains the block on the query side"):
        with_terms(printed_block, PRINTED, entropy="none", kl="none")
    with_terms(printed_block, PRINTED, entropy="none", kl="none", weights="frozen")


@pytest.mark.parametrize(("settings", "is_heard"), [(PRINTED, False), (SYMMETRIC, True)])
def test_a_gradient_that_does_not_reach_the_block_is_said(
    settings: dict[str, Any], is_heard: bool, caplog: pytest.LogCaptureFixture
) -> None:
    method = with_terms(printed_block, settings, host_gradient="cooperative")
    assert ("saib" in reached(method, "contrast")) == is_heard
    assert ("has no effect: saib.host_gradient" in caplog.text) != is_heard


def test_a_printed_block_without_terms_descends_the_hosts_loss() -> None:
    method = with_terms(printed_block, SYMMETRIC, entropy="none", kl="none")
    assert method.placement.sign == 1
    assert "saib" in reached(method, "contrast")


def test_weights_that_are_redrawn_are_others_at_each_step_and_the_same_at_the_same() -> None:
    method = with_terms(certified_block, SYMMETRIC, weights="redrawn")
    made = []
    for step in (3, 4, 3):
        method.step(views(), replace(CLOCK, step=step))
        made.append(method.saib.layers[0].coarse.clone())
    assert torch.equal(made[0], made[2])
    assert not torch.allclose(made[0], made[1])


def test_a_printed_block_that_is_to_be_redrawn_is_refused_before_the_first_step() -> None:
    with pytest.raises(UserError, match=r"only a certified block can be drawn again \(saib.weights = redrawn\)"):
        with_terms(printed_block, SYMMETRIC, weights="redrawn")


@pytest.mark.parametrize(("probability", "share"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_a_share_of_the_images_passes_the_block(probability: float, share: float) -> None:
    method, given = with_terms(certified_block, SYMMETRIC, probability=probability), views(count=400)
    moved = (method.placement.shape(given, CLOCK).images[1] - given.global_crops[1]).flatten(1).any(1)
    assert moved.float().mean().item() == pytest.approx(share, abs=0.1)


def test_a_drawn_strength_scales_the_change_of_each_image() -> None:
    given = views(count=64)
    full, drawn = (
        with_terms(certified_block, SYMMETRIC, strength=kind).placement.shape(given, CLOCK).images[1]
        - given.global_crops[1]
        for kind in ("constant", "uniform")
    )
    shares = (drawn / full).flatten(1)
    assert torch.allclose(shares, shares.mean(1, keepdim=True).expand_as(shares), atol=1e-2)
    assert 0.35 < shares.mean().item() < 0.65
    assert shares.min().item() >= -1e-3


@pytest.mark.parametrize(
    ("side", "online", "target"),
    [("query", [0, 1], [0, 1]), ("anchor", [1, 0], [1, 0]), ("both", [1, 1], [1, 1]), ("target", [0, 0], [1, 1])],
)
def test_the_block_is_on_the_side_that_was_asked_for(side: str, online: list[int], target: list[int]) -> None:
    method = with_terms(printed_block, SYMMETRIC, side=side, entropy_on="both")
    given = views()
    seen = method.placement.shape(given, CLOCK).views
    for crops, expected in ((seen.global_crops, online), (seen.targets, target)):
        assert [int(not torch.equal(*pair)) for pair in zip(crops, given.global_crops, strict=True)] == expected


@pytest.mark.parametrize("choices", [PRINTED, SYMMETRIC, {"queue_size": 16}], ids=["one-sided", "symmetric", "queue"])
def test_without_block_and_terms_the_wrapper_equals_its_host(choices: dict[str, object]) -> None:
    plain, wrapped = host(**choices), IECL(host(**choices))
    losses = plain.step(views(), CLOCK).losses, wrapped.step(views(), CLOCK).losses
    assert losses[0].keys() == losses[1].keys()
    assert torch.equal(losses[0]["contrast"], losses[1]["contrast"])


def test_each_weight_multiplies_its_term() -> None:
    light = with_terms(printed_block, PRINTED, entropy_weight=0.2, kl_weight=0.09).step(views(), CLOCK)
    heavy = with_terms(printed_block, PRINTED, entropy_weight=0.4, kl_weight=0.27).step(views(), CLOCK)
    assert heavy.losses["iecl/entropy"].item() == pytest.approx(2 * light.losses["iecl/entropy"].item(), rel=1e-5)
    assert heavy.losses["iecl/kl"].item() == pytest.approx(3 * light.losses["iecl/kl"].item(), rel=1e-5)
    assert light.losses["iecl/entropy"].item() == pytest.approx(-0.2 * light.readings["iecl/entropy"].item(), rel=1e-5)


@pytest.mark.parametrize("entropy", ["coding-rate", "gaussian-logdet", "knn", "renyi", "uniformity", "vmf-kde"])
@pytest.mark.parametrize("on", ["query", "anchor", "both"])
def test_every_entropy_gives_a_finite_gradient(entropy: str, on: str) -> None:
    found = gradients(with_terms(certified_block, SYMMETRIC, entropy=entropy, entropy_on=on), "iecl/entropy")
    assert found
    assert all(value.isfinite().all() for value in found.values())


@pytest.mark.parametrize(
    ("on", "kl", "passes"), [("anchor", "none", 1), ("query", "none", 2), ("both", "none", 2), ("anchor", "mmd", 2)]
)
def test_a_one_sided_host_encodes_its_query_only_for_a_term_that_needs_it(on: str, kl: str, passes: int) -> None:
    method = IECL(host(**PRINTED), None, ObjectiveSettings(entropy="coding-rate", entropy_on=on, kl=kl))
    seen: list[int] = []
    method.host.backbone.register_forward_hook(lambda *_: seen.append(1))
    method.step(views(), CLOCK)
    assert len(seen) == passes


@pytest.mark.parametrize("kl", ["gaussian-diag", "gaussian-full", "softmax", "printed", "knn", "mmd"])
def test_every_divergence_gives_a_finite_gradient(kl: str) -> None:
    found = gradients(with_terms(certified_block, SYMMETRIC, kl=kl, kl_gradient="both"), "iecl/kl")
    assert found
    assert all(value.isfinite().all() for value in found.values())


@pytest.mark.parametrize("encoder", ["orthogonality", "sigma-min", "srip"])
def test_a_penalty_on_the_encoder_moves_its_convolutions_only(encoder: str) -> None:
    method = IECL(host(**PRINTED), None, ObjectiveSettings(encoder=encoder))
    found = gradients(method, "iecl/encoder")
    kernels = {
        f"host.backbone.{name}.weight"
        for name, p in method.host.backbone.named_modules()
        if isinstance(p, torch.nn.Conv2d)
    }
    assert found
    assert found.keys() <= kernels  # sigma-min leaves a kernel alone whose singular values are all large enough


def test_spectral_norm_holds_on_both_encoders_after_steps() -> None:
    method = IECL(host(ema_momentum=Ramp.constant(0.9), **PRINTED), None, ObjectiveSettings(encoder="spectral-norm"))
    optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(10):
        sum(method.step(views(), CLOCK).losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        method.after_step(CLOCK)
    scales = list(spectral_scales(method))
    assert len(scales) == 24  # twelve convolutions, twice
    norms = [torch.linalg.matrix_norm(scale(kernel).flatten(1), ord=2).item() for scale, kernel in scales]
    assert norms == pytest.approx([1.0] * 24, abs=0.05)


def test_one_power_iteration_is_made_for_each_optimizer_step_and_none_in_a_forward_pass() -> None:
    method = IECL(host(**SYMMETRIC), None, ObjectiveSettings(encoder="spectral-norm"))
    before = [scale.u.clone() for scale, _ in spectral_scales(method.host.backbone)]
    method.step(views(), CLOCK)
    after = [scale.u for scale, _ in spectral_scales(method.host.backbone)]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    method.after_step(CLOCK)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_the_block_has_its_own_group_with_its_own_weight_decay() -> None:
    method = with_terms(printed_block, PRINTED, weight_decay=0.5)
    groups = {group.name: group for group in method.param_groups()}
    assert groups["saib"].weight_decay == 0.5
    assert {id(p) for p in groups["saib"].parameters} == {id(p) for p in method.saib.parameters()}
    assert len(groups["weights"].parameters) == sum(1 for p in method.host.parameters() if p.requires_grad)


def test_the_block_is_no_part_of_the_encoder() -> None:
    method = with_terms(printed_block, PRINTED)
    assert not any("saib" in name for name in method.encoder().state_dict())


@pytest.mark.parametrize(
    ("choices", "gradient", "side"),
    [
        (SYMMETRIC, "reversed", "query"),
        (PRINTED, "reversed", "anchor"),
        (PRINTED, "cooperative", "anchor"),
        (PRINTED, "none", "query"),
    ],
)
def test_the_block_takes_the_side_where_it_can_learn(choices: dict[str, object], gradient: str, side: str) -> None:
    method = with_terms(certified_block, choices, host_gradient=gradient, kl="none")
    assert method.placement.side == side
    assert "saib" in reached(method)


# --- the norm of the operator ---


def test_the_operator_norm_goes_on_the_encoder_and_on_its_momentum_copy() -> None:
    settings = ObjectiveSettings(encoder="spectral-norm", encoder_norm="operator")
    method = IECL(host(**PRINTED), None, settings, image_size=16)
    scales = [scale for scale, _ in spectral_scales(method)]
    assert len(scales) == 24
    assert all(scale.v.ndim == 4 for scale in scales)
    sum(method.step(views(), CLOCK).losses.values()).backward()
    method.after_step(CLOCK)


def test_the_operator_norm_asks_for_the_size_of_the_images() -> None:
    settings = ObjectiveSettings(encoder="spectral-norm", encoder_norm="operator")
    with pytest.raises(UserError, match=r"depends on the size of the images \(.* = operator\); give image_size="):
        IECL(host(**PRINTED), None, settings)


# --- the expansion of the block ---


@pytest.mark.parametrize("gradient", ["none", "cooperative", "reversed"])
def test_the_expansion_moves_the_block_alone_and_upwards_whatever_else_moves_it(gradient: str) -> None:
    saib = SAIBSettings(host_gradient=gradient)
    method = IECL(host(**SYMMETRIC), certified_block(), ObjectiveSettings(expansion="total"), saib)
    assert reached(method, "iecl/expansion") == {"saib"}
    optimizer = torch.optim.SGD(method.saib.parameters(), lr=0.3)
    readings = []
    for _ in range(8):
        step = method.step(views(), CLOCK)
        step.losses["iecl/expansion"].backward()
        optimizer.step()
        optimizer.zero_grad()
        readings.append(step.readings["iecl/expansion_total"].item())
    assert readings[-1] > readings[0]


@pytest.mark.parametrize("part", ["total", "rest"])
def test_the_expansion_is_a_loss_of_its_own_part_and_weight(part: str) -> None:
    settings = ObjectiveSettings(expansion=part, expansion_weight=0.7)
    made = IECL(host(**SYMMETRIC), certified_block(), settings).step(views(), CLOCK)
    assert made.losses["iecl/expansion"].item() == pytest.approx(-0.7 * made.readings[f"iecl/expansion_{part}"].item())
    assert made.readings["iecl/expansion_total"].item() > 0


def test_the_expansion_is_measured_on_the_images_and_noise_of_the_step() -> None:
    settings = ObjectiveSettings(expansion="total", expansion_images=3)
    method, given = IECL(host(**SYMMETRIC), certified_block(), settings), views()
    found = method.step(given, CLOCK).readings["iecl/expansion_total"].item()
    noise = method.placement.stream(given.positions[:3], CLOCK, 1)
    exact = method.saib.certificate(given.global_crops[1][:3], noise).exact_log_det.mean().item() / 768
    assert found == pytest.approx(exact, rel=0.1)  # one probe of each of three images


@pytest.mark.parametrize("block", [printed_block, lambda: None], ids=["printed", "none"])
def test_without_a_certified_block_the_expansion_is_refused(block: Callable[[], torch.nn.Module | None]) -> None:
    with pytest.raises(UserError, match=r"only a certified block .* \(objective.expansion = rest\); saib.form = cert"):
        IECL(host(**SYMMETRIC), block(), ObjectiveSettings(expansion="rest"))


# --- the gain of the block in the log ---


def sample_block() -> SAIB:
    torch.manual_seed(1)
    return SAIB(image_size=16, form="sample", patch_size=4)


@pytest.mark.parametrize("block", [certified_block, pytest.param(sample_block, marks=pytest.mark.slow), printed_block])
def test_the_gain_of_the_block_is_read_and_moves_nothing(block: Callable[[], torch.nn.Module]) -> None:
    method, given = IECL(host(**SYMMETRIC), block(), ObjectiveSettings()), views()
    method.step(given, CLOCK)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    found = method.meters()
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())
    if isinstance(method.saib, CertifiedSAIB):
        certificate = method.saib.certificate(given.global_crops[1], method.placement.stream(given.positions, CLOCK, 1))
        exact = certificate.exact_log_det.mean().item() / 768
    else:  # as one map of the whole batch
        exact = log_abs_det(method.saib.double(), given.global_crops[1].double(), is_mixing=True).item() / (8 * 768)
    assert found["iecl/gain_total"].item() == pytest.approx(exact, rel=0.05)
    assert found["iecl/gain_rest"].item() < found["iecl/gain_total"].item()


def test_an_expensive_gain_is_left_out_of_most_readings_and_no_block_gains_nothing() -> None:
    printed, certified = (
        IECL(host(**SYMMETRIC), block(), ObjectiveSettings()) for block in (printed_block, certified_block)
    )
    for method in (printed, certified):
        method.step(views(), CLOCK)
    assert [bool(printed.meters(number)) for number in range(5)] == [True, False, False, False, True]
    assert all(certified.meters(number) for number in range(3))
    assert IECL(host(**SYMMETRIC)).meters()["iecl/gain_total"].item() == 0


# --- mixed queries with mixed answers ---


def test_mixed_queries_are_told_to_the_host_and_targets_are_plain() -> None:
    given, settings = views(count=9), SAIBSettings(mix=1.0)
    seen = IECL(host(**SYMMETRIC), None, None, settings).placement.shape(given, CLOCK).views
    mixture = seen.mixture
    assert mixture.partner.tolist() == [1, 0, 3, 2, 5, 4, 7, 6, 8]
    assert mixture.share[8] == 1  # the odd one out
    assert (mixture.share >= 0.5).all()
    assert torch.equal(mixture.share[mixture.partner], mixture.share)
    share = mixture.share[:, None, None, None]
    query = given.global_crops[1]
    assert torch.allclose(seen.global_crops[1], share * query + (1 - share) * query[mixture.partner])
    assert torch.equal(seen.global_crops[0], given.global_crops[0])
    assert all(torch.equal(*pair) for pair in zip(seen.targets, given.global_crops, strict=True))


def test_the_loss_of_a_mixed_query_is_the_mixture_of_two_losses() -> None:
    method = IECL(host(**SYMMETRIC), None, None, SAIBSettings(mix=1.0)).double()
    given = views(like=method)
    seen = method.placement.shape(given, CLOCK).views
    z = normalize(method.host.project(seen.global_crops[1]), dim=1)
    keys = normalize(method.host.momentum(given.global_crops[0]), dim=1)
    log_p = (z @ keys.T / 0.2).log_softmax(1)
    share, partner = seen.mixture.share.double(), seen.mixture.partner
    rows = torch.arange(8)
    expected = -(share * log_p[rows, rows] + (1 - share) * log_p[rows, partner]).mean()
    plain = normalize(method.host.project(given.global_crops[0]), dim=1)
    others = normalize(method.host.momentum(given.global_crops[1]), dim=1)
    other = -(plain @ others.T / 0.2).log_softmax(1).diagonal().mean()
    assert method.step(given, CLOCK).losses["contrast"].item() == pytest.approx((expected + other).item() / 2, rel=1e-9)


@pytest.mark.parametrize("mix", [0.0, 0.4])
def test_queries_are_mixed_as_often_as_asked_for(mix: float) -> None:
    settings = SAIBSettings(mix=mix, form="certified", weights="frozen")
    placement = IECL(host(**SYMMETRIC), certified_block(), None, settings).placement
    mixture = placement.shape(views(count=1000), CLOCK).views.mixture
    assert (mixture is None) if mix == 0 else (mixture.share < 1).float().mean().item() == pytest.approx(mix, abs=0.06)


@pytest.mark.parametrize(("choices", "side"), [(PRINTED, "query"), (SYMMETRIC, "target")])
def test_mixtures_without_answers_are_refused(choices: dict[str, object], side: str) -> None:
    with pytest.raises(UserError, match=r"no answers for mixed queries \(saib.mix\); use moco-v2 with"):
        IECL(host(**choices), None, None, SAIBSettings(mix=0.5, side=side))


def test_a_queue_of_negatives_goes_with_mixtures() -> None:
    method = IECL(host(symmetric=True, queue_size=16), None, None, SAIBSettings(mix=1.0))
    losses = [method.step(views(seed=seed), CLOCK).losses["contrast"].item() for seed in (0, 1)]
    assert all(0 < loss < 10 for loss in losses)
