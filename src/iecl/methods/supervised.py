"""Supervised training: cross-entropy with the labels, the line that methods without labels are measured against."""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F  # noqa: N812, the name all torch code uses
from jaxtyping import Float
from torch import Tensor, nn

from iecl.backbones.factory import width_of
from iecl.errors import UserError
from iecl.methods.contract import DataFacts, Method, MethodSettings, Step
from iecl.schedule import Clock
from iecl.settings import setting
from iecl.views.pipeline import Views


@dataclass(frozen=True, kw_only=True)
class SupervisedSettings(MethodSettings):
    """One linear layer on the backbone."""

    label_smoothing: float = setting(0.0, "share of the target spread over all classes", low=0, high=1)


@final
class Supervised(Method):
    """A classifier on both views, so that a step shows the network as many images as the other methods' do.

    formula:
        logits = linear(backbone(view))
        loss = mean over both views of -log softmax(logits) at the label
    """

    Settings = SupervisedSettings
    needs_facts = True

    def __init__(self, backbone: nn.Module, settings: SupervisedSettings, facts: DataFacts) -> None:
        super().__init__()
        if facts.classes < 2:
            has = "no labels" if facts.classes == 0 else "one class only"
            raise UserError(
                f"supervised training needs labels, these images have {has}",
                where="--method supervised",
                do="sort the images into one folder for each class, or choose a method that needs no labels",
            )
        if facts.unlabeled:
            raise UserError(
                f"{facts.unlabeled:,} of {facts.samples:,} images have no label",
                where="--method supervised",
                do="put every image into the folder of its class",
            )
        self.backbone, self.settings = backbone, settings
        self.classifier = nn.Linear(width_of(backbone), facts.classes)

    def step(self, views: Views, clock: Clock) -> Step:
        """Classify the views, one after the other."""
        h = [self.backbone(view) for view in views.global_crops[:2]]
        logits = [self.classifier(features) for features in h]
        smoothing = self.settings.label_smoothing
        losses = [F.cross_entropy(some.float(), views.labels, label_smoothing=smoothing) for some in logits]
        return Step({"classes": torch.stack(losses).mean()}, torch.cat(h), {"anchor": logits[0], "query": logits[1]})

    def project(self, x: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n classes"]:
        """The logits of a view: there is no other projection."""
        logits: Tensor = self.classifier(self.backbone(x))
        return logits
