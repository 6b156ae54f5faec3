"""The command as a user types it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import load_file

import iecl
from iecl.backbones.factory import make_backbone
from iecl.cli.command import VERBS, main
from iecl.cli.describe import formula_of
from iecl.methods import METHODS
from iecl.settings import as_values
from iecl.training.config import make_config

COMMON = ["--backbone", "resnet10-w16", "--epochs", "2", "--batch-size", "8", "--quiet"]


def sets(values: list[str]) -> list[str]:
    return [word for value in [*values, "method.hidden_dim=16", "method.out_dim=8"] for word in ("--set", value)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of images and a finished run on them, made by the command."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("command")
    noise = np.random.default_rng(0)
    for number in range(40):
        kind = ("dark", "light")[number % 2]
        path = folder / "images" / kind / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        low = 150 * (number % 2)
        Image.fromarray(noise.integers(low, low + 100, (16, 16, 3), dtype=np.uint8)).save(path)
    tiny = ["data.image_size=16", "training.loggers=[]", "data.num_workers=0", "training.log_steps=1"]
    code = main(["pretrain", "--data", str(folder / "images"), "--out", str(folder / "run"), *COMMON, *sets(tiny)])
    assert code == 0
    return folder / "images", folder / "run"


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return found


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_json(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pretran"], "no command is called 'pretran'; did you mean pretrain?"),
        ([], "required: COMMAND"),
        (["pretrain"], "which images? (--data); name a folder of images"),
        (["pretrain", "--data", "nowhere/at/all"], "there is no folder"),
        (["pretrain", "--data", "cifar01"], "no dataset called 'cifar01' (--data); did you mean cifar10"),
        (["pretrain", "--data", "EMPTY"], "EMPTY"),
        (["pretrain", "--data", "FILE"], "is a file, not a folder"),
        (["pretrain", "--data", "TEXT"], "no image in"),
        (["pretrain", "--data", "BROKEN"], "1 images in"),
        (["pretrain", "--data", "shapes", "--epoch", "3"], "does not know '--epoch'; did you mean --epochs?"),
        (["pretrain", "--data", "shapes", "--epochs", "many"], "argument --epochs: invalid int value: 'many'"),
        (["pretrain", "--data", "shapes", "--method", "simcrl"], "no method is called 'simcrl'"),
        (["pretrain", "--data", "shapes", "--backbone", "resnet81", "--out", "RUN"], "did you mean resnet"),
        (["pretrain", "--data", "shapes", "--set", "training.sed=1"], "did you mean seed?"),
        (["pretrain", "--data", "shapes", "--recipe", "ie-cl/papper"], "did you mean ie-cl/paper?"),
        (["pretrain", "--data", "shapes", "--out", "FILE"], "is a file"),
        (["pretrain", "--data", "TEXT", "--out", "TEXT"], "holds the images (--out)"),
        (["pretrain", "--data", "digits", "--set", "data.labels=none"], "digits knows its labels itself"),
        (["pretrain", "--data", "digits", "--set", "data.image_size=4"], "data.image_size is 4, it must be at least 8"),
        (["pretrain", "--data", "digits", "--batch-size", "0"], "it must be at least 2 (--batch-size)"),
        (["pretrain", "--data", "digits", "--method", "SimCLR"], "did you mean simclr?"),
        (["pretrain", "--resume"], "which run is to be resumed?"),
        (["pretrain", "--resume", "--out", "nowhere"], "there is no run in nowhere"),
        (["evaluate", "kn", "nowhere"], "no evaluation is called 'kn'"),
        (["evaluate", "knn", "nowhere"], "nowhere"),
        (["list", "method"], "there is no list of 'method'; did you mean methods?"),
        (["describe", "ie-cl/papper"], "did you mean ie-cl/paper?"),
    ],
)
def test_wrong_use_is_one_line_and_code_2(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {name: tmp_path / name for name in ("EMPTY", "FILE", "TEXT", "BROKEN", "RUN")}
    for name in ("EMPTY", "TEXT", "BROKEN"):
        made[name].mkdir()
    made["FILE"].write_text("x")
    (made["TEXT"] / "notes.txt").write_text("x")
    (made["BROKEN"] / "a.jpg").write_bytes(b"not an image")
    code = main([str(made.get(word, word)) for word in words])
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert code == 2
    assert len(errors) == 1
    assert message in errors[0]


def test_a_directory_with_a_run_is_refused(finished: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    images, run = finished
    assert main(["pretrain", "--data", str(images), "--out", str(run)]) == 2
    assert "already holds a run (--out); add --resume" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["methods", "backbones", "datasets", "recipes"])
def test_lists_are_tables_and_json(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind, "--json"]) == 0
    table = last_json(capsys)
    assert len(table[kind]) >= 2  # type: ignore[arg-type]


@pytest.mark.parametrize("evaluation", ["knn", "linear"])
def test_a_run_is_evaluated(evaluation: str, finished: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, run = finished
    assert main(["evaluate", evaluation, str(run), "--json", "--quiet"]) == 0
    result = last_json(capsys)
    assert result["top1"] >= 0.8  # type: ignore[operator]  # dark and light images are easy to tell apart
    assert (result["n_train"], result["n_test"]) == (32, 8)
    assert list((run / "evaluations").glob(f"{evaluation}*.json"))


def test_features_are_written(finished: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, run = finished
    out = tmp_path / "features.npz"
    assert main(["embed", str(run), "--data", str(images), "--out", str(out), "--json", "--quiet"]) == 0
    assert last_json(capsys)["rows"] == 40
    assert np.load(out)["features"].shape == (40, 128)


def test_an_exported_backbone_loads_into_torchvision(
    tmp_path: Path, image_folder: Path, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--backbone", "resnet18", "--epochs", "1", "--batch-size", "8", "--quiet"]
    run, out = tmp_path / "run", tmp_path / "backbone.safetensors"
    extra = sets([*tiny, "objective.encoder=spectral-norm", "data.image_size=32"])
    assert main(["pretrain", "--data", str(image_folder), "--out", str(run), *words, *extra]) == 0
    assert main(["export", str(run), "--out", str(out), "--json"]) == 0
    model = torchvision.models.resnet18()
    model.fc = torch.nn.Identity()
    model.load_state_dict(load_file(out), strict=True)
    import iecl

    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model.eval()(x), iecl.load(run).backbone(x))


def test_a_run_describes_itself(finished: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, run = finished
    assert main(["evaluate", "all", str(run), "--only", "knn", "--quiet"]) == 0
    assert main(["describe", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "finished" in shown
    assert "knn top-1 " in shown
    assert "[method]" in shown
    assert "temperature = 0.2  # divides the cosines" in shown


@pytest.mark.parametrize("name", ["ie-cl/paper", "moco-v2", "ie-cl"])
def test_recipes_and_methods_describe_themselves(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", name]) == 0
    assert "temperature" in capsys.readouterr().out


def test_a_file_of_weights_describes_itself(finished: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(finished[1] / "weights.safetensors"), "--json"]) == 0
    told = last_json(capsys)
    assert told["metadata"]["backbone"] == "resnet10-w16"  # type: ignore[index]
    assert told["tensors"]["conv1.weight"][1] == 3  # type: ignore[index]


def test_a_method_is_described_with_the_values_of_its_default_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "byol", "--backbone", "resnet10-w16", "--image-size", "16", "--json"]) == 0
    shown = capsys.readouterr()
    settings = json.loads(shown.out.strip().splitlines()[-1])["settings"]
    assert {name: rules["default"] for name, rules in settings.items()} == as_values(
        make_config(method="byol", flags={"data": {"name": "shapes"}}).method_settings()
    )


def test_a_run_as_an_object_embeds_and_exports(finished: tuple[Path, Path], tmp_path: Path) -> None:
    images, folder = finished
    run = iecl.load(folder)
    assert run.embed(images, tmp_path / "f.npz")["rows"] == 40
    assert run.export(tmp_path / "w.safetensors")["tensors"] == len(run.backbone.state_dict())


def test_a_method_describes_its_idea_formula_parts_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["describe", "barlow-twins", "--backbone", "resnet10-w16", "--image-size", "16"]
    assert main([*words, "--json"]) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out.strip().splitlines()[-1])
    cost = result["cost"]
    assert (cost["backbone"], cost["image_size"]) == ("resnet10-w16", 16)
    assert cost["parts"]["backbone"]["weights"] == sum(p.numel() for p in make_backbone("resnet10-w16").parameters())
    assert cost["per_image"]["flops"] > 2 * cost["parts"]["projector"]["weights"]
    assert "C = z_anchor' z_query / batch" in result["formula"]
    for line in ("the cross-correlation of two views", "  C = z_anchor' z_query", "GFLOP per image", "  off_diagonal"):
        assert line in shown.err


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_formula(name: str) -> None:
    assert "loss = " in formula_of(METHODS[name].load())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ie-cl/paper", "--backbone", "resnet18"], "are for measuring a method"),
        (["random", "--image-size", "4"], "images of 4 px are too small"),
        (["random", "--backbone", "resnet81"], "did you mean resnet"),
    ],
)
def test_a_method_cannot_be_measured_with_anything(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "iecl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("iecl 0.")


@pytest.mark.parametrize(
    "wrong",
    [
        ["--backbone", "resnet81"],
        ["--backbone", "vit_b_16", "--set", "data.image_size=16"],
        ["--batch-size", "5000"],
        ["--set", "training.grad_accumulation=100"],
        ["--devices", "3"],
        ["--set", "method.ema_momentum=2.0"],
        ["--set", "optimizer.lr=inf"],
        ["--saib", "batch", "--set", "saib.patch_size=5"],
    ],
    ids=lambda words: words[-1],
)
def test_wrong_use_leaves_no_run_behind(
    wrong: list[str], finished: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, _ = finished
    command = ["pretrain", "--data", str(images), "--out", str(tmp_path / "run"), *COMMON, "--json"]
    assert main([*command, "--set", "data.num_workers=0", *wrong]) == 2
    shown = capsys.readouterr()
    told = json.loads(shown.out.strip().splitlines()[-1])
    assert told["code"] == 2
    assert told["error"] in shown.err
    assert "Traceback" not in shown.err
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_of_a_run_is_named(finished: tuple[Path, Path], tmp_path: Path) -> None:
    _, run = finished
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "summary.json").write_text("{")
    assert main(["describe", str(copy)]) == 2
    shutil.copyfile(run / "summary.json", copy / "summary.json")
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    (copy / "metrics.jsonl").write_text("\n".join([lines[0], "{oops", *lines[1:]]) + "\n")
    assert main(["describe", str(copy)]) == 2


def test_other_settings_of_an_evaluation_have_a_file_of_their_own(finished: tuple[Path, Path]) -> None:
    _, run = finished
    before = set((run / "evaluations").glob("knn*.json"))
    assert main(["evaluate", "knn", str(run), "--quiet"]) == 0
    assert main(["evaluate", "knn", str(run), "--k", "3", "--quiet"]) == 0
    assert len(set((run / "evaluations").glob("knn*.json")) - before) >= 1
    assert len(set((run / "evaluations").glob("knn*.json"))) >= 2
