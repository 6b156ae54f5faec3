"""Numbers side by side: what may be compared, how sure each is, and what is noise."""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iecl.comparison.differences import difference, interval, unlike
from iecl.comparison.effects import EFFECTS
from iecl.comparison.results import Result, packed, read_results, unpacked
from iecl.comparison.tables import compare
from iecl.errors import UserError
from iecl.evaluation import EVALUATIONS

PROTOCOL = {"k": 20, "temperature": 0.07, "crop_share": 1.0, "backbone": "resnet18", "checkpoint": "final"}


def write(folder: Path, name: str, hits: np.ndarray | None = None, **changes: Any) -> str:
    """A result file as `iecl evaluate` writes it."""
    protocol = PROTOCOL | changes.pop("protocol", {}) | {"repetitions": 1}
    found = {"evaluation": "knn", "numbers": ["top1", "top5"], "top1": 0.5, "top5": 0.9, "n_train": 100, "n_test": 400}
    found |= {"protocol": protocol, "data": "cifar10"} | changes
    if hits is not None:
        found |= {"hits": packed(hits), "top1": float(hits.mean()), "n_test": len(hits)}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(found))
    return str(path)


def test_one_model_under_two_protocols_is_not_comparable_and_says_why(tmp_path: Path) -> None:
    made = compare([write(tmp_path, "a"), write(tmp_path, "b", protocol={"k": 200, "crop_share": 0.875}, top1=0.51)])
    (pair,) = made["comparisons"]
    assert not pair["is_comparable"]
    assert pair["reasons"] == [
        "k 20 against 200: 1.0 point from k = 10 to 200 with 1 % of ImageNet's labels (facebookresearch/dino#121)",
        "crop share 1.0 against 0.875: up to 0.5 points (estimate)",
    ]
    assert "b against a, knn: +1.00 points; NOT COMPARABLE" in made["text"]
    assert [row["is_other_protocol"] for row in made["results"]] == [False, True]


def test_the_table_shows_image_sizes_and_marks_another_protocol(tmp_path: Path) -> None:
    items = [write(tmp_path, name, protocol={"image_size": size}) for name, size in (("a", 32), ("b", 32), ("c", 64))]
    rows = [[cell.strip() for cell in line.split("|")] for line in compare(items)["text"].split("\n")[2:5]]
    assert [row[-3] for row in rows] == ["32", "32", "64"]
    assert [row[-2].endswith("*") for row in rows] == [False, False, True]


def in_run(folder: Path, *names: str, **changes: Any) -> str:
    """A run with these results."""
    (folder / "evaluations").mkdir(parents=True, exist_ok=True)
    (folder / "settings.toml").write_text("")
    for name in names:
        write(folder / "evaluations", name, **changes)
    return str(folder)


def test_last_and_best_are_both_shown_and_each_is_held_against_its_like(tmp_path: Path) -> None:
    runs = []
    for name in ("one", "two"):
        in_run(tmp_path / name, "knn-cifar10", protocol={"checkpoint": "final"})
        runs.append(in_run(tmp_path / name, "knn-cifar10-best", protocol={"checkpoint": "best, step 7"}, top1=0.52))
    made = compare(runs)
    assert [row["label"] for row in made["results"]] == ["one (last)", "one (best)", "two (last)", "two (best)"]
    pairs = [(pair["first"], pair["second"]) for pair in made["comparisons"]]
    assert pairs == [("one (last)", "one (best)"), ("one (last)", "two (last)"), ("one (best)", "two (best)")]


def test_a_protocol_has_the_same_short_id_whatever_is_compared_by_it(tmp_path: Path) -> None:
    files = [
        write(tmp_path, "a"),
        write(tmp_path, "b", protocol={"backbone": "resnet50", "seed": 3, "checkpoint": "best", "reference": True}),
        write(tmp_path, "c", protocol={"k": 200}),
        write(tmp_path, "d", evaluation="linear"),
        write(tmp_path, "e", protocol_id="knn/2 k=20"),
    ]
    made = compare(files)
    first, same, *others = [row["protocol_hash"] for row in made["results"]]
    assert first == same
    assert len({first, *others}) == 4
    assert first in made["text"]
    assert len(first) == 8
    assert "version knn against knn/2" in made["text"]


def test_other_backbones_checkpoints_and_seeds_are_what_is_compared(tmp_path: Path) -> None:
    others = {"backbone": "resnet50", "checkpoint": "best", "seed": 3}
    made = compare([write(tmp_path, "a"), write(tmp_path, "b", protocol=others)])
    assert made["comparisons"][0]["is_comparable"]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"data": "stl10"}, "data cifar10 against stl10"), ({"n_train": 50}, "n train 100 against 50")],
)
def test_other_data_are_another_task(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    (pair,) = compare([write(tmp_path, "a"), write(tmp_path, "b", **change)])["comparisons"]
    assert words in pair["reasons"][0]


def test_a_number_by_hand_is_shown_and_never_called_comparable(tmp_path: Path) -> None:
    made = compare([write(tmp_path, "a"), "paper=92.1"])
    assert [row["value"] for row in made["results"]] == pytest.approx([0.5, 0.921])
    assert made["comparisons"][0]["reasons"] == ["one of them was given by hand: its protocol is not known"]


def test_the_bootstrap_interval_of_a_share_is_that_of_the_binomial_law() -> None:
    hits = np.arange(2000) % 4 == 0
    found = interval(Result("a", "knn", "top1", 0.25, 2000, PROTOCOL, hits=hits))
    assert found is not None
    reach = 1.96 * math.sqrt(0.25 * 0.75 / 2000)
    assert (found.low, found.high) == pytest.approx((0.25 - reach, 0.25 + reach), abs=0.002)
    assert found == interval(Result("a", "knn", "top1", 0.25, 2000, PROTOCOL, hits=hits))  # the same each time


def paired(shared: int, gained: int, lost: int) -> tuple[Result, Result]:
    """Two results that agree on most images."""
    first = np.array([True] * shared + [False] * gained + [True] * lost + [False] * shared)
    second = np.array([True] * shared + [True] * gained + [False] * lost + [False] * shared)
    results = [Result(n, "knn", "top1", h.mean(), len(h), PROTOCOL, hits=h) for n, h in (("a", first), ("b", second))]
    return results[0], results[1]


@pytest.mark.parametrize(("gained", "lost", "is_noise"), [(60, 20, False), (30, 28, True)])
def test_models_that_agree_on_most_images_are_told_apart_by_pairs(gained: int, lost: int, is_noise: bool) -> None:
    (found,) = difference(*paired(1000, gained, lost))
    assert (found.low <= 0 <= found.high) == is_noise
    assert (found.low + found.high) / 2 == pytest.approx((gained - lost) / (2000 + gained + lost), abs=1e-3)
    unpaired = [interval(result) for result in paired(1000, gained, lost)]
    assert found.high - found.low < min(end.high - end.low for end in unpaired if end)  # what pairing is good for


def test_seeds_are_paired_with_students_law() -> None:
    first = Result("a", "linear", "top1", 0.5, 0, PROTOCOL, by_seed=(0.50, 0.52, 0.48))
    second = Result("b", "linear", "top1", 0.51, 0, PROTOCOL, by_seed=(0.51, 0.53, 0.50))
    (found,) = difference(first, second)
    # Differences 1, 1, 2 points: mean 4/3, deviation 0.577, over the root of 3: 0.333; times 4.303.
    assert (100 * found.low, 100 * found.high) == pytest.approx((4 / 3 - 1.434, 4 / 3 + 1.434), abs=1e-3)
    assert found.way == "paired over 3 seeds"


def test_a_difference_inside_the_noise_is_called_so(tmp_path: Path) -> None:
    first, second = paired(1000, 30, 28)
    made = compare([write(tmp_path, "a", first.hits), write(tmp_path, "b", second.hits)])
    assert made["comparisons"][0]["is_noise"]
    assert "inside the noise" in made["text"]


def test_a_run_gives_all_its_evaluations(tmp_path: Path) -> None:
    (tmp_path / "run" / "evaluations").mkdir(parents=True)
    (tmp_path / "run" / "settings.toml").write_text("")
    write(tmp_path / "run" / "evaluations", "knn-cifar10")
    write(tmp_path / "run" / "evaluations", "linear-cifar10", evaluation="linear")
    (tmp_path / "run" / "evaluations" / "card.json").write_text("{}")
    found = list(read_results(str(tmp_path / "run")))
    assert [(result.label, result.evaluation) for result in found] == [("run", "knn"), ("run", "linear")]
    made = compare([str(tmp_path / "run"), write(tmp_path, "b")], evaluation="knn")
    assert [row["label"] for row in made["results"]] == ["run", "b"]


def test_two_kinds_of_numbers_are_not_comparable() -> None:
    first, second = Result("a", "knn", "top1", 0.5, 9, PROTOCOL), Result("b", "linear", "top1", 0.5, 9, PROTOCOL)
    assert unlike(first, second) == ["knn top1 is not linear top1"]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("nowhere", "no run, no result and no number nowhere.*LABEL=PERCENT"),
        ("paper=high", "'high' is no number"),
        ("paper=921", "921 is no percentage"),
        ("FILE", "is no result of iecl evaluate"),
        ("EMPTY", "has no evaluation.*iecl evaluate knn"),
    ],
)
def test_what_is_no_result_is_told(tmp_path: Path, item: str, words: str) -> None:
    (tmp_path / "FILE").write_text("[]")
    (tmp_path / "EMPTY" / "evaluations").mkdir(parents=True)
    (tmp_path / "EMPTY" / "settings.toml").write_text("")
    path = tmp_path / item
    with pytest.raises(UserError, match=words):
        list(read_results(str(path) if path.exists() else item))


def test_one_result_is_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="1 result: nothing to compare"):
        compare([write(tmp_path, "a")])


def test_hits_survive_their_packing() -> None:
    hits = np.random.default_rng(0).random(1003) < 0.3
    assert (unpacked(packed(hits), 1003) == hits).all()
    assert len(packed(hits)) == 2 * 126


@pytest.mark.parametrize("evaluation", [name for name in EFFECTS if name != "any"])
def test_what_is_known_of_details_is_filed_under_the_names_that_protocols_have(evaluation: str) -> None:
    settings = {field.name for field in fields(EVALUATIONS[evaluation].load().Settings)}
    assert EFFECTS[evaluation].keys() <= settings | {"features", "voc_metrics", "data"}


def test_a_result_of_no_image_is_no_result(tmp_path: Path) -> None:
    file = Path(write(tmp_path, "a"))
    file.write_text(json.dumps(json.loads(file.read_text()) | {"n_test": 0, "hits": ""}))
    with pytest.raises(UserError, match="it was measured on no image"):
        compare([str(file), write(tmp_path, "b")])


def test_seeds_whose_number_is_none_show_nothing(tmp_path: Path) -> None:
    (pair,) = compare([write(tmp_path, name, by_seed={"top1": ["NaN", 0.5]}) for name in "ab"])["comparisons"]
    assert pair["is_comparable"]
    assert pair["is_noise"]
    assert all(math.isnan(one["low"]) for one in pair["intervals"])
