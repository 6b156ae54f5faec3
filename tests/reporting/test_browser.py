"""The page in a browser that has no network: it draws itself, asks for nothing, and answers pointer and keys."""

import json
import re
import zlib
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.browser import ABSENT, PROGRAM, Browser
from made_report import make_colors, make_reported, make_result
from test_report import HOSTILE, document_of

from iecl.checks.call import doctor
from iecl.reporting.making import make_report

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=ABSENT)
NAMES = [f"{'warm' if i % 2 else 'cold'}/<b>&'{i:02d}' 😀.png" for i in range(36)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A page about two runs on images of one color each, in folders and files with difficult names."""
    folder = tmp_path_factory.mktemp("page")
    colors = make_colors(folder / "images", NAMES)
    runs = [make_reported(folder, folder / "images", name=name) for name in ("first", "second")]
    with (runs[0] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "loss": "NaN", "odd/<i>": "Infinity"}\n')
    page = make_report(runs, folder / "page.html")
    return {"path": folder / "page.html", "colors": colors, "document": document_of(page.html), "runs": runs}


@pytest.fixture
def opened(browser: Browser, made: dict[str, Any]) -> Browser:
    browser.open(made["path"].as_uri())
    browser.run("document.querySelector('#map').scrollIntoView({block: 'start', behavior: 'instant'})")
    browser.until("!!document.querySelector('canvas.base').dataset.k")
    return browser


def on_screen(browser: Browser, made: dict[str, Any]) -> tuple[list[str], np.ndarray]:
    """Whole names of the images in the order of the page, and where each is in the window."""
    plane = made["document"]["sights"]["map"]
    names, before = [], ""
    for coded in plane["names"]:
        before = before[: ord(coded[0]) - 48] + coded[1:]
        names.append(before)
    xy = np.frombuffer(b64decode(plane["layouts"][0]["xy"]), "<u2").reshape(-1, 2).astype(float)
    script = "(({dataset: d}, b) => [+d.x, +d.y, +d.k, b.left, b.top, b.width, b.height])"
    script += "(document.querySelector('canvas.base'), document.querySelector('canvas.base').getBoundingClientRect())"
    x, y, k, left, top, wide, tall = browser.run(script)
    return names, np.stack([left + wide / 2 + (xy[:, 0] - x) * k, top + tall / 2 - (xy[:, 1] - y) * k], axis=1)


def test_it_opens_from_disk_without_a_request_or_a_complaint(opened: Browser) -> None:
    assert opened.requests == []
    assert opened.complaints == []
    parts = opened.run("[...document.querySelectorAll('section')].map((one) => one.id)")
    expected = ["verdict", "training", "differing", "curves", "views", "neighbors", "map", "results", "confusion"]
    assert parts == [*expected, "layers", "weights", "skipped", "repeat"]
    assert not opened.run("document.body.innerText.includes('cannot be shown')")


def test_pointing_at_an_image_shows_its_own_thumbnail_and_name(opened: Browser, made: dict[str, Any]) -> None:
    names, points = on_screen(opened, made)
    shown = []
    for x, y in points[[0, 7, 20, 35]]:
        opened.mouse("mouseMoved", x, y)
        opened.until("!document.querySelector('.tip.card').hidden && !!document.querySelector('.tip.card canvas')")
        script = (
            "[+document.querySelector('.tip.card').dataset.point, document.querySelector('.tip .name').textContent, "
        )
        script += "...document.querySelector('.tip.card canvas').getContext('2d').getImageData(40, 40, 1, 1).data]"
        opened.until(f"{script}[5] === 255")
        shown.append(opened.run(script))
        opened.mouse("mouseMoved", 2, 2)
    for place, name, *color, _ in shown:
        assert names[place].endswith(name)
        assert np.abs(np.array(color) - made["colors"][names[place]]).max() < 12  # JPEG is not exact
    assert len({place for place, *_ in shown}) > 1


def test_pointing_at_a_picture_shows_it_and_no_point_behind_it(opened: Browser, made: dict[str, Any]) -> None:
    _, points = on_screen(opened, made)
    x, y = points[0]  # the first one always has a picture
    opened.mouse("mouseMoved", x + 18, y - 18)
    opened.until("!document.querySelector('.tip.card').hidden")
    assert opened.run("document.querySelector('.tip.card').dataset.point") == "0"
    opened.run("document.querySelector('.map input').click()")
    opened.mouse("mouseMoved", 2, 2)
    opened.mouse("mouseMoved", x + 18, y - 18)
    assert opened.run("document.querySelector('.tip.card').dataset.point") != "0" or opened.run(
        "document.querySelector('.tip.card').hidden"
    )


def test_a_lasso_lists_the_files_within_and_no_other(opened: Browser, made: dict[str, Any]) -> None:
    names, points = on_screen(opened, made)
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    around = np.median(points, axis=0) + 90 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    corners = np.clip(around, points.min(0), points.max(0))  # within the map
    opened.drag([(float(x), float(y)) for x, y in corners], modifiers=8)  # Shift
    listed = opened.run("[...document.querySelectorAll('.files li')].map((one) => one.textContent)")
    inside = [name for name, point in zip(names, points, strict=True) if _is_within(point, corners)]
    assert 0 < len(inside) < len(names)
    assert [name for name in names if any(name.endswith(end) for end in listed)] == inside
    assert len(listed) == len(inside)


def test_the_names_of_a_selection_are_copied_whole(opened: Browser, made: dict[str, Any]) -> None:
    names, points = on_screen(opened, made)
    opened.run("window.copied = null; navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    low, high = points.min(0) - 4, points.max(0) + 4
    box = [(low[0], low[1]), (high[0], low[1]), (high[0], high[1]), (low[0], high[1])]
    opened.drag([(float(x), float(y)) for x, y in box], modifiers=8)
    opened.run(
        "[...document.querySelectorAll('.selection button')].find((one) => /Copy/.test(one.textContent)).click()"
    )
    opened.until("window.copied !== null")
    assert opened.run("window.copied").split("\n") == names


def test_colors_follow_the_column_that_is_chosen(opened: Browser) -> None:
    choice = "document.querySelector('.map .tools select')"
    names = opened.run(f"[...{choice}.options].map((one) => one.textContent)")
    assert names == ["label", "cluster", "distance from its cluster"]
    seen = []
    for number in range(3):
        opened.run(f"{choice}.value = {number}; {choice}.dispatchEvent(new Event('change'))")
        opened.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        seen.append(
            opened.run(
                "[document.querySelector('.legend').textContent, document.querySelector('canvas.base').toDataURL()]"
            )
        )
    assert seen[0][0].startswith("cold18warm18")
    assert len({words for words, _ in seen}) == len({picture for _, picture in seen}) == 3


def test_a_printed_page_is_light_shows_the_map_and_has_no_buttons(opened: Browser) -> None:
    opened.prefer("dark")
    opened.until("!!document.querySelector('canvas.paper').dataset.k")  # drawn for printers before they ask
    wide, filled = opened.run(
        "((one) => [one.width, one.getContext('2d').getImageData(0, 0, one.width, one.height).data"
        ".filter((value, i) => i % 4 === 3 && value).length])(document.querySelector('canvas.paper'))"
    )
    printed = b64decode(opened.ask("Page.printToPDF")["data"])
    images = re.findall(
        rb"<<([^<>]*/Width %d\b[^<>]*/DeviceGray[^<>]*)>>\s*stream\r?\n(.*?)endstream" % wide, printed, re.DOTALL
    )
    shares = [np.frombuffer(zlib.decompress(raw), np.uint8) > 0 for _, raw in images]  # what is not transparent
    assert max(share.sum() for share in shares) == pytest.approx(filled, rel=0.01)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    opened.ask("Emulation.setEmulatedMedia", media="print", features=dark)
    shown = opened.run(
        "[...document.querySelectorAll('nav, .tools, .copy, .base')].filter((one) => one.offsetParent).length"
    )
    paper = opened.run("getComputedStyle(document.body).backgroundColor")
    opened.ask("Emulation.setEmulatedMedia", media="", features=[])
    assert (shown, paper) == (0, "rgb(255, 255, 255)")


def test_the_page_of_the_doctor_opens_from_disk_narrow_and_wide(browser: Browser, tmp_path: Path) -> None:
    colors = make_colors(tmp_path / "images", [*NAMES, f"warm/{'x' * 200}.png"])
    made = doctor(tmp_path / "images", out=tmp_path / "found", workers=0)
    browser.open((tmp_path / "found" / "doctor.html").as_uri())
    assert browser.requests == browser.complaints == []
    assert browser.run("document.querySelectorAll('.overview tbody tr').length") == len(made["checks"])
    assert browser.run("[...document.images].filter((one) => !one.alt).length") == 0
    assert made["checks"]["blank"]["count"] == len(colors)
    browser.resize(360, 740)
    wide = browser.run("document.documentElement.scrollWidth")
    browser.resize(1280, 900)
    assert wide == 360


def _is_within(point: np.ndarray, path: np.ndarray) -> bool:
    """By the sum of the angles under which the sides of the path are seen."""
    sides = np.arctan2(*(path - point).T[::-1])
    turns = (np.diff(np.append(sides, sides[0])) + np.pi) % (2 * np.pi) - np.pi
    return abs(turns.sum()) > 3


def test_both_runs_are_drawn_and_a_stretch_of_steps_can_be_zoomed_into(opened: Browser) -> None:
    chart = "document.querySelector('#curves .chart')"
    assert opened.run(f"{chart}.querySelectorAll('path.line').length") == 2
    assert opened.run(f"{chart}.querySelectorAll('path.bad').length") == 1
    opened.run(f"{chart}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    left, top, wide, tall = opened.run(f"(b => [b.left, b.top, b.width, b.height])({chart}.getBoundingClientRect())")
    opened.mouse("mouseMoved", left + wide / 2, top + tall / 2)
    said = opened.run("document.querySelector('#curves .tip').textContent")
    assert said.startswith("step ")
    assert "first" in said
    assert "second" in said
    before = opened.run(f"{chart}.querySelector('path.line').getAttribute('d')")
    opened.drag([(left + 0.4 * wide, top + 50), (left + 0.5 * wide, top + 50), (left + 0.7 * wide, top + 50)])
    assert opened.run(f"{chart}.querySelector('path.line').getAttribute('d')") != before
    opened.run(f"{chart}.focus()")
    opened.press("0", "Digit0")
    assert opened.run(f"{chart}.querySelector('path.line').getAttribute('d')") == before


def test_ticks_differ_and_all_charts_show_the_same_stretch_of_steps(browser: Browser, tmp_path: Path) -> None:
    make_colors(tmp_path / "images", NAMES[:2])
    run = make_reported(tmp_path, tmp_path / "images")
    rows = [{"step": 1, "meter/uniformity": -2.4162, "lr": 2e-6}, {"step": 12, "meter/uniformity": -2.4199, "lr": 3e-6}]
    with (run / "metrics.jsonl").open("a") as file:
        file.write("".join(f"{json.dumps(row)}\n" for row in [*rows, {"step": 5, "images_per_second": 100.0}]))
    make_report([run], tmp_path / "page.html", images=0)
    browser.open((tmp_path / "page.html").as_uri())
    texts = browser.run("[...document.querySelectorAll('#curves .chart')].map((one) => "
                        "[...one.querySelectorAll('.tick')].map((tick) => tick.textContent))")  # fmt: skip
    assert len(texts) == 4
    steps = [words[words.index("step") :] for words in texts]
    assert all(len(set(words)) == len(words) for words in texts)
    assert steps == [["step", "5", "10"]] * 4


def test_runs_are_ranked_by_a_result_that_all_of_them_have_and_by_no_other(browser: Browser, tmp_path: Path) -> None:
    make_colors(tmp_path / "images", NAMES[:2])
    runs = [make_reported(tmp_path, tmp_path / "images", name=name) for name in ("one", "two")]
    for run, hits in zip(runs, ("f000", "ff00"), strict=True):
        make_result(run, hits)
    make_report(runs, tmp_path / "page.html", images=0)
    browser.open((tmp_path / "page.html").as_uri())
    assert browser.run("document.querySelector('#verdict .sentence').innerText").startswith(
        "two has the highest knn top-1 of these 2 runs: 50.0"
    )
    fills = browser.run("[...document.querySelectorAll('#verdict .bar')].map((one) => getComputedStyle(one).fill)")
    assert len(set(fills)) == 2
    make_result(runs[1], "ff00", data="others")
    make_report(runs, tmp_path / "page.html", images=0)
    browser.open((tmp_path / "page.html").as_uri())
    assert not browser.run("!!document.querySelector('#verdict .bars')")


def test_a_word_that_nobody_knows_and_letters_that_turn_a_line_are_shown(browser: Browser, tmp_path: Path) -> None:
    make_colors(tmp_path / "images", NAMES[:2])
    run = make_reported(tmp_path, tmp_path / "images")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(
        json.dumps(summary | {"verdict": "constructor", "reasons": ["gnp.\u202egpj.txt"]})
    )
    make_report([run], tmp_path / "page.html", images=0)
    browser.open((tmp_path / "page.html").as_uri())
    assert browser.run("document.querySelector('#verdict').innerText").count("onstructor") == 2
    assert browser.run("document.querySelector('.because').innerText") == "Gnp.\\u202egpj.txt."
    assert browser.complaints == []


def test_the_map_follows_the_keys(opened: Browser) -> None:
    opened.run("document.querySelector('canvas.base').focus()")
    before = opened.run("document.querySelector('canvas.base').dataset.k")
    opened.press("+")
    opened.until(f"+document.querySelector('canvas.base').dataset.k > {before}")
    opened.press("Enter")
    assert opened.run("document.querySelector('[aria-live]').textContent").endswith(".png")
    opened.press("0", "Digit0")
    opened.until(f"document.querySelector('canvas.base').dataset.k === '{before}'")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_pages_do_not_scroll_sideways_and_colors_follow_the_system(
    scheme: str, opened: Browser, made: dict[str, Any]
) -> None:
    opened.prefer(scheme)
    opened.resize(360, 740)
    paper = opened.run("getComputedStyle(document.body).backgroundColor")
    wide = opened.run("document.documentElement.scrollWidth")
    opened.run("document.querySelector('.theme').click()")
    other = opened.run("getComputedStyle(document.body).backgroundColor")
    opened.resize(1280, 900)
    assert wide == 360
    assert (int(paper[4:].split(",")[0]) < 128) == (scheme == "dark")
    assert other != paper


def test_pictures_and_charts_say_what_they_show(opened: Browser) -> None:
    script = "[...document.querySelectorAll('canvas:not([aria-hidden]), svg[role=img]')]"
    script += ".filter((one) => !one.getAttribute('aria-label')).length"
    assert opened.run(script) == 0


def test_what_a_run_says_is_never_executed(browser: Browser, made: dict[str, Any], tmp_path: Path) -> None:
    run = made["runs"][1]
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(
        json.dumps(summary | {"verdict": HOSTILE, "reasons": [HOSTILE], "advice": HOSTILE})
    )
    (run / "skipped.txt").write_text(HOSTILE.replace("\n", " ") + "\tbad\n")
    (run / "report").mkdir(exist_ok=True)
    make_report([run], tmp_path / "page.html", images=0)
    browser.open((tmp_path / "page.html").as_uri())
    assert browser.run("window.owned") is None
    assert browser.complaints == []
    assert browser.run("document.querySelector('#verdict').textContent").count("onerror") >= 4
    assert browser.run("document.documentElement.scrollWidth") <= 1280
    path = tmp_path / "more.html"
    text = (
        (tmp_path / "page.html")
        .read_text()
        .replace("<main", "<script>window.owned=1</script><img src=x onerror=window.owned=1><main")
    )
    path.write_text(text)
    browser.open(path.as_uri())
    assert browser.run("window.owned") is None  # the policy of the page forbids it
    assert any("Content Security Policy" in said for said in browser.complaints)
