"""Inspection: what it measures at each stage, of which block, and what it says and writes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import iecl
from iecl.cli.command import main
from iecl.errors import UserError
from iecl.inspection.block_report import BlockReport, report_block
from iecl.inspection.findings import findings
from iecl.inspection.layer_report import Stage, report_layers, stages_of
from iecl.inspection.subject import Subject
from iecl.meters.jacobian import singular_values
from made_images import TINY, make_images

RUN = {"backbone": "resnet10-w16", "epochs": 2, "batch_size": 8, "quiet": True}
SMALL = {"method": {"hidden_dim": 16, "out_dim": 8}}


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Flat(nn.Module):
    """Images to features by one linear map."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.linear.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x.flatten(1))
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A short run with each kind of block, and one without."""
    folder, images = tmp_path_factory.mktemp("inspected"), make_images(tmp_path_factory.mktemp("data"))
    for form in ("certified", "sample", "batch", "none"):
        sets = [*TINY, f"saib.form={form}", "training.meter_steps=1"]
        iecl.pretrain(images, folder / form, settings=SMALL, sets=sets, **RUN)
    return {path.name: path for path in folder.iterdir()}


# --- layers ---


def test_a_map_that_keeps_every_direction_keeps_the_entropy_and_one_that_keeps_one_leaves_none() -> None:
    x = noise(40, 3, 4, 4)
    turn = torch.linalg.qr(noise(48, 48)).Q
    turned = report_layers(Flat(turn), x, (x, x), None)
    assert [stage.name for stage in turned] == ["images", "linear", "features"]
    assert turned[0].entropy == pytest.approx(turned[-1].entropy, abs=1e-3)
    assert 3.0 < turned[0].entropy < math.log(39)
    assert report_layers(Flat(turn[:1]), x, (x, x), None)[-1].entropy == pytest.approx(0, abs=1e-3)


def test_equal_views_have_no_distance_and_unrelated_ones_that_of_two_images() -> None:
    x, other = noise(60, 3, 4, 4), noise(60, 3, 4, 4, seed=1)
    encoder = Flat(noise(20, 48))
    assert report_layers(encoder, x, (x, x), None)[-1].view_distance == pytest.approx(0, abs=1e-3)
    assert report_layers(encoder, x, (x, other), None)[-1].view_distance == pytest.approx(1, abs=0.05)


def test_stages_are_the_children_that_compute() -> None:
    from iecl.backbones.factory import make_backbone

    assert list(stages_of(make_backbone("resnet10-w16"))) == ["conv1", "layer1", "layer2", "layer3", "layer4"]


# --- the block ---


@pytest.mark.parametrize("form", ["certified", "sample"])
def test_the_ends_of_the_spectrum_are_those_of_the_whole_jacobian(form: str) -> None:
    torch.manual_seed(0)
    block = (
        iecl.CertifiedSAIB(image_size=8, hidden_dim=4)
        if form == "certified"
        else iecl.SAIB(image_size=8, form="sample")
    )
    from iecl import counter

    x = noise(8, 3, 8, 8)
    block(x)
    subject = Subject(None, block, None, "noise", x, (x, x), counter.Stream(5, torch.arange(8)))  # type: ignore[arg-type]
    found = report_block(subject)
    assert found is not None
    if form == "certified":
        exact = singular_values(lambda v: block.linearised(v, subject.stream)[0], x)
        assert found.proven_sigma_min is not None
        assert 1 <= found.proven_sigma_min <= exact.min().item() + 1e-5
    else:
        exact = singular_values(block, x, is_mixing=True)
        assert found.proven_sigma_min is None
    assert found.sigma_min == pytest.approx(exact.min().item(), rel=0.1)
    assert found.sigma_max == pytest.approx(exact.max().item(), rel=0.02)
    assert found.gain_total == pytest.approx(exact.log().sum(1).mean().item() / exact.shape[1], rel=0.1)


# --- whole inspections ---


@pytest.mark.parametrize("form", ["certified", "sample", "batch", "none"])
def test_a_run_is_inspected_on_its_own_images(form: str, runs: dict[str, Path]) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs[form].rglob("*") if path.is_file()}
    found = iecl.inspect(runs[form], images=16)
    assert (found["block"] is None) == (form == "none")
    assert found["images"] == (8 if form == "batch" else 16)
    assert [stage["name"] for stage in found["layers"]][::6] == ["images", "features"]
    assert all(0 <= stage["entropy"] <= math.log(16) for stage in found["layers"])
    assert "72/72 tensors" in found["weights"]
    names = {Path(file).name for file in found["files"]}
    assert names == {"inspection.json", "layers.svg", "training.svg"} | ({"block.png"} if form != "none" else set())
    assert all(Path(file).stat().st_size > 1000 for file in found["files"])
    assert found["layers"][-2]["pooled_entropy"] == pytest.approx(found["layers"][-1]["entropy"], abs=1e-2)
    drawn = (runs[form] / "inspection" / "training.svg").read_text()
    assert ("entropy gain" in drawn) == (form != "none")  # no axis for a block that is not there
    assert json.loads((runs[form] / "inspection" / "inspection.json").read_text())["findings"] == found["findings"]
    assert all(path.stat().st_mtime_ns == when for path, when in before.items()), "looking changes nothing"
    assert found == iecl.inspect(runs[form], images=16)


def test_every_run_of_ie_cl_logs_the_gain(runs: dict[str, Path]) -> None:
    for form, path in runs.items():
        gains = [row["iecl/gain_total"] for row in iecl.load(path).metrics if "iecl/gain_total" in row]
        assert gains
        assert all((gain == 0) == (form == "none") for gain in gains)


def test_a_file_of_weights_is_inspected_without_block_and_head(
    runs: dict[str, Path], image_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = runs["certified"] / "weights.safetensors", tmp_path / "report"
    words = ["inspect", str(file), "--data", str(image_folder), "--out", str(out), "--images", "16", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert found["block"] is None
    assert (out / "layers.svg").exists()
    with pytest.raises(UserError, match=r"where is the report .* to go\? \(out\)"):
        iecl.inspect(file, str(image_folder))
    with pytest.raises(UserError, match="images are too few"):
        iecl.inspect(file, str(image_folder), out=out, images=4)


@pytest.mark.parametrize(
    ("proven", "says", "is_silent_of"),
    [
        (1.0, "it contracts nothing: singular values from 0.963", "folds"),
        (0.147, "it folds no image onto another: singular values from 0.963 to 4.700, and that none", "contracts"),
        (None, "it contracts some directions", "proved"),
    ],
)
def test_no_more_is_said_of_a_block_than_is_proved(proven: float | None, says: str, is_silent_of: str) -> None:
    block = BlockReport(0.4, 0.3, 0.1, 0.0, 0.963, 4.7, 0.01, proven, 0.4, 1.0, 0.9)
    stages = [Stage(name, 10, 3.0, 3.0, None, 0.5) for name in ("images", "features")]
    lines = findings(block, stages, {"effective_rank": 7.0}, 64)
    said = " ".join(line for line in lines if "singular" in line)
    assert says in said
    assert is_silent_of not in said


def test_the_stage_that_loses_most_is_named() -> None:
    def stage(name: str, entropy: float) -> Stage:
        return Stage(name, 10, entropy, entropy, None, 0.5)

    readings = {"effective_rank": 7.0}
    losing = findings(
        None, [stage("images", 3.0), stage("a", 2.9), stage("b", 1.0), stage("features", 1.2)], readings, 64
    )
    assert any("lost between a and b: 2.90 to 1.00 of 4.14 nats" in line for line in losing)
    maps = replace(stage("maps", 3.5), pooled_entropy=2.1)
    pooled = findings(None, [stage("images", 3.0), maps, stage("features", 2.1)], readings, 64)
    assert any("no stage loses entropy" in line for line in pooled)  # 128 means are not compared with 8,192 numbers
    assert any("pooling the maps of maps, 10 numbers, leaves 2.10 of 3.50 nats" in line for line in pooled)
    keeping = findings(None, [stage("images", 3.0), stage("features", 3.1)], readings, 64)
    assert any("no stage loses entropy" in line for line in keeping)
