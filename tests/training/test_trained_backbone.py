"""The backbone of a run is one and the same, whether its weights or its checkpoint are read."""

from pathlib import Path

import pytest
import torch

import iecl
from iecl.backbones.factory import make_backbone
from iecl.evaluation.model import load_model
from iecl.methods import METHODS
from iecl.training.trained_backbone import PREFIXES
from iecl.weights.file import fingerprint
from methods.test_contract import CHOICES, make

NAME = "resnet10-w16"
NORM = "objective.encoder=spectral-norm"
NORMALIZED = [
    [NORM],
    [NORM, "training.channels_last=false"],
    [NORM, "objective.encoder_norm=operator"],
]
CASES = [*((name, []) for name in METHODS), *(("ie-cl", sets) for sets in NORMALIZED)]


@pytest.mark.parametrize(("name", "sets"), CASES, ids=["+".join([name, *sets]) for name, sets in CASES])
def test_the_last_checkpoint_and_the_weights_of_a_run_hold_the_same_backbone_bit_for_bit(
    name: str, sets: list[str], image_folder: Path, tmp_path: Path, tiny: list[str]
) -> None:
    words = [*tiny, *CHOICES.get(name, []), *sets]
    run = iecl.pretrain(
        image_folder, tmp_path / "run", method=name, backbone=NAME, epochs=1, batch_size=8, sets=words, quiet=True
    )
    final, last = load_model(run.path), load_model(run.path, "last")
    assert (final.checkpoint, last.checkpoint, final.info.step) == ("final", "last, step 5", 5)
    held, saved = final.backbone.state_dict(), last.backbone.state_dict()
    assert held.keys() == saved.keys() == make_backbone(NAME).state_dict().keys()
    assert [key for key in held if not torch.equal(held[key], saved[key])] == []
    assert final.proof == last.proof
    assert fingerprint(held) != fingerprint(make_backbone(NAME).state_dict())  # statistics move even untrained
    assert iecl.verify(run.path)["is_equal"]


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_backbone_is_where_checkpoints_are_searched_for_it(name: str) -> None:
    method = make(name, [])
    state = method.state_dict()
    prefix = next(p for p in PREFIXES if any(key.startswith(p) for key in state))
    found = {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}
    own = method.encoder().state_dict()
    assert found.keys() == own.keys()
    assert all(found[key].data_ptr() == tensor.data_ptr() for key, tensor in own.items())
