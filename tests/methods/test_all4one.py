"""All4One: three terms, what each moves, and the order of the queue."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.losses.feature_redundancy import feature_redundancy
from iecl.losses.info_nce import info_nce
from iecl.methods.all4one import All4One, All4OneSettings
from iecl.parts.neighbors import nearest_rows
from iecl.schedule import Clock, Ramp
from iecl.training.checkpoint_check import refuse, unfit_tensors
from iecl.views.pipeline import Views

CLOCK = Clock(seed=0, step=0, steps=10, epoch=0, epochs=1)


def build(**choices: object) -> All4One:
    torch.manual_seed(0)
    settings = {"hidden_dim": 16, "out_dim": 8, "predictor_hidden_dim": 16, "queue_size": 24, "heads": 2, **choices}
    return All4One(make_backbone("resnet10-w16", 0), All4OneSettings(**settings))


def views(count: int = 8) -> Views:
    noise = torch.Generator().manual_seed(0)
    full = tuple(torch.randn(count, 3, 16, 16, generator=noise) for _ in range(2))
    return Views(full, torch.arange(count), torch.full((count,), -1), torch.arange(count))


def reached(method: All4One, term: str) -> set[str]:
    method.zero_grad()
    method.step(views(), CLOCK).losses[term].backward()
    found = {n for n, p in method.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    return {name.split(".")[0] for name in found}


@pytest.mark.parametrize(
    ("term", "parts"),
    [
        ("neighbor", {"backbone", "projector", "predictor"}),
        ("centroid", {"backbone", "projector", "centroid_predictor", "summary"}),
        ("feature", {"backbone", "projector"}),
    ],
)
def test_each_term_moves_its_own_parts_and_never_the_momentum_copy(term: str, parts: set[str]) -> None:
    assert reached(build(), term) == parts


def test_the_terms_are_those_of_the_algorithm_with_their_weights() -> None:
    method, (anchor, query) = build(neighbor_weight=0.3, centroid_weight=0.7, feature_weight=0.2), views().global_crops
    past, z = method.queue.read(), [method.project(x) for x in (anchor, query)]
    k = [normalize(method.momentum(x), dim=1) for x in (anchor, query)]
    near = [nearest_rows(x, past, 5) for x in k]
    p, own = [method.predictor(x) for x in z], [method.centroid_predictor(x) for x in z]
    c = [method.summary(x) for x in near]
    s = [method.summary(torch.cat([own[i][:, None], near[i][:, :4]], dim=1)) for i in (0, 1)]
    expected = {
        "neighbor": 0.3 / 2 * (info_nce(near[0][:, 0], p[1], 0.2) + info_nce(near[1][:, 0], p[0], 0.2)),
        "centroid": 0.7 / 2 * (info_nce(c[0], s[1], 0.1) + info_nce(c[1], s[0], 0.1)),
        "feature": 0.2 * feature_redundancy(z[0], z[1], k[0], k[1]),
    }
    made = method.step(views(), CLOCK).losses
    assert made.keys() == expected.keys()
    assert {n: v.item() for n, v in made.items()} == pytest.approx({n: v.item() for n, v in expected.items()}, rel=1e-4)


def test_the_anchors_keys_enter_the_queue_after_the_loss() -> None:
    method = build(queue_size=8, num_neighbors=2)
    keys = normalize(method.momentum(views().global_crops[0]), dim=1)
    method.step(views(), CLOCK)
    assert torch.allclose(method.queue.rows, keys, atol=1e-5)


def test_a_step_draws_no_random_numbers() -> None:
    method, before = build(), torch.get_rng_state()
    before = torch.get_rng_state()
    method.step(views(), CLOCK)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_copy_follows_after_the_step() -> None:
    method = build(ema_momentum=Ramp.constant(0.5))
    before = method.momentum.parts[0].conv1.weight.clone()
    torch.nn.init.constant_(method.backbone.conv1.weight, 1.0)
    method.after_step(CLOCK)
    assert torch.allclose(method.momentum.parts[0].conv1.weight, (before + 1) / 2)


@pytest.mark.parametrize(("rate", "group_rate"), [(0.0, None), (0.1, 0.1)])
def test_the_transformer_may_have_its_own_rate(rate: float, group_rate: float | None) -> None:
    method = build(transformer_lr=rate)
    groups = {group.name: group for group in method.param_groups()}
    assert {name: group.rate for name, group in groups.items()} == {"weights": None, "transformer": group_rate}
    assert {id(p) for p in groups["transformer"].parameters} == {id(p) for p in method.summary.parameters()}
    trainable = [p for p in method.parameters() if p.requires_grad]
    assert sum(len(group.parameters) for group in groups.values()) == len(trainable)


def test_heads_that_do_not_divide_the_projection_are_refused() -> None:
    with pytest.raises(UserError, match="vectors of 8 cannot be shared by 3 attention heads"):
        build(heads=3)


def test_places_run_along_the_features_with_one_wave_for_each_vector() -> None:
    # solo-learn's code for 5 neighbors: feature f of vector t is sin (even t) or cos (odd t) of
    # f / 10000^(2 (t // 2) / 6).
    places = build(out_dim=16).summary.places
    assert places.shape == (5, 16)
    for vector, (wave, rate) in enumerate([("sin", 0), ("cos", 0), ("sin", 2), ("cos", 2), ("sin", 4)]):
        expected = [getattr(math, wave)(feature / 10_000 ** (rate / 6)) for feature in range(16)]
        assert places[vector].tolist() == pytest.approx(expected, abs=1e-5), vector


def test_a_checkpoint_with_places_along_the_sequence_is_refused_with_one_line() -> None:
    method = build()
    state = {name: value for name, value in method.state_dict().items() if name != "summary.places"}
    assert len(state) == len(method.state_dict()) - 1  # the code is saved, or an old one would go unnoticed
    with pytest.raises(UserError, match="position code of All4One"):
        refuse(list(unfit_tensors(state, method.state_dict())))
