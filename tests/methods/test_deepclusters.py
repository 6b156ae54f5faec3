"""DeepCluster and DeepCluster-v2: labels, bank, heads, and what is left out."""

import logging

import pytest
import torch
from stepping import FACTS, SAMPLES, clock, gradients, make, survey, views_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from iecl.losses.pseudo_labels import NO_LABEL
from iecl.methods.deepcluster import DeepCluster
from iecl.methods.deepcluster_v2 import DeepClusterV2
from iecl.training.optimizers import make_optimizer
from iecl.training.settings import OptimizerSettings

ONE = {"num_clusters": 5, "components": 8, "iterations": 5}
TWO = {"hidden_dim": 16, "out_dim": 8, "num_clusters": 5, "num_clusterings": 2}
ROWS = list(range(8))


class Flat(nn.Module):
    """Features that are a few pixels: groups of images can be put where one wants them."""

    num_features = 4

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0, 0, :4].contiguous()


def grouped(encode: object) -> Tensor:
    """A survey of 20 images in one spot and 4 in another; the features are told, not computed."""
    rows = torch.eye(4)[[0] * 20 + [1] * 4]
    return rows + 0.01 * torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(0))


def test_v1_labels_every_image_and_draws_a_new_head_each_epoch() -> None:
    method = make(DeepCluster, **ONE)
    drawn = list(method.before_epoch(survey, clock(epoch=0)))
    assert {id(p) for p in drawn} == {id(method.head.weight), id(method.head.bias)}
    assert method.assigned.min() >= 0
    assert method.assigned.max() < 5
    first = method.head.weight.detach().clone()
    assert first.std().item() == pytest.approx(0.01, rel=0.2)
    assert not method.head.bias.any()
    method.before_epoch(survey, clock(epoch=1))
    assert not torch.equal(first, method.head.weight)
    method.before_epoch(survey, clock(epoch=0))
    assert torch.equal(first, method.head.weight)  # by counter: the epoch alone decides


def test_v1_looks_at_the_data_in_evaluation_mode_and_leaves_no_trace() -> None:
    method, modes = make(DeepCluster, **ONE), []
    before = {name: value.clone() for name, value in method.backbone.state_dict().items()}
    method.before_epoch(lambda encode: (modes.append(method.backbone.training), survey(encode))[1], clock())
    assert modes == [False]
    assert method.backbone.training
    assert all(torch.equal(value, before[name]) for name, value in method.backbone.state_dict().items())


def test_v1_weighs_clusters_the_same_whatever_their_size() -> None:
    method = make(DeepCluster, backbone=Flat(), num_clusters=2, components=1)
    method.before_epoch(grouped, clock())
    sizes = method.assigned.bincount(minlength=2)
    assert sorted(sizes.tolist()) == [4, 20]
    assert torch.allclose(method.shares * sizes, torch.full((2,), 12.0))
    assert method.shares[method.assigned].mean().item() == pytest.approx(1.0)
    index = [0, 1, 2, 20]
    made = method.step(views_of(index), clock())
    labels = method.assigned[index].repeat(2)
    costs = cross_entropy(method.head(made.features), labels, reduction="none")
    assert made.losses["label"].item() == pytest.approx((method.shares[labels] * costs).mean().item(), abs=1e-6)


def test_v1_gives_a_file_that_cannot_be_read_no_label_and_no_say() -> None:
    method = make(DeepCluster, **ONE)

    def holed(encode: object) -> Tensor:
        rows = survey(encode)  # type: ignore[arg-type]
        rows[3] = 0
        return rows

    method.before_epoch(holed, clock())
    assert method.assigned[3] == NO_LABEL
    assert (method.assigned == NO_LABEL).sum() == 1


def test_v1_trains_backbone_and_head() -> None:
    method = make(DeepCluster, **ONE)
    method.before_epoch(survey, clock())
    method.step(views_of(ROWS), clock()).losses["label"].backward()
    assert gradients(method) == {"backbone", "head"}


def test_v2_starts_from_a_plain_look_and_then_clusters_what_training_saw() -> None:
    method, calls = make(DeepClusterV2, **TWO), []

    def counted(encode: object) -> Tensor:
        calls.append((method.backbone.training, method.projector.training))
        return survey(encode)  # type: ignore[arg-type]

    method.before_epoch(counted, clock(epoch=0))
    assert (method.assigned >= 0).all()
    assert torch.equal(method.bank[0], method.bank[1])
    made = [method.step(views_of(index), clock()) for index in (ROWS, list(range(8, 16)))]
    anchors, queries = (torch.cat([step.projections[name] for step in made]) for name in ("anchor", "query"))
    assert torch.allclose(method.bank[0, :16], normalize(anchors, dim=1), atol=1e-6)
    assert torch.allclose(method.bank[1, :16], normalize(queries, dim=1), atol=1e-6)
    method.before_epoch(counted, clock(epoch=1))
    assert calls == [(False, False)]  # one look in the whole run, in evaluation mode
    assert (method.assigned[:, :16] >= 0).all()
    assert (method.assigned[:, 16:] == NO_LABEL).all()  # the last epoch left these out


def test_v2_clusterings_take_the_views_of_the_bank_in_turn() -> None:
    method = make(DeepClusterV2, **TWO, bank=2)
    method.before_epoch(survey, clock(epoch=0))
    for start in (0, 8, 16):
        method.step(views_of(list(range(start, start + 8))), clock())
    method.before_epoch(survey, clock(epoch=1))
    for number in range(2):
        nearest = (method.bank[number] @ method.centroids[number].T).argmax(1)
        assert torch.equal(method.assigned[number], nearest)
    assert torch.allclose(method.centroids.norm(dim=2), torch.ones(2, 5), atol=1e-5)


def test_v2_can_keep_the_anchor_alone_which_a_query_block_leaves_clean() -> None:
    method, given = make(DeepClusterV2, **TWO, bank=1), views_of(ROWS)
    twin = make(DeepClusterV2, **TWO, bank=1)
    for one in (method, twin):
        without_statistics(one)
        one.before_epoch(survey, clock())
    method.step(given, clock())
    twin.step(given.with_global_crops(given.global_crops[0], torch.randn_like(given.global_crops[1])), clock())
    assert torch.allclose(method.bank, twin.bank, atol=1e-6)


def without_statistics(method: nn.Module) -> None:
    """Evaluation mode in batch norms: one view must not reach another through them."""
    for part in method.modules():
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            part.eval()


def test_v2_predicts_its_label_from_every_view() -> None:
    method = make(DeepClusterV2, **TWO, local_crops=2)
    method.before_epoch(survey, clock())
    given = views_of(ROWS, small=2)
    made = method.step(given, clock())
    twin = make(DeepClusterV2, **TWO, local_crops=2)
    features = torch.cat([twin.backbone(torch.cat(some)) for some in (given.global_crops, given.local_crops)])
    unit = normalize(twin.projector(features), dim=1)
    wanted = [cross_entropy(unit @ method.centroids[h].T / 0.1, method.assigned[h, :8].repeat(4)) for h in range(2)]
    assert made.losses["label"].item() == pytest.approx(torch.stack(wanted).mean().item(), abs=1e-5)


def test_v2_costs_nothing_for_images_without_a_label() -> None:
    method = make(DeepClusterV2, **TWO)
    method.before_epoch(survey, clock())
    method.assigned[:, :8] = NO_LABEL
    loss = method.step(views_of(ROWS), clock()).losses["label"]
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad.abs().max() == 0 for p in method.parameters())


def test_v2_centroids_and_bank_are_saved_and_not_trained() -> None:
    method = make(DeepClusterV2, **TWO)
    assert {"bank", "seen", "centroids", "assigned"} <= method.state_dict().keys()
    method.before_epoch(survey, clock())
    method.step(views_of(ROWS), clock()).losses["label"].backward()
    assert gradients(method) == {"backbone", "projector"}


@pytest.mark.parametrize(("cls", "settings"), [(DeepCluster, ONE), (DeepClusterV2, TWO)])
def test_too_many_clusters_for_the_data_are_lowered_with_a_word(
    cls: type, settings: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "iecl.parts"):
        method = make(cls, facts=FACTS, **{**settings, "num_clusters": 3000})
    assert f"3000 clusters are too many for {SAMPLES} images: making 12" in caplog.text
    method.before_epoch(survey, clock())
    assert method.step(views_of(ROWS), clock()).losses["label"].isfinite()


def test_v2_with_small_views_cuts_full_ones_from_a_seventh_of_the_image_on() -> None:
    # facebookresearch/swav, deepclusterv2_800ep_pretrain.sh: 0.14 to 1 and 0.05 to 0.14. With two full views alone the
    # policy's own crops stay, 0.08 to 1 in deepclusterv2_400ep_2x224_pretrain.sh.
    views = make(DeepClusterV2, **TWO, local_crops=6).views
    assert (views.global_scale, views.local_scale) == ((0.14, 1.0), (0.05, 0.14))
    assert make(DeepClusterV2, **TWO).views.global_scale is None


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
def test_v1_moves_its_head_without_momentum(name: str) -> None:
    # facebookresearch/deepcluster, main.py: the head has an SGD of its own, which has no momentum.
    method = make(DeepCluster, **ONE)
    optimizer = make_optimizer(method.param_groups(), OptimizerSettings(name=name, momentum=0.9), 0.1)
    pace = {
        id(p): row["betas"][0] if name == "adamw" else row["momentum"]
        for row in optimizer.param_groups
        for p in row["params"]
    }
    head = {id(p) for p in method.head.parameters()}
    assert {pace[key] for key in head} == {0.0}
    assert {value for key, value in pace.items() if key not in head} == {0.9}
    assert len(pace) == len(list(method.parameters()))


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
def test_v1_steps_of_its_head_forget_the_last_gradient(name: str) -> None:
    method = make(DeepCluster, **ONE)
    optimizer = make_optimizer(method.param_groups(), OptimizerSettings(name=name, weight_decay=0.0), 0.1)
    for gradient in (1.0, 0.0):
        before = method.head.bias.detach().clone()
        for p in method.parameters():
            p.grad = torch.full_like(p, gradient)
        optimizer.step()
        assert torch.equal(method.head.bias, before) == (gradient == 0)
