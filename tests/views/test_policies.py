import subprocess
import sys
import tomllib
from dataclasses import fields

import pytest

from iecl.errors import UserError
from iecl.settings import as_values, build
from iecl.training.config import config_from_values, difference, make_config
from iecl.views.operators import Policy
from iecl.views.policies import (
    POLICIES,
    AugmentationSettings,
    Overrides,
    ViewSpec,
    plain_share,
    resolve_views,
)


@pytest.mark.parametrize(
    ("size", "policy"), [(28, "simclr-small"), (64, "simclr-small"), (65, "simclr"), (224, "simclr")]
)
def test_auto_takes_the_small_policy_up_to_64_pixels(size: int, policy: str) -> None:
    assert resolve_views(AugmentationSettings(), size).policy == policy


def test_a_named_policy_stays_whatever_the_size() -> None:
    assert resolve_views(AugmentationSettings(policy="byol"), 32).policy == "byol"


def test_an_unknown_policy_is_an_error_that_offers_the_nearest() -> None:
    with pytest.raises(UserError) as caught:
        resolve_views(AugmentationSettings(policy="simclr-smal"), 32)
    assert (caught.value.where, caught.value.do) == ("augmentation.policy", "did you mean simclr-small?")
    assert "simclr-smal" in caught.value.what


def test_an_unknown_policy_is_refused_when_settings_are_read() -> None:
    with pytest.raises(UserError, match="did you mean moco-v2"):
        build(AugmentationSettings, {"policy": "mocov2"}, "views")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scale": [0.5, 0.4]}, "scale goes from 0.5 to 0.4"),
        ({"ratio": [2.0, 1.0]}, "ratio goes from 2 to 1"),
        ({"ratio": [1.0, 1.0, 1.0]}, "ratio needs two numbers"),
        ({"sigma": [3.0, 2.0]}, "sigma goes from 3 to 2"),
        ({"hue": 0.6}, "hue is 0.6, it must be at most 0.5"),
        ({"hflip_prob": 1.5}, "hflip_prob is 1.5, it must be at most 1"),
        ({"scale": [0.0, 1.0]}, "scale is 0.0, it must be above 0"),
    ],
)
def test_an_impossible_policy_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(Policy, values, "policy")


@pytest.mark.parametrize("name", [name for name in POLICIES if name.endswith("-small")])
def test_small_policies_never_blur(name: str) -> None:
    assert [policy.gaussian_blur_prob for policy in POLICIES[name]] == [0.0] * len(POLICIES[name])


@pytest.mark.parametrize(
    ("name", "colors", "crop_low", "blur", "solarize"),
    [
        ("simclr", (0.8, 0.8, 0.8, 0.2), 0.08, [0.5], [0.0]),
        ("simclr-small", (0.4, 0.4, 0.4, 0.1), 0.08, [0.0], [0.0]),
        ("moco-v2", (0.4, 0.4, 0.4, 0.1), 0.2, [0.5], [0.0]),
        ("moco-small", (0.4, 0.4, 0.4, 0.1), 0.08, [0.0], [0.0]),
        ("moco-v3", (0.4, 0.4, 0.2, 0.1), 0.2, [1.0, 0.1], [0.0, 0.2]),
        ("byol", (0.4, 0.4, 0.2, 0.1), 0.08, [1.0, 0.1], [0.0, 0.2]),
        ("byol-small", (0.4, 0.4, 0.2, 0.1), 0.08, [0.0, 0.0], [0.0, 0.2]),
        ("solo-weak", (0.4, 0.4, 0.4, 0.1), 0.08, [0.5], [0.0]),
    ],
)
def test_policies_hold_the_published_numbers(
    name: str, colors: tuple[float, ...], crop_low: float, blur: list[float], solarize: list[float]
) -> None:
    row = POLICIES[name]
    assert {(p.brightness, p.contrast, p.saturation, p.hue) for p in row} == {colors}
    assert {(*p.scale, p.hflip_prob, p.color_jitter_prob, p.grayscale_prob) for p in row} == {
        (crop_low, 1.0, 0.5, 0.8, 0.2)
    }
    assert ([p.gaussian_blur_prob for p in row], [p.solarize_prob for p in row]) == (blur, solarize)


def test_w_mse_and_vicreg_have_their_own_numbers() -> None:
    (w_mse,), (vicreg,) = POLICIES["w-mse"], POLICIES["vicreg-small"]
    assert (w_mse.brightness, w_mse.contrast, w_mse.saturation, w_mse.hue) == (0.4, 0.4, 0.4, 0.1)
    assert (
        w_mse.scale[0],
        w_mse.color_jitter_prob,
        w_mse.grayscale_prob,
        w_mse.gaussian_blur_prob,
        w_mse.solarize_prob,
    ) == (0.2, 0.8, 0.1, 0.0, 0.0)
    assert (vicreg.brightness, vicreg.contrast, vicreg.saturation, vicreg.hue) == (0.4, 0.4, 0.2, 0.1)
    assert (
        vicreg.scale[0],
        vicreg.color_jitter_prob,
        vicreg.grayscale_prob,
        vicreg.gaussian_blur_prob,
        vicreg.solarize_prob,
    ) == (0.2, 0.8, 0.2, 0.0, 0.1)


def test_dino_treats_small_views_apart() -> None:
    first, second, *small = POLICIES["dino"]
    assert (first, second) == POLICIES["byol"]
    assert [(policy.gaussian_blur_prob, policy.solarize_prob) for policy in small] == [(0.5, 0.0)] * 8


def test_a_method_asks_for_two_views_unless_told_otherwise() -> None:
    assert (ViewSpec().global_crops, ViewSpec(global_crops=4).global_crops) == (2, 4)


@pytest.mark.parametrize(("size", "share"), [(32, 1.0), (64, 1.0), (96, 0.875), (224, 0.875)])
def test_evaluation_sees_all_of_a_small_image(size: int, share: float) -> None:
    assert plain_share(size) == share


def test_the_table_of_policies_loads_without_torch() -> None:
    code = "import sys, iecl.views.policies; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def given(*sets: str) -> AugmentationSettings:
    return make_config(
        method="simclr", flags={"data": {"name": "digits"}, "augmentation": {"policy": "byol"}}, sets=sets
    ).augmentation


@pytest.mark.parametrize("name", [field.name for field in fields(Policy)])
def test_every_parameter_can_be_given_for_both_views_or_for_one(name: str) -> None:
    value = {"degrees": 12.0, "posterize_bits": 2}.get(name, 0.25)
    value = (0.25, 0.5) if isinstance(getattr(Policy(), name), tuple) else value
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    own = [getattr(policy, name) for policy in POLICIES["byol"]]
    for sets, expected in (
        ([f"augmentation.{name}={text}"], [value, value]),
        ([f"augmentation.anchor.{name}={text}"], [value, own[1]]),
        ([f"augmentation.query.{name}={text}"], [own[0], value]),
    ):
        made = given(*sets).policies(ViewSpec())
        assert [getattr(policy, name) for policy in made] == expected
        others = [field.name for field in fields(Policy) if field.name != name]
        assert all(
            getattr(a, key) == getattr(b, key) for a, b in zip(made, POLICIES["byol"], strict=True) for key in others
        )


def test_what_is_given_for_one_view_goes_before_what_is_given_for_both() -> None:
    made = given("augmentation.hue=0", "augmentation.query.hue=0.3").policies(ViewSpec(global_crops=3, local_crops=2))
    assert [policy.hue for policy in made] == [0.0, 0.3, 0.0, 0.0, 0.0]


def test_views_beyond_the_second_take_the_policies_in_turn() -> None:
    made = given("augmentation.query.solarize_prob=1").policies(ViewSpec(global_crops=4))
    assert [policy.solarize_prob for policy in made] == [0.0, 1.0, 0.0, 0.2]


def test_what_was_given_for_one_view_is_recorded_and_read_again() -> None:
    config = make_config(
        method="simclr", flags={"data": {"name": "digits"}}, sets=["augmentation.query.scale=[0.5, 1]"]
    )
    text = config.to_toml("made for a test")
    assert "query = { scale = [0.5, 1.0] }  # any of these for the second view alone" in text
    assert "anchor = {  }" in text
    again = config_from_values(tomllib.loads(text))
    assert again.augmentation == config.augmentation
    assert difference(config, again) == []
    assert as_values(config.augmentation)["query"] == {"scale": [0.5, 1.0]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("augmentation.query.blur=1", "did you mean gaussian_blur_prob?"),
        ("augmentation.query.hue=2", "augmentation.query.hue is 2.0, it must be at most 0.5"),
        ("augmentation.query.hue=-0.5", "hue is -0.5, it must be at least 0"),
        ("augmentation.anchor.sigma=[2, 1]", "sigma goes from 2 to 1"),
        ("augmentation.query=1", "augmentation.query is 1, it must be a table: augmentation.query.key=value"),
        ("augmentation.vertical_flip=1", "did you mean vflip_prob?"),
        ("augmentation.cutout=1", "did you mean erasing_prob?"),
        ("augmentation.posterize_bits=0", "posterize_bits is 0, it must be at least 1"),
        ("views.hue=0", "did you mean augmentation.hue?"),
        ("views.query.blur=1", "did you mean augmentation.query.gaussian_blur_prob?"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_with_the_right_word(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        given(text)
    assert message in str(caught.value)


def test_overrides_leave_everything_to_the_policy_unless_told() -> None:
    assert Overrides().given() == {}
    assert Overrides(hue=0.0, scale=(0.5, 1.0)).given() == {"hue": 0.0, "scale": (0.5, 1.0)}
