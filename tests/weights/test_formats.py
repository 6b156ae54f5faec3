"""Files for other programs: each format is written, read back, proven, and says what it needs."""

from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn

import iecl
from iecl.api import export, verify
from iecl.backbones.factory import make_backbone
from iecl.cli.export import FORMATS
from iecl.errors import UserError
from iecl.weights import onnx_graph as graph
from iecl.weights.formats import EXPORT_FORMATS, choose_format
from iecl.weights.layouts import LAYOUTS
from made_layouts import backbone_from_file, in_detectron2, named
from made_runs import MadeRun

SMALL = "resnet10-w16"


@pytest.fixture(scope="module")
def resnet18(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """A run that has come to a checkpoint."""
    run = MadeRun(tmp_path_factory.mktemp("made") / "run", backbone="resnet18")
    run.save_checkpoint(step=3)
    return run


def seen(backbone: nn.Module) -> Tensor:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        return backbone.eval()(images)


def test_the_command_names_every_format() -> None:
    assert tuple(EXPORT_FORMATS) == FORMATS


def test_a_torchvision_file_is_a_plain_state_dict(resnet18: MadeRun, tmp_path: Path) -> None:
    made = export(resnet18.directory.path, tmp_path / "out.pth")
    assert made["format"] == "torchvision"
    fresh = torchvision.models.resnet18()
    fresh.fc = nn.Identity()
    fresh.load_state_dict(torch.load(tmp_path / "out.pth", weights_only=True), strict=True)
    assert torch.equal(seen(fresh), seen(resnet18.method.encoder()))
    assert made["proof"].startswith("120/120 tensors, 0 missing, 0 unexpected")
    assert made["proof"].endswith("layout plain, equal features of 4 images")


@pytest.mark.parametrize("format", ["torchvision", "timm"])
def test_the_lines_that_load_it_do(
    resnet18: MadeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    if format == "timm":
        pytest.importorskip("timm")
    made = export(resnet18.directory.path, tmp_path / "out.pth", format=format)
    monkeypatch.chdir(tmp_path)
    found: dict[str, nn.Module] = {}
    exec(made["snippet"], found)
    assert torch.equal(seen(found["model"]), seen(resnet18.method.encoder()))


def test_a_timm_file_of_a_resnet_has_the_names_that_torchvision_has(resnet18: MadeRun, tmp_path: Path) -> None:
    made = export(resnet18.directory.path, tmp_path / "out.pth", format="timm")
    assert torch.load(tmp_path / "out.pth", weights_only=True).keys() == make_backbone("resnet18").state_dict().keys()
    assert 'timm.create_model("resnet18", num_classes=0)' in made["snippet"]


def test_a_detectron2_file_has_its_names_and_says_what_the_settings_need(resnet18: MadeRun, tmp_path: Path) -> None:
    made = export(resnet18.directory.path, tmp_path / "out.pth", format="detectron2")
    content = torch.load(tmp_path / "out.pth", weights_only=True)
    assert content["matching_heuristics"] is True
    assert content["__author__"] == "iecl"
    state = resnet18.method.encoder().state_dict()
    expected = {in_detectron2(name): t for name, t in state.items() if not name.endswith("num_batches_tracked")}
    assert content["model"].keys() == expected.keys()
    assert {"stem.conv1.weight", "stem.conv1.norm.bias", "res3.0.shortcut.norm.weight"} <= expected.keys()
    assert all(torch.equal(content["model"][name], tensor) for name, tensor in expected.items())
    backbone, _ = backbone_from_file(tmp_path / "out.pth", "resnet18")
    assert torch.equal(seen(backbone), seen(resnet18.method.encoder()))
    for line in ("STRIDE_IN_1X1: false", 'FORMAT: "RGB"', "PIXEL_MEAN: [127.5, 102.0, 76.5]", "RES2_OUT_CHANNELS: 64"):
        assert line in made["snippet"]


def test_an_onnx_graph_gives_the_features_for_any_number_of_images(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run = MadeRun(tmp_path / "run", backbone=SMALL)
    run.save_checkpoint(step=3)
    made = export(run.directory.path, tmp_path / "out.onnx")
    assert "(0.0001 allowed)" in made["proof"]
    session = onnxruntime.InferenceSession(str(tmp_path / "out.onnx"), providers=["CPUExecutionProvider"])
    images = torch.randn(5, 3, 16, 16)
    (found,) = session.run(None, {"images": images.numpy()})
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(found), run.method.encoder()(images), rtol=1e-3, atol=1e-4)
    told = session.get_modelmeta().custom_metadata_map
    assert told["fingerprint"] == made["fingerprint"]
    assert told["mean"] == "[0.5, 0.4, 0.3]"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["out.onnx"]


def test_a_graph_that_gives_other_features_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    run = MadeRun(tmp_path / "run", backbone=SMALL)
    run.save_checkpoint(step=3)
    monkeypatch.setattr(graph, "_convert", lambda backbone, images, path, told: path.write_bytes(b"graph"))
    monkeypatch.setattr(graph, "_difference", lambda *_: 0.3)
    with pytest.raises(UserError, match=r"graph gives other features .* differ by 0\.3 of their size"):
        export(run.directory.path, tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("out", "format", "backbone", "words"),
    [
        ("a.pth", "detectron", "resnet18", "no format is called 'detectron'.*did you mean detectron2"),
        ("a.onnx", "timm", "resnet18", r"does not end in \.pth or \.pt .*name it a\.pth"),
        (
            "a.pth",
            "detectron2",
            "resnet18-small",
            "resnet18-small cannot be written for detectron2.*one of: safetensors",
        ),
        ("a.pth", "timm", "convnext_tiny", "convnext_tiny cannot be written for timm"),
        ("a.pth", "torchvision", "timm/resnet18", "timm/resnet18 cannot be written for torchvision"),
    ],
)
def test_what_cannot_be_written_is_refused(out: str, format: str, backbone: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_format(Path(out), format, backbone)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    run = MadeRun(tmp_path_factory.mktemp("made") / "run", backbone=SMALL)
    run.save_checkpoint(step=3)
    return run


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_verified_written_and_read_again(layout: str, small: MadeRun, tmp_path: Path) -> None:
    theirs, run = tmp_path / "theirs.pth", small.directory.path
    torch.save(named(layout, small.method.encoder().state_dict()), theirs)
    result = verify(theirs, backbone=SMALL, layout=layout, against=run)
    assert result["is_equal"]
    assert not result["is_random"]
    for format in ("safetensors", "torchvision", "timm"):
        out = tmp_path / f"{format}{EXPORT_FORMATS[format].suffixes[0]}"
        export(theirs, out, format=format, backbone=SMALL, layout=layout, image_size=16)
        again = {} if format == "safetensors" else {"backbone": SMALL}
        assert iecl.verify(out, **again, against=run)["is_equal"]


def test_a_file_that_is_not_the_runs_is_told_apart(small: MadeRun, tmp_path: Path) -> None:
    torch.save(small.make_method(seed=2).encoder().state_dict(), tmp_path / "other.pth")
    with pytest.raises(UserError, match="gives other features than"):
        verify(tmp_path / "other.pth", backbone=SMALL, against=small.directory.path)
