"""Settings of a run: layers of values, automatic choices, differences."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from iecl.errors import UserError
from iecl.methods import METHODS, WRAPPER
from iecl.recipes import list_recipes, read_recipe
from iecl.settings import read_toml
from iecl.training.config import RunConfig, config_from_values, difference, make_config, with_data, without_effect

SHAPES = {"data": {"name": "shapes"}}


def resolved(config: RunConfig, image_size: int = 32) -> RunConfig:
    return with_data(config, replace(config.data, image_size=image_size, decode_size=image_size))


def test_flags_win_over_the_recipe_and_set_over_flags() -> None:
    flags = {**SHAPES, "training": {"batch_size": 64}, "optimizer": {"lr": 0.5}}
    config = make_config(recipe="ie-cl/paper", flags=flags, sets=["optimizer.lr=0.25"])
    assert (config.training.batch_size, config.optimizer.lr, config.training.seed) == (64, 0.25, 42)


def test_the_paper_recipe_is_what_is_printed() -> None:
    config = make_config(recipe="ie-cl/paper", flags=SHAPES)
    method = config.method_settings()
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.weight_decay) == ("adamw", 0.3, 1e-5)
    assert (config.objective.entropy_weight, config.objective.kl_weight, config.saib.weight_decay) == (
        0.2,
        0.09,
        1e-4,
    )
    assert (method.hidden_dim, method.out_dim, method.num_layers, method.ema_momentum.start, method.symmetric) == (
        4096,
        512,
        3,
        0.9,
        False,
    )
    assert (config.objective.encoder, config.objective.kl_gradient, config.saib.host_gradient) == (
        "spectral-norm",
        "anchor",
        "none",
    )
    assert (config.saib.form, config.saib.side, config.training.batch_size) == ("batch", "query", 256)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_builds_a_plan(name: str) -> None:
    config = resolved(make_config(recipe=name, flags=SHAPES))
    assert config.method_name == name.split("/")[0]
    assert config.method_settings()


def test_a_recipe_may_start_from_one_that_starts_from_another_and_not_from_itself(tmp_path: Path) -> None:
    values = read_recipe("ie-cl/host")  # from ie-cl/imagenet, from ie-cl/paper
    assert (values["saib"]["form"], values["optimizer"]["lr"], values["method"]["hidden_dim"]) == ("none", 1e-3, 4096)
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(f'base = "{second}"\n')
    second.write_text(f'base = "{first}"\n')
    with pytest.raises(UserError, match=r"first.toml starts from itself"):
        read_recipe(str(first))
    second.write_text("base = 3\n")
    with pytest.raises(UserError, match=r"second.toml starts from no recipe"):
        read_recipe(str(first))


def test_a_bare_recipe_name_is_the_methods_own() -> None:
    assert read_recipe("paper", "ie-cl") == read_recipe("ie-cl/paper")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "ie_cl"}, "no method is called 'ie_cl' .*did you mean ie-cl"),
        ({"recipe": "ie-cl/papr"}, "no recipe is called 'ie-cl/papr' .*did you mean ie-cl/paper"),
        ({"recipe": "ie-cl/paper", "method": "moco-v2"}, "recipe ie-cl/paper is for ie-cl, not for moco-v2"),
        ({"sets": ["trainin.seed=1"]}, "no section 'trainin' .*did you mean training"),
        ({"sets": ["training=1"]}, "training is a section"),
        ({"sets": ["training.sed=1"]}, "no setting 'sed'; did you mean seed"),
        ({"sets": ["optimizer.name=adam"]}, "optimizer.name is 'adam'; did you mean adamw"),
        ({"sets": ["training.batch_size=1"]}, "training.batch_size is 1, it must be at least 2"),
    ],
)
def test_a_mistake_is_named_with_the_nearest_right_word(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_config(flags=SHAPES, **arguments)


def test_a_wrong_key_of_the_method_is_found_at_once() -> None:
    with pytest.raises(UserError, match="did you mean temperature"):
        make_config(flags=SHAPES, sets=["method.temprature=0.1"])


@pytest.mark.parametrize("name", [name for name in METHODS if name not in (WRAPPER, "random")])
def test_the_settings_of_a_method_are_known_without_importing_it(name: str) -> None:
    assert METHODS[name].setting_names() == {field.name for field in fields(METHODS[name].load().Settings)}


def test_a_value_of_a_flag_is_named_with_its_flag() -> None:
    with pytest.raises(UserError, match=r"training\.epochs is 0, it must be at least 1 \(--epochs\)"):
        make_config(flags={"data": {"name": "shapes"}, "training": {"epochs": 0}})


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ({"objective": {"entropy": "none", "entropy_weight": 0.5}}, ["objective.entropy_weight: objective.entropy"]),
        ({"objective": {"entropy_weight": 0.5}}, []),
        ({"saib": {"form": "none", "patch_size": 4}}, ["saib.patch_size: saib.form"]),
        ({"saib": {"form": "sample", "patch_size": 4}}, []),
        ({"objective": {"kl": "none"}}, []),
    ],
)
def test_a_given_setting_without_effect_is_told(given: dict[str, dict[str, object]], idle: list[str]) -> None:
    config = resolved(make_config(flags={**SHAPES, **given}))
    assert without_effect(config, given) == [f"{line} is none" for line in idle]


def test_no_data_is_an_error() -> None:
    with pytest.raises(UserError, match=r"which images\? \(--data\)"):
        make_config()


def test_a_plan_survives_its_own_settings_file(tmp_path: Path) -> None:
    config = resolved(make_config(recipe="ie-cl/paper", flags=SHAPES))
    path = tmp_path / "settings.toml"
    path.write_text(config.to_toml("header"), encoding="utf-8")
    assert difference(config, config_from_values(read_toml(path))) == []


def test_a_difference_names_both_values() -> None:
    old = make_config(flags=SHAPES)
    new = make_config(flags=SHAPES, sets=["training.batch_size=64", "method.temperature=0.5"])
    assert [str(change) for change in difference(old, new)] == [
        "method.temperature was 0.2, now 0.5",
        "training.batch_size was 256, now 64",
    ]


@pytest.mark.parametrize(("size", "name"), [(32, "resnet18-small"), (224, "resnet18")])
def test_the_backbone_is_chosen_for_the_image_size(size: int, name: str) -> None:
    assert resolved(make_config(flags=SHAPES), size).backbone.name == name


@pytest.mark.parametrize(("policy", "share"), [("crop", 1.0), ("simclr-small", 0.5), ("simclr", 0.5)])
def test_the_default_block_is_on_every_image_where_views_are_crops_and_else_on_half(policy: str, share: float) -> None:
    config = resolved(make_config(method="ie-cl", flags=SHAPES, sets=[f"augmentation.policy={policy}"]))
    assert (config.saib.form, config.saib.probability) == ("certified", share)
    told = resolved(make_config(method="ie-cl", flags=SHAPES, sets=["saib.probability=0.3"]))
    assert told.saib.probability == 0.3


@pytest.mark.parametrize(("size", "patch"), [(32, 4), (96, 4), (224, 16)])
def test_the_patch_follows_the_image_size(size: int, patch: int) -> None:
    assert resolved(make_config(recipe="ie-cl/paper", flags=SHAPES), size).saib.patch_size == patch


# --- ie-cl is a method, and what it is around is a setting ---


def test_the_host_of_ie_cl_is_a_setting_and_brings_its_own_recipe() -> None:
    config = make_config(method="ie-cl", flags=SHAPES, sets=["method.host=byol"])
    byol, default = make_config(method="byol", flags=SHAPES), make_config(flags=SHAPES)
    assert (config.method_name, config.host_name, config.title) == ("ie-cl", "byol", "ie-cl-byol")
    assert (config.method_settings(), config.optimizer) == (byol.method_settings(), byol.optimizer)
    assert (config.saib, config.objective) == (default.saib, default.objective)


def test_a_method_with_a_block_is_ie_cl_around_it() -> None:
    short = make_config(method="byol", flags={**SHAPES, "saib": {"form": "certified"}})
    long = make_config(
        method="ie-cl",
        flags=SHAPES,
        sets=[
            *("method.host=byol", "saib.weights=learned", "saib.budget_kind=rms", "saib.probability=1"),
            *("objective.entropy=none", "objective.entropy_weight=0.2"),
        ],
    )
    assert (short.method_name, short.host_name) == ("ie-cl", "byol")
    assert {str(change) for change in difference(short, long)} == {
        "saib.host_gradient was auto, now reversed",  # which is what auto means
        "objective.entropy_on was query, now both",  # of a term that is off
    }
    assert 'host = "byol"' in short.to_toml("x")
    assert config_from_values(short.values()) == config_from_values(config_from_values(short.values()).values())


def test_a_method_with_a_term_and_one_without_are_told_apart() -> None:
    assert make_config(method="byol", flags=SHAPES, sets=["objective.kl=mmd"]).method_name == "ie-cl"
    assert make_config(method="byol", flags=SHAPES).method_name == "byol"
    assert make_config(flags=SHAPES).title == "ie-cl"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sets": ["method.host=boyl"]}, "no host is called 'boyl'.*did you mean byol"),
        ({"sets": ["method.host=ie-cl"]}, "no host is called 'ie-cl'"),
        ({"method": "byol", "sets": ["method.host=simclr"]}, "byol has no host.*use --method ie-cl"),
    ],
)
def test_a_wrong_host_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_config(flags=SHAPES, **arguments)


def test_a_printed_block_comes_with_the_printed_term_unless_that_is_said() -> None:
    flags = {**SHAPES, "saib": {"form": "batch"}}
    assert make_config(method="byol", flags=flags).objective.entropy == "coding-rate"
    assert make_config(method="byol", flags=flags, sets=["objective.entropy=none"]).objective.entropy == "none"
    assert make_config(method="byol", flags={**SHAPES, "saib": {"form": "certified"}}).objective.entropy == "none"


@pytest.mark.parametrize(
    ("form", "weights", "probability"),
    [("certified", "frozen", 0.0), ("batch", "learned", 1.0), ("none", "learned", 1.0)],
)
def test_a_block_of_another_form_takes_nothing_from_the_block_of_the_recipe(
    form: str, weights: str, probability: float
) -> None:
    saib = make_config(flags={"data": {"name": "shapes"}}, sets=[f"saib.form={form}"]).saib
    assert (saib.form, saib.weights, saib.probability) == (form, weights, probability)
