"""Runs and measurements on a packed file: nothing may differ from the folder it was made of."""

import json
from pathlib import Path

import numpy as np
import pytest

import iecl
import iecl.api
from iecl.cli.command import main
from iecl.data.defaults import resolve_data
from iecl.errors import TrainingError
from iecl.training.config import make_config, with_data
from iecl.training.loop import Loop
from iecl.training.probe import open_part

RUN = {"backbone": "resnet10-w16", "epochs": 2, "batch_size": 8, "quiet": True}
SMALL = ["method.hidden_dim=16", "method.out_dim=8"]


@pytest.fixture
def both(image_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A folder of 41 images of which one cannot be read, and the file that it was packed into."""
    (image_folder / "red/bad.png").write_text("no image")
    words = ["pack", str(image_folder), "--out", str(tmp_path / "images.iecl"), "--set", "data.image_size=16"]
    assert main([*words, "--quiet"]) == 0
    return image_folder, tmp_path / "images.iecl"


def test_the_command_says_what_it_packed_and_what_to_do_next(
    image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "file.iecl"
    assert main(["pack", str(image_folder), "--out", str(out), "--side", "24", "--json"]) == 0
    told = capsys.readouterr()
    made = json.loads(told.out)
    assert {name: made[name] for name in ("path", "images", "parts", "classes", "side", "skipped")} == {
        "path": str(out), "images": 40, "parts": {"all": 40}, "classes": 2, "side": 24, "skipped": 0,
    }  # fmt: skip
    assert f"40 images of 24 px in {out}" in told.err
    assert f"next: iecl pretrain --data {out}" in told.err


def test_a_run_is_the_same_from_the_folder_and_from_the_file(
    both: tuple[Path, Path], tmp_path: Path, tiny: list[str]
) -> None:
    runs = [iecl.pretrain(data, tmp_path / str(n), sets=[*tiny, *SMALL], **RUN) for n, data in enumerate(both)]
    curves = [[(row["step"], row.get("loss"), row.get("knn")) for row in run.metrics] for run in runs]
    assert curves[0] == curves[1]
    assert [run.summary["skipped"] for run in runs] == [1, 1]
    assert (runs[1].path / "skipped.txt").read_text() == f"{both[1]}/red/bad.png\tnot an image\n"
    resumed = iecl.pretrain(out=runs[1].path, resume=True, quiet=True)
    assert resumed.summary["finished"]


@pytest.mark.parametrize("harm", ["cut short", "overwritten"])
def test_a_file_that_changes_in_the_middle_of_a_run_ends_it_with_its_last_checkpoint(
    both: tuple[Path, Path], tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    whole, save = both[1].read_bytes(), Loop.save

    def save_and_harm(self: Loop, is_best: bool = False) -> None:
        save(self, is_best)
        both[1].write_bytes(whole[:5000] if harm == "cut short" else whole[:5000] + bytes(1000) + whole[6000:])

    monkeypatch.setattr(Loop, "save", save_and_harm)
    with pytest.raises(TrainingError, match=r"the packed file .* changed while it was used"):
        iecl.pretrain(both[1], tmp_path / "run", sets=[*tiny, *SMALL], **RUN)
    monkeypatch.setattr(Loop, "save", save)
    assert (tmp_path / "run/checkpoints/last.ckpt").is_file()
    both[1].write_bytes(whole)
    assert iecl.pretrain(out=tmp_path / "run", resume=True, quiet=True).summary["finished"]


def test_everything_that_takes_a_folder_takes_the_file(
    both: tuple[Path, Path], tmp_path: Path, tiny: list[str]
) -> None:
    run = iecl.pretrain(both[1], tmp_path / "run", sets=[*tiny, *SMALL], **RUN)
    scores = [iecl.evaluate("knn", run.path, data)["top1"] for data in (None, *map(str, both))]
    assert scores[0] == scores[1] == scores[2]
    features = []
    for number, data in enumerate(both):
        iecl.embed(run.path, data, tmp_path / f"{number}.npz")
        with np.load(tmp_path / f"{number}.npz") as found:
            features.append(dict(found))
    assert np.array_equal(features[0]["features"], features[1]["features"])
    assert np.array_equal(features[0]["labels"], features[1]["labels"])
    below = [[path.removeprefix(str(data)) for path in f["paths"]] for f, data in zip(features, both, strict=True)]
    assert below[0] == below[1]
    seen = [iecl.inspect(run.path, str(data), images=16, out=tmp_path / "report")["layers"] for data in both]
    assert seen[0] == seen[1]
    assert iecl.draw_views(run.path, 1, tmp_path / "views.png", row=0)["image"].startswith(str(both[1]))


def test_a_plan_opens_the_file_as_a_run_would(both: tuple[Path, Path]) -> None:
    config = make_config(flags={"data": {"name": str(both[1])}, "training": {"batch_size": 8}})
    opened = open_part(with_data(config, resolve_data(config.data)), need=8, seconds=1)
    assert (opened.images, opened.side, opened.decode_seconds) == (40, 16, 0)
    assert opened.source.is_decoded
