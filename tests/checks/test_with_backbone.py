"""What `iecl doctor --with` adds: labels, outliers, shortcuts, copies that hashes miss. An untrained network does."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from iecl.checks.backbone import _distances
from iecl.checks.call import doctor
from iecl.checks.doctor import diagnose
from iecl.checks.near import near_pairs
from iecl.checks.page import of_votes
from iecl.checks.shortcuts import _explained
from iecl.cli.command import main
from iecl.errors import UserError
from made_images import make_images

NETWORK: dict[str, Any] = {"backbone": "resnet10-w16", "image_size": 32, "workers": 0}


def test_a_wrong_label_is_told_by_its_neighbors_and_an_odd_image_belongs_to_nothing(tmp_path: Path) -> None:
    folder = make_images(tmp_path)
    shutil.move(folder / "red" / "00.png", folder / "blue" / "stray.png")
    checks = np.indices((16, 16)).sum(axis=0) // 4 % 2 * 255
    Image.fromarray(np.stack([checks] * 3, axis=2).astype(np.uint8)).save(folder / "red" / "odd.png")
    made = diagnose([str(folder)], "random", **NETWORK)
    assert [made.scan.name(one.number) for one in made.of("label")] == ["blue/stray.png"]
    assert made.of("label")[0].note == "neighbors: red"
    assert "red/odd.png" in [made.scan.name(one.number) for one in made.of("outlier")]
    assert made.facts["labels_of_neighbors"] > 0.9


def test_strangers_that_resemble_each_other_are_far_from_all_others() -> None:
    draw = np.random.default_rng(2)
    usual = draw.normal(size=(600, 16)) * np.geomspace(10, 1, 16)
    strangers = draw.normal(size=(12, 16)) * 0.1 + 20 * np.eye(16)[-1]  # all alike, and where little varies
    rows = torch.from_numpy(np.concatenate([usual, strangers]))
    far = _distances(rows - rows.mean(dim=0))
    assert far[600:].min() > np.quantile(far[:600], 0.95)


def test_what_can_be_read_from_an_embedding_is_told_beside_a_shuffled_column(tmp_path: Path) -> None:
    found = doctor(make_images(tmp_path), "random", tmp_path / "out", **NETWORK)["shortcuts"]
    rows = {row["property"]: row for row in found}
    assert "aspect" not in rows  # all images are square
    assert rows["blue against yellow"]["read"] > 0.8
    assert rows["blue against yellow"]["neighbors"] > 0.5
    assert rows["blue against yellow"]["is_strong"]
    assert max(row["shuffled"] for row in found) < 0.5
    page = (tmp_path / "out" / "doctor.html").read_text()
    assert "blue against yellow" in page


@pytest.mark.parametrize("is_related", [True, False])
def test_held_out_predictions_explain_what_is_there_and_nothing_else(is_related: bool) -> None:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(500, 8))
    wanted = inputs @ np.ones(8) if is_related else draw.normal(size=500)
    classes = np.eye(3)[(np.digitize(wanted, [-1, 1]))]
    assert (_explained(inputs, wanted) > 0.95) == is_related
    assert (_explained(inputs, classes) > 0.5) == is_related
    assert is_related or _explained(inputs, wanted) < 0.1


def test_pairs_that_somebody_suggests_are_looked_at_whatever_their_hashes() -> None:
    draw = np.random.default_rng(1)
    small = Image.fromarray(draw.integers(0, 255, (8, 8), dtype=np.uint8))
    whole = small.resize((64, 64), Image.Resampling.BICUBIC)
    cut = whole.crop((0, 0, 50, 50))
    thumbs = np.stack([np.asarray(image.resize((32, 32))) for image in (whole, cut)])
    numbers = np.arange(2)
    assert len(near_pairs(thumbs, numbers, 0, 0.75)) == 0
    assert len(near_pairs(thumbs, numbers, 0, 0.75, np.array([[0, 1]]))) == 1


@pytest.mark.parametrize(("votes", "is_little"), [(0.59, True), (0.6, False)])
def test_a_backbone_that_knows_little_of_the_labels_is_said_to(votes: float, is_little: bool) -> None:
    assert ("most hints on single labels will be wrong" in of_votes({"labels_of_neighbors": votes})) == is_little
    assert of_votes({}) == ""


def test_weights_that_are_not_there_are_refused_before_the_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iecl.checks.doctor.scan", lambda *_, **__: pytest.fail("images were looked at"))
    with pytest.raises(UserError, match="there is no run and no file"):
        diagnose([str(make_images(tmp_path))], str(tmp_path / "none"), workers=0)


def test_the_command_takes_a_backbone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--data", str(make_images(tmp_path)), "--with", "random", "--backbone", "resnet10-w16"]
    more = ["--image-size", "32", "--workers", "0", "--out", str(tmp_path / "out")]
    assert main(["doctor", *words, *more]) == 0
    said = capsys.readouterr().out
    assert "| property" in said
    assert f"--exclude {tmp_path / 'out/exclude.txt'}" not in said  # nothing is to be left out
