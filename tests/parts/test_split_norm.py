"""Batch norm in groups, and keys in shuffled order."""

import pytest
import torch
from torch import nn

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.parts.split_norm import SplitNorm, in_random_order, split_norm, split_norms


def pair(groups: int = 2, **choices: object) -> tuple[nn.BatchNorm2d, SplitNorm]:
    """A batch norm with weights of its own, and its copy in groups."""
    plain, other = nn.BatchNorm2d(3, **choices), nn.BatchNorm2d(3, **choices)
    for norm in (plain, other):
        if norm.affine:
            nn.init.constant_(norm.weight, 2.0)
            nn.init.constant_(norm.bias, 0.5)
    return plain, split_norm(other, groups)


def test_each_group_is_normalized_as_a_batch_of_its_own() -> None:
    plain, split = pair(groups=4)
    x = torch.randn(8, 3, 5, 5)
    expected = torch.cat([plain(part) for part in x.chunk(4)])
    assert torch.allclose(split(x), expected, atol=1e-6)


def test_running_statistics_move_to_the_mean_of_the_groups() -> None:
    _, split = pair(groups=2)
    x = torch.randn(6, 3, 4, 4) + torch.arange(6.0).view(6, 1, 1, 1)
    split(x)
    means = torch.stack([part.mean(dim=(0, 2, 3)) for part in x.chunk(2)])
    variances = torch.stack([part.var(dim=(0, 2, 3)) for part in x.chunk(2)])
    assert torch.allclose(split.running_mean, 0.1 * means.mean(0), atol=1e-6)
    assert torch.allclose(split.running_var, 0.9 + 0.1 * variances.mean(0), atol=1e-5)
    assert split.num_batches_tracked == 1


def test_one_group_is_plain_batch_norm() -> None:
    plain, split = pair(groups=1)
    x = torch.randn(5, 3, 4, 4)
    assert torch.allclose(split(x), plain(x), atol=1e-6)
    assert all(torch.allclose(value, split.state_dict()[name]) for name, value in plain.state_dict().items())


def test_evaluation_uses_the_running_statistics_of_any_batch() -> None:
    plain, split = pair(groups=4)
    split.load_state_dict(plain.state_dict())
    x = torch.randn(3, 3, 4, 4)
    assert torch.equal(split.eval()(x), plain.eval()(x))


@pytest.mark.parametrize("choices", [{"momentum": None}, {"track_running_stats": False}, {"affine": False}], ids=str)
def test_every_kind_of_batch_norm_can_be_split(choices: dict[str, object]) -> None:
    plain, split = pair(groups=1, **choices)
    for seed in range(3):
        x = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
        assert torch.allclose(split(x), plain(x), atol=1e-6)
    assert all(torch.allclose(value, split.state_dict()[name]) for name, value in plain.state_dict().items())


def test_the_gradient_reaches_weights_and_input() -> None:
    _, split = pair(groups=2)
    x = torch.randn(4, 3, 4, 4, requires_grad=True)
    split(x).square().sum().backward()
    assert all(found.grad.abs().sum() > 0 for found in (x, split.weight, split.bias))


def test_a_batch_that_cannot_be_cut_is_an_error_that_says_what_to_do() -> None:
    _, split = pair(groups=4)
    with pytest.raises(
        UserError, match=r"6 images .* 4 equal groups \(method.norm_groups\); use a training.batch_size"
    ):
        split(torch.randn(6, 3, 4, 4))


def test_processes_share_the_groups_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, split = pair(groups=4)
    monkeypatch.setattr("iecl.parallel.world", lambda: 2)
    x = torch.randn(8, 3, 5, 5)  # half of a batch of sixteen
    assert torch.allclose(split(x), torch.cat([plain(part) for part in x.chunk(2)]), atol=1e-6)
    monkeypatch.setattr("iecl.parallel.world", lambda: 3)
    with pytest.raises(UserError, match=r"4 groups cannot be shared by 3 processes \(method.norm_groups\); use a mult"):
        split(x)


def test_a_network_without_batch_norm_is_refused() -> None:
    with pytest.raises(UserError, match=r"no batch norm .*method.norm_groups.*set it to 0"):
        split_norms(2, nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))


def test_splitting_a_backbone_keeps_its_names_values_and_parameters() -> None:
    backbone = make_backbone("resnet10-w16", 0)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    parameters = {id(p) for p in backbone.parameters()}
    split_norms(2, backbone)
    after = backbone.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert {id(p) for p in backbone.parameters()} == parameters
    assert not [part for part in backbone.modules() if isinstance(part, nn.BatchNorm2d)]


def test_shuffled_rows_come_back_in_their_order() -> None:
    x = torch.arange(12.0).view(6, 2)
    assert torch.equal(in_random_order(lambda rows: 2 * rows, x, key=5), 2 * x)


def test_what_is_encoded_is_in_another_order_that_the_key_decides() -> None:
    seen: list[list[float]] = []

    def look(rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows[:, 0].tolist())
        return rows

    for key in (5, 5, 6):
        in_random_order(look, torch.arange(16.0)[:, None], key)
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]
    assert seen[0] != sorted(seen[0])
    assert sorted(seen[0]) == list(range(16))


def test_shuffling_breaks_up_the_groups_of_the_anchors() -> None:
    # What the leak needs: an image and its key normalized among the same companions.
    x = torch.randn(16, 3, 4, 4)
    _, split = pair(groups=4)
    together, apart = split(x), in_random_order(split, x, key=1)
    assert torch.allclose(together, split(x))
    assert not torch.allclose(together, apart, atol=1e-2)
