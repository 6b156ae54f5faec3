"""What a step costs, against counts by hand."""

import pytest
import torch
from torch import Tensor, nn

from iecl.errors import UserError
from iecl.training.config import make_config, with_data
from iecl.training.cost import Load, _share_out, cost_of, load_of, parts_of, views_of
from iecl.training.factory import build_method
from iecl.views.policies import ViewSpec

FLOAT = 4
"""Bytes."""


def test_flops_are_two_for_each_multiply_add() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8 * 8, 5))
    load = load_of(lambda: model(torch.randn(2, 3, 8, 8)), model)
    convolution = 2 * 4 * 8 * 8 * 3 * 3 * 3  # images, maps, pixels, channels, kernel
    linear = 2 * 4 * 8 * 8 * 5
    assert load.flops == 2 * (convolution + linear)


def test_saved_memory_is_what_each_layer_needs_for_its_gradient() -> None:
    # The first layer keeps its input, the sine its own input, the second layer the sine.
    model = nn.Sequential(nn.Linear(3, 5), Sine(), nn.Linear(5, 2))
    load = load_of(lambda: model(torch.randn(7, 3)), model)
    assert load.saved == FLOAT * 7 * (3 + 5 + 5)


def test_shared_memory_counts_once() -> None:
    # ReLU works in place: the layer after it and its own gradient look at the same memory.
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 2))
    assert load_of(lambda: model(torch.randn(7, 3)), model).saved == FLOAT * 7 * (3 + 5)


def test_memory_that_is_given_back_and_taken_again_counts_each_time() -> None:
    model = nn.Sequential(*(Sine() for _ in range(12)))
    start = torch.randn(100_000, requires_grad=True)
    assert load_of(lambda: model(start), model).saved == FLOAT * 12 * 100_000


def test_weights_and_passes_without_gradient_save_nothing() -> None:
    model = nn.Linear(3, 5)
    with torch.no_grad():
        assert load_of(lambda: model(torch.randn(7, 3)), model).saved == 0
    assert load_of(lambda: model.weight.sin().sum(), model).saved == 0


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin()


def test_what_does_not_grow_with_the_images_belongs_to_the_step() -> None:
    per_image, per_step = _share_out(Load(70, 1050), Load(120, 2050), images=2)
    assert (per_image, per_step) == (Load(25, 500), Load(20, 50))
    assert _share_out(Load(4, 0), Load(16, 0), images=2)[1] == Load(0, 0)  # a product between images


@pytest.mark.parametrize("name", ["moco-v2", "ie-cl", "random", "viewmaker"])
def test_parts_add_up_to_all_parameters_and_buffers(name: str) -> None:
    from dataclasses import replace

    flags = {"data": {"name": "shapes"}, "backbone": {"name": "resnet10-w16"}}
    config = make_config(method=name, flags=flags)
    data = replace(config.data, image_size=16, decode_size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    method = build_method(with_data(config, data), samples=8, classes=2)
    parts = parts_of(method)
    assert sum(part.weights for part in parts.values()) == sum(p.numel() for p in method.parameters())
    assert sum(part.trained for part in parts.values()) == sum(
        p.numel() for p in method.parameters() if p.requires_grad
    )
    assert sum(part.stored for part in parts.values()) == sum(b.numel() for b in method.buffers())
    backbone = next(part for name, part in parts.items() if name.endswith("backbone"))
    assert backbone.weights == sum(p.numel() for p in method.encoder().parameters())


def test_a_momentum_method_passes_its_backbone_twice() -> None:
    cost, floor = (cost_of(name, "resnet10-w16", 16) for name in ("moco-v2", "random"))
    # `random` has two passes of the backbone; momentum contrast has one online, one slow, and heads.
    assert floor.per_image.flops < cost.per_image.flops < 1.3 * floor.per_image.flops
    assert floor.per_image.saved == 0
    # The slow pass saves nothing.
    both = cost_of("barlow-twins", "resnet10-w16", 16)
    assert cost.per_image.saved < 0.6 * both.per_image.saved
    queue = cost.parts["queue"]
    assert (queue.weights, queue.stored) == (0, 256 * 128 + 1)
    assert cost.per_step.saved >= FLOAT * 256 * 128  # the copy of the queue, whatever the batch


def test_a_method_that_needs_many_images_is_measured_with_them() -> None:
    assert cost_of("w-mse", "resnet10-w16", 16).images == (64, 128)
    assert cost_of("vicreg", "resnet10-w16", 16).images == (2, 4)


def test_a_size_that_the_backbone_refuses_is_said_in_a_sentence() -> None:
    with pytest.raises(UserError, match="vit_b_16 does not take images of 32 px"):
        cost_of("random", "vit_b_16", 32)


def test_views_for_measuring_have_the_plan_of_the_method() -> None:
    views = views_of(ViewSpec(global_crops=3, local_crops=2), images=5, side=28)
    assert [tuple(x.shape) for x in views.global_crops] == [(5, 3, 28, 28)] * 3
    assert [tuple(x.shape) for x in views.local_crops] == [(5, 3, 12, 12)] * 2
