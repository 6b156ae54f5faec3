"""The page of runs: what it says, in every state a run may be in, and that nothing in it is obeyed."""

import csv
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_report import make_colors, make_reported, make_result

import iecl
from iecl.errors import UserError
from iecl.reporting import cache, confusion, projection, seeing
from iecl.reporting.confusion import LinearProbe
from iecl.reporting.making import describe, make_report
from iecl.reporting.page import MARK, written
from iecl.reporting.projection import lay_out, reduced
from iecl.reporting.sheets import front_coded
from iecl.runs.claim import claim

HOSTILE = "</script><script>window.owned=1</script><img src=x onerror=window.owned=1>\"'\n\u2028😀{{data}}" + "a" * 4000


def document_of(page: str) -> dict[str, Any]:
    (raw,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    found: dict[str, Any] = json.loads(raw)
    return found


@pytest.fixture
def run(image_folder: Path, tmp_path: Path) -> Path:
    return make_reported(tmp_path, image_folder)


def test_one_file_holds_all_sections_of_a_run_and_names_no_address(run: Path, tmp_path: Path) -> None:
    iecl.report(run, tmp_path / "page.html", images=30)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = document_of(page)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\(["']?http""", page)
    assert found["runs"][0]["verdict"]["word"] == "healthy"
    assert "moco-v2 trained resnet10-w16 on 40 images" in found["runs"][0]["sentence"]
    assert [panel["title"] for panel in found["panels"]] == ["Loss", "Learning rate"]
    sights = found["sights"]
    assert (sights["shown"], sights["total"]) == (30, 40)
    assert len(sights["map"]["names"]) == 30
    assert [column["name"] for column in sights["map"]["columns"]] == ["label", "cluster", "distance from its cluster"]
    assert len(sights["neighbors"]) == min(8, 30)
    assert sights["views"]["rows"][0]["name"] == "image"
    assert sights["layers"]["layers"][-1]["name"] == "features"
    assert sights["confusion"]["queries"] == 30
    assert sights["notes"] == []


def test_a_second_page_is_made_without_looking_again_and_other_weights_are_looked_at(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_report([run], images=10).html
    seen: list[Path] = []

    def look(found: Any, *_: Any) -> dict[str, Any]:
        seen.append(found.path)
        return {"notes": ["looked"]}

    monkeypatch.setattr(seeing, "look", look)
    assert make_report([run], images=10).html == first
    assert not seen
    with (run / "weights.safetensors").open("ab") as file:
        file.write(b" ")
    assert document_of(make_report([run], images=10).html)["sights"]["notes"] == ["looked"]


def test_images_that_are_gone_are_shown_as_last_seen_or_said_to_be_gone(run: Path, image_folder: Path) -> None:
    before = document_of(make_report([run], images=10).html)["sights"]
    shutil.rmtree(image_folder)
    kept = document_of(make_report([run], images=20).html)["sights"]
    assert kept["map"] == before["map"]
    assert kept["notes"][0].startswith("As seen by an earlier report: ")
    shutil.rmtree(run / "report")
    gone = document_of(make_report([run], images=20).html)["sights"]
    assert gone["notes"][0].startswith("There are no pictures: ")
    assert "map" not in gone


def test_five_images_without_labels_after_one_step_make_a_page(tmp_path: Path) -> None:
    make_colors(tmp_path / "few", [f"{i}.png" for i in range(5)])
    run = make_reported(tmp_path, tmp_path / "few", steps=1)
    sights = document_of(make_report([run]).html)["sights"]
    assert sights["shown"] == 5
    assert sights["confusion"] is None
    assert [column["name"] for column in sights["map"]["columns"]] == ["cluster", "distance from its cluster"]
    parts = ("What training saw", "Entropy by layer")
    assert sights["notes"] == [f"{part} is not shown: 5 images are too few: it takes 8." for part in parts]


def test_thumbnails_are_larger_than_what_the_network_sees_where_images_are(tmp_path: Path) -> None:
    make_colors(tmp_path / "images", [f"{i}.png" for i in range(9)], side=200)
    run = make_reported(tmp_path, tmp_path / "images")
    settings = (run / "settings.toml").read_text()
    (run / "settings.toml").write_text(settings.replace("decode_size = 16", "decode_size = 32"))
    tiles = document_of(make_report([run]).html)["sights"]["map"]["tiles"]
    assert (tiles["count"], tiles["side"]) == (9, 32)  # the network of this run sees 16 pixels


def test_an_interrupted_and_a_running_run_are_told_apart(image_folder: Path, tmp_path: Path) -> None:
    run = make_reported(tmp_path, image_folder, is_finished=False)
    (found,) = describe([run])["runs"]
    assert found["state"] == "interrupted"
    assert found["verdict"]["advice"].startswith("go on with: iecl pretrain --resume --out ")
    with claim(run, resume=True):
        (found,) = describe([run])["runs"]
    assert found["state"] == "running"
    assert found["verdict"]["word"] == "healthy"
    assert found["verdict"]["advice"] == "wait: it is being trained"
    assert not found["verdict"]["is_final"]
    assert "moco-v2 trains resnet10-w16 on " in found["sentence"]
    assert ": epoch 4 of 100, step 12" in found["sentence"]
    assert found["progress"] == 0.03  # 12 steps, of 100 epochs of 4 steps each


@pytest.mark.parametrize("epoch", [-1, -2.5, "NaN", 1e300])
def test_a_row_with_an_epoch_that_none_can_be_is_no_measure_of_epochs(
    epoch: object, image_folder: Path, tmp_path: Path
) -> None:
    run = make_reported(tmp_path, image_folder, is_finished=False)
    rows = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "epoch": epoch}) + "\n" + rows)
    assert describe([run])["runs"][0]["progress"] == 0.03


def test_damaged_files_of_a_run_are_named_and_the_rest_is_shown(run: Path) -> None:
    (run / "summary.json").write_text("{")
    with (run / "metrics.jsonl").open("a") as file:
        file.write("[]\n")
    found = describe([run])
    assert len(found["runs"][0]["problems"]) == 2
    assert found["panels"][0]["series"][0]["x"] == list(range(1, 13))


def test_readings_that_are_no_numbers_are_marked_at_their_step(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "loss": "NaN"}\n{"step": 14, "loss": "Infinity"}\n')
    loss = document_of(make_report([run], images=0).html)["panels"][0]["series"][0]
    assert loss["bad"] == [13, 14]
    assert loss["x"][-1] == 12


def test_nothing_that_a_run_says_can_leave_the_data_of_the_page(run: Path) -> None:
    (run / "skipped.txt").write_text(HOSTILE.replace("\n", " ") + "\tbad\n")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"verdict": HOSTILE, "reasons": [HOSTILE]}))
    page = make_report([run], images=0).html
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<img" not in page
    found = document_of(page)["runs"][0]
    assert found["verdict"] == {"word": HOSTILE, "reasons": [HOSTILE], "advice": "nothing to fix", "is_final": True}
    title = written(describe([run]) | {"title": HOSTILE}).html
    assert html.escape(HOSTILE) in title
    assert title.count("<script") == 2


def test_pages_of_several_runs_show_what_differs_and_draw_all_on_one_axis(image_folder: Path, tmp_path: Path) -> None:
    runs = [make_reported(tmp_path / name, image_folder) for name in ("one", "two")]
    text = (runs[1] / "settings.toml").read_text()
    (runs[1] / "settings.toml").write_text(re.sub(r"(?m)^seed = 0", "seed = 7", text))
    found = describe(runs)
    assert [run["name"] for run in found["runs"]] == ["one/run", "two/run"]
    assert found["differing"] == [["training.seed", "0", "7"]]
    assert [series["run"] for series in found["panels"][0]["series"]] == [0, 1]
    assert found["paired"]["note"].startswith("Fewer than two of these runs were evaluated")


def test_twenty_runs_have_a_page_and_twenty_one_are_refused(run: Path) -> None:
    found = describe([run] * 20)
    assert len({one["name"] for one in found["runs"]}) == len(found["panels"][0]["series"]) == 20
    for runs in ([], [run] * 21):
        with pytest.raises(UserError, match=f"1 to 20 runs, not {len(runs)}"):
            describe(runs)


def test_results_of_several_runs_are_compared_in_pairs(image_folder: Path, tmp_path: Path) -> None:
    runs = [make_reported(tmp_path / name, image_folder) for name in ("one", "two")]
    for run, hits in zip(runs, ("f000", "ff00"), strict=True):
        make_result(run, hits)
    (row,) = describe(runs)["paired"]["rows"]
    assert (row["first"], row["second"], row["points"]) == ("one/run", "two/run", 25.0)
    assert row["intervals"][0]["way"] == "paired bootstrap over test images"
    assert describe(runs)["runs"][0]["evaluations"][0]["low"] < 0.25


def test_a_table_brings_columns_to_color_by(run: Path, image_folder: Path, tmp_path: Path) -> None:
    files = sorted(image_folder.rglob("*.png"))
    with (tmp_path / "table.csv").open("w", newline="") as file:
        rows = [(f"{path.parent.name}/{path.name}", i, "even" if i % 2 else "odd") for i, path in enumerate(files)]
        csv.writer(file).writerows([("file", "size", "parity"), *rows])
    page = make_report([run], columns=str(tmp_path / "table.csv"))
    columns = {column["name"]: column for column in document_of(page.html)["sights"]["map"]["columns"]}
    assert (columns["size"]["low"], columns["size"]["high"]) == (0, 39)
    assert columns["parity"]["classes"] == ["even", "odd"]


@pytest.mark.parametrize(
    ("text", "why"),
    [("a,b\n1,2\n", "no column of paths"), ("", "no column of paths"), ("path\nx\n", "no other column")],
)
def test_a_table_without_paths_or_columns_is_refused_before_any_work(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(UserError, match=why):
        make_report([tmp_path / "no run"], columns=str(tmp_path / "table.csv"))
    with pytest.raises(UserError, match="no such file"):
        make_report([tmp_path / "no run"], columns=str(tmp_path / "none.csv"))


def test_a_table_of_other_images_is_a_sentence_and_the_map_stays(run: Path, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("path,size\nelsewhere.png,3\n")
    sights = document_of(make_report([run], images=12, columns=str(tmp_path / "table.csv")).html)["sights"]
    assert sights["notes"] == [f"{tmp_path / 'table.csv'} names none of the images."]
    assert len(sights["map"]["names"]) == 12


def test_a_number_of_images_below_zero_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="images is -1"):
        make_report([tmp_path / "no run"], images=-1)


def test_what_a_probe_says_without_an_image_is_what_a_fit_without_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image is left out in turn and the penalized equations are solved again, with the bias among them."""
    penalty = 0.05
    monkeypatch.setattr(confusion, "PENALTIES", (penalty,))
    drawn = torch.Generator().manual_seed(3)
    labels = torch.arange(24) % 3
    rows = (torch.randn(3, 5, generator=drawn)[labels] + torch.randn(24, 5, generator=drawn)).double()
    scale = float((rows - rows.mean(0)).square().sum() / rows.shape[1]) * penalty
    wide = torch.cat([rows, torch.ones(24, 1)], dim=1).double()
    fined = scale * torch.diag(torch.tensor([1.0] * 5 + [0.0])).double()
    expected = []
    for i in range(24):
        rest = [j for j in range(24) if j != i]
        wanted = torch.nn.functional.one_hot(labels[rest], 3).double()
        weight = torch.linalg.solve(wide[rest].T @ wide[rest] + fined, wide[rest].T @ wanted)
        expected.append(int((wide[i] @ weight).argmax()))
    probe = LinearProbe.fit(rows, labels, 3)
    assert probe.left_out.tolist() == expected
    assert (probe.left_out != probe.classify(rows)).sum() > 0  # whoever is in the fit is right more often
    assert (probe.classify(rows) == labels).sum() > (probe.left_out == labels).sum()


WAYS = ["tsne", pytest.param("umap", marks=pytest.mark.slow)]  # which compiles for 20 seconds


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::Warning:umap")  # it says itself that a seed means one thread
def test_maps_are_the_same_each_time(way: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_kept", lambda run: {})
    pages = [make_report([run], maps=("pca", way)) for _ in range(2)]
    first, second = (document_of(page.html)["sights"]["map"]["layouts"] for page in pages)
    assert [layout["title"] for layout in first] == ["PCA", {"tsne": "t-SNE", "umap": "UMAP"}[way]]
    assert first == second
    assert first[0]["xy"] != first[1]["xy"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::Warning:umap")
def test_groups_that_are_far_apart_stay_apart_on_every_map(way: str) -> None:
    drawn = torch.Generator().manual_seed(1)
    centers = 8 * torch.randn(3, 64, generator=drawn)
    group = torch.arange(60) % 3
    rows, share = reduced(centers[group] + torch.randn(60, 64, generator=drawn))
    points = lay_out(way, rows, share).points
    apart = torch.cdist(points, points)
    apart.fill_diagonal_(torch.inf)
    assert (group[apart.argmin(1)] == group).all()


def test_a_map_that_cannot_be_had_is_a_sentence_and_the_others_stay(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "MOST_FOR_TSNE", 10)
    sights = document_of(make_report([run], images=12, maps=("tsne",)).html)["sights"]
    assert sights["notes"] == ["t-SNE of 12 images takes hours."]
    assert [layout["title"] for layout in sights["map"]["layouts"]] == ["PCA"]
    sights = document_of(make_report([run], images=4, maps=("pca", "umap")).html)["sights"]
    assert sights["notes"][0] == "a map of 4 images by umap says nothing."


def test_a_map_that_nobody_knows_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no map is called 'tnse'.*did you mean tsne\?"):
        make_report([tmp_path / "no run"], maps=("tnse",))


@pytest.mark.parametrize(
    ("name", "why"),
    [("page.txt", "is no .html"), ("none/page.html", "there is no folder"), ("own.html", "is no report")],
)
def test_a_place_for_the_page_is_refused_before_any_work(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "own.html").write_text("<p>mine</p>")
    with pytest.raises(UserError, match=why):
        make_report([tmp_path / "no run"], tmp_path / name)
    assert (tmp_path / "own.html").read_text() == "<p>mine</p>"


def test_a_former_page_is_written_over(run: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(MARK)
    make_report([run], tmp_path / "page.html", images=0)
    assert len((tmp_path / "page.html").read_text()) > 10_000


def test_a_notebook_shows_a_run_and_its_page_in_a_frame(run: Path) -> None:
    loaded = iecl.load(run)
    page = loaded.report(images=0)
    (inside,) = re.findall(r'<iframe srcdoc="([^"]*)" sandbox="allow-scripts', page._repr_html_())
    assert html.unescape(inside) == page.html
    assert "moco-v2 trained resnet10-w16" in html.unescape(loaded._repr_html_())


def test_many_points_get_thumbnails_of_outliers_and_of_all_places() -> None:
    drawn = np.random.default_rng(0)
    points, distance = drawn.normal(size=(20_000, 2)), drawn.random(20_000)
    chosen = seeing.thumbnails(points, distance)
    assert len(chosen) == len(set(chosen.tolist())) == seeing.MOST_THUMBNAILS
    assert set(np.argsort(-distance)[: seeing.MOST_OUTLIERS].tolist()) <= set(chosen.tolist())
    cells = {tuple(cell) for cell in np.floor(points).astype(int).tolist()}
    assert cells == {tuple(cell) for cell in np.floor(points[chosen]).astype(int).tolist()}


def test_names_without_what_they_share_are_whole_again() -> None:
    names = sorted(["a/1.png", "a/12.png", "b/<&>.png", "b/😀.png", "b/" + "x" * 4000])
    before, found = "", []
    for coded in front_coded(names):
        before = before[: ord(coded[0]) - 48] + coded[1:]
        found.append(before)
    assert found == names


def test_colors_can_be_told_apart_with_any_color_vision() -> None:
    """Simulated as Machado et al. 2009 do for full protanopia, deuteranopia and tritanopia; distances in CIELAB."""
    style = (Path(iecl.__file__).parent / "reporting" / "page" / "style.css").read_text()
    kinds = {
        "normal": np.eye(3),
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    }
    palettes = [re.findall(r"--c\d: (#\w{6})", line) for line in style.splitlines() if "--c0:" in line]
    assert {len(palette) for palette in palettes} == {10}
    for palette in palettes:
        linear = np.array([[_linear(int(name[at : at + 2], 16) / 255) for at in (1, 3, 5)] for name in palette])
        for kind, matrix in kinds.items():
            lab = np.array([_lab(color) for color in np.clip(linear @ np.array(matrix).T, 0, 1)])
            apart = np.linalg.norm(lab[:, None] - lab[None], axis=2)[np.triu_indices(10, 1)]
            assert apart.min() > 8, (kind, palette, apart.argmin())


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _lab(color: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.maximum(to_xyz @ color / [0.9505, 1, 1.089], 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
