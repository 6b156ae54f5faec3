"""The two lines that others are compared with: labels, and no training at all."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from iecl import api
from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.methods.contract import DataFacts
from iecl.methods.random import Random, RandomSettings
from iecl.methods.supervised import Supervised, SupervisedSettings
from iecl.schedule import Clock
from iecl.views.pipeline import Views

CLOCK = Clock(seed=0, step=0, steps=10, epoch=0, epochs=1)


def views(labels: torch.Tensor) -> Views:
    noise = torch.Generator().manual_seed(0)
    full = tuple(torch.randn(len(labels), 3, 16, 16, generator=noise) for _ in range(2))
    return Views(full, torch.arange(len(labels)), labels, torch.arange(len(labels)))


def supervised(classes: int = 10, **choices: object) -> Supervised:
    torch.manual_seed(0)
    facts = DataFacts(8, classes, 16, (0.5,) * 3, (0.25,) * 3)
    return Supervised(make_backbone("resnet10-w16", 0), SupervisedSettings(**choices), facts)


@pytest.mark.parametrize(("classes", "value"), [(10, 2.302585093), (100, 4.605170186), (1000, 6.907755279)])
def test_equal_logits_cost_the_log_of_the_classes(classes: int, value: float) -> None:
    method = supervised(classes)
    for p in method.classifier.parameters():
        nn.init.zeros_(p)
    loss = method.step(views(torch.arange(8)), CLOCK).losses["classes"].item()
    assert loss == pytest.approx(value, abs=1e-5)
    assert loss == pytest.approx(math.log(classes), abs=1e-5)


def test_both_views_are_classified() -> None:
    method, labels = supervised(), torch.arange(8)
    made = method.step(views(labels), CLOCK)
    each = [nn.functional.cross_entropy(made.projections[name], labels).item() for name in ("anchor", "query")]
    assert each[0] != each[1]
    assert made.losses["classes"].item() == pytest.approx(sum(each) / 2)


def test_smoothing_raises_the_loss_of_a_sure_classifier() -> None:
    given = views(torch.zeros(8, dtype=torch.long))
    losses = []
    for smoothing in (0.0, 0.1):
        method = supervised(label_smoothing=smoothing)
        with torch.no_grad():
            method.classifier.bias[0] = 20.0
        losses.append(method.step(given, CLOCK).losses["classes"].item())
    assert losses[0] < 0.1 < losses[1]


@pytest.mark.parametrize(("classes", "has"), [(0, "no labels"), (1, "one class only")])
def test_images_without_classes_are_refused(classes: int, has: str) -> None:
    with pytest.raises(UserError, match=f"supervised training needs labels, these images have {has}") as caught:
        supervised(classes)
    assert "one folder for each class" in caught.value.do


def test_images_some_of_which_have_no_label_are_refused_before_the_first_step() -> None:
    facts = DataFacts(8, 10, 16, (0.5,) * 3, (0.25,) * 3, unlabeled=1)
    with pytest.raises(UserError, match="1 of 8 images have no label"):
        Supervised(make_backbone("resnet10-w16", 0), SupervisedSettings(), facts)


def test_a_run_on_images_without_labels_says_so(image_folder: Path, tiny: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="supervised training needs labels"):
        api.pretrain(
            str(image_folder),
            method="supervised",
            out=tmp_path / "run",
            backbone="resnet10-w16",
            batch_size=8,
            epochs=1,
            sets=[*tiny, "data.labels=none"],
            quiet=True,
        )


def random_method() -> Random:
    return Random(make_backbone("resnet10-w16", 0), RandomSettings())


def test_random_moves_no_weight_but_learns_the_statistics_of_its_batch_norms() -> None:
    method = random_method()
    before = {name: value.clone() for name, value in method.state_dict().items()}
    optimizer = torch.optim.AdamW([p for p in method.parameters() if p.requires_grad], lr=0.1)
    for _ in range(5):
        made = method.step(views(torch.full((8,), -1)), CLOCK)
        sum(made.losses.values()).backward()
        optimizer.step()
    moved = {name for name, value in method.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert all(name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked") for name in moved)


def test_random_has_one_weight_to_train_and_its_loss_reaches_it() -> None:
    method = random_method()
    assert [name for name, p in method.named_parameters() if p.requires_grad] == ["idle"]
    losses = method.step(views(torch.full((8,), -1)), CLOCK).losses
    sum(losses.values()).backward()
    assert method.idle.grad is not None
    assert [value.item() for value in losses.values()] == [0.0]


def test_random_features_have_unit_scale_only_after_the_statistics_are_known() -> None:
    method, x = random_method(), 5 + 3 * views(torch.arange(8)).global_crops[0]
    with torch.no_grad():
        unknown = method.eval().encoder()(x)
        method.train()
        for _ in range(50):
            known = method.encoder()(x)
        assert torch.allclose(method.eval().encoder()(x), known, rtol=0.2, atol=0.05)
        assert not torch.allclose(unknown, known, rtol=0.2, atol=0.05)


def test_a_block_before_a_random_backbone_still_gets_a_gradient() -> None:
    given = views(torch.full((8,), -1))
    anchor = given.global_crops[0].requires_grad_()
    random_method().step(given, CLOCK).projections["anchor"].sum().backward()
    assert anchor.grad is not None
