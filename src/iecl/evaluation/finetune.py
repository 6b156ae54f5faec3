"""Fine-tuning: the whole network with a fresh linear head learns from labels; the last epoch is reported."""

from collections.abc import Generator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from iecl import counter
from iecl.backbones.factory import width_of
from iecl.data.loader import Loader
from iecl.data.source import ChosenSource
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.contract import Evaluation, Scores, accuracies
from iecl.evaluation.features import CROPS, refuse_one_class
from iecl.evaluation.fit import Fit
from iecl.evaluation.linear_heads import LinearHeads
from iecl.evaluation.splits import RULE, Budget, fingerprint, hashes_of, labeled_part, names_of, published
from iecl.files import LARGEST
from iecl.settings import as_values, setting
from iecl.views.pipeline import make_views
from iecl.views.policies import ViewSpec

STEPS_PER_EPOCH, LEAST_BATCH = 10, 16
"""Steps that an epoch of few images takes, as long as that leaves so many images to a batch."""


@dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
    """How the network is trained; the defaults follow SimCLR's fine-tuning, at a batch of 256."""

    label_fraction: float = setting(1.0, "share of each class whose labels are known", above=0, high=1)
    epochs: int = setting(30, "passes over the labeled images", low=1)
    batch_size: int = setting(256, "images in a step, at most", low=2)
    lr: float = setting(0.05, "learning rate of the head; falls to 0 along half a cosine", above=0)
    backbone_lr: float = setting(0.05, "learning rate of the backbone, likewise", low=0)
    momentum: float = setting(0.9, "momentum of SGD, in Nesterov's form", above=0, high=1)
    weight_decay: float = setting(1e-4, "weight decay, of all weights", low=0)
    seed: int = setting(0, "decides which labels are known, the order and the crops", low=0, high=LARGEST)


def even_batch(images: int, most: int) -> int:
    """Images in a step, such that an epoch is divided into batches of one size and few images are left over.

    An epoch of few images still takes several steps, or 30 epochs would be as many steps; batch norm sets the limit.

    >>> [even_batch(images, most=256) for images in (50_000, 600, 100, 20, 3)]
    [255, 60, 14, 10, 3]
    """
    most = min(most, max(images // STEPS_PER_EPOCH, LEAST_BATCH))
    return max(2, images // -(-images // most))


class Network(nn.Module):
    """A backbone and a linear head on its features."""

    def __init__(self, backbone: nn.Module, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        width = width_of(backbone)
        self.head = nn.Linear(width, classes, device="meta").to_empty(device=next(backbone.parameters()).device)
        for weight in self.head.parameters():
            nn.init.zeros_(weight)  # nothing to draw; the first step gives the backbone no gradient, the second does

    def forward(self, x: Float[Tensor, "n 3 size size"]) -> Float[Tensor, "n classes"]:
        """Scores of the classes."""
        scores: Tensor = self.head(self.backbone(x))
        return scores


@dataclass(frozen=True)
class LabeledImages:
    """The images that a network learns from, and what identifies them."""

    names: list[str]
    """Of all training images that can be read and have a label."""
    part: Tensor
    """Which of these the network learns from."""
    loader: Loader
    classes: int

    @classmethod
    def of(cls, context: EvaluationContext, settings: FineTuneSettings) -> "LabeledImages":
        """The images that `share` and `seed` allow, of those that the pass for features could read."""
        train, source = context.train, context.train_images
        refuse_one_class(train.labels)
        classes = int(max(source.labels.max(), context.test_images.labels.max())) + 1
        names = names_of(source, train.index)
        part = labeled_part(train.labels, hashes_of(names), Budget(share=settings.label_fraction), settings.seed)
        loader = Loader(
            ChosenSource(source, train.index[part].numpy()),
            batch=even_batch(len(part), settings.batch_size),
            seed=counter.key(settings.seed, "finetune"),
            workers=context.data.num_workers,
            on_bad=context.skipped.__setitem__,
        )
        return cls(names, part, loader, classes)

    @property
    def chosen(self) -> list[str]:
        """What the images are called that the network learns from."""
        return published(self.names, [self.part])[0]


class FineTuning:
    """A copy of the backbone with a fresh head, and how it is trained."""

    def __init__(self, context: EvaluationContext, settings: FineTuneSettings, images: LabeledImages) -> None:
        self.context, self.settings, self.loader = context, settings, images.loader
        self.network = Network(deepcopy(context.model.backbone), images.classes).to(memory_format=torch.channels_last)
        self.network.requires_grad_(True).train()  # batch norm uses and learns the statistics of its batches
        parts = (self.network.backbone, settings.backbone_lr), (self.network.head, settings.lr)
        self.fit = Fit(
            network=self.network,
            optimizer=SGD(
                [{"params": list(part.parameters()), "lr": lr} for part, lr in parts],
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
                nesterov=True,
                foreach=True,
            ),
            epochs=settings.epochs,
            steps_per_epoch=self.loader.steps,
            purpose="finetune",
            seed=settings.seed,
            folder=context.place("finetune", as_values(settings), images.chosen, self.loader.source.labels.tolist()),
            line=context.line,
        )

    def run(self) -> None:
        """Train to the end."""
        with closing(self.loader):
            self.fit.run(self.batches, self.loss_of)

    def batches(self, first: int) -> Generator[tuple[Tensor, Tensor], None, None]:
        """From a step on, a random crop of each image of a batch, mirrored or not, and its label."""
        model, seed = self.context.model, counter.key(self.settings.seed, "finetune/crops")
        begun, done = divmod(first, self.loader.steps)
        for epoch in range(begun, self.settings.epochs):
            with closing(self.loader.epoch(epoch, done if epoch == begun else 0)) as batches:
                for batch in batches:
                    views = make_views(
                        batch,
                        CROPS,
                        ViewSpec(global_crops=1),
                        size=model.image_size,
                        mean=model.mean,
                        std=model.std,
                        seed=seed,
                        epoch=epoch,
                        layout=torch.channels_last,
                        device=self.context.device,
                    )
                    yield views.global_crops[0], views.labels

    def loss_of(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The mean cross-entropy of a batch."""
        x, labels = batch
        return cross_entropy(self.network(x), labels)


@final
class FineTune(Evaluation):
    """Accuracy of a copy of the network after training all of it; the model itself stays as it is."""

    Settings = FineTuneSettings
    is_frozen = False
    rereads = True

    def __init__(self, settings: FineTuneSettings) -> None:
        self.settings = settings

    @property
    def summary(self) -> str:
        """As in `finetune/1 sgd lr=0.05/0.05 wd=0.0001 batch=256 epochs=30 labels=100%`."""
        s = self.settings
        lrs = f"lr={s.lr:g}/{s.backbone_lr:g} wd={s.weight_decay:g}"
        return f"finetune/1 sgd {lrs} batch={s.batch_size} epochs={s.epochs} labels={100 * s.label_fraction:g}%"

    def measure(self, context: EvaluationContext) -> Scores:
        """Train a copy, test it once."""
        images = LabeledImages.of(context, self.settings)
        tuning = FineTuning(context, self.settings, images)
        tuning.run()
        network = tuning.network
        test = context.features(context.test_images, "test", network.backbone).labeled("test")
        head = LinearHeads(network.head.weight.detach()[None], network.head.bias.detach()[None])
        (metrics,) = head.evaluate(test)
        counts = {"n_train": len(images.part), "n_test": len(test), "classes": len(context.train_images.classes)}
        protocol = context.protocol | {"batch_norm": "trained, then running statistics", "features": "fine-tuned"}
        details: dict[str, Any] = {"batch_used": images.loader.batch}
        lists: dict[str, Any] = {}
        if self.settings.label_fraction < 1:
            name = Budget(share=self.settings.label_fraction).name
            details |= {"splits": {name: [fingerprint(images.chosen)]}, "split_rule": RULE}
            lists = {name: [images.chosen]}
        values = accuracies(metrics.top1, metrics.top5, counts["classes"])
        return Scores(values, counts, protocol, context.seen, details, metrics.right, lists)
