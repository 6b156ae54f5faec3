from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from iecl.data.batch import Batch
from iecl.views.params import draw
from iecl.views.pipeline import Views, make_plain, make_views
from iecl.views.policies import POLICIES, Policy, ViewSpec
from iecl.views.transform import apply

Maker = Callable[[int, int, int], Tensor]
COLORS = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}


@pytest.fixture
def batch(make_images: Maker) -> Batch:
    return Batch(
        images=make_images(6, 16, 16),
        sizes=torch.full((6, 2), 16),
        labels=torch.arange(6) % 3,
        index=torch.arange(6) * 10,
        positions=torch.arange(6) + 100,
    )


def views_of(batch: Batch, policies: tuple[Policy, ...], count: int = 2, seed: int = 0, epoch: int = 0) -> Views:
    return make_views(batch, policies, ViewSpec(global_crops=count), size=12, seed=seed, epoch=epoch, **COLORS)


def test_each_view_follows_its_own_policy_in_turn(batch: Batch) -> None:
    policies = POLICIES["byol"]
    views = views_of(batch, policies, count=3)

    def expected(policy: Policy, view: int) -> Tensor:
        drawn = draw(policy, batch.sizes, batch.positions, seed=0, epoch=0, view=view)
        return apply(batch.images, drawn, 12, **COLORS)

    assert len(views.global_crops) == 3
    assert torch.equal(views.global_crops[0], expected(policies[0], 0))
    assert torch.equal(views.global_crops[1], expected(policies[1], 1))
    assert torch.equal(views.global_crops[2], expected(policies[0], 2))


@pytest.mark.parametrize("threads", [1, 2])
def test_torch_has_its_threads_back_after_views_are_made_and_after_an_error(batch: Batch, threads: int) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        views_of(batch, POLICIES["simclr"])
        assert torch.get_num_threads() == threads
        with pytest.raises(AttributeError):
            views_of(batch, (None,))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_two_views_of_one_policy_differ(batch: Batch) -> None:
    one, other = views_of(batch, POLICIES["simclr-small"]).global_crops
    assert ((one - other).flatten(1).abs().amax(dim=1) > 0.1).all()


def test_without_augmentation_every_view_is_the_image(batch: Batch) -> None:
    one, other = make_views(batch, POLICIES["none"], ViewSpec(), size=16, seed=0, epoch=0, **COLORS).global_crops
    assert torch.equal(one, other)
    assert torch.allclose(one, (batch.images / 255 - 0.5) / 0.25, atol=1e-4)


def test_views_repeat_with_the_seed_and_epoch_and_change_with_either(batch: Batch) -> None:
    policies = POLICIES["simclr-small"]
    first = views_of(batch, policies, seed=1, epoch=2).global_crops[0]
    assert torch.equal(first, views_of(batch, policies, seed=1, epoch=2).global_crops[0])
    assert not torch.allclose(first, views_of(batch, policies, seed=2, epoch=2).global_crops[0])
    assert not torch.allclose(first, views_of(batch, policies, seed=1, epoch=3).global_crops[0])


def test_half_a_batch_gets_the_views_it_has_in_the_whole(batch: Batch) -> None:
    half = Batch(**{name: value[3:] for name, value in vars(batch).items()})
    whole_batch, half_batch = (views_of(b, POLICIES["byol-small"]).global_crops[1] for b in (batch, half))
    assert torch.allclose(whole_batch[3:], half_batch, atol=1e-5)


def test_views_carry_what_the_batch_knows(batch: Batch) -> None:
    views = views_of(batch, POLICIES["crop"])
    assert (views.labels, views.index, views.positions) == (batch.labels, batch.index, batch.positions)


def test_replacing_the_views_keeps_the_rest(batch: Batch) -> None:
    views = views_of(batch, POLICIES["crop"])
    other = views.with_global_crops(torch.zeros(1))
    assert [x.tolist() for x in other.global_crops] == [[0.0]]
    assert (other.labels, other.index, other.positions) == (views.labels, views.index, views.positions)


@pytest.mark.parametrize(("height", "width"), [(40, 60), (60, 40), (40, 40)])
def test_the_plain_view_is_resize_and_center_crop(make_images: Maker, height: int, width: int) -> None:
    images = make_images(2, height, width)
    resized = tv.resize(images.float() / 255, [32], antialias=True)
    expected = (tv.center_crop(resized, [28, 28]) - 0.5) / 0.25
    plain = make_plain(images, torch.tensor([[height, width]] * 2), 28, share=0.875, **COLORS)
    # At the border theirs still sees pixels from outside the crop.
    inside = slice(2, -2)
    assert torch.allclose(plain[..., inside, inside], expected[..., inside, inside], atol=1e-4)


def test_the_plain_view_of_a_small_square_image_is_all_of_it(batch: Batch) -> None:
    plain = make_plain(batch.images, batch.sizes, 16, share=1.0, **COLORS)
    assert torch.allclose(plain, (batch.images / 255 - 0.5) / 0.25, atol=1e-4)


def test_small_views_are_tight_crops_of_a_smaller_side(batch: Batch) -> None:
    spec = ViewSpec(global_crops=2, local_crops=3, global_scale=(0.5, 1.0))
    views = make_views(batch, POLICIES["crop"], spec, size=14, seed=0, epoch=0, **COLORS)
    assert [x.shape[-1] for x in (*views.global_crops, *views.local_crops)] == [14, 14, 6, 6, 6]

    def expected(number: int, side: int, low: float, high: float) -> Tensor:
        policy = replace(POLICIES["crop"][0], scale=(low, high))
        return apply(
            batch.images, draw(policy, batch.sizes, batch.positions, seed=0, epoch=0, view=number), side, **COLORS
        )

    assert torch.equal(views.global_crops[1], expected(1, 14, 0.5, 1.0))
    assert torch.equal(views.local_crops[2], expected(4, 6, 0.05, 0.14))
