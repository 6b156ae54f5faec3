"""Runs that start from weights: smaller steps unless somebody says otherwise, and ImageNet's where they are."""

from pathlib import Path

import pytest
import torch
from torchvision import models

import iecl
from iecl.cli.command import main
from iecl.errors import UserError
from iecl.training.advice import FEW, warnings_for
from iecl.training.config import RunConfig, make_config
from iecl.weights.imagenet import imagenet_model
from made_images import TINY
from made_runs import MadeRun

DATA = {"data": {"name": "digits"}}


def test_weights_are_trained_with_smaller_steps_and_a_short_warm_up() -> None:
    usual, own = (make_config(method="byol", flags=DATA, is_from_weights=start).optimizer for start in (False, True))
    assert own.lr == pytest.approx(0.3 * usual.lr)
    assert own.warmup_epochs <= 1
    assert own.name == usual.name


def test_what_was_asked_for_stands() -> None:
    given = DATA | {"optimizer": {"lr": 0.01, "warmup_epochs": 7.0}}
    asked = make_config(method="byol", flags=given, is_from_weights=True).optimizer
    assert (asked.lr, asked.warmup_epochs) == (0.01, 7.0)
    named = [make_config(recipe="simclr/cifar", flags=DATA, is_from_weights=start) for start in (False, True)]
    assert named[0] == named[1]  # a recipe is somebody's choice


def test_the_settings_of_a_run_record_them(image_folder: Path, tmp_path: Path) -> None:
    source = MadeRun(tmp_path / "source")
    source.save_weights()
    run = iecl.pretrain(
        image_folder, tmp_path / "run", method="simclr", epochs=1, batch_size=8, sets=TINY, quiet=True,
        init_from=source.directory.weights,
    )  # fmt: skip
    assert run.settings["optimizer"]["lr"] == pytest.approx(6e-4)  # of 2e-3
    assert run.settings["backbone"]["name"] == "resnet10-w16"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of torch's."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    return tmp_path / "hub" / "checkpoints"


def test_imagenet_weights_are_found_where_torchvision_keeps_them(hub: Path) -> None:
    hub.mkdir(parents=True)
    net = models.resnet18()
    torch.save(net.state_dict(), hub / Path(models.ResNet18_Weights.DEFAULT.url).name)
    model = imagenet_model()
    assert (model.name, model.method) == ("resnet18", "supervised")
    assert torch.equal(model.backbone.state_dict()["conv1.weight"], net.state_dict()["conv1.weight"])


def test_nothing_is_fetched_unless_it_is_asked_for(
    hub: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched: list[tuple[str, str, str]] = []

    def fetch(url: str, place: str, hash_prefix: str, progress: bool) -> None:
        fetched.append((url, place, hash_prefix))
        torch.save(models.resnet18().state_dict(), place)

    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    words = ["pretrain", "--data", str(image_folder), "--out", str(tmp_path / "run"), "--from", "imagenet"]
    assert main(words) == 2
    assert "add --download to fetch them from download.pytorch.org" in capsys.readouterr().err
    assert not fetched
    assert not (tmp_path / "run").exists()
    assert imagenet_model("resnet18", download=True).name == "resnet18"
    ((url, place, digits),) = fetched
    assert url.endswith(f"-{digits}.pth")
    assert Path(place).parent == hub


def test_a_backbone_without_such_weights_is_refused(hub: Path) -> None:
    with pytest.raises(UserError, match=r"no weights for resnet18-small \(--from imagenet, --backbone\); use --back"):
        imagenet_model("resnet18-small")
    with pytest.raises(UserError, match="which weights are to be fetched"):
        iecl.pretrain("digits", download=True)


def planned(images: int) -> list[str]:
    config: RunConfig = make_config(flags=DATA | {"training": {"batch_size": 8}, "data": {"image_size": 8}} | DATA)
    measured = {"images": images, "least_batch": 2, "small_batch": None, "image_side": 500, "free_megabytes": 0}
    measured |= {"fixed_megabytes": 1, "image_megabytes": 1, "processes": 1}
    return [line for line in warnings_for(measured, config) if "--from" in line]


def test_a_plan_for_few_images_advises_to_start_from_weights() -> None:
    assert planned(FEW) == []
    (line,) = planned(FEW - 1)
    assert "--from imagenet" in line
