"""Directions to compare with, views of two sizes, evaluation for a while."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize
from torch.nn.utils.parametrizations import weight_norm

from iecl.parts.eval_mode import evaluating
from iecl.parts.multi_crop import encode_views
from iecl.parts.prototypes import Directions, Prototypes
from iecl.views.pipeline import Views


@pytest.mark.parametrize("kind", [Prototypes, Directions])
def test_scores_are_cosines_whatever_the_length_of_the_embedding(kind: type[nn.Module]) -> None:
    layer, z = kind(5, 3), torch.randn(4, 3)
    wanted = torch.cosine_similarity(z[:, None], layer.weight[None], dim=2)
    assert torch.allclose(layer(z), wanted, atol=1e-6)
    assert torch.allclose(layer(1000 * z), wanted, atol=1e-6)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]  # a bias would be free of the constraint


@pytest.mark.parametrize("kind", [Prototypes, Directions])
def test_autocast_does_not_shorten_the_cosines(kind: type[nn.Module]) -> None:
    layer, z = kind(5, 3), torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(z), layer(z.float()))


def test_prototypes_start_on_the_sphere_and_return_to_it() -> None:
    layer = Prototypes(6, 4)
    assert torch.allclose(layer.weight.norm(dim=1), torch.ones(6))
    with torch.no_grad():
        layer.weight += torch.randn(6, 4)
    moved = layer.weight.detach().clone()
    layer.renormalize()
    assert torch.allclose(layer.weight, normalize(moved, dim=1))
    assert layer.weight.requires_grad


def test_directions_are_a_weight_normed_layer_with_magnitude_one() -> None:
    layer, z = Directions(5, 3), normalize(torch.randn(4, 3), dim=1)
    other = weight_norm(nn.Linear(3, 5, bias=False))
    with torch.no_grad():
        other.parametrizations.weight.original0.fill_(1)
        other.parametrizations.weight.original1.copy_(layer.weight)
    push = torch.randn(4, 5)
    (layer(z) * push).sum().backward()
    (other(z) * push).sum().backward()
    assert torch.allclose(layer(z), other(z), atol=1e-6)
    assert torch.allclose(layer.weight.grad, other.parametrizations.weight.original1.grad, atol=1e-6)


def test_all_views_of_a_size_go_through_the_backbone_together() -> None:
    sizes = []

    class Backbone(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(tuple(x.shape))
            return x.mean((2, 3))

    full, small = torch.randn(2, 4, 3, 8, 8), torch.randn(3, 4, 3, 5, 5)
    rows = torch.arange(4)
    features = encode_views(Backbone(), Views(tuple(full), rows, rows, rows, tuple(small)))
    assert sizes == [(8, 3, 8, 8), (12, 3, 5, 5)]
    assert torch.equal(features, torch.cat([full.mean((3, 4)).flatten(0, 1), small.mean((3, 4)).flatten(0, 1)]))
    encode_views(Backbone(), Views(tuple(full), rows, rows, rows))
    assert sizes[2:] == [(8, 3, 8, 8)]


def test_evaluating_leaves_no_trace_even_after_an_error() -> None:
    norm, still = nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval()
    with pytest.raises(RuntimeError), evaluating(nn.Sequential(norm, still)):
        norm(torch.randn(4, 2) + 5) @ torch.ones(3)  # two columns meet three rows
    assert (norm.training, still.training) == (True, False)
    assert torch.equal(norm.running_mean, torch.zeros(2))
