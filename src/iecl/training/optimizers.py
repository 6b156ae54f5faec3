"""Optimizers over the named groups of a method: AdamW and SGD from torch, and LARS."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from iecl.methods.contract import ParamGroup
from iecl.training.settings import OptimizerSettings

COUNTER = "step"
"""What Adam calls the number of steps that a weight has made."""


def make_optimizer(groups: Iterable[ParamGroup], settings: OptimizerSettings, rate: float) -> Optimizer:
    """The optimizer of a run; biases and norms stand in groups of their own when they are not decayed."""
    rows = [row for group in groups for row in _rows(group, settings, rate)]
    if settings.name == "adamw":
        # One pass over the weights instead of a dozen. It would undo the scaling of 16-bit gradients by itself, when it
        # is too late to clip them.
        way = {"foreach": True} if settings.grad_clip else {"fused": True}
        return AdamW(rows, lr=rate, betas=(settings.momentum, settings.beta2), **way)
    if settings.name == "sgd":
        return SGD(rows, lr=rate, momentum=settings.momentum, foreach=True)
    return LARS(
        rows, lr=rate, momentum=settings.momentum, trust=settings.trust_coefficient, is_limited=settings.trust_clip
    )


def forget(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Drop what the optimizer remembers of parameters that were drawn again."""
    for parameter in parameters:
        optimizer.state.pop(parameter, None)


@torch.no_grad()
def recall(
    optimizer: Optimizer, saved: Mapping[str, Any], place: Callable[[Tensor, Tensor], Tensor] = lambda value, _: value
) -> None:
    """Give an optimizer what it remembered of each weight; the settings of its groups stay those of this run.

    `place` makes of what was saved what belongs to a weight.
    """
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
    for weight, kept in optimizer.state.items():
        for name, value in kept.items():
            if name != COUNTER:  # compiled loops go through a weight and its moments in the same order of memory
                kept[name] = torch.empty_like(weight).copy_(place(value, weight))


def remembered(optimizer: Optimizer) -> frozenset[str]:
    """Names of what an optimizer remembers of a weight once it has moved it."""
    return next(names for kind, names in REMEMBERED.items() if isinstance(optimizer, kind))


def moment_bytes(optimizer: Optimizer) -> int:
    """What an optimizer remembers of all its weights once it has moved them."""
    weights: int = sum(p.numel() * p.element_size() for group in optimizer.param_groups for p in group["params"])
    return len(remembered(optimizer) - {COUNTER}) * weights


def _rows(group: ParamGroup, settings: OptimizerSettings, rate: float) -> list[dict[str, Any]]:
    """One or two rows: what is decayed (and adapted, in LARS), and what is not.

    The loop sets each row's rate from its `peak` at each step.
    """
    peak = rate if group.rate is None else group.rate
    decay = settings.weight_decay if group.weight_decay is None else group.weight_decay
    thin = [p for p in group.parameters if p.ndim <= 1]  # biases, and scales and shifts of norms
    thick = [p for p in group.parameters if p.ndim > 1]
    decays = {"thick": decay, "thin": decay if settings.decay_norms else 0.0}
    rows = [
        {"params": some, "name": name, "weight_decay": decays[kind], "adapt": kind == "thick"}
        for some, name, kind in ((thick, group.name, "thick"), (thin, f"{group.name}/thin", "thin"))
    ]
    common: dict[str, Any] = {"lr": peak, "peak": peak, "is_constant": group.is_constant}
    if group.momentum is not None:
        is_adam = settings.name == "adamw"
        common |= {"betas": (group.momentum, settings.beta2)} if is_adam else {"momentum": group.momentum}
    return [row | common for row in rows if row["params"]]


class LARS(Optimizer):
    """SGD whose step is scaled, layer by layer, to a share of the weight's norm (You et al. 2017).

    w <- w - rate * momentum(q (g + decay w)) with q = trust |w| / |g + decay w|, and q = 1 where a norm is zero: the
    form of MoCo-v3, Barlow Twins and VICReg. Groups with `adapt` False (biases, norms) take the plain step.

    `is_limited` gives the form that solo-learn's CIFAR recipes take from NVIDIA's LARC: the norms of gradient and decay
    are added, not those vectors, and no weight moves further than plain SGD would move it:
    q = min(trust |w| / (|g| + decay |w|) / rate, 1).
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        trust: float = 1e-3,
        weight_decay: float = 0.0,
        is_limited: bool = False,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "trust": trust, "weight_decay": weight_decay, "adapt": True}
        super().__init__(params, defaults | {"is_limited": is_limited})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every weight once."""
        assert closure is None
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                self._step_group(group, weights)

    def _step_group(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        gradients = [p.grad for p in weights if p.grad is not None]
        pushes = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
        if group["adapt"]:
            torch._foreach_mul_(pushes, self._ratios(group, weights, gradients, pushes))
        for p in weights:
            if "momentum" not in self.state[p]:
                self.state[p]["momentum"] = torch.zeros_like(p)
        velocities = [self.state[p]["momentum"] for p in weights]
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, pushes)
        torch._foreach_add_(weights, velocities, alpha=-group["lr"])

    @staticmethod
    def _ratios(
        group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor], pushes: list[Tensor]
    ) -> list[Tensor]:
        """The factor q of each weight."""
        sizes, trust, decay = torch._foreach_norm(weights), group["trust"], group["weight_decay"]
        if group["is_limited"]:
            slopes = torch._foreach_norm(gradients)
            lengths = [slope + decay * size for slope, size in zip(slopes, sizes, strict=True)]
            ratios = [
                (trust * size / length / group["lr"]).clamp(max=1.0)
                for size, length in zip(sizes, lengths, strict=True)
            ]
        else:
            lengths = list(torch._foreach_norm(pushes))
            ratios = [trust * size / length for size, length in zip(sizes, lengths, strict=True)]
        return [
            torch.where((size > 0) & (length > 0), ratio, torch.ones_like(ratio))
            for size, length, ratio in zip(sizes, lengths, ratios, strict=True)
        ]


# AdamW is an Adam.
REMEMBERED: dict[type[Optimizer], frozenset[str]] = {
    Adam: frozenset({COUNTER, "exp_avg", "exp_avg_sq"}),
    SGD: frozenset({"momentum_buffer"}),
    LARS: frozenset({"momentum"}),
}
