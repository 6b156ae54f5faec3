"""Names of cells: what may differ between two runs that are called the same, and what may not."""

import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from iecl.data.pack_writer import pack
from iecl.errors import UserError
from iecl.methods import METHODS, WRAPPER
from iecl.settings import as_values
from iecl.studies.cell import FREE, NEUTRAL, Cell, Datasets, Measurement, Names, full_config, names_of, training_name
from iecl.training.config import SECTIONS, config_from_values, make_config

DECIDING = {
    "data": "more exclude plant labels channels image_size decode_size mean std max_pixels validation",
    "augmentation": " ".join(field.name for field in fields(SECTIONS["augmentation"])),  # all of them: they make views
    "backbone": "name zero_init_residual",
    "saib": "form side weights host_gradient weight_decay probability strength confusion mix patch_size "
    "cascade convs skips norm activation pos_embed hidden_dim noise noise_scale budget "
    "budget_kind",
    "objective": "entropy entropy_weight entropy_on entropy_norm raw "
    "kl kl_weight kl_gradient encoder encoder_weight encoder_norm "
    "expansion expansion_weight expansion_images",
    "optimizer": "name lr lr_base_batch weight_decay decay_norms momentum beta2 trust_coefficient trust_clip "
    "warmup_epochs min_lr_ratio grad_clip",
    "training": "epochs batch_size grad_accumulation seed devices nodes sync_batch_norm precision channels_last "
    "grad_cache compile",
}
"""Settings that decide results. Whoever adds one puts it here, or into FREE if final weights cannot depend on it."""
ALL = [(section, field.name) for section, cls in SECTIONS.items() for field in fields(cls)]
TINY = {"backbone": {"name": "resnet10-w16"}, "training": {"precision": "32-true"}}


def declared(section: str, key: str) -> Any:
    return next(one for one in fields(SECTIONS[section]) if one.name == key)


def named(data: str | Path = "digits", seed: int = 0, **options: Any) -> Names:
    settings = {section: {**TINY.get(section, {}), **table} for section, table in options.pop("settings", {}).items()}
    cell, datasets = Cell(data=str(data), seed=seed, settings=TINY | settings, **options), Datasets()
    return names_of(cell, full_config(cell.config(datasets)), datasets)


def other(value: Any) -> Any:
    """Some value that is not this one."""
    return {"other": value} if not isinstance(value, bool) else not value


def test_every_setting_is_known_to_decide_results_or_not_to() -> None:
    known = {(s, key) for s, words in DECIDING.items() for key in words.split()}
    free = {(section, key) for section, keys in FREE.items() for key in keys}
    assert not known & free
    assert known | free == set(ALL)


@pytest.mark.parametrize(("section", "key"), ALL, ids=".".join)
def test_a_name_follows_the_settings_that_decide_and_no_others(section: str, key: str) -> None:
    values = make_config(flags={"data": {"name": "digits"}, "training": {"devices": 2}}).values()
    changed = values | {section: values[section] | {key: other(values[section][key])}}
    needed, _, other_key = declared(section, key).metadata.get("needs", "").partition(".")
    is_idle = bool(needed) and values[needed][other_key] == "none"
    assert (training_name(values, "digits") == training_name(changed, "digits")) == (
        key in FREE.get(section, ()) or is_idle
    )


def test_what_is_said_of_a_block_or_term_that_is_turned_off_names_no_other_run() -> None:
    flags: dict[str, Any] = {"data": {"name": "digits"}, "saib": {"form": "none"}, "objective": {"kl": "none"}}
    said = ["saib.weights=redrawn", "saib.budget=0.1", "saib.probability=0.25", "objective.kl_weight=0.3"]
    plain, idle = (make_config(flags=flags, sets=sets).values() for sets in ([], said))
    assert plain != idle
    assert training_name(plain, "digits") == training_name(idle, "digits")
    mixed = make_config(flags=flags, sets=["saib.mix=0.5"]).values()  # which needs no block
    assert training_name(mixed, "digits") != training_name(plain, "digits")


def test_how_norms_are_synchronized_decides_nothing_in_one_process() -> None:
    flags: dict[str, Any] = {"data": {"name": "digits"}}
    values = [make_config(flags=flags, sets=[f"training.sync_batch_norm={how}"]).values() for how in ("on", "off")]
    assert training_name(values[0], "digits") == training_name(values[1], "digits")
    before = [
        {**table, "training": {k: v for k, v in table["training"].items() if "sync" not in k}} for table in values
    ]
    assert training_name(values[0], "digits") == training_name(before[0], "digits")


@pytest.mark.parametrize("method", [name for name in METHODS if name != WRAPPER])
def test_a_name_follows_every_setting_of_a_method(method: str) -> None:
    values = make_config(method=method, flags={"data": {"name": "digits"}}).values()
    for key, value in values["method"].items():
        changed = values | {"method": values["method"] | {key: other(value)}}
        assert training_name(values, "digits") != training_name(changed, "digits"), key


def test_a_default_that_is_given_is_the_same_as_one_that_is_not() -> None:
    config = config_from_values({"method": {"name": "simclr"}})
    method = {"name": "simclr"} | as_values(config.method_settings())
    recipe = make_config(method="simclr", flags={"data": {"name": "digits"}})
    spelled = {"method": method | dict(recipe.method), "optimizer": as_values(recipe.optimizer)}
    assert named(settings={"method": {"name": "simclr"}}) == named(settings=spelled)


def test_names_tell_seeds_methods_and_recipes_apart() -> None:
    cells = [
        named(settings={"method": {"name": "simclr"}}),
        named(settings={"method": {"name": "simclr"}}, seed=1),
        named(settings={"method": {"name": "byol"}}),
        named(recipe="simclr/cifar"),
    ]
    assert len({one.training for one in cells}) == 4


def test_images_are_known_by_what_they_are_and_not_by_where_they_lie(image_folder: Path, tmp_path: Path) -> None:
    first = named(image_folder).training
    copy = shutil.copytree(image_folder, tmp_path / "elsewhere" / "images")
    assert named(copy).training == first
    assert named(image_folder.parent / "elsewhere" / ".." / "images").training == first
    assert named(image_folder.rename(tmp_path / "others")).training != first
    whole = (copy / "red" / "00.png").read_bytes()
    (copy / "red" / "00.png").write_bytes(whole + b"\0")
    assert named(copy).training != first
    (copy / "red" / "00.png").write_bytes(whole)
    assert named(copy).training == first
    Image.new("RGB", (16, 16)).save(copy / "red" / "new.png")
    assert named(copy).training != first


def test_a_packed_file_is_known_by_its_pixels(image_folder: Path, tmp_path: Path) -> None:
    file, place = tmp_path / "images.iecl", tmp_path / "copies"
    place.mkdir()
    pack(str(image_folder), file)
    first = named(file).training
    shutil.copy(file, place / "images.iecl")
    assert named(place / "images.iecl").training == first
    Image.new("RGB", (16, 16)).save(image_folder / "red" / "00.png")
    pack(str(image_folder), file, overwrite=True)
    assert named(file).training != first


def test_evaluations_name_results_and_not_the_training(image_folder: Path) -> None:
    asked = [
        Measurement(name="knn"),
        Measurement(name="knn", options={"k": 20}, part="test"),  # the defaults, spelled out
        Measurement(name="knn", options={"k": 5}),
        Measurement(name="linear"),
        Measurement(name="linear", seeds=2),
        Measurement(name="knn", data=str(image_folder)),
        Measurement(name="knn", data=str(image_folder), part="validation"),
    ]
    plain = named()
    found = named(evaluations=tuple(asked))
    assert found.training == plain.training
    assert found.evaluations[0] == found.evaluations[1] == plain.evaluations[0]
    assert len(set(found.evaluations)) == 6


def test_what_a_run_trains_on_is_not_its_validation_part() -> None:
    asked = (Measurement(name="knn", part="validation"),)
    with pytest.raises(UserError, match=r"would train on the images of the validation part.*data.validation=true"):
        named(evaluations=asked)
    kept = named(evaluations=asked, settings={"data": {"validation": True}})
    assert kept == named(settings={"data": {"validation": True}})
    assert kept.training != named().training


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {"data": {"name": "shapes"}}}, "data.name is no setting of a cell"),
        ({"settings": {"training": {"seed": 1}}}, "training.seed is no setting of a cell"),
        ({"settings": {"training": {"epoch": 1}}}, "did you mean epochs"),
        ({"evaluations": (Measurement(name="kn"),)}, "did you mean knn"),
        ({"evaluations": (Measurement(name="knn", part="tests"),)}, "there is no part 'tests'.*did you mean test"),
        ({"evaluations": (Measurement(name="knn", options={"kk": 1}),)}, "has no setting 'kk'.*did you mean k"),
    ],
)
def test_what_is_wrong_with_a_cell_is_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        named(**changes)


def test_a_record_holds_settings_that_differ_from_the_recipe_and_no_others() -> None:
    recipe = make_config(method="simclr", flags={"data": {"name": "digits"}})
    same = {"training": {"batch_size": recipe.training.batch_size, "epochs": 3}}
    cell = Cell(data="digits", settings={"method": {"name": "simclr"}} | same)
    assert cell.differences(replace(recipe)) == {"training.epochs": 3}


def test_a_setting_that_came_later_leaves_the_names_of_earlier_cells() -> None:
    before = {"saib": {"form": "certified"}, "training": {"epochs": 1}}
    for section, table in NEUTRAL.items():
        for key, value in table.items():
            assert key in DECIDING[section].split()
            with_it = before | {section: before.get(section, {}) | {key: value}}
            assert training_name(with_it, "digits") == training_name(
                before | {section: before.get(section, {})}, "digits"
            )
            other = before | {section: before.get(section, {}) | {key: "another"}}
            assert training_name(other, "digits") != training_name(before, "digits")


def test_a_block_from_elsewhere_is_known_by_what_it_is_and_a_record_does_not_say_where_it_lies(tmp_path: Path) -> None:
    for name, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).write_bytes(content)
    plain, a, b, c = (
        named(settings={"saib": {"form": "certified", "init_from": str(tmp_path / name) if name else ""}}).training
        for name in ("", *"abc")
    )
    assert a == b
    assert len({plain, a, c}) == 3
    config = make_config(flags={"data": {"name": "digits"}})
    cell = Cell(data="digits", settings={"saib": {"form": "sample", "init_from": "/a"}, "data": {"root": "/b"}})
    assert cell.differences(config) == {"saib.form": "sample"}


def test_weights_to_start_from_are_known_by_what_they_are(tmp_path: Path) -> None:
    for name, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / name).write_bytes(content)
    settings = {"method": {"name": "simclr"}, "optimizer": {"lr": 1e-3, "warmup_epochs": 1.0}}
    plain, a, b, c = (
        named(settings=settings, init_from=str(tmp_path / name) if name else "").training for name in ("", *"abc")
    )
    assert a == b
    assert len({plain, a, c}) == 3
