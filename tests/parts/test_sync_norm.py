"""Synchronized norms in one process; in two: tests/test_parallel.py and tests/methods/test_processes.py."""

import pytest
import torch
from torch import nn

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.parts.other_norm import alone
from iecl.parts.split_norm import SplitNorm, split_norms
from iecl.parts.sync_norm import SyncNorm, sync_norms


def test_names_values_and_parameters_of_a_backbone_stay() -> None:
    backbone = make_backbone("resnet10-w16", 0)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    parameters = {id(p) for p in backbone.parameters()}
    assert sync_norms(backbone) == sum(isinstance(part, SyncNorm) for part in backbone.modules()) > 0
    after = backbone.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert {id(p) for p in backbone.parameters()} == parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_alone_it_is_torchs_norm(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain, other = nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3))
    sync_norms(other)
    x = (torch.randn(4, 3, 5, 5) + 2).to(dtype)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    made = [norm(x) for norm, x in zip((plain, other), inputs, strict=True)]
    slope = torch.randn(made[0].shape).to(dtype)
    for y in made:
        y.backward(slope)
    near = 1e-5 if dtype == torch.float32 else 2e-2
    assert made[1].dtype == dtype
    assert torch.allclose(*made, atol=near)
    assert torch.allclose(*(x.grad for x in inputs), atol=near)
    for name, value in plain.state_dict().items():
        assert torch.allclose(other.state_dict()[f"0.{name}"], value, atol=1e-6), name


def test_norms_in_groups_stay_in_groups() -> None:
    network = nn.Sequential(nn.BatchNorm1d(2))
    split_norms(2, network)
    assert sync_norms(network) == 0
    assert isinstance(network[0], SplitNorm)


def test_what_timm_puts_behind_a_norm_stays_behind_it() -> None:
    norm_act = pytest.importorskip("timm.layers").BatchNormAct2d
    plain, other = norm_act(3), nn.Sequential(norm_act(3))
    sync_norms(other)
    x = torch.randn(4, 3, 5, 5)
    assert torch.allclose(other(x), plain(x), atol=1e-5)
    assert (other(x) >= 0).all()


def test_a_norm_that_nobody_knows_is_refused() -> None:
    class Strange(nn.BatchNorm1d):
        """Does something else besides."""

    with pytest.raises(UserError, match=r"Strange is a batch norm .*training.sync_batch_norm.*set the one to off"):
        sync_norms(nn.Sequential(Strange(2)))


def test_images_that_all_processes_have_are_normalized_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    network = nn.Sequential(nn.BatchNorm1d(2))
    sync_norms(network)
    monkeypatch.setattr("iecl.parallel.world", lambda: 2)
    x = torch.randn(4, 2)
    with alone(network):
        assert torch.equal(network(x), nn.BatchNorm1d(2)(x))
    assert not network[0].is_alone
