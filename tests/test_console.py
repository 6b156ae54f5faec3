"""What is printed never controls a terminal, and a name never looks like a line of its own."""

import json
import logging
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.faults.readers import FORBIDDEN, HOSTILE
from hypothesis import given, settings
from hypothesis import strategies as st

from iecl.console import ProgressLine, json_escaped, log_to_terminal, one_line, plain_table, show, terminal, visible
from iecl.evaluation.card import markdown
from iecl.runs.directory import RunDirectory, strict_json
from iecl.training.recorder import SkippedFiles
from iecl.training.run import _LogFile

ANY_TEXT = st.text(st.one_of(st.characters(), st.sampled_from(HOSTILE + "\ud800\udfff")))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(ANY_TEXT)
def test_escaped_text_holds_nothing_that_a_terminal_obeys_and_stays_as_it_is(text: str) -> None:
    assert FORBIDDEN.search(visible(text)) is None
    assert visible(text).count("\n") == text.count("\n")
    assert "\n" not in one_line(text)
    assert one_line(visible(one_line(text))) == one_line(text)
    if FORBIDDEN.search(text) is None:
        assert visible(text) == text


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.recursive(ANY_TEXT | st.floats() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner))
)
def test_json_without_control_characters_is_the_same_json(content: object) -> None:
    text = strict_json(content)
    assert FORBIDDEN.search(text) is None
    assert "\n" not in text
    assert json.loads(text) == json.loads(json.dumps(json.loads(text)))
    plain = json.dumps(content, ensure_ascii=False)
    assert json.loads(json_escaped(plain)) == json.loads(plain) or "NaN" in plain


def test_letters_that_a_terminal_lacks_are_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(raw, encoding="ascii", write_through=True))
    show(strict_json({"name": "Katze ä 日 😀"}), as_result=True)
    assert json.loads(raw.getvalue()) == {"name": "Katze ä 日 😀"}


def test_a_cell_of_a_table_stays_within_its_row() -> None:
    table = plain_table(["name", "value"], [[HOSTILE, "1"], ["b", HOSTILE]])
    assert table.count("\n") == 3
    assert FORBIDDEN.search(table) is None


def test_log_lines_and_progress_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.cache_clear()
    with log_to_terminal(), ProgressLine() as line:
        logging.getLogger("iecl.test").warning("looking at %s :cat:", HOSTILE)
        line.show(f"reading {HOSTILE}")
    terminal.cache_clear()
    said = capsys.readouterr().err
    assert FORBIDDEN.search(said) is None
    assert len(said.splitlines()) == 2
    assert ":cat:" in said  # a name is not an image of a cat


def test_the_log_of_a_run_and_its_list_of_skipped_files_have_one_line_for_each_entry(tmp_path: Path) -> None:
    run = RunDirectory.fresh(tmp_path)
    with _LogFile(run, is_on=True):
        logging.getLogger("iecl.test").warning("looking at %s", HOSTILE)
        skipped = SkippedFiles(run)
        skipped.add(f"a\tb {HOSTILE}", HOSTILE)
        skipped.add(f"a\tb {HOSTILE}", HOSTILE)
    logged, listed = (file.read_text(encoding="utf-8") for file in (run.log, run.skipped))
    assert FORBIDDEN.search(logged + listed) is None
    assert (logged.count("\n"), listed.count("\n")) == (2, 1)
    assert SkippedFiles(run).reasons == skipped.reasons


def test_a_card_has_no_line_that_a_name_made_up() -> None:
    result = {"evaluation": "knn", "numbers": ["top1"], "top1": 0.5, "n_test": 8, "method": HOSTILE, "data": HOSTILE}
    result |= {"protocol": {"repetitions": 1, HOSTILE: HOSTILE}, "protocol_id": HOSTILE, "protocol_hash": "0"}
    card = {"model": HOSTILE, "backbone": HOSTILE, "weights": HOSTILE, "results": [result]}
    text = markdown(card)
    assert FORBIDDEN.search(text) is None
    assert not any(line.startswith("error") for line in text.split("\n"))


def test_in_a_notebook_one_display_shows_a_bar_and_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    handle = SimpleNamespace(update=lambda content, raw: shown.append(content))
    module = SimpleNamespace(display=lambda content, raw, display_id: (shown.append(content), handle)[1])
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("iecl.console.NOTEBOOK_SECONDS", 0.0)
    with ProgressLine() as line:
        line.show("epoch 1/4  <loss>  9 s left", 0.25)
        line.count("reading images")(3, 4)
    assert [content["text/plain"] for content in shown] == ["epoch 1/4  <loss>  9 s left", "reading images  3/4"]
    assert 'value="0.2500"' in shown[0]["text/html"]
    assert "&lt;loss&gt;" in shown[0]["text/html"]


def test_a_plain_interactive_shell_is_no_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.cache_clear()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    with ProgressLine() as line:
        line.show("epoch 1/4", 0.25)
    terminal.cache_clear()
    assert capsys.readouterr().err == "epoch 1/4\n"
