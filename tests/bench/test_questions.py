"""Every question, in its quick form, from end to end; and what each makes of its measurements."""

import json
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.bench import QUESTIONS, images, listing, memory, overhead, own_work, pipeline, training, views
from benchmarks.bench.effort import Effort
from PIL import Image
from torch import nn
from torch.nn.utils import parametrize

from iecl.backbones import BACKBONES
from iecl.errors import UserError
from iecl.saib.certified import CertifiedSAIB
from iecl.saib.printed import SAIB

LONG = ("evaluation", "listing", "overhead", "memory", "startup", "training", "pipeline")
"""These start processes or build many networks."""
ABSENT = ("lightly", "kornia", "stable_pretraining")


@pytest.fixture
def _no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ABSENT:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("_no_peers")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in QUESTIONS]
)
def test_the_quick_form_runs(name: str) -> None:
    threads, backbones = torch.get_num_threads(), set(BACKBONES)
    kept: list[dict[str, Any]] = []
    found = QUESTIONS[name].load()(Effort(is_quick=True, rounds=1, keep=lambda content: kept.append(dict(content))))

    assert found["results"]
    assert all({"median", "quartiles", "values"} <= set(row) for row in found["results"].values())
    assert all(row["median"] > 0 for row in found["results"].values())
    assert not any("goal" in row for row in found["results"].values())
    json.dumps(found)
    assert torch.get_num_threads() == threads
    assert set(BACKBONES) == backbones
    assert all(set(part) <= set(found) for part in kept)
    assert not [child for child in multiprocessing.active_children() if not child.daemon]


@pytest.mark.usefixtures("_no_peers")
def test_peers_that_are_absent_are_left_out_with_a_line() -> None:
    effort = Effort(is_quick=True)
    arms = views._arms_of(effort, 4, 32, "simclr-small")
    assert set(arms) >= {"ours", "torchvision v2", "torchvision v1 on PIL"}
    assert not any("kornia" in name or "lightly" in name for name in arms)
    assert [line.partition(" (")[0] for line in effort.left_out] == ["kornia", "lightly, two workers"]


@pytest.mark.parametrize("question", [views, pipeline, listing, training, overhead])
def test_goals_are_of_rows_that_can_come(question: Any) -> None:
    """A goal whose row is called otherwise would never be judged."""
    rows = {
        views: [
            f"{key}: {arm} / ours"
            for key in views.SETTINGS
            for arm in ("kornia", "lightly, two workers", "torchvision v2")
        ],
        pipeline: [f"{key}: {arm}" for key in pipeline.CASES for arm in ("folder", "packed")],
        listing: [f"{count:,} files: {what}" for count in listing.FILES for what in ("seconds", "bytes per file")],
        training: [
            f"{case.name}: {what}"
            for case in training.CASES
            for what in ("of the bare step", "over lightly", "over the better rival")
        ],
        overhead: [
            f"{setting.name}: {part}"
            for setting in overhead.SETTINGS
            for part in (*(part + overhead.OWN for part in overhead.ALONE), "meters")
        ],
    }
    assert set(question.GOALS) <= set(rows[question])


def test_the_better_rival_is_chosen_by_median_over_workers_and_peers() -> None:
    speeds = {
        "iecl": [60.0, 60.0, 60.0],
        "bare step": [80.0, 60.0, 75.0],
        "lightly, 0 workers": [10.0, 10.0, 90.0],  # a lucky round is no median
        "lightly, 2 workers": [20.0, 15.0, 12.0],
        "stable-pretraining, 1 workers": [12.0, 12.0, 12.0],
    }
    assert training._quotients(speeds) == {
        "of the bare step": [0.75, 1.0, 0.8],
        "over lightly": [3.0, 4.0, 5.0],
        "over stable-pretraining": [5.0, 5.0, 5.0],
        "over the better rival": [3.0, 4.0, 5.0],
    }
    assert training._quotients({"iecl": [1.0]}) == {}


def test_memory_is_the_slope_between_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "ask", lambda *words: {"bytes": 500 * 2**20 + 3 * 2**20 * int(words[-1])})
    monkeypatch.setattr(memory, "find_spec", lambda _: object())
    found = memory.measure(Effort(rounds=1))["results"]
    assert found["resnet18-small: ie-cl, recomputed"]["median"] == 3.0
    ratio = found["resnet10-w16: simclr / lightly's"]
    assert (ratio["median"], ratio["goal"]) == (1.0, "at most 1.1")


def test_a_process_is_found_from_any_folder_and_says_why_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.bench.processes import ask

    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"measuring nothing ended with code 1: TypeError.*\(listing\)"):
        ask("listing", "nothing")


def test_listing_counts_every_file_under_its_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listing._make_files(tmp_path, 1500)
    assert len(list((tmp_path / "files").rglob("*.png"))) == 1500
    for arm in listing.ARMS:
        listing.main(arm, str(tmp_path / "files"))
        assert set(json.loads(capsys.readouterr().out)) == {"seconds", "processor_seconds", "bytes"}


def test_overhead_reads_meters_and_normalises_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {name: overhead.PARTS[name] for name in ("host", "certified block")}
    monkeypatch.setattr(overhead, "PARTS", parts)
    monkeypatch.setattr(overhead, "HOSTS", ("simclr",))
    monkeypatch.setattr(overhead, "QUICK_SETTINGS", (overhead._Setting("resnet10-w16", 32, 8, rounds=1),))
    found = overhead.measure(Effort(is_quick=True, rounds=1))["results"]
    assert "resnet10-w16, 32 px, batch 8, simclr: certified block" in found
    assert {name.partition(": ")[2] for name in found} == {
        "certified block",
        "torch's spectral norm",
        "meters",
    }
    assert 1 < found["resnet10-w16, 32 px, batch 8: meters"]["median"] < 2


@pytest.mark.parametrize("host", overhead.HOSTS)
def test_every_host_is_timed_with_the_printed_block_and_with_ours(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "stepper", lambda method, **_: method)
    monkeypatch.setattr(overhead, "timed", lambda method: method)
    setting = overhead._Setting("resnet10-w16", 32, 8, rounds=1, parts=overhead.ON_HOSTS, host=host)
    blocks = {part: arm.saib for part, arm in overhead._arms_of(setting).items() if getattr(arm, "saib", None)}
    assert {part: type(block) for part, block in blocks.items()} == {
        "certified block": CertifiedSAIB,
        "batch block, as printed": SAIB,
        "batch block and entropy, as printed": SAIB,
    }
    for part in overhead.PRINTED:
        assert (blocks[part].form, blocks[part].batch, len(blocks[part].blocks[0].stages)) == ("batch", 8, 3)


@pytest.mark.parametrize("part", overhead.ALONE)
def test_a_part_works_by_itself_and_leaves_no_gradient(part: str) -> None:
    setting = overhead._Setting("resnet10-w16", 32, 8, rounds=1)
    method = setting.make(overhead.PARTS[part])
    before = {name: value.clone() for name, value in method.state_dict().items()}
    work = own_work.work_of(part, method, batch=8, side=32)
    work()
    work()
    assert all(weight.grad is None for weight in method.parameters())
    moved = {name for name, value in method.state_dict().items() if not torch.equal(value, before[name])}
    kept = ("parametrizations", "running", "num_batches", "saib")  # buffers; of weights none
    assert all(any(word in name for word in kept) for name in moved)
    assert any(name.endswith(".u") for name in moved) == (part == "spectral norm")


def test_torchs_spectral_norm_is_on_every_convolution_of_the_encoder() -> None:
    setting = overhead._Setting("resnet10-w16", 32, 8, rounds=1)
    method = overhead._normalized_by_torch(setting.make([]))
    layers = [part for part in method.encoder().modules() if isinstance(part, nn.Conv2d)]
    assert layers
    assert all(parametrize.is_parametrized(layer, "weight") for layer in layers)


def test_images_of_a_folder_take_the_place_of_made_ones(image_folder: Path, tmp_path: Path) -> None:
    assert images.link_part(image_folder, tmp_path / "part", 10) == "10 images of images"
    found = sorted(path.parent.name for path in (tmp_path / "part").rglob("*.png"))
    assert found == ["blue"] * 5 + ["red"] * 5
    with pytest.raises(UserError, match=r"has 40 images, 100 are needed \(--data\)"):
        images.link_part(image_folder, tmp_path / "more", 100)
    with pytest.raises(UserError, match=r"no image in .* is as large as a photograph"):
        images.photographs_of(image_folder)


def test_photographs_of_the_right_size_are_taken_as_they_are(tmp_path: Path) -> None:
    own = images.make_medium(images.Photographs([Image.new("RGB", (600, 600))]), tmp_path / "own", 2)
    assert own == "2 JPEGs of 500 × 375, 1 different ones"
    (first, second) = sorted((tmp_path / "own").rglob("*.jpg"))
    first.write_bytes(first.read_bytes() + b"its own bytes")
    images.make_medium(images.photographs_of(tmp_path / "own"), tmp_path / "copy", 3)
    copies = [path.read_bytes() for path in sorted((tmp_path / "copy").rglob("*.jpg"))]
    assert copies == [first.read_bytes(), second.read_bytes(), first.read_bytes()]


def test_made_photographs_are_jpegs_of_a_usual_size(tmp_path: Path) -> None:
    taken = images.Photographs(images.pillow(images.textured(2, *images.MEDIUM)))
    assert images.make_medium(taken, tmp_path, 3) == "3 JPEGs of 500 × 375, 2 different ones"
    files = sorted(tmp_path.rglob("*.jpg"))
    for file in files:
        with Image.open(file) as opened:
            assert opened.size == (500, 375)
    assert len(files) == 3
    assert all(20_000 < file.stat().st_size < 150_000 for file in files)
