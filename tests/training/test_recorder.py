"""What is written down of a step: what it gives, and nothing that it does not."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import iecl
from iecl.backbones.factory import width_of
from iecl.methods import METHODS
from iecl.methods.contract import Method, MethodSettings, Step
from iecl.registry import Entry
from iecl.schedule import Clock
from iecl.views.pipeline import Views


class Bare(Method):
    """Pulls the features of two views to a common point, and makes no projections."""

    Settings = MethodSettings

    def __init__(self, backbone: nn.Module, settings: MethodSettings) -> None:
        super().__init__()
        self.backbone, self.point = backbone, nn.Parameter(torch.zeros(width_of(backbone)))

    def step(self, views: Views, clock: Clock) -> Step:
        h = torch.cat([self.backbone(x) for x in views.global_crops[:2]])
        return Step({"pull": (h - self.point).square().mean()}, h)

    def project(self, x: Tensor) -> Tensor:
        made: Tensor = self.backbone(x)
        return made

    def encoder(self) -> nn.Module:
        return self.backbone


def test_a_method_without_projections_trains_and_leaves_out_what_needs_them(
    image_folder: Path, tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "bare", Entry(f"{__name__}:Bare", "no projections"))
    (tmp_path / "bare.toml").write_text('[method]\nname = "bare"\n')
    run = iecl.pretrain(
        image_folder,
        tmp_path / "run",
        recipe=str(tmp_path / "bare.toml"),
        backbone="resnet10-w16",
        epochs=1,
        batch_size=8,
        sets=tiny,
        quiet=True,
    )
    assert run.summary["finished"]
    meters = {name for row in run.metrics for name in row if name.startswith("meter/")}
    assert meters == {"meter/effective_rank", "meter/feature_std"}
