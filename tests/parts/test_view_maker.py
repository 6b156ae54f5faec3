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
