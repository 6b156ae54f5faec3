"""Models come from runs and files whole, or not at all."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from iecl.errors import UserError
from iecl.evaluation.model import load_model
from iecl.weights.file import fingerprint, load_weights, save_weights
from made_runs import MEAN, STD, MadeRun


def seen(backbone: nn.Module) -> Tensor:
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        return backbone(images)


def test_a_finished_run_gives_the_weights_it_wrote(made_run: MadeRun) -> None:
    model = load_model(made_run.directory.path)
    assert torch.equal(seen(model.backbone), seen(made_run.method.encoder()))
    assert (model.name, model.image_size, model.width) == ("resnet10-w16", 16, 128)
    assert (list(model.mean), list(model.std), model.checkpoint) == (MEAN, STD, "final")
    expected = fingerprint(made_run.method.encoder().state_dict())
    assert model.proof == f"72/72 tensors, 0 missing, 0 unexpected, fingerprint {expected}"
    assert not model.backbone.training


def test_the_file_alone_gives_the_same_model(made_run: MadeRun, tmp_path: Path) -> None:
    moved = made_run.directory.weights.rename(tmp_path / "moved.safetensors")
    model = load_model(str(moved))
    assert torch.equal(seen(model.backbone), seen(made_run.method.encoder()))
    assert (model.name, list(model.mean)) == ("resnet10-w16", MEAN)


@pytest.mark.parametrize("method", ["moco-v2", "ie-cl"])
def test_an_unfinished_run_gives_its_newest_checkpoint(tmp_path: Path, method: str) -> None:
    run = MadeRun(tmp_path / "run", method=method)
    run.save_checkpoint(step=3)
    run.method = run.make_method(seed=2)
    run.save_checkpoint(step=7)
    model = load_model(run.directory.path)
    assert torch.equal(seen(model.backbone), seen(run.method.encoder()))
    assert model.checkpoint == "last, step 7"
    assert model.method == method


def test_last_best_and_final_are_three_things(made_run: MadeRun) -> None:
    final = seen(made_run.method.encoder())
    made_run.method = made_run.make_method(seed=2)
    made_run.save_checkpoint(step=5, is_best=True)
    best = seen(made_run.method.encoder())
    made_run.method = made_run.make_method(seed=3)
    made_run.save_checkpoint(step=6)
    last = seen(made_run.method.encoder())
    found = {name: seen(load_model(made_run.directory.path, name).backbone) for name in ("final", "last", "best")}
    assert torch.equal(found["final"], final)
    assert torch.equal(found["last"], last)
    assert torch.equal(found["best"], best)
    assert load_model(made_run.directory.path, "best").checkpoint == "best, step 5"


def test_spectral_norm_is_folded_into_plain_weights(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run", method="ie-cl", encoder="spectral-norm")
    run.save_checkpoint(step=1)
    model = load_model(run.directory.path)
    assert torch.equal(seen(model.backbone), seen(run.method.encoder()))
    assert not [name for name in model.backbone.state_dict() if "parametrizations" in name]
    norms = [torch.linalg.matrix_norm(p.flatten(1), 2).item() for p in model.backbone.parameters() if p.dim() == 4]
    # The vectors of a fresh norm belong to the kernel before it was moved by a tenth: its norm is near 1, no more.
    assert norms == pytest.approx([1.0] * len(norms), abs=0.2)


def test_a_renamed_tensor_is_refused(made_run: MadeRun) -> None:
    state, metadata = load_weights(made_run.directory.weights)
    state["module.conv1.weight"] = state.pop("conv1.weight")
    save_weights(made_run.directory.weights, state, metadata)
    with pytest.raises(UserError, match=r"71/72 tensors, missing conv1\.weight; unexpected module\.conv1\.weight"):
        load_model(made_run.directory.path)


def test_a_tensor_that_is_not_there_is_refused(made_run: MadeRun) -> None:
    state, metadata = load_weights(made_run.directory.weights)
    del state["layer4.0.bn2.running_var"]
    save_weights(made_run.directory.weights, state, metadata)
    with pytest.raises(UserError, match=r"71/72 tensors, missing layer4\.0\.bn2\.running_var"):
        load_model(made_run.directory.path)


def test_a_damaged_file_is_refused(made_run: MadeRun) -> None:
    raw = made_run.directory.weights.read_bytes()
    made_run.directory.weights.write_bytes(raw[:-1000])
    with pytest.raises(UserError, match="is damaged"):
        load_model(made_run.directory.path)


def test_weights_from_elsewhere_do_not_say_what_they_are(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(UserError, match="does not say which backbone it holds"):
        load_model(tmp_path / "a.safetensors")


@pytest.mark.parametrize("key", ["backbone", "image_size", "mean", "std"])
def test_metadata_that_lack_something_are_refused(made_run: MadeRun, key: str) -> None:
    state, metadata = load_weights(made_run.directory.weights)
    del metadata[key]
    save_weights(made_run.directory.weights, state, metadata)
    with pytest.raises(UserError, match=f"are not complete: '{key}'"):
        load_model(made_run.directory.path)


def test_a_checkpoint_without_a_backbone_is_refused(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    del run.method.backbone
    run.save_checkpoint(step=1)
    with pytest.raises(UserError, match="holds no backbone"):
        load_model(run.directory.path)


def test_a_run_without_any_weights_says_so(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    with pytest.raises(UserError, match=r"has no weights yet .*; wait for its first checkpoint, or resume it"):
        load_model(run.directory.path)


def test_nothing_at_all_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"there is no run and no file .*; give a run directory, a file of weights, or random"
    ):
        load_model(tmp_path / "gone")


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        load_model(tmp_path)


def test_a_file_of_torch_needs_to_be_told_what_it_is(tmp_path: Path) -> None:
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "model.pth")
    with pytest.raises(UserError, match=r"does not say which backbone it holds.*; name it with --backbone"):
        load_model(tmp_path / "model.pth")


def test_a_checkpoint_can_be_named_by_its_file(made_run: MadeRun) -> None:
    made_run.method = made_run.make_method(seed=2)
    made_run.save_checkpoint(step=5, is_best=True)
    model = load_model(made_run.directory.checkpoints / "best.ckpt")
    assert torch.equal(seen(model.backbone), seen(made_run.method.encoder()))
    assert (model.checkpoint, model.method) == ("best, step 5", "moco-v2")


def test_a_misspelt_checkpoint_gets_a_suggestion(made_run: MadeRun) -> None:
    with pytest.raises(UserError, match=r"no checkpoint is called 'bset' .*did you mean best\?"):
        load_model(made_run.directory.path, "bset")


def test_a_file_has_no_checkpoints_to_choose_from(made_run: MadeRun) -> None:
    with pytest.raises(UserError, match="is one set of weights"):
        load_model(made_run.directory.weights, "best")
