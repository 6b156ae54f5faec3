"""A strength that follows how hard the views are to match."""

import copy

import pytest
import torch
from tests.methods.test_ie_cl import CLOCK, PRINTED, SYMMETRIC, certified_block, views, with_terms

from iecl.errors import UserError
from iecl.saib.strength import AdaptiveStrength, confusion


def counted(anchor: torch.Tensor, query: torch.Tensor) -> float:
    """The definition, one pair at a time."""
    cosine = torch.nn.functional.cosine_similarity
    found = 0.0
    for i in range(len(anchor)):
        own = cosine(anchor[i], query[i], dim=0)
        for j in range(len(anchor)):
            if j != i:
                other = cosine(anchor[i], query[j], dim=0)
                found += 1.0 if other > own else 0.5 if other == own else 0.0
    return found / len(anchor) / (len(anchor) - 1)


def test_confusion_is_the_share_of_images_that_look_nearer() -> None:
    anchor = torch.randn(24, 6, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    query = anchor + 1.5 * torch.randn(24, 6, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    assert 0.02 < counted(anchor, query) < 0.4
    assert confusion(anchor, query).item() == pytest.approx(counted(anchor, query), abs=1e-6)


def test_collapsed_projections_are_at_chance_and_not_matched() -> None:
    same = torch.eye(3)[:1].expand(16, 3)
    assert confusion(same, same).item() == 0.5


def test_confusion_does_not_depend_on_the_size_of_the_batch() -> None:
    noise = torch.Generator().manual_seed(2)
    anchor = torch.randn(4096, 16, generator=noise)
    query = anchor + torch.randn(4096, 16, generator=noise)
    means = [
        torch.stack([confusion(*pair) for pair in zip(anchor.split(n), query.split(n), strict=True)]).mean().item()
        for n in (8, 64, 512)
    ]
    assert means == pytest.approx([means[-1]] * 3, rel=0.15)


@pytest.mark.parametrize(("start", "seen", "end"), [(0.0, 1e-3, 1.0), (1.0, 0.4, 0.0), (0.5, 0.03, 0.5)])
def test_the_share_rises_falls_or_stays(start: float, seen: float, end: float) -> None:
    strength = AdaptiveStrength(target=0.03)
    strength.share.fill_(start)
    for _ in range(200):
        strength.seen.fill_(seen)
        strength.calls.fill_(1)
        strength.after_step()
    assert strength.share.item() == pytest.approx(end, abs=1e-5)


def test_parts_of_a_batch_count_as_their_mean_and_no_part_moves_nothing() -> None:
    both, one = AdaptiveStrength(target=0.03), AdaptiveStrength(target=0.03)
    easy, hard = torch.eye(8), torch.eye(8).roll(1, 0)
    both.see({"anchor": easy, "query": easy})
    both.see({"anchor": easy, "key": hard})
    one.seen.fill_((confusion(easy, easy) + confusion(easy, hard)).item() / 2)
    one.calls.fill_(1)
    for strength in (both, one):
        strength.share.fill_(0.5)
        strength.after_step()
    assert both.share == one.share != 0.5
    before = both.share.clone()
    both.after_step()
    assert both.share == before


@pytest.mark.parametrize("choices", [PRINTED, SYMMETRIC], ids=["one-sided", "symmetric"])
def test_images_get_a_drawn_part_of_the_share_and_a_checkpoint_keeps_it(choices: dict[str, object]) -> None:
    method, given = with_terms(certified_block, choices, strength="auto", weights="frozen"), views(count=64)
    assert torch.equal(method.placement.shape(given, CLOCK).images[1], given.global_crops[1])  # it begins at 0
    readings = method.step(given, CLOCK).readings
    assert readings["iecl/strength"] == 0
    assert 0 < readings["iecl/confusion"] < 1
    assert method.strength is not None
    method.strength.share.fill_(0.5)
    other = with_terms(certified_block, choices, strength="auto", weights="frozen")
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    half, resumed = (one.placement.shape(given, CLOCK).images[1] for one in (method, other))
    assert torch.equal(half, resumed)
    uniform = with_terms(certified_block, choices, strength="uniform", weights="frozen")
    full = uniform.placement.shape(given, CLOCK).images[1]
    assert torch.allclose(half - given.global_crops[1], (full - given.global_crops[1]) / 2, atol=1e-5)


def test_a_step_moves_the_share_once() -> None:
    method, given = with_terms(certified_block, SYMMETRIC, strength="auto", weights="frozen"), views(count=16)
    assert method.strength is not None
    method.strength.share.fill_(0.5)
    method.step(given, CLOCK)
    assert method.strength.share == 0.5
    method.after_step(CLOCK)
    assert abs(method.strength.share.item() - 0.5) == pytest.approx(0.01, rel=1.0)
    assert method.strength.share != 0.5


def test_a_target_that_alone_sees_the_block_has_no_strength_to_follow() -> None:
    with pytest.raises(UserError, match="tell nothing of the block"):
        with_terms(certified_block, SYMMETRIC, strength="auto", side="target", entropy_on="both")


def test_a_host_that_shows_one_view_is_told_so() -> None:
    with pytest.raises(UserError, match="both views"):
        AdaptiveStrength(target=0.03).see({"anchor": torch.eye(4)})
