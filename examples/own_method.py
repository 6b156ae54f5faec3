"""Train with a method of your own, held to the same promises as those of iecl.

    python examples/own_method.py

On the command line it is `--method own_method:Agreement`, with settings as `--set method.weight=10`. A package may
declare it under a name of its own in pyproject.toml:

    [project.entry-points."iecl.methods"]
    agreement = "own_method:Agreement"
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import iecl
from iecl import parallel
from iecl.backbones.factory import width_of
from iecl.losses.variance_covariance import covariance_penalty, variance_hinge
from iecl.methods.contract import Method, MethodSettings, Step
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.testing import check_method
from iecl.views.pipeline import Views

SMALL: dict[str, Any] = {"backbone": "resnet10-w16", "epochs": 1, "batch_size": 64, "seed": 0, "augmentation": "crop"}


@dataclass(frozen=True, kw_only=True)
class AgreementSettings(MethodSettings):
    """What can be set, each with a default, a meaning and a range."""

    out_dim: int = setting(32, "length of a projection", low=1, high=4096)
    weight: float = setting(10.0, "of agreement, beside variety", above=0)


class Agreement(Method):
    """Views of an image agree, and the numbers of a projection vary and are not correlated.

    formula:
        loss = weight |z - z'|^2 + variance(z, z') + covariance(z, z')
    """

    Settings = AgreementSettings

    def __init__(self, backbone: nn.Module, settings: AgreementSettings) -> None:
        super().__init__()
        self.backbone, self.settings = backbone, settings
        self.projector = nn.Linear(width_of(backbone), settings.out_dim)

    def step(self, views: Views, clock: Clock) -> Step:
        """The losses of one batch; the trainer adds them up, and logs each."""
        features = self.backbone(torch.cat(views.global_crops[:2]))
        mine = self.projector(features).chunk(2)
        anchor, query = (parallel.gather(rows) for rows in mine)  # of all processes, with gradient
        losses = {
            "agreement": self.settings.weight * (anchor - query).square().mean(),
            "variance": variance_hinge(anchor) + variance_hinge(query),
            "covariance": covariance_penalty(anchor) + covariance_penalty(query),
        }
        return Step(losses, features, dict(zip(("anchor", "query"), mine, strict=True)))


class Told:
    """A callback: any object with `on_step_end`, `on_epoch_end` or `on_checkpoint`."""

    def on_epoch_end(self, moment: Any) -> None:
        """Say where the run stands."""
        print(f"epoch {moment.epoch + 1} of {moment.epochs}: {moment.step} steps")


def train(out: str = "runs/agreement", data: Any = "shapes", **how: Any) -> iecl.Run:
    """A short run."""
    return iecl.pretrain(data, out, method=Agreement, **(SMALL | how))


if __name__ == "__main__":
    check_method(Agreement, ["method.out_dim=8"])  # in your tests
    run = train(overwrite=True, callbacks=[Told()])
    print(f"kNN {100 * run.evaluate('knn')['top1']:.0f} %")
