"""MoCo on one device: batch norm in groups and shuffled keys close the leak, and leave the plain method alone."""

import pytest
import torch

from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.methods.light_moco import LightMoCo, LightMoCoSettings
from iecl.methods.moco_v2 import MoCoV2, MoCoV2Settings
from iecl.parts.split_norm import SplitNorm
from iecl.schedule import Clock, Ramp
from iecl.views.pipeline import Views

CLOCK = Clock(seed=0, step=3, steps=100, epoch=0, epochs=4)
BOTH = [MoCoV2, LightMoCo]


def build(cls: type = MoCoV2, **choices: object) -> MoCoV2 | LightMoCo:
    torch.manual_seed(0)
    settings = {"hidden_dim": 16, "out_dim": 8, "queue_size": 32, **choices}
    return cls(make_backbone("resnet10-w16", 0), cls.Settings(**settings))


def views(count: int = 8) -> Views:
    noise = torch.Generator().manual_seed(0)
    full = tuple(torch.randn(count, 3, 16, 16, generator=noise) for _ in range(2))
    return Views(full, torch.arange(count), torch.full((count,), -1), torch.arange(count))


@pytest.mark.parametrize("cls", BOTH)
def test_both_encoders_are_split_and_a_head_without_norm_stays(cls: type) -> None:
    method = build(cls, norm_groups=4)
    for encoder in (method.backbone, method.momentum):
        assert {part.groups for part in encoder.modules() if isinstance(part, SplitNorm)} == {4}
    assert method.min_batch == 8


def test_without_groups_no_batch_norm_is_touched() -> None:
    assert not [part for part in build().modules() if isinstance(part, SplitNorm)]
    assert build().min_batch == 2


@pytest.mark.parametrize("cls", BOTH)
def test_keys_belong_to_their_images_after_the_shuffle(cls: type) -> None:
    # In evaluation a key does not depend on its companions, so any row out of place would show.
    method = build(cls, norm_groups=4).eval()
    keys = method._keys(views().global_crops[1], CLOCK, 1)
    assert torch.allclose(keys, method.momentum(views().global_crops[1]), atol=1e-5)


@pytest.mark.parametrize("cls", BOTH)
def test_a_key_is_not_normalized_among_the_companions_of_its_anchor(cls: type) -> None:
    method = build(cls, norm_groups=4)
    plain, shuffled = method.momentum(views().global_crops[1]), method._keys(views().global_crops[1], CLOCK, 1)
    assert not torch.allclose(plain, shuffled, atol=1e-3)


def test_the_shuffle_changes_with_the_step_and_the_view_and_nothing_else() -> None:
    method, query = build(norm_groups=4), views().global_crops[1]
    later = Clock(seed=0, step=4, steps=100, epoch=0, epochs=4)
    first, again = method._keys(query, CLOCK, 1), method._keys(query, CLOCK, 1)
    assert torch.equal(first, again)
    assert not torch.equal(first, method._keys(query, later, 1))
    assert not torch.equal(first, method._keys(query, CLOCK, 0))


def test_a_batch_that_groups_cannot_share_is_an_error_at_the_first_step() -> None:
    with pytest.raises(UserError, match="10 images cannot be cut into 4 equal groups"):
        build(norm_groups=4).step(views(10), CLOCK)


# --- Light-MoCo's own ---


def contrast(method: LightMoCo, epoch: int = 1, step: int = 3) -> float:
    clock = Clock(seed=0, step=step, steps=100, epoch=epoch, epochs=4)
    return method.step(views(), clock).losses["contrast"].item()


def test_smoothing_starts_after_the_plain_epochs() -> None:
    hard = contrast(build(MoCoV2, temperature=0.2))
    assert contrast(build(LightMoCo, plain_epochs=2), epoch=1) == pytest.approx(hard, rel=1e-5)
    assert contrast(build(LightMoCo, plain_epochs=1), epoch=1) > hard + 0.05


def test_smoothing_follows_its_ramp() -> None:
    ramp = Ramp(start=0.4, end=0.0, shape="linear")
    fixed = LightMoCo, {"smooth": Ramp.constant(0.1)}
    assert contrast(build(LightMoCo, smooth=ramp), step=75) == pytest.approx(contrast(build(fixed[0], **fixed[1])))


def test_symmetric_light_moco_adds_its_directions_and_stores_both_keys() -> None:
    method = build(LightMoCo, symmetric=True)
    anchor, query = views().global_crops
    clock = Clock(seed=0, step=3, steps=100, epoch=1, epochs=4)
    z = [method.project(x) for x in (anchor, query)]
    k = [method.momentum(x) for x in (anchor, query)]
    expected = method._contrast(z[0], k[1], clock) + method._contrast(z[1], k[0], clock)
    assert contrast(method) == pytest.approx(expected.item(), rel=1e-5)
    assert method.queue.next == 16


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"num_neighbors": 64}, r"a queue of 32 does not hold 64 neighbors \(method.num_neighbors\); use at most 32"),
        ({"spread": "tiers", "num_neighbors": 7}, r"no tiers for 7 neighbors"),
    ],
)
def test_impossible_neighbors_are_refused_when_the_method_is_built(choices: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(LightMoCo, **choices)


def test_light_moco_has_one_online_side_unless_it_is_symmetric() -> None:
    assert build(LightMoCo).online == {"anchor"}
    assert build(LightMoCo, symmetric=True).online == {"anchor", "query"}


def test_settings_have_the_same_groups_in_both_methods() -> None:
    assert MoCoV2Settings().norm_groups == LightMoCoSettings().norm_groups == 0
