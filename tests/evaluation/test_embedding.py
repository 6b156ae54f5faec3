"""Embedding: one row for each image, in files that others can read."""

import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from PIL import Image

from iecl.data.factory import open_source
from iecl.errors import UserError
from iecl.evaluation.embedding import embed
from iecl.evaluation.features import extract
from made_runs import MadeRun


def test_a_folder_becomes_one_row_for_each_readable_image(made_run: MadeRun, images: Path, tmp_path: Path) -> None:
    made = embed(made_run.directory.path, str(images), tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        columns = {name: file[name] for name in file.files}
    assert (made["rows"], made["width"], made["skipped"]) == (30, 128, 1)
    assert columns["features"].dtype == np.float32
    assert columns["features"].shape == (30, 128)
    readable = sorted(path for path in images.rglob("*.png") if path.name != "broken.png")
    assert columns["paths"].tolist() == [str(path) for path in readable]
    assert columns["labels"].tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert set(columns["splits"].tolist()) == {"all"}
    assert columns["index"].tolist() == [*range(20), *range(21, 31)]


def test_rows_are_the_features_of_their_images(made_run: MadeRun, images: Path, tmp_path: Path) -> None:
    embed(made_run.directory.path, str(images), tmp_path / "out.npz")
    source, data = open_source(made_run.config.data, "train"), made_run.config.data
    expected = extract(made_run.method.encoder(), source, image_size=16, mean=data.mean, std=data.std, share=1.0).values
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "out.npz")["features"]), expected)


def test_parquet_holds_the_same_columns(made_run: MadeRun, images: Path, tmp_path: Path) -> None:
    embed(made_run.directory.path, str(images), tmp_path / "out.npz")
    embed(made_run.directory.path, str(images), tmp_path / "out.parquet")
    arrays, table = np.load(tmp_path / "out.npz"), parquet.read_table(tmp_path / "out.parquet")
    assert sorted(table.column_names) == sorted(arrays.files)
    assert np.array_equal(np.array(table["features"].to_pylist(), dtype=np.float32), arrays["features"])
    assert table["paths"].to_pylist() == arrays["paths"].tolist()
    assert table["labels"].to_pylist() == arrays["labels"].tolist()
    assert table["splits"].to_pylist() == arrays["splits"].tolist()


def test_training_images_come_before_test_images(made_run: MadeRun, images: Path, tmp_path: Path) -> None:
    split = tmp_path / "split"
    shutil.copytree(images, split / "train")
    shutil.copytree(images, split / "test", ignore=shutil.ignore_patterns("[0-7].png", "broken.png"))
    embed(made_run.directory.path, str(split), tmp_path / "out.npz")
    found = np.load(tmp_path / "out.npz")
    assert found["splits"].tolist() == ["train"] * 30 + ["test"] * 6
    assert found["index"][30:].tolist() == list(range(6))
    assert all(path.startswith(str(split / "test")) for path in found["paths"][30:])


def test_a_named_dataset_is_embedded_whole(made_run: MadeRun, tmp_path: Path) -> None:
    made = embed(made_run.directory.path, "digits", tmp_path / "out.npz")
    assert made["rows"] == 1797
    assert np.load(tmp_path / "out.npz")["paths"][-1] == "digits[359]"


def test_images_need_no_labels_and_their_names_no_encoding(made_run: MadeRun, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    Image.new("RGB", (16, 16)).save(flat / "plain.png")
    shutil.copy(flat / "plain.png", os.fsencode(flat) + b"/caf\xe9.png")
    embed(made_run.directory.path, str(flat), tmp_path / "out.npz")
    embed(made_run.directory.path, str(flat), tmp_path / "out.parquet")
    found = np.load(tmp_path / "out.npz", allow_pickle=False)
    assert [Path(path).name for path in found["paths"]] == ["caf\\udce9.png", "plain.png"]
    assert found["labels"].tolist() == [-1, -1]
    assert parquet.read_table(tmp_path / "out.parquet")["paths"].to_pylist() == found["paths"].tolist()


def test_an_earlier_file_is_replaced_when_told_to_and_nothing_else_is_left(
    made_run: MadeRun, tmp_path: Path, images: Path
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "out.npz").write_text("old")
    with pytest.raises(UserError, match=r"out\.npz is there already \(--out\); add --overwrite"):
        embed(made_run.directory.path, None, folder / "out.npz")
    embed(made_run.directory.path, None, folder / "out.npz", overwrite=True)
    assert np.load(folder / "out.npz")["features"].shape == (30, 128)
    assert [path.name for path in folder.iterdir()] == ["out.npz"]


def test_a_full_disk_leaves_the_earlier_file(
    made_run: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(handle: int) -> None:
        raise OSError(28, "No space left on device")

    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "out.npz").write_text("old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        embed(made_run.directory.path, None, folder / "out.npz", overwrite=True)
    assert (folder / "out.npz").read_text() == "old"
    assert [path.name for path in folder.iterdir()] == ["out.npz"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("out.txt", r"cannot be written as \.txt .*name a file that ends in \.npz, \.parquet or \.csv"),
        ("out", "a file without a suffix"),
        ("gone/out.npz", "there is no folder"),
    ],
)
def test_a_wrong_name_is_told_before_any_work(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        embed(tmp_path / "no run at all", None, tmp_path / name)
