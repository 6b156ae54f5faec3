"""What users bring: lists, patterns, arrays, datasets, networks, methods, callbacks."""

import csv
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import iecl
from iecl.cli.command import main
from iecl.errors import Interrupted
from iecl.testing import check_method

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))  # where a user starts them

import from_bands  # noqa: E402
import from_dataset  # noqa: E402
import from_list  # noqa: E402
import own_backbone  # noqa: E402
import own_method  # noqa: E402

SHORT = ["data.image_size=16", "training.loggers=[]", "data.num_workers=0", "training.precision=32-true"]
SHORT += ["training.meter_steps=1000"]
HOW: dict[str, Any] = {"sets": SHORT, "quiet": True, "backbone": "resnet10-w16", "batch_size": 16, "epochs": 1}


def state_of(run: iecl.Run) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(run.path / "weights.safetensors")


def same(a: iecl.Run, b: iecl.Run) -> bool:
    mine, theirs = state_of(a), state_of(b)
    return mine.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in mine.items())


@pytest.fixture
def pixels() -> np.ndarray:
    noise = np.random.default_rng(0)
    return noise.integers(0, 255, (40, 16, 16, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path, pixels: np.ndarray) -> Path:
    """The same images as files, in the order of the array."""
    made = tmp_path / "photos"
    made.mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(made / f"{number:02d}.png")
    return made


def table(path: Path, rows: list[tuple[Any, ...]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(rows)
    return path


def text(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def ways(folder: Path, pixels: np.ndarray) -> dict[str, Any]:
    """Forty images in as many ways as there are."""
    paths = sorted(folder.glob("*.png"))
    names = [path.name for path in paths]
    halves = [folder.parent / name for name in ("first", "second")]
    for half, some in zip(halves, (paths[:20], paths[20:]), strict=True):
        half.mkdir()
        for path in some:
            shutil.copy(path, half)
    listed = [(f"photos/{name}",) for name in names]
    return {
        "csv": table(folder.parent / "list.csv", listed),
        "csv with a header": table(
            folder.parent / "named.csv", [("id", "image"), *((i, row[0]) for i, row in enumerate(listed))]
        ),
        "tsv": table(folder.parent / "list.tsv", listed),
        "txt": text(folder.parent / "list.txt", [str(path) for path in paths]),
        "pattern": f"{folder}/*.png",
        "several folders": halves,
        "several of each": [halves[0], f"{halves[1]}/2*.png", f"{halves[1]}/30.png", f"{halves[1]}/*.png"],
        "paths": paths,
        "array": pixels,
        "tensor": torch.from_numpy(pixels).permute(0, 3, 1, 2),
        "dataset": torch.utils.data.TensorDataset(torch.from_numpy(pixels).permute(0, 3, 1, 2)),
    }


def test_the_same_images_train_the_same_network_however_they_are_given(
    tmp_path: Path, folder: Path, pixels: np.ndarray
) -> None:
    plain = iecl.pretrain(folder, tmp_path / "plain", **HOW)
    features = plain.embed()["features"]
    for way, data in ways(folder, pixels).items():
        np.testing.assert_array_equal(plain.embed(data)["features"], features, err_msg=way)
        if way in ("csv", "several of each", "dataset"):
            assert same(plain, iecl.pretrain(data, tmp_path / way, **HOW)), way


LABELS = [name for _ in range(20) for name in ("cat", "dog")]


@pytest.mark.parametrize("way", ["csv", "txt", "pairs", "paths and labels", "array", "folders"])
def test_labels_come_with_the_images(way: str, tmp_path: Path, folder: Path, pixels: np.ndarray) -> None:
    paths = sorted(folder.glob("*.png"))
    rows = list(zip(map(str, paths), LABELS, strict=True))
    data: Any = {
        "csv": lambda: table(tmp_path / "list.csv", [("label", "path"), *((b, a) for a, b in rows)]),
        "txt": lambda: text(tmp_path / "list.txt", ["\t".join(row) for row in rows]),
        "pairs": lambda: rows,
        "paths and labels": lambda: (paths, LABELS),
        "array": lambda: (pixels, LABELS),
        "folders": lambda: [by_class(tmp_path / "a", paths[:20]), by_class(tmp_path / "b", paths[20:])],
    }[way]()
    found = iecl.embed("random", data, backbone="resnet10-w16", image_size=16)
    assert found["labels"].tolist() == (2 * [*[0] * 10, *[1] * 10] if way == "folders" else [0, 1] * 20)


def by_class(root: Path, paths: list[Path]) -> Path:
    for path in paths:
        own = root / LABELS[int(path.stem)]
        own.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, own)
    return root


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda at: table(at / "a.csv", [("x", "y", "z")]), "which of the 3 columns of"),
        (lambda at: text(at / "a.txt", [""]), "lists no image"),
        (lambda at: table(at / "a.csv", [("path", "label"), ("", "cat")]), "a row without a path"),
        (lambda at: f"{at}/*.gif", "matches nothing"),
        (lambda at: [at, "shapes"], "shapes cannot be joined with other images (data)"),
        (lambda at: [], "an empty list is no image"),
        (lambda at: [(at / "photos" / "00.png", "cat"), (at, "cat")], "is not called as an image is"),
        (lambda at: np.zeros((2, 2)), "an array of (2, 2) holds no images"),
        (lambda at: iter([1]), "does not give images by number"),
        (lambda at: (np.zeros((2, 8, 8)), [1]), "there are 2 images and 1 labels"),
        (lambda at: at / "missing", "there is no folder"),
        (lambda at: at / "missing.csv", "there is no file"),
        (lambda at: [at / "photos", f"{at}/missing.jpg"], "there is no file"),
    ],
)
def test_data_that_cannot_be_used_are_refused_in_one_line(
    make: Callable[[Path], Any], words: str, tmp_path: Path, folder: Path
) -> None:
    with pytest.raises(iecl.UserError) as problem:
        iecl.pretrain(make(tmp_path), tmp_path / "run", **HOW)
    assert words in str(problem.value)
    assert "--" not in str(problem.value)
    assert not (tmp_path / "run").exists()


def test_some_places_with_test_images_and_some_without_are_refused(tmp_path: Path, folder: Path) -> None:
    for part in ("train", "test"):
        shutil.copytree(folder, tmp_path / "split" / part)
    with pytest.raises(iecl.UserError, match=r"has no test images, and .*/split has"):
        iecl.pretrain([folder, tmp_path / "split"], tmp_path / "run", **HOW)


def test_an_item_that_fails_is_a_bad_image_with_its_reason(tmp_path: Path, pixels: np.ndarray) -> None:
    class Broken:
        def __len__(self) -> int:
            return len(pixels)

        def __getitem__(self, number: int) -> np.ndarray:
            if number == 3:
                raise KeyError("no such row")
            return pixels[number]

    run = iecl.pretrain(Broken(), tmp_path / "run", **HOW)
    assert "[3]\tKeyError: 'no such row'" in (run.path / "skipped.txt").read_text()
    assert run.summary["images"] == 39


class Rows:
    """As much of a Hugging Face dataset as is used."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels, self.column_names = pixels, ["image", "label"]
        self.features = {"label": SimpleNamespace(names=["cat", "dog"])}

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, key: Any) -> Any:
        labels = [number % 2 for number in range(len(self))]
        return labels if key == "label" else {"image": Image.fromarray(self.pixels[key]), "label": labels[key]}


def test_rows_of_a_hugging_face_dataset_are_images_with_labels(
    tmp_path: Path, pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iecl.embed("random", Rows(pixels), backbone="resnet10-w16", image_size=16)
    plain = iecl.embed("random", pixels, backbone="resnet10-w16", image_size=16)
    np.testing.assert_array_equal(found["features"], plain["features"])
    assert found["labels"].tolist() == [0, 1] * 20
    for name in ("state", "dataset_info"):
        (tmp_path / f"{name}.json").write_text("{}")
    loads = {str(tmp_path): Rows(pixels), str(tmp_path / "many"): {"train": Rows(pixels)}}
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_from_disk=loads.__getitem__))
    saved = iecl.embed("random", tmp_path, backbone="resnet10-w16", image_size=16)
    np.testing.assert_array_equal(saved["features"], plain["features"])
    assert same(iecl.pretrain(tmp_path, tmp_path / "run", **HOW), iecl.pretrain(pixels, tmp_path / "other", **HOW))
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "dataset_dict.json").write_text("{}")
    with pytest.raises(iecl.UserError, match=r"many has 1 splits \(data\); name one of: .*/many/train"):
        iecl.embed("random", tmp_path / "many", backbone="resnet10-w16", image_size=16)


class BreakOff:
    """Asks a run to stop when its first epoch is over, as a system that needs the machine does."""

    def on_epoch_end(self, moment: Any) -> None:
        if moment.epoch == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def broken_off(train: Callable[..., iecl.Run], out: Path, **how: Any) -> iecl.Run:
    """A run that was stopped in its second epoch of two, and went on."""
    with pytest.raises(Interrupted, match=r"iecl.pretrain\(out='.*', resume=True\)"):
        train(out, epochs=2, callbacks=[BreakOff()], **how)
    assert not (out / "weights.safetensors").exists()
    return train(out, epochs=2, resume=True, **how)


def door_to(door: str, tmp_path: Path) -> Callable[..., iecl.Run]:
    """Trains as the example of a door does, on what it brings."""
    some = from_dataset.Stripes(64)
    if door == "dataset":
        return from_dataset.train
    if door in ("backbone", "method"):
        example = {"backbone": own_backbone, "method": own_method}[door]
        return lambda out, **how: example.train(out, some, **how)
    if door == "bands":
        return partial(from_bands.train, from_bands.make_bands(tmp_path / "bands"))
    if door.startswith("rows"):
        pytest.importorskip("datasets", reason="datasets is not installed")
        import from_hugging_face

        rows: Any = from_hugging_face.make_dataset()
        if door == "rows that were saved":
            rows.save_to_disk(tmp_path / "saved")
            rows = tmp_path / "saved"
        return partial(from_hugging_face.train, rows)
    listed = from_list.make_list(tmp_path / "listed")
    paths = sorted(listed.parent.glob("*.png"))
    data: Any = {
        "list": listed,
        "pattern": f"{listed.parent}/*.png",
        "several": [f"{listed.parent}/0[0-4]*.png", f"{listed.parent}/0[5-9]*.png"],
        "paths": paths,
        "arrays": np.stack([np.asarray(Image.open(path)) for path in paths]),
    }[door]
    return partial(from_list.train, data)


DOORS = ["dataset", "list", "backbone", "method", "bands"]
MORE = ["pattern", "several", "paths", "arrays", "rows", "rows that were saved"]


@pytest.mark.parametrize("door", DOORS)
def test_a_run_that_was_stopped_goes_on_exactly(door: str, tmp_path: Path) -> None:
    train = door_to(door, tmp_path)
    how = {"sets": SHORT, "quiet": True}
    assert same(train(tmp_path / "whole", epochs=2, **how), broken_off(train, tmp_path / "broken", **how))


def both(out: Path, **how: Any) -> iecl.Run:
    """Dataset, network and method of one's own at once."""
    made = {"method": own_method.Agreement, "backbone": own_backbone.Patches(), "batch_size": 32, "seed": 0}
    return iecl.pretrain(from_dataset.Stripes(64), out, **(made | how))


@pytest.mark.slow
def test_what_a_program_brings_goes_to_other_processes_and_comes_back_after_a_pause(tmp_path: Path) -> None:
    how = {"sets": SHORT, "quiet": True, "devices": 2, "accelerator": "cpu"}
    torch.manual_seed(0)
    run = broken_off(both, tmp_path / "run", **how)
    assert run.summary["finished"]
    assert run.embed()["features"].shape == (64, 64)


class Forgetful(nn.Module):
    """Its dropout draws from torch's own generator."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x).flatten(1)


def test_dropout_is_drawn_anew_in_each_step_and_again_alike_in_another_run(tmp_path: Path, pixels: np.ndarray) -> None:
    def train(out: Path, **how: Any) -> iecl.Run:
        return iecl.pretrain(pixels, out, **(HOW | {"backbone": Forgetful, "sets": SHORT} | how))

    whole = train(tmp_path / "whole", epochs=2)
    torch.manual_seed(7)  # a program's own draws have no part in it
    assert same(whole, broken_off(train, tmp_path / "broken"))


@pytest.mark.slow
def test_a_network_whose_layers_have_versions_goes_on(tmp_path: Path, pixels: np.ndarray) -> None:
    def train(out: Path, **how: Any) -> iecl.Run:
        return iecl.pretrain(pixels, out, **(HOW | {"backbone": "torchvision/mnasnet0_5", "image_size": 32} | how))

    how = {"sets": [text for text in SHORT if "image_size" not in text]}
    assert same(train(tmp_path / "whole", epochs=2, **how), broken_off(train, tmp_path / "broken", **how))


class Diary:
    """Writes down what it hears; what it keeps in itself stays in its process."""

    def __init__(self, file: Path) -> None:
        self.file, self.heard = file, 0

    def on_step_end(self, moment: Any) -> None:
        self._write("step", moment)

    def on_epoch_end(self, moment: Any) -> None:
        self._write("epoch", moment)

    def on_checkpoint(self, moment: Any) -> None:
        self._write("checkpoint", moment)

    def _write(self, what: str, moment: Any) -> None:
        self.heard += 1
        with self.file.open("a") as diary:
            diary.write(f"{what} {moment.step}\n")


@pytest.mark.slow
def test_one_copy_of_a_callback_hears_of_a_run_in_two_processes(tmp_path: Path, pixels: np.ndarray) -> None:
    diary = Diary(tmp_path / "diary.txt")
    iecl.pretrain(pixels, tmp_path / "run", callbacks=[diary], devices=2, accelerator="cpu", **HOW)
    assert diary.file.read_text().splitlines() == ["step 1", "step 2", "checkpoint 2", "epoch 2"]
    assert diary.heard == 0


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS + MORE)
def test_every_door_is_open_to_two_processes_and_a_pause(door: str, tmp_path: Path) -> None:
    train = door_to(door, tmp_path)
    how = {"sets": SHORT, "quiet": True, "devices": 2, "accelerator": "cpu"}
    assert same(train(tmp_path / "whole", epochs=2, **how), broken_off(train, tmp_path / "broken", **how))


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", ["from_bands", "from_dataset", "from_hugging_face", "from_list", "own_backbone", "own_method"]
)
def test_an_example_runs_as_it_is_started(example: str, tmp_path: Path) -> None:
    if example == "from_hugging_face":
        pytest.importorskip("datasets", reason="datasets is not installed")
    words = [sys.executable, str(EXAMPLES / f"{example}.py")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kNN" in done.stdout


def test_a_run_is_not_resumed_with_other_objects_or_without_them(tmp_path: Path, pixels: np.ndarray) -> None:
    def train(data: Any, **how: Any) -> iecl.Run:
        return iecl.pretrain(data, tmp_path / "run", **(HOW | {"epochs": 2} | how))

    with pytest.raises(Interrupted):
        train(pixels, callbacks=[BreakOff()])
    with pytest.raises(iecl.UserError, match=r"data.name was object:array-\w+, now object:array-"):
        train(255 - pixels, resume=True)
    with pytest.raises(iecl.UserError, match=r"is an object of the Python program that started this run.*data="):
        iecl.pretrain(out=tmp_path / "run", resume=True, quiet=True)
    assert train(pixels, resume=True).summary["finished"]
    with pytest.raises(iecl.UserError, match="same object as data="):
        iecl.load(tmp_path / "run").embed()


def test_what_cannot_be_sent_to_another_process_is_said_before_any_starts(tmp_path: Path, pixels: np.ndarray) -> None:
    class Local(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(pixels)

        def __getitem__(self, number: int) -> np.ndarray:
            return pixels[number]

    with pytest.raises(iecl.UserError, match=r"object:Local-\w+ cannot be sent to the other processes .*one process"):
        iecl.pretrain(Local(), tmp_path / "run", **HOW, devices=2, accelerator="cpu")


def test_a_network_without_a_width_is_measured_and_wrong_ones_are_refused(tmp_path: Path, pixels: np.ndarray) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 12, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    run = iecl.pretrain(pixels, tmp_path / "run", **(HOW | {"backbone": net()}))
    assert run.embed()["features"].shape == (40, 12)
    for wrong, words in [
        (nn.Conv2d(3, 4, 3), "gives (1, 4, 222, 222) for one image"),
        (lambda: 5, "gives a int, not an nn.Module"),
        (7, "a int is no network"),
        ("missing_module:net", "there is no module missing_module"),
        ("own_backbone:Nothing", "own_backbone has no Nothing"),
    ]:
        with pytest.raises(iecl.UserError) as problem:
            iecl.pretrain(pixels, tmp_path / "wrong", **(HOW | {"backbone": wrong}))
        assert words in str(problem.value)


def test_a_module_brings_its_weights_and_is_left_as_it_is(tmp_path: Path, pixels: np.ndarray) -> None:
    net = own_backbone.Patches()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run = iecl.pretrain(pixels, tmp_path / "run", method="random", **(HOW | {"backbone": net}))
    weights = {name: value for name, value in state_of(run).items() if "weight" in name}
    assert all(torch.equal(value, before[name]) for name, value in weights.items())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_file_of_weights_does_not_choose_which_code_is_imported(tmp_path: Path, pixels: np.ndarray) -> None:
    run = iecl.pretrain(pixels, tmp_path / "run", **(HOW | {"backbone": "own_backbone:Patches"}))
    run.export(tmp_path / "patches.safetensors")
    with pytest.raises(iecl.UserError, match=r"code outside of iecl .*backbone own_backbone:Patches"):
        iecl.embed(tmp_path / "patches.safetensors", pixels)
    found = iecl.embed(tmp_path / "patches.safetensors", pixels, backbone=own_backbone.Patches, image_size=16)
    np.testing.assert_array_equal(found["features"], run.embed()["features"])


def test_the_command_takes_lists_several_folders_networks_and_methods_by_name(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = table(tmp_path / "list.csv", [(f"photos/{number:02d}.png",) for number in range(20)])
    words = ["pretrain", "--data", str(listed), "--data", f"{folder}/[23]*.png", "--out", "run", "--quiet"]
    words += ["--backbone", "own_backbone:Patches", "--method", "own_method:Agreement", "--batch-size", "16"]
    assert main([*words, "--epochs", "1", *(word for text in SHORT for word in ("--set", text))]) == 0
    run = iecl.load("run")
    assert run.summary["images"] == 40
    assert run.settings["method"]["name"] == "own_method:Agreement"
    assert main(["embed", "run", "--out", "features.csv"]) == 0
    rows = list(csv.reader((tmp_path / "features.csv").read_text().splitlines()))
    assert (len(rows), rows[0][:5]) == (41, ["paths", "labels", "splits", "index", "f0"])
    assert main(["pretrain", "--data", "photos", "--method", "own_method:Nothing", "--out", "x"]) == 2
    assert "own_method has no Nothing (--method)" in capsys.readouterr().err


def test_a_method_of_ones_own_keeps_the_promises_and_one_that_breaks_them_is_named() -> None:
    check_method(own_method.Agreement, ["method.out_dim=8"])

    class Forgetful(own_method.Agreement):
        """Keeps a count where no checkpoint finds it."""

        def step(self, views: Any, clock: Any) -> Any:
            self.count = getattr(self, "count", 0) + 1
            made = super().step(views, clock)
            made.losses["agreement"] = made.losses["agreement"] * (1 + self.count)
            return made

    with pytest.raises(AssertionError, match="all state is in parameters and persistent buffers"):
        check_method(Forgetful)


def test_a_declared_method_is_listed_and_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pixels: np.ndarray
) -> None:
    info = tmp_path / "site" / "agreeing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agreeing\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[iecl.methods]\nagreement = own_method:Agreement\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    from iecl.cli.list import rows_of

    assert rows_of("methods")["agreement"] == "from the package agreeing"
    run = iecl.pretrain(pixels, tmp_path / "run", method="agreement", **HOW)
    assert run.settings["method"] == {"name": "agreement", "out_dim": 32, "weight": 10.0}


def test_callbacks_hear_of_steps_epochs_and_checkpoints(tmp_path: Path, pixels: np.ndarray) -> None:
    heard: list[tuple[Any, ...]] = []

    class Listener:
        def on_step_end(self, moment: Any) -> None:
            heard.append(("step", moment.step, moment.epoch, sorted(moment.losses)))

        def on_epoch_end(self, moment: Any) -> None:
            heard.append(("epoch", moment.step, moment.epoch))

        def on_checkpoint(self, moment: Any) -> None:
            heard.append(("checkpoint", moment.step, moment.checkpoint.is_file()))

    plain = iecl.pretrain(pixels, tmp_path / "plain", **HOW)
    run = iecl.pretrain(pixels, tmp_path / "run", callbacks=[Listener()], **HOW)
    losses = ["contrast", "iecl/entropy"]
    assert heard == [("step", 1, 0, losses), ("step", 2, 0, losses), ("checkpoint", 2, True), ("epoch", 2, 0)]
    assert same(plain, run)
    with pytest.raises(iecl.UserError, match="a str is called at no time"):
        iecl.pretrain(pixels, tmp_path / "other", callbacks=["on_step_end"], **HOW)


def test_embed_gives_arrays_and_writes_them(tmp_path: Path, folder: Path) -> None:
    run = iecl.pretrain(folder, tmp_path / "run", **HOW)
    found = run.embed()
    assert found["features"].shape == (40, 128)
    assert found["path"] is None
    assert found["paths"][1] == str(folder / "01.png")
    for name in ("a.npz", "a.csv"):
        assert run.embed(out=tmp_path / name)["path"] == str(tmp_path / name)
    table = np.genfromtxt(tmp_path / "a.csv", delimiter=",", skip_header=1, usecols=range(4, 132), dtype=np.float32)
    np.testing.assert_array_equal(table, found["features"])
    np.testing.assert_array_equal(np.load(tmp_path / "a.npz")["features"], found["features"])


def test_errors_in_python_speak_of_arguments(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(iecl.UserError, match=r"no method is called 'simcrl' \(method\); did you mean simclr\?"):
        iecl.pretrain(folder, tmp_path / "run", method="simcrl")
    with pytest.raises(iecl.UserError, match=r"there is no device 'gpu9' here.*\(device\)"):
        iecl.evaluate("knn", "random", "shapes", backbone="resnet10-w16", device="gpu9")


def test_what_the_command_can_do_is_in_the_api() -> None:
    assert {"compare", "draw_views", "replay", "embed", "evaluate"} <= set(iecl.__all__)
    assert all(callable(getattr(iecl, name)) for name in ("compare", "draw_views", "replay"))


def test_nothing_stays_at_hand_after_a_call(tmp_path: Path, pixels: np.ndarray) -> None:
    from iecl.brought import to_hand_on

    iecl.pretrain(pixels, tmp_path / "run", **HOW)
    assert to_hand_on() == {}
