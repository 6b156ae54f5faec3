"""Vision transformers of timm with the recipes for them: steps, an exact pause, an export that needs no iecl."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import iecl
from iecl.errors import Interrupted

SMALL = ["method.hidden_dim=16", "method.out_dim=8", "data.num_workers=0", "training.precision=32-true"]
SMALL += ["training.loggers=[]", "optimizer.warmup_epochs=0", "training.log_steps=1"]
OWN = {
    "moco-v3/vit": ["method.predictor_hidden_dim=16"],
    "ie-cl/vit": ["method.predictor_hidden_dim=16", "saib.form=certified"],
    "dino/vit": ["method.num_prototypes=16", "method.local_crops=2", "method.freeze_epochs=0"],
}


class Stop:
    """Asks a run to stop after its second step."""

    def on_step_end(self, moment: Any) -> None:
        if moment.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("recipe", ["moco-v3/vit", *(pytest.param(r, marks=pytest.mark.slow) for r in list(OWN)[1:])])
def test_a_recipe_trains_a_small_vit_and_goes_on_after_a_pause(recipe: str, tmp_path: Path, image_folder: Path) -> None:
    how: dict[str, Any] = {"backbone": "vit_ti_4", "epochs": 2, "batch_size": 16, "image_size": 16, "quiet": True}
    how |= {"recipe": recipe, "sets": [*SMALL, *OWN[recipe]]}
    whole = iecl.pretrain(image_folder, tmp_path / "whole", **how)
    with pytest.raises(Interrupted):
        iecl.pretrain(image_folder, tmp_path / "paused", callbacks=[Stop()], **how)
    paused = iecl.pretrain(out=tmp_path / "paused", resume=True, quiet=True)
    mine, theirs = (load_file(run.path / "weights.safetensors") for run in (whole, paused))
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    start = iecl.backbones.factory.make_backbone("vit_ti_4").state_dict()
    moved = {name for name, value in start.items() if not torch.equal(value, mine[name])}
    assert ("patch_embed.proj.weight" in moved) == (recipe == "dino/vit")
    assert {"pos_embed", "blocks.11.mlp.fc2.weight"} <= moved


def test_an_exported_vit_gives_its_features_without_iecl(
    tmp_path: Path, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"backbone": "vit_ti_16", "method": "random", "image_size": 32, "batch_size": 16}
    run = iecl.pretrain(image_folder, tmp_path / "run", epochs=1, quiet=True, sets=["data.num_workers=0"], **how)
    snippet = run.export(tmp_path / "vit.safetensors")["snippet"]
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(snippet, found)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(found["model"].eval()(images), run.backbone(images))
