"""Viewmaker: who climbs and who descends, the budget, the scale of the images."""

import pytest
import torch

from iecl.backbones.factory import make_backbone
from iecl.methods import viewmaker as module
from iecl.methods.contract import DataFacts
from iecl.methods.ie_cl import IECL
from iecl.methods.viewmaker import Viewmaker, ViewmakerSettings
from iecl.objective.settings import ObjectiveSettings
from iecl.schedule import Clock
from iecl.training.optimizers import make_optimizer
from iecl.training.settings import OptimizerSettings
from iecl.views.pipeline import Views

CLOCK = Clock(seed=0, step=0, steps=10, epoch=0, epochs=1)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def make(**choices: object) -> Viewmaker:
    torch.manual_seed(0)
    settings = ViewmakerSettings(**{"hidden_dim": 16, "out_dim": 8, "width": 4, **choices})
    return Viewmaker(make_backbone("resnet10-w16", 0), settings, DataFacts(8, 0, 16, MEAN, STD))


def views(count: int = 8, height: int = 16, width: int = 16, low: float = 0.2, high: float = 0.8) -> Views:
    """Normalized views of images with tones between `low` and `high`."""
    noise = torch.Generator().manual_seed(0)
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    tones = [low + (high - low) * torch.rand(count, 3, height, width, generator=noise) for _ in range(2)]
    return Views(
        tuple((x - mean) / std for x in tones), torch.arange(count), torch.full((count,), -1), torch.arange(count)
    )


def gradients(method: Viewmaker) -> dict[str, torch.Tensor]:
    method.zero_grad()
    method.step(views(), CLOCK).losses["contrast"].backward()
    return {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}


def test_one_backward_pass_gives_the_maker_the_gradient_of_minus_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    played = gradients(make())
    monkeypatch.setattr(module, "reverse_gradient", lambda x: x)
    plain = gradients(make())
    assert played.keys() == plain.keys()
    for name, gradient in played.items():
        sign = -1 if name.startswith("maker.") else 1
        assert torch.allclose(gradient, sign * plain[name], rtol=1e-4, atol=1e-7), name


def test_the_maker_climbs_and_the_encoder_descends() -> None:
    for part, climbs in (("maker.", True), ("backbone.", False)):
        method = make()
        chosen = [p for name, p in method.named_parameters() if name.startswith(part)]
        optimizer = torch.optim.SGD(chosen, lr=1e-2)
        losses = []
        for _ in range(10):
            loss = method.step(views(), CLOCK).losses["contrast"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert (losses[-1] > losses[0]) == climbs


def test_what_comes_before_the_maker_keeps_the_sign_of_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for reverse in (module.reverse_gradient, lambda x: x):
        monkeypatch.setattr(module, "reverse_gradient", reverse)
        given = views()
        anchor = given.global_crops[0].requires_grad_()
        make().step(given, CLOCK).losses["contrast"].backward()
        found.append(anchor.grad.clone())
    assert torch.allclose(*found)


@pytest.mark.parametrize("budget", [0.01, 0.05])
def test_the_mean_change_of_a_pixel_is_the_budget(budget: float) -> None:
    change = make(budget=budget).step(views(), CLOCK).readings["viewmaker/change"]
    assert change.item() == pytest.approx(budget, rel=0.02)


def test_tones_stay_between_black_and_white() -> None:
    method, given = make(budget=0.3), views(low=0.0, high=1.0)
    made = method._remake(given.global_crops[0], given, CLOCK, 0) * method.std + method.mean
    assert made.min().item() >= -1e-6
    assert made.max().item() <= 1 + 1e-6
    assert (made < 1e-6).any()


def test_views_of_one_image_differ_and_the_same_draw_repeats() -> None:
    method, given = make(), views()
    x = given.global_crops[0]
    first, again, other = (method._remake(x, given, CLOCK, number) for number in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=1e-4)
    later = method._remake(x, given, Clock(0, 5, 10, 1, 2), 0)
    assert not torch.allclose(first, later, atol=1e-4)


@pytest.mark.parametrize(("height", "width"), [(16, 24), (13, 9), (5, 8)])
def test_any_shape_of_image_works(height: int, width: int) -> None:
    method, given = make(), views(height=height, width=width)
    assert method._remake(given.global_crops[0], given, CLOCK, 0).shape == (8, 3, height, width)


def test_the_maker_has_its_own_constant_rate_and_no_decay() -> None:
    method = make(lr=0.003)
    optimizer = make_optimizer(method.param_groups(), OptimizerSettings(weight_decay=0.1), 1.0)
    own = {id(p) for p in method.maker.parameters()}
    rows = [row for row in optimizer.param_groups if id(row["params"][0]) in own]
    assert {id(p) for row in rows for p in row["params"]} == own
    assert {(row["peak"], row["weight_decay"], row["is_constant"]) for row in rows} == {(0.003, 0.0, True)}
    others = [row for row in optimizer.param_groups if id(row["params"][0]) not in own]
    assert {(row["peak"], row["is_constant"]) for row in others} == {(1.0, False)}


def test_spectral_norm_is_for_the_encoder_and_leaves_the_maker_alone() -> None:
    method = IECL(make(), objective=ObjectiveSettings(encoder="spectral-norm"))
    normalized = [name for name, _ in method.named_parameters() if "parametrizations" in name]
    assert normalized
    assert all(name.startswith("host.backbone.") for name in normalized)
