import pytest
import torch
from torch import nn

from iecl.methods.contract import ParamGroup
from iecl.training.optimizers import LARS, forget, make_optimizer
from iecl.training.settings import OptimizerSettings


def parameter(*values: float, gradient: tuple[float, ...]) -> nn.Parameter:
    made = nn.Parameter(torch.tensor([values], dtype=torch.float64))
    made.grad = torch.tensor([gradient], dtype=torch.float64)
    return made


def test_lars_takes_the_published_share_of_the_weights_norm() -> None:
    # |w| = 5, g + 0.1 w = (1.1, -0.2), its norm 1.118034: q = 1e-3 * 5 / 1.118034 = 0.00447214.
    w = parameter(3, 4, gradient=(0.8, -0.6))
    LARS([w], lr=1.0, momentum=0.0, trust=1e-3, weight_decay=0.1).step()
    expected = torch.tensor([[3 - 0.00447214 * 1.1, 4 + 0.00447214 * 0.2]], dtype=torch.float64)
    assert torch.allclose(w.detach(), expected, atol=1e-7)


def test_lars_with_a_zero_weight_takes_the_plain_step() -> None:
    w = parameter(0, 0, gradient=(1, 2))
    LARS([w], lr=0.5, momentum=0.0).step()
    assert w.tolist() == [[-0.5, -1.0]]


def test_limited_lars_adds_the_norms_of_gradient_and_decay() -> None:
    # |g| + 0.1 |w| = 1 + 0.5: q = 1e-3 * 5 / 1.5 = 0.00333333, divided by the rate of 1.
    w = parameter(3, 4, gradient=(0.8, -0.6))
    LARS([w], lr=1.0, momentum=0.0, trust=1e-3, weight_decay=0.1, is_limited=True).step()
    expected = torch.tensor([[3 - 0.00333333 * 1.1, 4 + 0.00333333 * 0.2]], dtype=torch.float64)
    assert torch.allclose(w.detach(), expected, atol=1e-7)


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 0.5, 2.0])
def test_limited_lars_never_steps_further_than_sgd_nor_than_its_trust(rate: float) -> None:
    w = parameter(3, 4, gradient=(0.8, -0.6))
    LARS([w], lr=rate, momentum=0.0, trust=1e-3, is_limited=True).step()
    moved = (w.detach() - torch.tensor([[3.0, 4.0]], dtype=torch.float64)).norm().item()
    assert moved == pytest.approx(min(rate * 1.0, 1e-3 * 5))


def test_limited_lars_with_a_zero_weight_takes_the_plain_step() -> None:
    w = parameter(0, 0, gradient=(1, 2))
    LARS([w], lr=2.0, momentum=0.0, is_limited=True).step()
    assert w.tolist() == [[-2.0, -4.0]]


@pytest.mark.parametrize("is_limited", [False, True])
def test_lars_agrees_with_a_slow_loop_over_many_steps(is_limited: bool) -> None:
    noise = torch.Generator().manual_seed(0)
    start = [torch.randn(3, 4, generator=noise, dtype=torch.float64) for _ in range(2)]
    slopes = [[torch.randn(3, 4, generator=noise, dtype=torch.float64) for _ in start] for _ in range(6)]
    fast = [nn.Parameter(w.clone()) for w in start]
    optimizer = LARS(fast, lr=0.3, momentum=0.9, trust=0.05, weight_decay=0.2, is_limited=is_limited)
    slow, past = [w.clone() for w in start], [torch.zeros(3, 4, dtype=torch.float64) for _ in start]
    for number, gradients in enumerate(slopes):
        rate = 0.3 / (number + 1)  # a schedule: the limit follows the rate of the moment
        optimizer.param_groups[0]["lr"] = rate
        for p, g in zip(fast, gradients, strict=True):
            p.grad = g.clone()
        optimizer.step()
        for i, g in enumerate(gradients):
            w, size = slow[i], float(slow[i].pow(2).sum()) ** 0.5
            if is_limited:
                q = 0.05 * size / (float(g.pow(2).sum()) ** 0.5 + 0.2 * size)
                q = min(q / rate, 1.0)
            else:
                q = 0.05 * size / float((g + 0.2 * w).pow(2).sum()) ** 0.5
            past[i] = 0.9 * past[i] + q * (g + 0.2 * w)
            slow[i] = w - rate * past[i]
    assert all(torch.allclose(p.detach(), w, atol=1e-12) for p, w in zip(fast, slow, strict=True))


def test_the_limit_comes_from_the_settings_and_leaves_thin_weights_alone() -> None:
    module = nn.Linear(2, 2)
    made = make_optimizer(
        [ParamGroup("weights", list(module.parameters()))], OptimizerSettings(name="lars", trust_clip=True), 0.1
    )
    assert [(g["is_limited"], g["adapt"]) for g in made.param_groups] == [(True, True), (True, False)]


def test_lars_carries_its_momentum() -> None:
    w = parameter(3, 4, gradient=(0.8, -0.6))
    optimizer = LARS([{"params": [w], "adapt": False}], lr=1.0, momentum=0.5)
    optimizer.step()
    optimizer.step()  # 1 + 1.5 times the gradient
    assert w.tolist() == [pytest.approx([3 - 2.5 * 0.8, 4 + 2.5 * 0.6])]


@pytest.mark.parametrize("name", ["adamw", "sgd", "lars"])
def test_biases_and_norms_are_not_decayed_unless_asked(name: str) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    groups = [ParamGroup("weights", list(module.parameters()))]
    made = make_optimizer(groups, OptimizerSettings(name=name, weight_decay=0.3), 0.1)
    assert [(g["name"], g["weight_decay"], len(g["params"])) for g in made.param_groups] == [
        ("weights", 0.3, 1),
        ("weights/thin", 0.0, 3),
    ]
    decayed = make_optimizer(groups, OptimizerSettings(name=name, weight_decay=0.3, decay_norms=True), 0.1)
    assert {g["weight_decay"] for g in decayed.param_groups} == {0.3}


def test_a_group_may_bring_its_own_decay() -> None:
    groups = [ParamGroup("saib", [nn.Parameter(torch.zeros(2, 2))], weight_decay=1e-4)]
    (group,) = make_optimizer(groups, OptimizerSettings(weight_decay=0.3), 0.1).param_groups
    assert group["weight_decay"] == 1e-4


def test_the_rate_follows_the_batch_only_where_the_rule_says_so() -> None:
    assert OptimizerSettings(lr=0.3, lr_base_batch=256).peak(512) == pytest.approx(0.6)
    assert OptimizerSettings(lr=0.3).peak(512) == 0.3


@pytest.mark.parametrize("name", ["adamw", "sgd", "lars"])
def test_every_optimizer_goes_downhill(name: str) -> None:
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(4, 4))
    optimizer = make_optimizer(
        [ParamGroup("weights", [w])], OptimizerSettings(name=name, trust_coefficient=0.1, weight_decay=0), 0.05
    )
    start = w.square().sum().item()
    for _ in range(20):
        optimizer.zero_grad()
        w.square().sum().backward()
        optimizer.step()
    assert w.square().sum().item() < 0.8 * start


def test_a_group_may_bring_its_own_rate() -> None:
    own, common = (
        ParamGroup(n, [nn.Parameter(torch.zeros(2, 2))], rate=r) for n, r in (("own", 0.7), ("common", None))
    )
    made = make_optimizer([own, common], OptimizerSettings(), 0.1)
    assert [(g["lr"], g["peak"]) for g in made.param_groups] == [(0.7, 0.7), (0.1, 0.1)]


def test_a_weight_drawn_anew_has_no_past() -> None:
    old, new = parameter(1, gradient=(1.0,)), parameter(1, gradient=(1.0,))
    optimizer = make_optimizer([ParamGroup("weights", [old, new])], OptimizerSettings(name="sgd", weight_decay=0), 0.1)
    optimizer.step()
    forget(optimizer, [new])
    optimizer.step()  # the velocity of the old one is 1 + 1.9, of the new one 1 + 1
    assert (old.item(), new.item()) == (pytest.approx(1 - 0.29), pytest.approx(1 - 0.2))
