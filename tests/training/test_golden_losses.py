"""What makes a step faster or smaller leaves its mathematics alone: the losses of ten steps, with and without it.

In 64 bits: in 32 the rounding of a gradient near 0 decides on the sign of a first step of AdamW, and after ten on
the third digit of the loss.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.schedule import Clock
from iecl.training.config import make_config, with_data
from iecl.training.cost import views_of
from iecl.training.factory import build_method
from iecl.training.optimizers import make_optimizer
from iecl.training.recomputation import recompute_blocks

METHODS = ("simclr", "moco-v3", "ie-cl")
SIDE, BATCH, STEPS = 16, 8, 10
WAYS = {
    "activations computed again": ["training.gradient_checkpointing=true"],
    "another memory layout": ["training.channels_last=false"],
    "optimizer in many passes": ["optimizer.grad_clip=1e9"],
}


def losses(method: str, sets: list[str]) -> list[float]:
    flags = {"data": {"name": "shapes"}, "backbone": {"name": "resnet10-w16"}, "training": {"batch_size": BATCH}}
    config = make_config(method=method, flags=flags, sets=sets)
    data = replace(config.data, image_size=SIDE, decode_size=SIDE, mean=(0.5,) * 3, std=(0.25,) * 3)
    config = with_data(config, data)
    layout = torch.channels_last if config.training.channels_last else torch.contiguous_format
    made = build_method(config, samples=64, classes=3).double().to(memory_format=layout)
    optimizer = make_optimizer(made.param_groups(), config.optimizer, 1e-3)
    torch.manual_seed(0)
    found = []
    for step in range(STEPS):
        clock = Clock(0, step, STEPS, 0, 1)
        views = views_of(made.views, BATCH, SIDE)
        full = [(x + 0.1 * torch.randn_like(x)).double().contiguous(memory_format=layout) for x in views.global_crops]
        total = sum(made.step(views.with_global_crops(*full), clock).losses.values())
        total.backward()
        made.after_backward(clock)
        optimizer.step()
        optimizer.zero_grad()
        made.after_step(replace(clock, step=step + 1))
        found.append(total.item())
    return found


@pytest.mark.parametrize("method", METHODS)
def test_ten_steps_have_the_same_losses(method: str) -> None:
    plain = losses(method, [])
    assert len(set(plain)) == STEPS  # something is learned, and no step is like another
    for way, sets in WAYS.items():
        assert losses(method, sets) == pytest.approx(plain, abs=1e-5), way


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_ten_compiled_steps_have_the_same_losses(method: str) -> None:
    assert losses(method, ["training.compile=true"]) == pytest.approx(losses(method, []), abs=1e-5)


def kept(backbone: nn.Module, x: torch.Tensor) -> int:
    """Numbers that a forward pass keeps for its backward pass, weights aside."""
    weights = {p.data_ptr() for p in backbone.parameters()}
    found: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights:
            found[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        backbone(x).sum().backward()
    return sum(found.values())


def test_blocks_that_compute_again_keep_less_and_change_nothing() -> None:
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    one, other = (make_backbone("resnet10-w16", 1) for _ in range(2))
    names = list(other.state_dict())
    assert recompute_blocks(other, "resnet10-w16") == 4
    assert list(other.state_dict()) == names
    assert kept(other, x) < 0.5 * kept(one, x)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert a.grad is not None
        assert torch.equal(a.grad, b.grad)
    state = one.state_dict()
    for name, tensor in other.state_dict().items():  # batch norm has counted the batch once
        assert torch.equal(tensor, state[name]), name


def test_a_network_without_blocks_says_so() -> None:
    with pytest.raises(UserError, match=r"plain is not made of blocks in a row.*\(training.gradient_checkpointing\)"):
        recompute_blocks(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), "plain")
