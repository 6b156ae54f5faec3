"""An evaluation from the name of a run to a number with its protocol."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from PIL import Image

from iecl.comparison.results import unpacked
from iecl.errors import UserError
from iecl.evaluation import EVALUATIONS
from iecl.evaluation.model import load_model
from iecl.evaluation.runner import evaluate
from made_runs import MEAN, STD, MadeRun


def test_knn_on_the_data_of_the_run_comes_with_its_whole_protocol(made_run: MadeRun, images: Path) -> None:
    result = evaluate("knn", made_run.directory.path, k=3)
    seconds, file = result.pop("seconds"), result.pop("file")
    assert seconds >= 0
    assert result == {
        "evaluation": "knn",
        "numbers": ["top1"],
        "top1": 1.0,  # colors are easy even for a backbone that was never trained
        # Of 24 images 8 are of the right class: in a plain vote of 20 another class has as many.
        "also": {"k=20 T=0.07 cosine": 1.0, "k=200 T=0.1 cosine": 1.0, "k=20 uniform": 1 / 3},
        "n_train": 24,  # four fifths of thirty, of each class
        "n_test": 6,
        "classes": 3,
        "hits": "fc",  # six ones, filled up to eight bits
        "protocol": {
            "k": 3,
            "temperature": 0.07,
            "weights": "cosine",
            "backbone": "resnet10-w16",
            "checkpoint": "final",
            "features": "output of the backbone, as it is",
            "batch_norm": "running statistics",
            "image_size": 16,
            "crop_share": 1.0,
            "interpolation": "bilinear, antialiased",
            "mean": MEAN,
            "std": STD,
            "test_split": "a fixed fifth of the folder",
            "repetitions": 1,
        },
        "protocol_id": "knn/1 k=3 T=0.07 cosine whole 16px",
        "protocol_hash": "ff73f276",
        "model": str(made_run.directory.path),
        "method": "moco-v2",
        "weights": load_model(made_run.directory.path).proof,
        "data": str(images),
        "skipped": 1,
        "device": "cpu",
    }
    assert json.loads(Path(file).read_text()) == result | {"seconds": seconds}
    assert Path(file).parent == made_run.directory.evaluations
    assert Path(file).name.startswith("knn-images-")


def test_a_run_that_ignored_the_class_folders_is_measured_by_them(made_run: MadeRun) -> None:
    blind = replace(made_run.config, data=replace(made_run.config.data, labels="none"))
    made_run.directory.settings.write_text(blind.to_toml("made for a test"))
    assert evaluate("knn", made_run.directory.path)["classes"] == 3


@pytest.mark.parametrize("mode", ["cached", "literal"])
def test_a_linear_probe_reports_its_last_epoch(made_run: MadeRun, mode: str) -> None:
    result = evaluate("linear", made_run.directory.path, epochs=30, lr=0.3, mode=mode)
    assert result["protocol_id"] == f"linear/1 sgd lr=0.3 wd=1e-05 batch=512 epochs=30 {mode} whole 16px"
    assert result["top1"] == result["train_top1"] == 1.0
    assert result["protocol"]["epochs"] == 30
    assert result["skipped"] == 1


def test_the_same_evaluation_twice_gives_the_same_number(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", data="digits")
    run.save_weights()
    first, second = (evaluate("linear", run.directory.path, epochs=2) for _ in range(2))
    assert first | {"seconds": 0} == second | {"seconds": 0}
    assert 0.1 < first["top1"] < 1


def test_named_data_go_by_their_name_and_their_own_split(made_run: MadeRun) -> None:
    result = evaluate("knn", made_run.directory.path, "digits")
    assert (result["n_train"], result["n_test"], result["classes"]) == (1437, 360, 10)
    assert result["protocol"]["test_split"] == "its own"
    assert Path(result["file"]).name == "knn-digits.json"
    assert 0.3 < result["top1"] < 1  # an untrained backbone is far above chance on digits


def test_a_folder_with_splits_is_tested_on_its_test_images(made_run: MadeRun, images: Path) -> None:
    split = images.parent / "split"
    shutil.copytree(images, split / "train")
    shutil.copytree(images, split / "val", ignore=shutil.ignore_patterns("[0-6].png", "broken.png"))
    result = evaluate("knn", made_run.directory.path, str(split))
    assert (result["n_train"], result["n_test"], result["skipped"]) == (30, 9, 1)
    assert result["protocol"]["test_split"] == "its own"


def test_an_exported_file_is_measured_and_writes_nothing(made_run: MadeRun, images: Path) -> None:
    before = sorted(images.parent.rglob("*.json"))
    alone = evaluate("knn", made_run.directory.weights, str(images), k=3)
    assert sorted(images.parent.rglob("*.json")) == before
    run = evaluate("knn", made_run.directory.path, k=3)
    assert (alone["top1"], alone["protocol_id"], alone["weights"]) == (run["top1"], run["protocol_id"], run["weights"])


def test_another_checkpoint_has_a_file_of_its_own(made_run: MadeRun) -> None:
    made_run.save_checkpoint(step=4, is_best=True)
    final, best = (evaluate("knn", made_run.directory.path, checkpoint=name) for name in ("final", "best"))
    assert best["protocol"]["checkpoint"] == "best, step 4"
    assert best["file"] == final["file"].replace(".json", "-best.json")


def test_larger_images_are_seen_in_their_middle(tmp_path: Path, images: Path) -> None:
    run = MadeRun(tmp_path / "run", data=str(images))
    run.config = replace(run.config, data=replace(run.config.data, image_size=72))
    run.save_weights()
    result = evaluate("knn", run.directory.weights, str(images), k=1)
    assert result["protocol_id"] == "knn/1 k=1 T=0.07 cosine center 0.875 72px"
    assert result["protocol"]["crop_share"] == 0.875


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("knnn", {}, r"no evaluation is called 'knnn' .*did you mean knn\?"),
        ("knn", {"kk": 3}, r"\[knn\] has no setting 'kk' .*did you mean k\?"),
        ("knn", {"k": 0}, "knn.k is 0, it must be at least 1"),
        ("linear", {"epochs": "many"}, "linear.epochs is 'many', it must be a whole number"),
    ],
)
def test_a_wrong_option_is_refused(made_run: MadeRun, name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        evaluate(name, made_run.directory.path, **options)


@pytest.mark.parametrize("name", ["knn", "linear", "fewshot", "finetune"])
def test_images_without_labels_are_refused(name: str, made_run: MadeRun, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number in range(10):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(flat / f"{number}.png")
    with pytest.raises(
        UserError, match=r"the train images have no labels \(--data\); give a folder with one sub-folder"
    ):
        evaluate(name, made_run.directory.path, str(flat))


def test_a_file_needs_to_be_told_which_images(made_run: MadeRun) -> None:
    with pytest.raises(UserError, match="does not say on which images to measure"):
        evaluate("knn", made_run.directory.weights)


def test_repetitions_give_a_mean_and_a_deviation(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", data="digits")
    run.save_weights()
    single = [evaluate("linear", run.directory.path, epochs=1, lr=0.3, seed=seed)["top1"] for seed in (4, 5, 6)]
    result = evaluate("linear", run.directory.path, epochs=1, lr=0.3, seed=4, seeds=3)
    assert len(set(single)) > 1  # the order of the features decides, after so little training
    assert result["by_seed"]["top1"] == single
    assert result["top1"] == pytest.approx(mean(single))
    assert result["deviation"]["top1"] == pytest.approx(stdev(single))
    assert result["protocol"]["repetitions"] == 3


@pytest.mark.parametrize(("name", "seeds", "words"), [("knn", 3, "nothing .* is random"), ("linear", 0, "0 repetit")])
def test_repetitions_that_mean_nothing_are_refused(made_run: MadeRun, name: str, seeds: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        evaluate(name, made_run.directory.path, seeds=seeds)


@pytest.mark.parametrize(("name", "options"), [("knn", {}), ("linear", {"epochs": 2}), ("finetune", {"epochs": 1})])
def test_a_result_says_which_images_were_right(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    run = MadeRun(tmp_path / "run", data="digits")
    run.save_weights()
    result = evaluate(name, run.directory.path, **options)
    right = unpacked(result["hits"], result["n_test"])
    assert right.mean() == pytest.approx(result["top1"])
    assert 0 < right.sum() < 360


def test_images_that_were_learnt_from_are_listed_beside_the_result(made_run: MadeRun) -> None:
    result = evaluate("fewshot", made_run.directory.path, label_fractions=[], shots=[2], trials=3)
    lists = json.loads((made_run.directory.evaluations / "images" / Path(result["file"]).name).read_text())
    assert [len(part) for part in lists["2shot"]] == [6, 6, 6]
    assert result["numbers"] == ["top1_2shot"] == list(result["deviation"])


def test_a_result_goes_to_the_file_that_is_asked_for(made_run: MadeRun, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "result.json"
    result = evaluate("knn", made_run.directory.weights, str(images), out=out)
    assert json.loads(out.read_text()) | {"file": str(out)} == result


@pytest.mark.parametrize("name", EVALUATIONS)
def test_every_row_of_the_table_has_settings_and_a_protocol(name: str) -> None:
    kind = EVALUATIONS[name].load()
    assert kind(kind.Settings()).summary.startswith(f"{name}/1 ")
