"""All evaluations at once, and the page that holds them."""

import json
from pathlib import Path

import pytest

from iecl.errors import UserError
from iecl.evaluation.card import compared, evaluate_all, numbers
from made_runs import MadeRun

SHORT = {"linear": {"epochs": 2}}
FEW = ["knn", "linear"]


def test_a_card_holds_every_number_with_its_protocol(made_run: MadeRun) -> None:
    card = evaluate_all(made_run.directory.path, only=FEW, options=SHORT, seeds=2)
    page = (made_run.directory.evaluations / "card.md").read_text()
    assert [result["evaluation"] for result in card["results"]] == FEW
    assert [result["protocol"]["repetitions"] for result in card["results"]] == [1, 2]  # kNN has nothing random
    for result in card["results"]:
        assert f"`{result['protocol_id']}` on {result['data']}; protocol {result['protocol_hash']}" in page
        assert f"{100 * result['top1']:.2f}" in page
    assert "- weight decay: 1e-05" in page
    assert card["weights"] in page
    written = json.loads((made_run.directory.evaluations / "card.json").read_text())
    assert written | {"file": card["file"]} == card


def test_results_of_a_card_stand_in_their_own_files_too(made_run: MadeRun) -> None:
    card = evaluate_all(made_run.directory.path, only=FEW, options=SHORT, seeds=1)
    for result in card["results"]:
        assert json.loads(Path(result["file"]).read_text())["top1"] == result["top1"]


def test_the_card_of_a_file_goes_where_it_is_told(made_run: MadeRun, images: Path, tmp_path: Path) -> None:
    weights = made_run.directory.weights
    with pytest.raises(UserError, match=r"where is the card of .* to go.*--out.*name a folder"):
        evaluate_all(weights, str(images), only=["knn"])
    card = evaluate_all(weights, str(images), only=["knn"], out=tmp_path / "cards")
    assert Path(card["file"]) == tmp_path / "cards" / "card.md"
    assert (tmp_path / "cards" / "knn.json").exists()


@pytest.mark.parametrize(
    ("only", "words"), [(["lineer"], "did you mean linear"), (["detection"], "detection needs boxes and masks.*--voc")]
)
def test_what_cannot_be_measured_is_said_before_any_work(made_run: MadeRun, only: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        evaluate_all(made_run.directory.path, only=only)


def result(evaluation: str, method: str, **more: object) -> dict[str, object]:
    known = {"model": "a", "numbers": ["miou"], "miou": 0.5, "n_test": 148, "protocol": {"repetitions": 1}}
    known |= {"protocol_hash": "0"}
    return known | {"evaluation": evaluation, "method": method} | more


def test_a_table_has_what_the_paper_prints_beside_what_was_measured() -> None:
    lines = compared([result("segmentation", "ie-cl"), result("segmentation", "byol")]).splitlines()
    assert [cell.strip() for cell in lines[0].strip("|").split("|")][-1] == "paper"
    assert "50.00 %" in lines[2]
    assert "78.12 %" in lines[2]
    assert lines[3].split("|")[-2].strip() == ""  # the paper's table has no such row


def test_a_row_of_another_protocol_is_marked_with_what_differs() -> None:
    rows = [result("knn", "byol", protocol={"repetitions": 1, "image_size": 64}, protocol_hash="aa")]
    rows.append(result("knn", "byol", model="b", protocol={"repetitions": 1, "image_size": 32}, protocol_hash="bb"))
    first, second, note = compared(rows).splitlines()[2:]
    assert [cell.strip() for cell in first.split("|")[7:9]] == ["64", "aa"]
    assert [cell.strip() for cell in second.split("|")[7:9]] == ["32", "bb *"]
    assert note == " * b: not comparable with the first row: image size 32 against 64"


def test_a_deviation_is_shown_where_there_are_several_seeds() -> None:
    repeated = result("segmentation", "random", deviation={"miou": 0.0123}, protocol={"repetitions": 3})
    assert "50.00 ± 1.23 %" in numbers([repeated])
