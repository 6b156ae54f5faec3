"""What `iecl doctor` finds: planted faults and nothing else; what it writes; and that its list is understood."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter
from sklearn.datasets import load_digits

import iecl
from iecl.checks import doctor as examination
from iecl.checks.call import doctor
from iecl.checks.doctor import diagnose
from iecl.checks.hashing import MIRROR, hashes_of
from iecl.checks.measures import measure
from iecl.checks.table import CHECKS, CheckSettings
from iecl.cli.command import main
from iecl.cli.doctor import lines
from iecl.data.decoder import examine
from iecl.errors import UserError

DATA = os.environ.get("IECL_TEST_DATA", "")
needs_images = pytest.mark.skipif(not DATA, reason="IECL_TEST_DATA does not name the folder with the datasets")


def picture(seed: int, side: tuple[int, int] = (120, 90)) -> Image.Image:
    """Something with structure at all scales, which no other seed has."""
    draw = np.random.default_rng(seed)
    planes = np.zeros((90, 120, 3))
    for scale in (3, 6, 12, 30):
        small = draw.integers(0, 255, (scale, scale, 3), dtype=np.uint8)
        planes += np.asarray(Image.fromarray(small).resize((120, 90), Image.Resampling.BICUBIC), float)
    return Image.fromarray((planes / 4).astype(np.uint8)).resize(side)


def make(folder: Path, count: int = 12) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        picture(number).save(folder / f"{number:02d}.png")
    return folder


def look(data: Path | str, out: Path, **options: Any) -> tuple[dict[str, Any], dict[str, dict[str, dict[str, str]]]]:
    """The result, and the rows of the table by check and path."""
    result = doctor(data, out=out, workers=0, **options)
    rows: dict[str, dict[str, dict[str, str]]] = {name: {} for name in CHECKS}
    with open(result["files"]["csv"], encoding="utf-8", newline="") as file:  # noqa: PTH123
        for row in csv.DictReader(file):
            rows[row["check"]][row["path"]] = row
    assert {name: len(found) for name, found in rows.items() if found} == {
        name: row["count"] for name, row in result["checks"].items() if row["count"]
    }
    return result, rows


def test_nothing_is_wrong_with_images_that_are_fine(tmp_path: Path) -> None:
    result, _ = look(make(tmp_path / "fine"), tmp_path / "out")
    assert {name: row["count"] for name, row in result["checks"].items() if row["count"]} == {}
    assert result["to_exclude"] == 0


def plant(folder: Path) -> None:
    """One image for every check that looks at files and pixels."""
    fine = picture(50)
    (folder / "empty.png").write_bytes(b"")
    (folder / "words.jpg").write_text("no image")
    whole = (folder / "00.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    picture(51).save(folder / "webp.jpg", "WEBP")
    picture(52).save(folder / "moving.gif", save_all=True, append_images=[picture(53)])
    picture(54).convert("CMYK").save(folder / "cmyk.jpg")
    picture(55).convert("RGBA").save(folder / "alpha.png")
    Image.fromarray(np.full((90, 120, 3), 128, np.uint8)).save(folder / "constant.png")
    picture(56).resize((12, 9)).resize((10, 7)).save(folder / "tiny.png")
    row = np.concatenate([np.asarray(picture(number)) for number in range(70, 74)], axis=1)
    Image.fromarray(row[:60]).save(folder / "long.png")
    picture(58).convert("L").save(folder / "gray.png")
    ImageEnhance.Brightness(picture(59)).enhance(0.2).save(folder / "dark.png")
    pale = np.asarray(picture(60)).astype(float)
    pale = 231 + 24 * (pale - pale.min()) / (pale.max() - pale.min())
    Image.fromarray(pale.astype(np.uint8)).save(folder / "bright.png")
    picture(61).filter(ImageFilter.GaussianBlur(8)).save(folder / "blurred.png")
    fine.save(folder / "again-1.png")
    fine.save(folder / "again-2.bmp")


def test_every_planted_fault_is_found_and_nothing_else(tmp_path: Path) -> None:
    plant(make(tmp_path / "images", 24))
    result, rows = look(tmp_path / "images", tmp_path / "out")
    found = {name: set(each) for name, each in rows.items() if each}
    assert found == {
        "unreadable": {"words.jpg"},
        "truncated": {"empty.png", "cut.png"},
        "extension": {"webp.jpg"},
        "animated": {"moving.gif"},
        "channels": {"cmyk.jpg", "alpha.png", "moving.gif"},
        "blank": {"constant.png"},
        "size": {"tiny.png"},
        "aspect": {"long.png"},
        "gray": {"gray.png"},
        "dark": {"dark.png"},
        "bright": {"bright.png"},
        "blur": {"blurred.png"},
        "exact": {"again-2.bmp"},
    }
    assert rows["exact"]["again-2.bmp"]["other"] == "again-1.png"
    assert {path: row["note"] for path, row in rows["channels"].items()} == {
        "cmyk.jpg": "CMYK",
        "alpha.png": "RGB, transparent",
        "moving.gif": "palette",
    }
    assert result["to_exclude"] == 5


@pytest.mark.parametrize(
    ("setting", "check", "value"),
    [("aspect", "aspect", 1.2), ("blank", "blank", 1.0), ("dark", "dark", 1.0), ("bright", "bright", 0.0)],
)
def test_a_threshold_is_a_setting(setting: str, check: str, value: float, tmp_path: Path) -> None:
    result, _ = look(make(tmp_path / "fine", 3), tmp_path / "out", settings={setting: value})
    assert result["checks"][check]["count"] == 3
    assert result["checks"][check]["threshold"] == {setting: value}


def test_every_threshold_belongs_to_a_check() -> None:
    used = {check.threshold for check in CHECKS.values()} - {""}
    assert used | {"radius", "shortcut"} == set(CheckSettings.__dataclass_fields__)


def test_the_guide_gives_the_defaults_of_all_thresholds() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/doctor.md").read_text(encoding="utf-8")
    for name, field in CheckSettings.__dataclass_fields__.items():
        assert f"`{name}` {field.default:,g}".replace("1e+08", "100,000,000") in guide, name


def test_changed_copies_are_found_and_the_largest_is_kept(tmp_path: Path) -> None:
    folder = make(tmp_path / "images")
    original = Image.open(folder / "03.png")
    changes = {
        "small": original.resize((70, 50)),
        "mirrored": original.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "light": ImageEnhance.Brightness(original).enhance(1.3),
        "cut": original.crop((6, 4, 112, 84)),
    }
    for name, image in changes.items():
        image.save(folder / f"{name}.jpg", quality=70)
    _, rows = look(folder, tmp_path / "out")
    assert set(rows["near"]) == {f"{name}.jpg" for name in changes}
    assert not rows["exact"]


def test_of_equal_images_that_with_the_shortest_name_is_kept_and_the_page_says_how_to_go_on(tmp_path: Path) -> None:
    folder = make(tmp_path / "images", 3)
    shutil.copy(folder / "02.png", folder / "02 (1).png")
    result, rows = look(folder, tmp_path / "out")
    assert list(rows["exact"]) == ["02 (1).png"]
    page = (tmp_path / "out/doctor.html").read_text(encoding="utf-8")
    assert f"iecl pretrain --data {folder} --exclude {tmp_path / 'out/exclude.txt'}</code>" in page
    assert "1 of 17 checks found something, 1 image to leave out" in page
    assert result["to_exclude"] == 1


def test_a_list_that_was_given_goes_on_in_the_new_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path / "images", 5)
    (folder / "empty.png").write_bytes(b"")
    (tmp_path / "old.txt").write_text("00.png\twhy\n")
    words = ["doctor", "--data", str(folder), "--exclude", str(tmp_path / "old.txt"), "--workers", "0", "--out"]
    assert main([*words, str(tmp_path / "first")]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"--exclude {tmp_path}/first/exclude.txt")
    assert iecl.pack(folder, tmp_path / "few.iecl", exclude=str(tmp_path / "first/exclude.txt"))["images"] == 4
    (folder / "empty.png").unlink()
    assert main([*words, str(tmp_path / "second")]) == 0  # nothing more is found
    assert capsys.readouterr().out.rstrip().endswith(f"--exclude {tmp_path}/second/exclude.txt")
    assert iecl.pack(folder, tmp_path / "four.iecl", exclude=str(tmp_path / "second/exclude.txt"))["images"] == 4


def test_numbers_of_findings_say_what_they_are(tmp_path: Path) -> None:
    plant(make(tmp_path / "images", 24))
    look(tmp_path / "images", tmp_path / "out")
    page = (tmp_path / "out/doctor.html").read_text(encoding="utf-8")
    said = re.findall(r'<span class="value">([^<]*)</span>', page)
    assert "10x7" in said  # a size is a note by itself
    assert "8.0 : 1 · 480x60" in said
    assert not [words for words in said if re.match(r"[\d.]+($| ·)", words)]
    lines = (tmp_path / "out/exclude.txt").read_text().splitlines()
    assert "cut.png\ttruncated" in lines
    assert "empty.png\ttruncated (empty file)" in lines


def test_images_that_are_alike_by_nature_are_no_copies_and_a_copy_among_them_is(tmp_path: Path) -> None:
    digits = load_digits()
    for number in range(240):
        image = Image.fromarray((digits.images[number] * 15.9).astype(np.uint8)).resize((32, 32))
        image.save(tmp_path / f"{number:03d}.png")
    Image.open(tmp_path / "017.png").resize((64, 64)).save(tmp_path / "copy.png")
    made = diagnose([str(tmp_path)], workers=0)
    assert [made.scan.name(one.number) for one in made.of("near")] == ["017.png"]  # the larger one is kept
    assert made.facts["crowded"] > 100
    assert "without being copies" in "\n".join(lines(made.result()))


def test_a_hash_of_the_mirror_image_is_known_without_looking_at_it() -> None:
    thumbs = np.stack([np.asarray(picture(seed).convert("L").resize((32, 32))) for seed in range(8)])
    numbers = np.arange(8)
    differing = np.bitwise_count((hashes_of(thumbs, numbers) ^ MIRROR) ^ hashes_of(thumbs[:, :, ::-1], numbers))
    assert differing.max() == 0


def test_copies_in_both_parts_and_under_two_labels_are_told_and_the_test_part_stays(tmp_path: Path) -> None:
    root = tmp_path / "images"
    for number in range(12):
        label = "ab"[number % 2]
        for part in ("train", "test"):
            (root / part / label).mkdir(parents=True, exist_ok=True)
            picture(number + (100 if part == "test" else 0)).save(root / part / label / f"{number}.png")
    shutil.copy(root / "train/a/0.png", root / "test/a/copy.png")
    shutil.copy(root / "train/a/2.png", root / "train/b/other.png")
    _, rows = look(root, tmp_path / "out")
    assert rows["leak"]["test/a/copy.png"]["other"] == "train/a/0.png"
    assert set(rows["two-labels"]) == {"train/a/2.png", "train/b/other.png"}
    lines = [line.split("\t")[0] for line in (tmp_path / "out/exclude.txt").read_text().splitlines()[2:]]
    assert lines == ["train/a/0.png", "train/b/other.png"]


def test_classes_far_smaller_than_others_are_told(tmp_path: Path) -> None:
    for label, count in (("many", 12), ("more", 12), ("few", 2)):
        folder = tmp_path / "images" / label
        folder.mkdir(parents=True)
        for number in range(count):
            picture(100 * len(label) + number).save(folder / f"{number}.png")
    result, rows = look(tmp_path / "images", tmp_path / "out")
    assert [row["note"] for row in rows["balance"].values()] == ["few: 2 images, the median class has 12"]
    assert result["classes"] == {"few": 2, "many": 12, "more": 12}


HOSTILE = ["<script>alert(1)<%2Fscript>.png", 'quo"te.png', "new\nline.png", "=1+1.png", "😀.png", "x" * 240 + ".png"]


class Tags(HTMLParser):
    """Every tag, with every attribute that runs or fetches something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.bad: list[Any] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.bad += [(tag, name) for name, value in attrs if name.startswith("on")]
        self.bad += [value for name, value in attrs if name in ("src", "href") and (value or "")[:5] not in ("data:",)
                     and not (value or "").startswith("#")]  # fmt: skip


def test_hostile_names_are_escaped_everywhere_and_left_out_all_the_same(tmp_path: Path) -> None:
    folder = make(tmp_path / "images", 3)
    for name in [*HOSTILE, os.fsdecode(b"\xff\xfe.png")]:
        shutil.copy(folder / "00.png", folder / name)
    result, rows = look(folder, tmp_path / "out")
    page = (tmp_path / "out/doctor.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert not tags.names & {"script", "iframe", "object", "link", "form"}
    assert not tags.bad
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert not [path for path in rows["exact"] if path.startswith("=")]
    assert result["to_exclude"] == len(HOSTILE) + 1
    listing = iecl.pack(folder, tmp_path / "few.iecl", exclude=result["files"]["exclude"])
    assert listing["images"] == 3


def test_a_list_of_images_to_leave_out_is_understood_by_a_run_and_recorded(tmp_path: Path, tiny: list[str]) -> None:
    folder = make(tmp_path / "images")
    exclude = tmp_path / "out.txt"
    exclude.write_text(f'# three of them\n00.png\twhy\n\n"01.png"\n{folder / "02.png"}\n')
    how = {"method": "simclr", "backbone": "resnet10-w16", "epochs": 1, "batch_size": 4, "quiet": True}
    run = iecl.pretrain(folder, tmp_path / "run", exclude=str(exclude), sets=[*tiny, "method.hidden_dim=8"], **how)
    assert run.settings["data"]["exclude"] == str(exclude)
    assert run.summary["images"] == 9
    assert run.embed(folder)["rows"] == 12
    assert run.embed(folder, exclude=str(exclude))["rows"] == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing.png\n", r"no path in .* is one of the images \(exclude\)"),
        ('"00.png\n', "cannot read"),
        ("".join(f"{number:02d}.png\n" for number in range(12)), "are left out"),
    ],
)
def test_a_list_that_is_for_other_images_is_refused(text: str, message: str, tmp_path: Path) -> None:
    exclude = tmp_path / "out.txt"
    exclude.write_text(text)
    with pytest.raises(UserError, match=message):
        doctor(make(tmp_path / "images"), out=tmp_path / "out", exclude=str(exclude))


def test_named_datasets_have_no_files_to_leave_out_or_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="shapes is no folder of files"):
        doctor("shapes", out=tmp_path / "out")
    with pytest.raises(UserError, match="single images of shapes cannot be left out"):
        iecl.plan("shapes", exclude="x.txt")


def test_a_report_is_not_replaced_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--data", str(make(tmp_path / "images", 3)), "--out", str(tmp_path / "out"), "--workers", "0"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["images"] == 3
    assert told == json.loads((tmp_path / "out/doctor.json").read_text()) | {"files": told["files"]}
    assert main(words) == 2
    assert "is there already" in capsys.readouterr().err
    assert main([*words, "--overwrite", "--set", "blurr=1"]) == 2
    assert "did you mean blur?" in capsys.readouterr().err


def test_a_plan_that_is_asked_for_is_in_the_terminal_the_page_and_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(examination, "planned", lambda *given, **_: asked.append(given) or "about 7 min")
    words = ["doctor", "--data", str(make(tmp_path / "images", 3)), "--workers", "0", "--out", str(tmp_path / "out")]
    assert main([*words, "--plan"]) == 0
    assert [seconds for _, _, seconds in asked] == [20.0]
    assert "\nabout 7 min\n" in capsys.readouterr().out
    assert "<p>about 7 min</p>" in (tmp_path / "out/doctor.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "out/doctor.json").read_text())["plan"] == "about 7 min"


def test_processes_find_the_same_as_one(tmp_path: Path) -> None:
    plant(make(tmp_path / "images", 70))
    one, several = tmp_path / "one", tmp_path / "several"
    look(tmp_path / "images", one)
    doctor(tmp_path / "images", out=several, workers=2)
    assert (one / "findings.csv").read_bytes() == (several / "findings.csv").read_bytes()


def test_a_blurred_image_has_a_higher_score_the_more_it_is_blurred(tmp_path: Path) -> None:
    scores = []
    for radius in (0, 1, 2, 4):
        picture(1).filter(ImageFilter.GaussianBlur(radius)).save(tmp_path / "image.png")
        row, _ = measure(examine(tmp_path / "image.png", 48, 10**6))
        scores.append(row[17])
    assert scores == sorted(scores)


@needs_images
def test_the_faults_of_the_nasty_set_are_found_and_no_others(tmp_path: Path) -> None:
    tree = Path(DATA) / "nasty" / "tree"
    entries = json.loads((tree.parent / "manifest.json").read_text())["entries"]
    result, rows = look(tree, tmp_path / "out")
    skipped = {e["path"] for e in entries if e["expect"] == "skip" and e.get("bytes") is not None}
    listed = {path for path in skipped if re.search(r"\.(jpg|png|webp|gif|tif|bmp)$", path) and "/." not in path}
    unread = set(rows["unreadable"]) | set(rows["truncated"])
    either = {e["path"] for e in entries if e["expect"] == "either"}
    assert listed - {"special/unreadable.png"} <= unread
    assert unread - listed <= either
    assert {p for p in rows["truncated"] if "truncated" in p or "zero" in p} >= {
        p for p in listed if re.search("truncated|zero_byte", p) and not p.endswith(".webp")
    }
    assert set(rows["extension"]) == {p for p in (e["path"] for e in entries) if "_named" in p}
    assert set(rows["animated"]) == {e["path"] for e in entries if e.get("frames", 1) > 1}
    modes = {e["path"] for e in entries if e.get("mode") not in (None, "RGB", "L")} - unread
    assert set(rows["channels"]) - modes <= {
        *(f"formats/{name}" for name in ("animated.gif", "transparent.gif", "rgb16.png")),
        *(f"formats/{name}" for name in ("rgb_transparent_colour.png",)),
    }
    assert modes <= set(rows["channels"])
    usual = {e["path"] for e in entries if e["expect"] == "accept" and e.get("size") == [64, 48]}
    assert not usual & (set(rows["size"]) | set(rows["aspect"]) | set(rows["dark"]) | set(rows["bright"]))
    assert usual & set(rows["blank"]) == {"sizes/constant.png"}
    assert {"sizes/1x1.png", "sizes/3x7.png", "sizes/4000x3000.jpg"} <= set(rows["size"])
    assert {"sizes/1x2000.png", "sizes/2000x1.jpg"} == set(rows["aspect"])
    assert "special/duplicate.png" in set(rows["exact"]) | {row["other"] for row in rows["exact"].values()}
    assert result["other_files"]["broken link"] == 2


KILLED = """
import multiprocessing, os, signal, sys, threading, time
from iecl.checks import scan
from iecl.checks.doctor import diagnose


def end() -> None:
    while len(multiprocessing.active_children()) < 2:
        time.sleep(0.01)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


scan._look = lambda *_: time.sleep(2)
threading.Thread(target=end, daemon=True).start()
diagnose([sys.argv[1]], workers=2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up as Linux lists them")
def test_processes_that_look_at_images_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", KILLED, str(make(tmp_path / "images", 130))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    processes = done.stdout.split()
    assert (done.returncode, len(processes)) == (-signal.SIGKILL, 2), done.stderr
    end = time.monotonic() + 20
    while any(Path("/proc", process).exists() for process in processes):
        assert time.monotonic() < end
        time.sleep(0.05)
