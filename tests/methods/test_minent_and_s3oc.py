"""MinEnt and S3OC: heads, targets, cascade, gradient."""

import pytest
import torch
from stepping import clock, gradients, make, views_of

from iecl.errors import UserError
from iecl.losses.minimum_entropy import minimum_entropy, nearest_one_hot
from iecl.methods.minent import MinEnt
from iecl.methods.s3oc import S3OC
from iecl.settings import build

ROWS = list(range(8))


def loss_of(first: torch.Tensor, second: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    return minimum_entropy(first, second, nearest_one_hot(first), nearest_one_hot(second), temperature)


def test_minent_is_the_mean_over_heads_of_different_lengths() -> None:
    method, given = make(MinEnt, hidden_dim=16, heads=(8, 6, 4)), views_of(ROWS)
    made = method.step(given, clock())
    features = made.features.split(8)
    wanted = [loss_of(head(features[0]), head(features[1])) for head in method.heads]
    assert made.losses["entropy"].item() == pytest.approx(torch.stack(wanted).mean().item(), abs=1e-6)
    assert made.projections["anchor"].shape == (8, 8)


def test_the_projections_of_minent_are_standardized_and_carry_gradient() -> None:
    method, given = make(MinEnt, hidden_dim=16, heads=(8, 6)), views_of(ROWS)
    for name, x in zip(("anchor", "query"), given.global_crops, strict=True):
        z = method.step(given, clock()).projections[name]
        assert torch.allclose(z.mean(0), torch.zeros(8), atol=1e-5)
        assert torch.allclose(z, method.project(x), atol=1e-4)
        assert z.requires_grad


def test_minent_has_no_weight_that_the_targets_alone_would_use() -> None:
    method = make(MinEnt, hidden_dim=16, heads=(8, 6))
    method.step(views_of(ROWS), clock()).losses["entropy"].backward()
    assert gradients(method) == {"backbone", "heads"}
    assert all(p.grad is not None for p in method.parameters())


def test_minent_targets_do_not_depend_on_running_statistics() -> None:
    given = views_of(ROWS)
    fresh, used = make(MinEnt, hidden_dim=16, heads=(8,)), make(MinEnt, hidden_dim=16, heads=(8,))
    used.step(views_of(list(range(8, 16))), clock())
    first, second = (m.step(given, clock()).losses["entropy"].item() for m in (fresh, used))
    assert first == pytest.approx(second, abs=1e-6)


def test_each_layer_of_s3oc_clusters_the_similarities_of_the_one_before() -> None:
    method, given = make(S3OC, num_clusters=(10, 6, 4), temperature=0.2), views_of(ROWS)
    assert [tuple(layer.weight.shape) for layer in method.layers] == [(10, 128), (6, 10), (4, 6)]
    made = method.step(given, clock())
    anchor, query = made.features.split(8)
    wanted = []
    for layer in method.layers:
        anchor, query = layer(anchor), layer(query)
        assert anchor.abs().max() <= 1 + 1e-5
        wanted.append(loss_of(anchor, query, 0.2))
    assert made.losses["cluster"].item() == pytest.approx(torch.stack(wanted).mean().item(), abs=1e-6)


def test_backbone_and_centers_of_s3oc_learn_together() -> None:
    method = make(S3OC, num_clusters=(10, 6))
    method.step(views_of(ROWS), clock()).losses["cluster"].backward()
    assert gradients(method) == {"backbone", "layers"}


@pytest.mark.parametrize(
    ("cls", "settings"), [(MinEnt, {"hidden_dim": 16, "heads": (8,)}), (S3OC, {"num_clusters": (8,)})]
)
def test_an_input_block_learns_through_the_logits_of_its_view(cls: type, settings: dict[str, object]) -> None:
    method, given = make(cls, **settings), views_of(ROWS)
    full = tuple(x.requires_grad_() for x in given.global_crops)
    sum(method.step(given.with_global_crops(*full), clock()).losses.values()).backward()
    assert all(x.grad.abs().sum() > 0 for x in full)


def test_an_empty_list_of_heads_or_layers_is_refused() -> None:
    with pytest.raises(UserError, match="heads is empty"):
        build(MinEnt.Settings, {"heads": []}, "method")
    with pytest.raises(UserError, match="clusters is empty"):
        build(S3OC.Settings, {"num_clusters": []}, "method")
