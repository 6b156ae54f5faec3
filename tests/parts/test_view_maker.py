"""The network that changes images: budget, noise, shapes."""

import pytest
import torch

from iecl.counter import Stream
from iecl.errors import UserError
from iecl.parts.view_maker import ViewMaker, _to_budget


def make(**choices: object) -> ViewMaker:
    torch.manual_seed(0)
    return ViewMaker(**{"budget": 0.05, "width": 4, **choices})


IMAGES = torch.rand(4, 3, 12, 10, generator=torch.Generator().manual_seed(0))


def test_each_image_is_changed_by_the_budget_on_average() -> None:
    size = make()(IMAGES, Stream(1, torch.arange(4))).abs().mean(dim=(1, 2, 3))
    assert size.tolist() == pytest.approx([0.05] * 4, rel=0.01)


def test_the_budget_bounds_the_mean_and_not_a_single_pixel() -> None:
    change = torch.zeros(1, 3, 8, 8)
    change[0, 0, 0, 0] = 0.9
    scaled = _to_budget(change, 0.05)
    assert scaled.max().item() > 1  # 0.05 of 192 numbers on one of them
    assert scaled.abs().mean().item() == pytest.approx(0.05, rel=0.03)


def test_no_change_stays_none() -> None:
    assert _to_budget(torch.zeros(1, 3, 8, 8), 0.05).abs().max() == 0


def test_noise_follows_the_stream_and_nothing_else() -> None:
    maker = make()
    one, two = Stream(1, torch.arange(4)), Stream(2, torch.arange(4))
    torch.manual_seed(5)
    first = maker(IMAGES, one)
    assert torch.equal(first, maker(IMAGES, one))
    assert not torch.allclose(first, maker(IMAGES, two), atol=1e-4)


def test_an_image_is_changed_for_its_position_and_not_for_its_row() -> None:
    maker, order = make(), torch.tensor([2, 0, 3, 1])
    first = maker(IMAGES, Stream(1, torch.arange(4)))
    turned = maker(IMAGES[order], Stream(1, order))
    assert torch.allclose(turned, first[order], atol=1e-6)


def test_every_weight_matters() -> None:
    maker = make()
    (maker(IMAGES, Stream(1, torch.arange(4))) * torch.randn_like(IMAGES)).sum().backward()
    assert [name for name, p in maker.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(UserError, match="at least 5×5 pixels, these are 4×9"):
        make()(torch.rand(1, 3, 4, 9), Stream(1, torch.arange(1)))


def test_noise_enters_with_the_image_and_in_every_block() -> None:
    # The published network: its first convolution reads one channel more than the image has.
    maker = make(blocks=2)
    assert maker.inward[0][0].in_channels == 4
    drawn = []
    maker.inward[0].register_forward_pre_hook(lambda _, given: drawn.append(given[0][:, 3]))
    for block in maker.blocks:
        block.register_forward_pre_hook(lambda _, given: drawn.append(given[0][:, -1]))
    maker(IMAGES, Stream(1, torch.arange(4)))
    assert [plane.shape[1:] for plane in drawn] == [(12, 10), (3, 3), (3, 3)]
    assert all(plane.min() >= 0 and plane.max() <= 1 and plane.std() > 0.1 for plane in drawn)
    assert not torch.equal(drawn[1], drawn[2])
    assert not torch.equal(drawn[0][0], drawn[0][1])  # each image has its own


def test_without_its_blocks_the_maker_still_has_noise() -> None:
    maker = make()
    torch.nn.init.zeros_(maker.up[0][0].weight[:, 16:])  # no way out for the planes of the blocks
    for block in maker.blocks:
        torch.nn.init.zeros_(block.stack[-1].weight)
    one, two = (maker(IMAGES, Stream(key, torch.arange(4))) for key in (1, 2))
    assert not torch.allclose(one, two, atol=1e-4)
