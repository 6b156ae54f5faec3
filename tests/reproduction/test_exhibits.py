"""Exhibits as data: every one can be planned at every scale, rows are what their names say, numbers are the paper's."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from iecl.cli.command import main
from iecl.errors import UserError
from iecl.reproduction.checks import check_images
from iecl.reproduction.exhibit import ORDER, SCALES, STEPS, find_exhibit
from iecl.reproduction.plan import cells_of, read_wish
from iecl.reproduction.report import command, finished
from iecl.studies.cell import Cell, Datasets
from iecl.studies.study import Place
from iecl.training.config import RunConfig

DATASETS = Datasets()


def configs(name: str, scale: str, data: Iterable[str] = (), **options: Any) -> dict[tuple[str, str], RunConfig]:
    """The runs of the first seed, by row and column."""
    exhibit = find_exhibit(name)
    wish = read_wish(exhibit, scale, [*data, *(f"{need}=." for need in exhibit.needs)], **options)
    cells = cells_of(wish.panels())
    seed = next(iter(cells))[1].seed
    return {(p.arm, column): cell.config(DATASETS) for (column, p), cell in cells.items() if p.seed == seed}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ORDER)
def test_every_run_of_every_exhibit_has_settings_that_exist_and_rows_that_differ(name: str, scale: str) -> None:
    exhibit = find_exhibit(name)
    found = configs(name, scale)
    assert exhibit.reference in {row for row, _ in found}
    named = {word for one in exhibit.claims for word in (one.better, one.than, one.row)} - {""}
    assert named <= {row.name for row in exhibit.rows}
    if exhibit.kind not in STEPS:
        for column in {column for _, column in found}:
            here = {row: str(config.plain_values()) for (row, own), config in found.items() if own == column}
            moved = {row.name for row in exhibit.rows if "block_from" in row.table}  # they differ by their block
            runs = [values for row, values in here.items() if row not in moved]
            assert len(set(runs)) == len(runs)


def test_a_full_table_has_the_batch_epochs_and_network_that_are_printed() -> None:
    first = configs("T1", "full")
    batches = {row: config.training.batch_size for (row, column), config in first.items() if column == "800 epochs"}
    assert batches == {
        **{"SimCLR": 4096, "SwAV": 4096, "MoCo-v2": 256, "SimSiam": 256, "NNCLR": 1024, "All4One": 1024},
        **{"Matrix-SSL": 512, "IE-CL": 256},
    }
    assert {(config.training.epochs, config.backbone.name) for config in first.values()} == {
        (epochs, "resnet50") for epochs in (100, 200, 400, 800)
    }
    assert {config.training.seed for config in first.values()} == {42}
    second = configs("T2a", "full")
    assert {(c.data.name, c.training.epochs, c.training.batch_size) for c in second.values()} == {
        *((name, 1000, 256) for name in ("cifar10", "cifar100", "stl10")),
        ("imagenet", 300, 256),
    }
    assert ("Light-MoCo", "cifar10") not in second
    assert ("Light-MoCo", "imagenet") in second
    assert second["SimCLR", "cifar10"].optimizer.name == "lars"  # its own recipe
    assert second["IE-CL", "stl10"].saib.patch_size == 8


def test_memory_of_a_full_run_does_not_hold_imagenet_which_is_read_from_files() -> None:
    from iecl.reproduction.forecast import images_of
    from iecl.training.trial import kept_megabytes

    kept = {name: kept_megabytes(c, images_of(c)) for (_, name), c in configs("T2a", "full").items()}
    assert {name: round(size) for name, size in kept.items()} == {
        **{"cifar10": 146, "cifar100": 146, "stl10": 2769},  # with 100,000 images without label
        "imagenet": 0,
    }


def test_rows_of_the_ablation_have_the_parts_that_their_names_say() -> None:
    parts = {
        row: (config.saib.form, config.objective.entropy, config.objective.kl, config.objective.encoder)
        for (row, _), config in configs("T3", "mini").items()
    }
    assert parts["MoCo-v2"] == ("none", "none", "none", "none")
    assert parts["+ block"] == ("batch", "coding-rate", "none", "none")
    assert parts["+ block + KL"] == ("batch", "coding-rate", "gaussian-diag", "none")
    assert parts["+ block + KL + spectral norm"] == ("batch", "coding-rate", "gaussian-diag", "spectral-norm")
    assert parts["+ entropy, no block"] == ("none", "coding-rate", "none", "none")
    longer = configs("T3", "mini")["MoCo-v2, equal time", ""].training.epochs
    assert longer == 10  # twice 5
    assert configs("T3", "mini", epochs=10)["MoCo-v2, equal time", ""].training.epochs == 20
    assert configs("T3", "full")["MoCo-v2, equal time", ""].training.epochs == 525  # 1.75 times 300
    assert [c.saib.cascade for c in configs("T4", "full").values()] == [1, 2, 3]


@pytest.mark.parametrize("scale", ["mini", "full"])
@pytest.mark.parametrize("name", ["T3", "T4"])
def test_rows_of_the_ablation_differ_in_their_parts_and_in_nothing_else(name: str, scale: str) -> None:
    """Rates, networks, batches and epochs are those of the row beside it; the printed rate and equal time say so."""
    every = {row: config for (row, _), config in configs(name, scale).items()}
    alike = {row: c for row, c in every.items() if row not in ("MoCo-v2, equal time", "all, lr 0.3 as printed")}
    shared = {str([c.method, c.optimizer, c.training, c.augmentation, c.backbone, c.data]) for c in alike.values()}
    assert len(shared) == 1
    (method,) = {str(sorted(c.method.items())) for c in alike.values()}
    for words in ("('ema_momentum', 0.9)", "('queue_size', 0)", "('symmetric', False)", "('temperature', 0.2)"):
        assert words in method
    blocks = [c for c in alike.values() if c.saib.form != "none"]
    assert {(c.saib.form, c.saib.side, c.saib.host_gradient, c.saib.convs) for c in blocks} == {
        ("batch", "query", "none", 3)  # on the query, and trained by the entropy alone
    }
    assert {(c.objective.entropy, c.objective.entropy_weight, c.objective.entropy_on) for c in blocks} == {
        ("coding-rate", 0.2, "query")
    }
    if name == "T3":
        printed = every["all, lr 0.3 as printed"]
        assert (printed.optimizer.lr, printed.optimizer.warmup_epochs) == (0.3, 0.0)
        assert every["MoCo-v2, equal time"].training.epochs > alike["MoCo-v2"].training.epochs


def test_every_run_of_a_table_has_the_precision_that_was_asked_for_and_the_command_says_it() -> None:
    found = configs("T5", "mini", precision="32-true")
    assert {config.training.precision for config in found.values()} == {"32-true"}
    assert command(read_wish(find_exhibit("T5"), "mini", precision="32-true")).endswith(
        "T5 --scale mini --precision 32-true"
    )


def test_the_table_says_what_a_row_is_besides_its_name_and_by_which_rule_settings_were_chosen() -> None:
    wish = read_wish(find_exhibit("T3"), "mini")
    notes = finished(wish, {"panels": [], "notes": []}, {})["notes"]
    assert "+ block: with the entropy term, which alone trains the block, as in the printed pseudo-code" in notes
    assert sum("a control that the paper lacks" in note for note in notes) == 3
    assert (
        sum(note.startswith("hyper-parameters: ") and "none was chosen by their scores" in note for note in notes) == 1
    )


def test_the_block_stands_on_the_target_side_of_byol_and_simsiam() -> None:
    found = configs("T5", "full")
    sides = {column: found["+ block", column].saib.side for column in ("MoCo-v2", "BYOL", "SimCLR", "SimSiam")}
    assert sides == {"MoCo-v2": "auto", "BYOL": "target", "SimCLR": "auto", "SimSiam": "target"}
    assert all(found["plain", column].method_name != "ie-cl" for column in sides)


def test_pairs_of_augmentations_have_these_two_operators_and_no_other() -> None:
    found = configs("F6", "full")
    assert len({column for _, column in found}) == 15
    settings = found["no block", "color + blur"].augmentation
    given = {key: value for key, value in settings.given().items() if key.endswith("_prob") and value}
    assert settings.policy == "none"
    assert given == {"color_jitter_prob": 0.8, "gaussian_blur_prob": 0.5}


def test_images_of_the_user_take_the_place_of_the_scales_own(image_folder: Path) -> None:
    found = configs("T4", "mini", [str(image_folder), "digits"])
    assert {Path(config.data.name).name for config in found.values()} == {"digits"}  # the last of each pair
    cells = cells_of(read_wish(find_exhibit("T4"), "mini", [str(image_folder), "digits"], seeds=2).panels())
    assert len(cells) == 3 * 2 * 2
    assert cells["", Place("one block", "digits", 1)] == Cell(
        data="digits",
        seed=1,
        recipe="ie-cl/imagenet",
        settings=cells["", Place("one block", "digits", 1)].settings,
        evaluations=cells["", Place("one block", "digits", 1)].evaluations,
    )


def test_a_folder_called_like_a_dataset_is_written_with_a_slash(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_folder.rename(tmp_path / "cifar10")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="write --data cifar10/ for the folder of that name here"):
        check_images(cells_of(read_wish(find_exhibit("T4"), "smoke", ["cifar10"]).panels()).values())
    wish = read_wish(find_exhibit("T4"), "smoke", ["cifar10/"])
    assert len(check_images(cells_of(wish.panels()).values())) == 3
    assert command(wish) == "iecl reproduce T4 --scale smoke --data cifar10/"


def test_at_full_scale_a_folder_is_where_a_dataset_of_the_paper_is() -> None:
    (found,) = {config.data.root for config in configs("T3", "full", ["/ilsvrc"]).values()}
    assert found == "/ilsvrc"
    assert configs("T2a", "full", ["stl10=/stl"])["BYOL", "stl10"].data.root == "/stl"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["T33"], r"no exhibit is called 'T33' .*did you mean T3\?"),
        (["T3", "--scale", "medium"], "there is no scale 'medium'"),
        (["T3", "--seeds", "-1"], "give 1 to 1,000 seeds"),
        (["T3", "--data", "imagnet=/x"], r"uses no images called 'imagnet' .*did you mean imagenet\?"),
        (["T3", "--data", "no-such-folder"], "there is no folder and no dataset called 'no-such-folder'"),
        (["T2b"], "T2b measures on VOC images .*add --data voc=FOLDER"),
        (["T2b", "--data", "voc=/no/such"], "there is no folder /no/such"),
        (["T2a", "--scale", "full", "--data", "/x"], "uses several datasets at this scale .*--data stl10=FOLDER"),
        (["T3", "--scale", "full"], "imagenet is not here: .*add --data imagenet=FOLDER"),
        (["F5", "--keep", "none"], "F5 is drawn from its runs"),
        (["T3", "--keep", "some"], "keep is one of: none, weights, all"),
        (["T3", "--threads", "0"], "threads at least 1"),
        (["T3", "--seeds", "99999999999"], "give 1 to 1,000 seeds"),
        (["T3", "--precision", "bf16"], "there is no precision 'bf16' .*one of: .*bf16-mixed"),
        (["all", "--scale", "ful"], "there is no scale 'ful' .*did you mean full"),
        ([], "which exhibit"),
    ],
)
def test_what_is_wrong_is_one_line_before_any_training(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert re.search(told, lines[0])
    assert not (tmp_path / "out").exists()


def test_a_folder_without_lists_of_voc_is_told_before_any_training(image_folder: Path, tmp_path: Path) -> None:
    import iecl

    with pytest.raises(UserError, match="holds no VOC data: there is no ImageSets folder"):
        iecl.reproduce("T2b", tmp_path / "out", data=f"voc={image_folder}")
    assert not (tmp_path / "out").exists()


def test_too_few_images_are_told_before_any_training(image_folder: Path, tmp_path: Path) -> None:
    import iecl

    with pytest.raises(UserError, match=r"has \d+ images to train on, fewer than the 128 of a step"):
        iecl.reproduce("T3", tmp_path / "out", data=image_folder)
    assert not (tmp_path / "out").exists()


def test_images_without_labels_and_a_full_disk_are_told_before_any_training(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collections import namedtuple

    import iecl

    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(image_folder.rglob("*.png"))):
        file.rename(flat / f"{number}.png")
    with pytest.raises(UserError, match="flat has no labels to measure with"):
        iecl.reproduce("T3", tmp_path / "out", scale="smoke", data=flat)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(0, 0, 2**20))
    with pytest.raises(UserError, match=r"it will take about \d+ MB, 1 MB are free"):
        iecl.reproduce("T4", tmp_path / "out", scale="smoke", data="digits")
    assert not (tmp_path / "out").exists()


def test_the_list_names_every_exhibit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--scale", "smoke"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("|")[1].strip() for line in lines if line.startswith("| ") and "---" not in line]
    assert names == ["name", *ORDER]
    assert all(line.split("|")[2].strip() != "?" for line in lines if line.startswith("| "))
    assert "--dry-run" in lines[-1]
