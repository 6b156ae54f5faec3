"""Studies as TOML, and what may be said of their results."""

import csv
import json
import re
import shlex
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from scipy import stats

import iecl
from iecl.cli.command import main
from iecl.comparison.differences import over_seeds
from iecl.errors import UserError
from iecl.runs.directory import write_json
from iecl.studies.cell import Measurement, Names
from iecl.studies.engine import CellStatus
from iecl.studies.estimate import Estimate
from iecl.studies.folder import StudyFolder
from iecl.studies.report import report, write_report
from iecl.studies.study import Place, Study, read_study
from iecl.training.config import make_config

TEXT = """
[study]
question = "Which temperature?"
data = ["digits", "shapes"]
seeds = [0, 1, 2]
evaluations = ["knn", { name = "linear", epochs = 3, part = "test" }]

[study.base]
"method.name" = "simclr"
training.epochs = 2
recipe = "simclr/cifar"

[arms.low]
"method.temperature" = 0.1

[arms.high]
"method.temperature" = 0.5
"training.epochs" = 4
"""


def written(folder: Path, text: str = TEXT) -> Path:
    path = folder / "heat.toml"
    path.write_text(text)
    return path


def test_a_study_is_read_with_its_base_under_each_arm(tmp_path: Path) -> None:
    study = read_study(written(tmp_path))
    cells = study.cells()
    assert (study.settings.name, study.settings.reference) == ("heat", "low")
    assert list(cells)[:4] == [Place(arm, data, 0) for data in ("digits", "shapes") for arm in ("low", "high")]
    assert len(cells) == 12
    high = cells[Place("high", "shapes", 2)]
    assert (high.data, high.seed, high.recipe) == ("shapes", 2, "simclr/cifar")
    assert high.settings == {"method": {"name": "simclr", "temperature": 0.5}, "training": {"epochs": 4}}
    assert high.evaluations == (Measurement(name="knn"), Measurement(name="linear", options={"epochs": 3}, part="test"))


def test_tables_in_python_are_a_study_too() -> None:
    study = read_study({"study": {"data": "digits", "reference": "b"}, "arms": {"a": {}, "b": {"recipe": "cifar"}}})
    assert study.settings.reference == "b"
    assert [cell.recipe for cell in study.cells().values()] == ["", "cifar"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[study]", "[study", "is not valid TOML"),
        ("question", "qestion", "did you mean question?"),
        ("[arms.low]", "[arm.low]", "did you mean arms?"),
        ("seeds = [0, 1, 2]", "seeds = [0, 0]", "seeds that differ"),
        ("seeds = [0, 1, 2]", "seeds = [-1]", "must be at least 0"),
        ("seeds = [0, 1, 2]", "seeds = 3", "must be a list"),
        ('data = ["digits", "shapes"]', "", "needs data"),
        ('data = ["digits", "shapes"]', 'data = "digit"', "did you mean digits?"),
        ("seeds =", 'interval = "z"\nseeds =', "one of: bootstrap, t"),
        ("seeds =", 'reference = "lo"\nseeds =', "did you mean low?"),
        ('["knn",', '["kn",', "did you mean knn?"),
        ('["knn",', "[5,", "5 is no evaluation"),
        ('["knn",', '[{ name = "knn", seeds = "2" },', "is no evaluation"),
        ('"method.temperature" = 0.1', '"method.temprature" = 0.1', "did you mean temperature?"),
        ('"method.temperature" = 0.1', '"training.epoch" = 1', "did you mean epochs?"),
        ('"method.temperature" = 0.1', "epochs = 1", "did you mean training.epochs?"),
        ('"method.temperature" = 0.1', '"data.name" = "shapes"', "use its data"),
        ('"method.temperature" = 0.1', '"method.name" = "byol"', "is for simclr, not for byol"),
    ],
)
def test_a_mistake_in_a_study_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, words: str
) -> None:
    assert old in TEXT
    path = written(tmp_path, TEXT.replace(old, new, 1))
    assert main(["study", str(path), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert words in told[0]
    assert not (tmp_path / "out").exists()


def test_arms_without_a_table_of_their_own_are_refused() -> None:
    with pytest.raises(UserError, match=r"3 is no table of settings \(study, \[arms.a\]\)"):
        read_study({"study": {"data": "digits"}, "arms": {"a": 3}})
    with pytest.raises(UserError, match=r"a table \[arms.NAME\] for each arm"):
        read_study({"study": {"data": "digits"}})


@pytest.mark.parametrize("apart", [[0.01, 0.03], [0.02, -0.01, 0.03], [0.01 * i for i in range(12)]])
def test_the_interval_over_seeds_is_students(apart: list[float]) -> None:
    found = over_seeds(apart)
    expected = stats.ttest_1samp(apart, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_the_interval_of_two_seeds_is_that_of_the_closed_form() -> None:
    found = over_seeds([0.01, 0.03])  # with one degree of freedom t is Cauchy's: tan(0.475 pi) = 12.7062
    assert (found.low, found.high) == pytest.approx((0.02 - 12.7062 * 0.01, 0.02 + 12.7062 * 0.01), abs=1e-6)


def test_the_bootstrap_over_seeds_lies_within_its_values() -> None:
    found = over_seeds([0.01, 0.02, 0.06], is_resampled=True)
    assert 0.01 <= found.low < 0.03 < found.high <= 0.06
    assert found.way == "paired bootstrap over 3 seeds"


CONFIG = make_config(flags={"data": {"name": "digits"}})


def cell(
    value: float | str | None, state: str = "done", protocol: str = "aaaa", name: str = "", **record: Any
) -> CellStatus:
    record |= {"training": {"verdict": "healthy", "seconds": 5.0, "images_per_second": 9.0}} if state == "done" else {}
    if value is not None:
        one = {"numbers": {"top1": value, "top5": 1.0}, "protocol_hash": protocol, "seconds": 1.0}
        record["evaluations"] = {"e": one}
    return CellStatus(("simclr",), CONFIG, Names(name or f"{value}{state}", ("e",)), record, state)


def study(arms: str, seeds: int, **settings: Any) -> Study:
    head = {"name": "heat", "question": "Which?", "data": "digits", "seeds": list(range(seeds)), **settings}
    return read_study({"study": head, "arms": {arm: {} for arm in arms.split()}})


def told(asked: Study, **values: list[CellStatus]) -> dict[str, Any]:
    order = {Place(arm, "digits", seed): values[arm][seed] for arm in values for seed in asked.settings.seeds}
    return report(asked, {place: order[place] for place in asked.cells()})


def test_only_a_difference_whose_interval_excludes_zero_is_bold() -> None:
    base = [0.90, 0.91, 0.93]
    arms = {"base": base, "better": [0.95, 0.96, 0.985], "noise": [0.92, 0.90, 0.93], "none": base}
    made = told(study(" ".join(arms), 3), **{arm: [cell(one) for one in values] for arm, values in arms.items()})
    rows = {row["arm"]: row for row in made["rows"]}
    apart = [b - a for a, b in zip(base, arms["better"], strict=True)]
    assert rows["better"]["difference"] == pytest.approx(mean(apart))
    expected = stats.ttest_rel(arms["better"], base).confidence_interval(0.95)
    assert (rows["better"]["low"], rows["better"]["high"]) == pytest.approx((expected.low, expected.high))
    assert rows["base"]["deviation"] == pytest.approx(stdev(base))
    assert len(made["rows"]) == len(arms)  # top-5 is not shown
    assert [rows[arm].get("is_significant") for arm in arms] == [None, True, False, False]
    bold = [line for line in made["text"].splitlines() if "**" in line]
    assert len(bold) == 1
    assert "| better" in bold[0]
    assert "| base   | 3     | 91.33 ± 1.53" in made["text"]
    assert "**+5.17 (+4.45 to +5.88, 3 pairs)**" in made["text"]
    assert made["notes"][0] == ("95 % intervals, paired over seeds; about 0.2 of 3 would exclude 0 by chance alone")


def test_failed_and_missing_cells_are_shown_and_pairs_are_of_the_same_seeds(tmp_path: Path) -> None:
    failed = cell(None, "failed", error="the loss became NaN\n| at step 3")
    made = told(
        study("base new never", 3),
        base=[cell(0.9), failed, cell(0.7)],
        new=[cell(0.92), cell(0.99), cell(None, "waiting")],
        never=[cell(None, "waiting")] * 3,
    )
    lines = made["text"].splitlines()
    assert lines[:5] == ["# heat", "", "Which?", "", "## digits: knn top1"]
    assert [line.split("|")[2].strip() for line in lines[8:11]] == ["2, 1 failed", "2, 1 missing", "0, 3 missing"]
    assert "+2.00 (one pair: no interval)" in lines[9]
    assert r"- failed: base, digits, seed 1: the loss became NaN\n| at step 3" in lines
    assert "**" not in made["text"]
    files = write_report(made, tmp_path)
    found = json.loads(Path(files["json"]).read_text())
    assert [one["state"] for one in found["cells"]].count("failed") == 1
    assert found["rows"][1]["values"] == {"0": 0.92, "1": 0.99}
    rows = list(csv.reader(Path(files["csv"]).read_text().splitlines()))
    assert rows[0] == ["data", "evaluation", "metric", "arm", "seed", "value"]
    assert rows[1:] == [["digits", "knn", "top1", arm, *rest] for arm, *rest in
        [("base", "0", "0.9"), ("base", "2", "0.7"), ("new", "0", "0.92"), ("new", "1", "0.99")]]  # fmt: skip
    assert Path(files["md"]).read_text() == made["text"]


def test_a_study_of_which_nothing_is_done_still_shows_its_arms() -> None:
    made = told(study("a b", 1), a=[cell(None, "failed", error="no memory")], b=[cell(None, "waiting")])
    assert "| a   | 0, 1 failed " in made["text"]
    assert "| b   | 0, 1 missing " in made["text"]


def test_numbers_of_two_protocols_are_not_compared() -> None:
    base, other = [cell(0.9), cell(0.8)], [cell(0.99, protocol="bbbb"), cell(0.98, protocol="bbbb")]
    made = told(study("base other", 2), base=base, other=other)
    assert "difference" not in made["rows"][1]
    assert "another protocol" in made["text"]
    assert made["notes"] == ["not compared, since measured by another protocol than base: other"]


def test_what_is_not_a_number_is_missing() -> None:
    made = told(study("base new", 2), base=[cell(0.5), cell(0.6)], new=[cell(0.9), cell("NaN")])
    assert "| new  | 1, 1 missing | 90.00 " in made["text"]


def test_arms_that_are_the_same_run_and_cells_of_other_versions_are_noted() -> None:
    same = [cell(0.9, name="x", code={"git": "1"}), cell(0.8, name="y", code={"git": "2"})]
    notes = told(study("base twin", 2), base=same, twin=same)["notes"]
    assert "the same runs under several names: base, twin" in notes
    assert "cells are from 2 versions of the code: see results.json" in notes


def test_the_bootstrap_is_an_option() -> None:
    asked = study("base new", 3, interval="bootstrap")
    made = told(asked, base=[cell(0.1)] * 3, new=[cell(0.2), cell(0.3), cell(0.2)])
    assert made["rows"][1]["way"] == "paired bootstrap over 3 seeds"
    assert made["notes"][0].startswith("95 % intervals, paired bootstrap over seeds")


GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "studies.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_study_of_the_guide_runs_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (toml,), (commands,) = (re.findall(rf"^```{name}\n(.*?)^```", GUIDE, re.M | re.S) for name in ("toml", "bash"))
    shorter = {"seeds = [0, 1, 2]": "seeds = [0, 1]", '"training.epochs" = 10': '"training.epochs" = 1'}
    shorter |= {'"method.temperature" = 1.0': '"training.batch_size" = 5000'}  # more than there are
    for old, new in shorter.items():
        assert old in toml
        toml = toml.replace(old, new)
    Path("temperature.toml").write_text(toml)
    listed, run, shown = (shlex.split(line, comments=True)[1:] for line in commands.splitlines())
    assert main(listed) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].split() == ["waiting", "t=0.2,", "digits,", "seed", "0"]
    assert told[-1].startswith("6 cells, 6 to do; 0 MB in studies/temperature")
    assert main([*run, "--quiet"]) == 1
    out, err = capsys.readouterr()
    assert "2 of 6 cells failed (studies/temperature/results.md)" in err
    assert out.count("| t=1    | 0, 2 failed ") == 3
    assert re.search(r"\| t=0.05 \| 2 +\| [0-9.]+ ± [0-9.]+ +\| \*?\*?[+-][0-9.]+ \([+-]", out)
    assert "- failed: t=1, digits, seed 1: " in out
    assert main(shown) == 0
    assert capsys.readouterr().out == out
    assert main([*listed, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [cell["state"] for cell in found["cells"]] == ["done", "done", "failed"] * 2
    assert found["to_do"] == 2
    assert {path.name for path in Path("studies/temperature").iterdir()} == {
        *("cells", "runs", "data", "names.json", "results.md", "results.csv", "results.json"),
    }
    from_python = iecl.study("temperature.toml", dry=True)
    assert from_python["text"] == out


def test_an_arm_may_start_from_weights(tmp_path: Path) -> None:
    text = TEXT.replace('"method.temperature" = 0.1', '"method.temperature" = 0.1\ninit_from = "old.safetensors"')
    cells = read_study(written(tmp_path, text)).cells()
    assert cells[Place("low", "digits", 0)].init_from == "old.safetensors"
    assert cells[Place("high", "digits", 0)].init_from == ""
    with pytest.raises(UserError, match="init_from is no setting"):
        read_study(written(tmp_path, text.replace('"old.safetensors"', "5")))


def test_names_that_somebody_emptied_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text('{"request": []}')
    with pytest.raises(UserError, match=r"names\.json is damaged: a request has no names"):
        StudyFolder(tmp_path).known_names()


@pytest.mark.parametrize("names", [["../../x"], ["0" * 16, ""], ["A" * 16], ["0" * 5000]])
def test_names_that_are_none_of_files_in_the_folder_are_refused(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text(json.dumps({"request": names}))
    with pytest.raises(UserError, match=r"names\.json is damaged: a name in it is none of a cell"):
        StudyFolder(tmp_path).known_names()


@pytest.mark.parametrize("name", ["..", ".", "a/b", " ", "/x"])
def test_a_study_is_called_as_a_folder_can_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no name of a study"):
        read_study(written(tmp_path, TEXT.replace("[study]", f'[study]\nname = "{name}"')))


@pytest.mark.parametrize("number", ["NaN", "-Infinity", -1.0, 0.0])
def test_a_speed_that_none_can_be_tells_nothing(number: object) -> None:
    record = {"training": {"images": 9, "images_per_second": number}, "kind": ["simclr"], "evaluations": {}}
    assert Estimate([record]).seconds(("simclr",), make_config(flags={"data": {"name": "digits"}})) is None


MEASURED: dict[str, Any] = {"evaluations": {}, "kind": ["simclr"]}


@pytest.mark.parametrize(
    ("record", "how"),
    [
        ({"training": {}, "evaluations": {}}, "it has no kind"),
        ({"training": {}, "evaluations": {}, "kind": ["simclr", []]}, "kind is not a list of words and whole numbers"),
        ({"training": {"images_per_second": "x", "images": 9}, **MEASURED}, "images_per_second is not a number"),
        ({"training": {"images_per_second": 9.0}, **MEASURED}, "it has no images"),
        ({"training": {}}, "it has no evaluations"),
        ({"training": {}, "evaluations": {"a": 3}, "kind": []}, "a is not a table"),
        ({"training": {}, "evaluations": {"a": {"numbers": {}}}, "kind": []}, "it has no protocol_hash"),
        ({"error": "no memory"}, "it has no time"),
    ],
)
def test_a_record_that_lacks_what_a_report_needs_is_one_line(record: dict[str, Any], how: str, tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    write_json(tmp_path / "cells" / "name.json", record)
    with pytest.raises(UserError, match=f"is damaged: {how}"):
        StudyFolder(tmp_path).record("name")
