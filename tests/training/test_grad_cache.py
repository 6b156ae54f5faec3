"""A batch that passes the backbone in chunks is trained on as a whole: losses, gradients, and all that moves.

Dropout is on in every network here, and draws from torch's own generator: a second pass that drew anew would have wrong
gradients, and nobody would see it. The whole batch gets the very masks that the chunks drew.
"""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from iecl import testing
from iecl.backbones.factory import make_backbone
from iecl.methods import METHODS
from iecl.methods.contract import Method

HEADS = ["method.hidden_dim=16", "method.out_dim=8"]
PREDICTED = [*HEADS, "method.predictor_hidden_dim=16"]
SMALL: dict[str, list[str]] = {
    **dict.fromkeys(("ie-cl", "simclr", "swav", "dino", "deepcluster-v2", "light-moco"), HEADS),
    **dict.fromkeys(("barlow-twins", "vicreg", "viewmaker", "moco-v2"), HEADS),
    **dict.fromkeys(("moco-v3", "byol", "nnclr", "all4one", "simsiam", "matrix-ssl"), PREDICTED),
    "w-mse": ["method.hidden_dim=16", "method.out_dim=2"],
    "minent": ["method.hidden_dim=16", "method.heads=[8, 6]"],
    "s3oc": ["method.num_clusters=[8, 6]"],
    "deepcluster": ["method.num_clusters=5", "method.components=8"],
}
MORE: dict[str, list[str]] = {
    "light-moco": ["method.queue_size=32", "method.plain_epochs=0"],
    "moco-v2": ["method.queue_size=32"],
    "nnclr": ["method.queue_size=32"],
    "all4one": ["method.queue_size=32", "method.heads=2"],
    "swav": ["method.num_prototypes=6", "method.local_crops=2"],
    "dino": ["method.num_prototypes=6", "method.local_crops=2"],
    "deepcluster-v2": ["method.num_clusters=5", "method.local_crops=2"],
    "viewmaker": ["method.width=4"],
}
NORMED = ["objective.encoder=spectral-norm", "saib.form=certified", "saib.noise_scale=0.1"]
LEARNED = [*NORMED, "saib.weights=learned", "saib.budget_kind=rms", "objective.entropy=coding-rate"]
BLOCKS = {
    "a frozen block": [*NORMED, "saib.weights=frozen"],
    "a block that climbs": [*LEARNED, "saib.host_gradient=reversed"],
    "a block on both sides": [*LEARNED, "saib.side=both", "objective.kl=gaussian-diag", "method.symmetric=true"],
    "the norm of the operator": [*LEARNED, "objective.encoder_norm=operator", "method.queue_size=0"],
    "the printed block": ["objective.encoder=spectral-norm", "saib.form=batch", "objective.entropy=coding-rate"],
    "activations computed again": [*LEARNED, "training.gradient_checkpointing=true"],
}
CASES = {name: (name, []) for name in METHODS} | {
    f"ie-cl, {what}": ("ie-cl", ["method.queue_size=32", *sets]) for what, sets in BLOCKS.items()
}


class Masks(nn.Module):
    """torch's dropout; what it draws in a first pass is written down, and another network can be given it."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Tensor] = []
        self.given: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        if self.given:
            mask = torch.cat([self.given.pop(0) for _ in range(self._count(len(x)))])
        else:
            mask = dropout(torch.ones_like(x), 0.2)
            if torch._C._current_graph_task_id() < 0:  # not within a backward pass
                self.drawn.append(mask)
        return x * mask

    def _count(self, rows: int) -> int:
        sizes = torch.tensor([len(mask) for mask in self.given]).cumsum(0).tolist()
        return int(sizes.index(rows)) + 1


def without_batch_norm(*given: Any, **named: Any) -> nn.Module:
    """A backbone in which images do not meet, with dropout after every norm."""
    backbone = make_backbone(*given, **named)
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, nn.Sequential(nn.GroupNorm(4, child.num_features), Masks()))
    return backbone


def built(case: str, *more: str) -> Method:
    name, sets = CASES[case]
    sets = [*SMALL.get(name, []), *MORE.get(name, []), *sets, *more]
    with patch("iecl.training.factory.make_backbone", without_batch_norm):
        return testing.build(name, sets).double()


def masks(method: Method) -> list[Masks]:
    return [part for part in method.modules() if isinstance(part, Masks)]


def after_two_steps(method: Method, beside: Method | None = None) -> dict[str, Tensor]:
    """Losses and gradients of two steps, and every weight and buffer after them."""
    found, optimizer = {}, torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.01)
    if beside is not None:
        for mine, theirs in zip(masks(method), masks(beside), strict=True):
            mine.given = list(theirs.drawn)
    method.before_epoch(lambda encode: testing.survey(lambda x: encode(x.double())), testing.CLOCK)
    for step in range(2):
        clock, views = replace(testing.CLOCK, step=step), testing.noisy_views(method.views)
        full, small = (tuple((1 + step) * x.double() for x in some) for some in (views.global_crops, views.local_crops))
        losses = method.step(replace(views, global_crops=full, local_crops=small), clock).losses
        sum(losses.values()).backward()
        method.after_backward(clock)
        found |= {f"{name} of step {step}": value.detach() for name, value in losses.items()}
        found |= {f"slope of {n} in step {step}": p.grad for n, p in method.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        method.after_step(clock)
    return found | method.state_dict()


@pytest.mark.parametrize("case", CASES)
@patch.object(Tensor, "float", Tensor.double)  # what is widened to 32 bits is widened to 64 here
def test_chunks_take_the_steps_of_the_whole_batch(case: str) -> None:
    torch.manual_seed(0)
    chunked, whole = built(case, "training.grad_cache=3"), built(case, "training.gradient_checkpointing=false")
    found = after_two_steps(chunked)
    expected = after_two_steps(whole, beside=chunked)
    assert all(part.drawn for part in masks(chunked))
    assert not any(part.drawn or part.given for part in masks(whole))  # all of them were used, in their order
    assert found.keys() == expected.keys()
    far = {n: (found[n] - x).abs().max().item() for n, x in expected.items() if not torch.allclose(found[n], x, 1e-9, 1e-10)}
    assert not far
