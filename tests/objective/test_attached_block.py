"""The block in a loop that knows nothing of us."""

import pytest
import torch
from torch import Tensor, nn

import iecl
from iecl.losses.nt_xent import nt_xent


def encoder(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16))


def images(seed: int = 0) -> Tensor:
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def train(model: nn.Module, block: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = nt_xent(model(images()), model(block(images())), 0.5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_block_climbs_the_loss_that_the_encoder_descends() -> None:
    frozen = encoder().requires_grad_(False)
    idle = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([idle], lr=0.05)
    block = iecl.attach_block(optimizer, image_size=8, noise="none")
    losses = train(frozen, block, optimizer, 30)
    assert losses[-1] > losses[0]


def test_each_optimizer_step_returns_the_block_to_its_budget() -> None:
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    block = iecl.attach_block(optimizer, image_size=8, budget=0.3)
    train(model, block, optimizer, 5)
    x = torch.randn(512, 3, 8, 8)
    changed = block(x) - x
    assert changed.square().mean().sqrt().item() == pytest.approx(0.3, rel=0.25)  # the noise makes it vary


def test_noise_differs_from_call_to_call_and_repeats_with_the_seed() -> None:
    blocks = [iecl.attach_block(torch.optim.SGD(encoder().parameters()), image_size=8, seed=s) for s in (1, 1, 2)]
    first, again, other = (block(images()) for block in blocks)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, blocks[0](images()))


def test_in_evaluation_views_pass_unchanged() -> None:
    block = iecl.attach_block(torch.optim.SGD(encoder().parameters()), image_size=8).eval()
    assert torch.equal(block(images()), images())


def test_saving_and_loading_goes_on_exactly() -> None:
    def fresh() -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
        model = encoder()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return model, iecl.attach_block(optimizer, image_size=8), optimizer

    straight, paused, resumed = fresh(), fresh(), fresh()
    whole = train(*straight, 6)
    train(*paused, 3)
    for old, new in zip(paused, resumed, strict=True):
        new.load_state_dict(old.state_dict())
    assert train(*resumed, 3) == whole[3:]


def test_two_lines_serve_modules_of_lightly() -> None:
    pytest.importorskip("lightly", reason="builds a method from lightly's modules")
    from lightly.loss import NTXentLoss
    from lightly.models.modules.heads import SimCLRProjectionHead

    model = nn.Sequential(encoder(), SimCLRProjectionHead(16, 16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    block = iecl.attach_block(optimizer, image_size=8)
    before = [p.clone() for p in block.parameters()]
    loss = NTXentLoss(temperature=0.5)(model(images()), model(block(images())))
    loss.backward()
    optimizer.step()
    assert any(not torch.equal(old, new) for old, new in zip(before, block.parameters(), strict=True))
