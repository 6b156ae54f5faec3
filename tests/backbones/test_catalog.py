"""Every backbone can be found, and what is found can be made and loaded without iecl."""

import json
import subprocess
import sys

import pytest
import timm
import torch
from torch import nn
from torchvision import models

from iecl.backbones.catalog import check_backbone, families, model_names
from iecl.backbones.factory import make_backbone
from iecl.cli.command import main
from iecl.cli.list import rows_of
from iecl.errors import UserError
from iecl.weights.snippet import loading_snippet


def test_the_sources_tell_every_model_that_the_packages_have() -> None:
    assert sorted(model_names("torchvision")) == [f"torchvision/{name}" for name in models.list_models(module=models)]
    assert sorted(model_names("timm")) == sorted(f"timm/{name}" for name in timm.list_models())


def test_the_list_says_how_many_there_are_and_how_each_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "backbones"]) == 0
    shown = capsys.readouterr().out
    for package in ("torchvision", "timm"):
        count = len(model_names(package))
        assert f"{package}/NAME" in shown
        assert f"{count:,} models: " in shown
    assert "package.module:factory" in shown
    assert main(["list", "backbones", "torchvision/swin_v2"]) == 0
    assert capsys.readouterr().out.split() == [f"torchvision/swin_v2_{size}" for size in ("t", "s", "b")]
    with pytest.raises(UserError, match="none of the backbones has 'zzz' in its name"):
        rows_of("backbones", "zzz")


def test_looking_for_a_backbone_imports_no_torch() -> None:
    code = "import sys; from iecl.cli.command import main; main(['list', 'backbones', 'timm/vit_small', '--json'])"
    done = subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "timm/vit_small_patch16_224" in json.loads(done.stdout.splitlines()[-1])["backbones"]


def test_a_package_that_is_not_there_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    families.cache_clear()
    monkeypatch.setattr("iecl.backbones.catalog.find_spec", lambda name: None)
    assert rows_of("backbones")["timm/NAME"] == "not installed: pip install 'iecl[timm]'"
    monkeypatch.undo()
    families.cache_clear()


@pytest.mark.parametrize("name", ["../..", "/x", "", "..:x", "timm/", "python/x"])
def test_what_cannot_be_a_name_is_none(name: str) -> None:
    with pytest.raises(UserError, match="no backbone is called"):
        check_backbone(name)


OTHERS = ["vit_ti_4", "vit_s_16", "timm/vit_base_patch16_224", "timm/deit_tiny_patch16_224", "timm/convnext_atto"]
OTHERS += [f"torchvision/{name}" for name in ("swin_t", "mobilenet_v3_small", "densenet121", "inception_v3", "vgg11")]


@pytest.mark.parametrize("name", OTHERS)
def test_the_snippet_makes_every_kind_of_backbone_without_iecl(name: str) -> None:
    *making, _ = loading_snippet(name, "a.safetensors").splitlines()
    assert "iecl" not in "".join(making)
    found: dict[str, nn.Module] = {}
    with torch.device("meta"):  # names and shapes without the weights
        exec("\n".join(making), found)
        expected = make_backbone(name).state_dict()
    shapes = {key: value.shape for key, value in found["model"].state_dict().items()}
    assert shapes == {key: value.shape for key, value in expected.items()}


@pytest.mark.parametrize("side", [30, 32, 64])
def test_a_vision_transformer_takes_images_of_any_size(side: int) -> None:
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        assert make_backbone("vit_ti_4").eval()(images).shape == (2, 192)
