"""Every block of every tutorial is run here in its order, on few and small images; notebooks are those of the pages."""

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from iecl.cli.command import main
from iecl.methods import METHODS
from made_images import make_images

DOCS = Path(__file__).parent.parent / "docs"
SMALL = "method.hidden_dim=16", "method.out_dim=8", "training.loggers=[]", "data.num_workers=0"
SHORT = {
    "arange(600)": "arange(80)",
    "epochs=30, batch_size=64": f"epochs=1, batch_size=16, quiet=True, sets={list(SMALL)}",
}
Run = Callable[..., dict[str, Any]]


def docs_module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


notebooks = docs_module("notebooks")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a tutorial in an empty folder, with some words of its code replaced by smaller ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def follow(name: str, smaller: dict[str, str]) -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "tutorial"}
        found = notebooks.blocks(name)
        for long in smaller:
            assert any(long in block.code for block in found), f"{name} has no {long!r}"
        for language, file, code in found:
            for long, short in smaller.items():
                code = code.replace(long, short)
            if file:
                Path(file).write_text(code, encoding="utf-8")
            elif language == "python":
                exec(compile(code, f"{name}.md", "exec", dont_inherit=True), names)
            else:
                assert language == "bash", language
                for line in code.splitlines():
                    words = shlex.split(line)
                    assert words[0] == "iecl", line
                    assert main(words[1:]) == 0, line
        return names

    return follow


def test_a_search_engine_answers_with_other_images_best_first(run: Run) -> None:
    terminal = {"--epochs 30 --batch-size 64": " ".join(["--epochs 1 --batch-size 16", *(f"--set {s}" for s in SMALL)])}
    names = run("search", SHORT | terminal)
    found = names["nearest"](0)
    cosines = names["rows"][found] @ names["rows"][0]
    assert len(found) == 5
    assert 0 not in found
    assert all(np.diff(cosines) <= 0)
    assert cosines[0] < 1
    with Image.open("nearest.png") as picture:
        assert picture.size == (6 * 96, 96)
    assert np.load("photos-2.npz")["features"].shape == names["table"]["features"].shape


def test_few_labels_make_a_classifier_for_the_other_images(run: Run) -> None:
    names = run("few-labels", SHORT)
    counts = np.bincount(names["truth"][names["known"]])
    assert counts.max() == 5
    assert len(names["known"]) + len(names["others"]) == 80
    folders = sorted({Path(path).parent.name for path in names["table"]["paths"]})
    assert [folders[label] for label in names["truth"]] == [Path(p).parent.name for p in names["table"]["paths"]]
    assert names["classifier"].score(names["rows"][names["known"]], names["truth"][names["known"]]) > 0.9
    assert set(names["ask_next"]) <= set(names["table"]["paths"][names["others"]])


def test_copies_are_found_and_left_out(run: Run) -> None:
    # Larger copies: those of the page are small enough for one in ten to be missed.
    names = run(
        "duplicates", SHORT | {"image.resize((24, 24)).resize((32, 32))": "image.resize((48, 48))", "[::50]": "[::8]"}
    )
    assert names["found"]["checks"]["near"]["count"] == len(names["originals"]) == 10
    assert names["clean"].summary["images"] == 80


def test_the_block_changes_views_of_lightly_by_its_budget(run: Run) -> None:
    pytest.importorskip("lightly", reason="builds a method from lightly's modules")
    names = run("lightly", {"arange(512)": "arange(128)"})
    assert names["changed"] == pytest.approx(0.5, rel=0.25)
    assert names["loss"].isfinite()


def test_a_new_method_trains(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "align", METHODS["simclr"])  # taken out again at the end
    make_images(tmp_path)
    smaller = {'"shapes"': '"images"', "epochs=3": f"epochs=2, batch_size=8, quiet=True, sets={list(SMALL[2:])}"}
    names = run("method", smaller)
    del sys.modules["align"]
    assert any({"loss/pull", "loss/push"} <= set(row) for row in names["run"].metrics)
    assert names["run"].settings["method"]["spread"] == 1.0


@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
def test_a_notebook_has_the_code_of_its_page(name: str) -> None:
    written = (DOCS / "tutorials" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert written == notebooks.notebook(name), "write it again: python docs/notebooks.py"
    cells = [cell for cell in json.loads(written)["cells"] if cell["cell_type"] == "code"]
    assert [re.sub(r"\n$", "", block.code) for block in notebooks.blocks(name) if block.language == "python"] == [
        "".join(cell["source"]) for cell in cells[1:]
    ]


def test_every_formula_of_the_documentation_can_be_set() -> None:
    pytest.importorskip("latex2mathml", reason="sets the formulas of the documentation")
    markup = docs_module("mathml").markup
    pages = [path for path in DOCS.rglob("*.md") if "generated" not in path.parts]
    formulas = [
        formula
        for path in pages
        for formula in re.findall(r"^\$\$\n(.*?)^\$\$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ]
    assert len(formulas) > 20
    for formula in formulas:
        made = markup(formula, "block")
        assert not re.search(r"\\|<mi>&</mi>", made), formula
