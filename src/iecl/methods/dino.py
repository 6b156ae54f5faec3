"""DINO: a student matches the centered, sharpened output of its own momentum copy (Caron et al. 2021)."""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.self_distillation import self_distillation
from iecl.methods.contract import Method, MethodSettings, Step
from iecl.parts.mlp import mlp
from iecl.parts.momentum_copy import MomentumCopy
from iecl.parts.multi_crop import encode_views
from iecl.parts.prototypes import Directions
from iecl.schedule import Clock, Ramp
from iecl.settings import setting
from iecl.views.pipeline import Views
from iecl.views.policies import ViewSpec

LEAST_CROP = 0.05
HEAD_DEVIATION = 0.02  # of a head's first weights, in the authors' code


@dataclass(frozen=True, kw_only=True)
class DINOSettings(MethodSettings):
    """Self-distillation; a loss that stays at log(prototypes) wants a lower teacher temperature."""

    hidden_dim: int = setting(2048, "width of the projector's hidden layers", low=1, high=65_536)
    out_dim: int = setting(256, "length of a projection, before the last layer", low=1, high=65_536)
    num_layers: int = setting(3, "linear layers of the projector", low=1, high=4)
    norm: bool = setting(False, "batch norm in the projector's hidden layers")
    num_prototypes: int = setting(65536, "outputs of the last layer", low=2)
    temperature: float = setting(0.1, "divides the student's cosines", above=0)
    teacher_temperature: float = setting(0.04, "divides the teacher's centered cosines", above=0)
    teacher_temperature_start: float = setting(0.04, "teacher temperature in the first epoch of its warm-up", above=0)
    teacher_warmup_epochs: int = setting(0, "epochs over which the teacher temperature changes; 0: it does not", low=0)
    center_momentum: float = setting(0.9, "share of the center kept at each step", low=0, high=1)
    ema_momentum: Ramp = setting(Ramp(start=0.996, end=1.0), "share of the teacher kept at each step", low=0, high=1)
    freeze_epochs: int = setting(1, "first epochs in which the last layer does not move", low=0)
    local_crops: int = setting(0, "small views, which only the student sees", low=0, high=64)
    crop_split: float = setting(0.14, "with small views: share of the area that parts their crops", above=0.05, high=1)


@final
class DINO(Method):
    """A student with gradient, a teacher that is its momentum copy, and a running mean of the teacher's output.

    formula:
        s = last(projector(backbone(view)));  t = momentum copy of all three, of the full views
        loss = mean over full views and other views of
               -sum softmax((t - center) / teacher_temperature) * log softmax(s / temperature)
        center <- c * center + (1 - c) * mean t, c = center_momentum
    """

    Settings = DINOSettings
    center: Tensor

    def __init__(self, backbone: nn.Module, settings: DINOSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = mlp(
            width_of(backbone),
            settings.hidden_dim,
            settings.out_dim,
            layers=settings.num_layers,
            norm=settings.norm,
            gelu=True,
        )
        for layer in self.projector:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=HEAD_DEVIATION)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)  # the projection has its direction from the image alone
        self.last = Directions(settings.num_prototypes, settings.out_dim)
        self.teacher = MomentumCopy(backbone, self.projector, self.last)
        self.register_buffer("center", torch.zeros(settings.num_prototypes))
        if settings.local_crops:
            split = settings.crop_split
            self.views = ViewSpec(
                local_crops=settings.local_crops, global_scale=(split, 1.0), local_scale=(LEAST_CROP, split)
            )

    def step(self, views: Views, clock: Clock) -> Step:
        """Cross-entropy of every student view to the teacher's other full views; then the center moves."""
        n = len(views.positions)
        h = encode_views(self.backbone, views)
        z = self.projector(h)
        students = self.last(z).unflatten(0, (-1, n))
        teachers = self.teacher(torch.cat(views.global_crops))
        loss = self_distillation(
            students,
            teachers.unflatten(0, (-1, n)),
            self.center.clone(),
            self.settings.temperature,
            self.teacher_temperature(clock),
        )
        self.center.lerp_(parallel.average(teachers.float().mean(0)), 1 - self.settings.center_momentum)
        return Step({"distill": loss}, h[: 2 * n], {"anchor": z[:n], "query": z[n : 2 * n]})

    def teacher_temperature(self, clock: Clock) -> float:
        """Linear over the epochs of the warm-up, from the start value to the final one."""
        settings = self.settings
        if clock.epoch >= settings.teacher_warmup_epochs:
            return settings.teacher_temperature
        way = clock.epoch / max(1, settings.teacher_warmup_epochs - 1)
        return (
            settings.teacher_temperature_start
            + (settings.teacher_temperature - settings.teacher_temperature_start) * way
        )

    def after_backward(self, clock: Clock) -> None:
        """Hold the last layer still at first, while there is little to distill."""
        if clock.epoch < self.settings.freeze_epochs:
            self.last.weight.grad = None

    def after_step(self, clock: Clock) -> None:
        """Move the teacher, once the optimizer has moved the student."""
        self.teacher.follow(self.backbone, self.projector, self.last, keep=self.settings.ema_momentum.at(clock))
