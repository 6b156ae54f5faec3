"""Moments of a run that stay: which, for how long, and the block that each of them holds."""

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import iecl
from iecl.cli.describe import run as describe
from iecl.counter import Stream
from iecl.errors import UserError
from iecl.runs.checkpoint import load_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.training.advice import forecast
from iecl.training.config import make_config, read_config
from iecl.training.factory import assemble_method
from iecl.training.loop import Loop
from iecl.training.settings import TrainingSettings
from made_images import TINY, make_images

RUN = {"backbone": "resnet10-w16", "epochs": 4, "batch_size": 8, "quiet": True}
CHOICES = {
    "method": {"hidden_dim": 16, "out_dim": 8},
    "saib": {"form": "certified", "weights": "learned", "hidden_dim": 8},
}
SETS = [*TINY, "training.online_eval_epochs=0"]
KEPT = "training.keep_epochs=[0, 0.25, 3]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def kept(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    out = tmp_path_factory.mktemp("kept") / "run"
    return RunDirectory(iecl.pretrain(folder, out, sets=[*SETS, KEPT], settings=CHOICES, **RUN).path)


def states(run: RunDirectory, names: tuple[str, ...]) -> dict[str, dict[str, torch.Tensor]]:
    return {name: load_checkpoint(run.checkpoints / f"{name}.ckpt")["method"] for name in names}


def same(some: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in some.items())


@pytest.mark.parametrize(
    ("epochs", "asked", "found"),
    [
        (10, (), ()),
        (10, (0, 0.25, 5, 10), (0, 3, 5, 10)),  # a share inside an epoch: the end of that epoch
        (2, (0.25, 0.5), (1,)),
        (100, (0.07, 0.07), (7,)),
        (1, (1.0,), (1,)),
    ],
)
def test_moments_are_epochs_or_shares_of_the_run(epochs: int, asked: tuple[float, ...], found: tuple[int, ...]) -> None:
    assert TrainingSettings(epochs=epochs, keep_epochs=asked).kept_epochs() == found


@pytest.mark.parametrize("wrong", ["11", "1.5"])
def test_a_moment_that_the_run_does_not_have_is_refused_with_the_settings(wrong: str) -> None:
    flags = {"data": {"name": "shapes"}, "training": {"epochs": 10}}
    with pytest.raises(UserError, match=rf"keep_epochs holds {wrong}, which is no epoch of a run of 10"):
        make_config(flags=flags, sets=[f"training.keep_epochs=[2, {wrong}]"])


def test_kept_checkpoints_are_those_of_their_moments_and_stay(kept: RunDirectory) -> None:
    assert kept.kept_epochs() == [0, 1, 3]
    steps = {name: load_checkpoint(kept.checkpoints / f"epoch-{name}.ckpt")["step"] for name in (0, 1, 3)}
    assert steps == {0: 0, 1: 5, 3: 15}
    found = states(kept, ("epoch-3", "previous", "last"))
    assert same(found["epoch-3"], found["previous"])
    assert not same(found["epoch-3"], found["last"])


def test_a_run_is_the_same_whatever_it_keeps_and_keeps_the_same_after_a_kill(
    kept: RunDirectory, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = iecl.pretrain(folder, tmp_path / "plain", sets=SETS, settings=CHOICES, **RUN)
    moments = ("epoch-0", "epoch-1", "epoch-3", "last")
    expected = states(kept, moments)
    assert same(expected["last"], states(RunDirectory(plain.path), ("last",))["last"])

    keep, out = Loop._keep, tmp_path / "killed"

    def dying(loop: Loop) -> None:
        if loop.step == 15:  # the checkpoint of epoch 3 is written, its copy that stays is not
            raise RuntimeError("killed")
        keep(loop)

    monkeypatch.setattr(Loop, "_keep", dying)
    with pytest.raises(RuntimeError, match="killed"):
        iecl.pretrain(folder, out, sets=[*SETS, KEPT], settings=CHOICES, **RUN)
    assert RunDirectory(out).kept_epochs() == [0, 1]
    monkeypatch.setattr(Loop, "_keep", keep)
    iecl.pretrain(folder, out, resume=True, quiet=True)
    resumed = states(RunDirectory(out), moments)
    assert all(same(expected[name], resumed[name]) for name in moments)


def test_describe_lists_them(kept: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    args = SimpleNamespace(name=str(kept.path), backbone=None, image_size=None, json=False, quiet=False)
    assert describe(args)["kept_epochs"] == [0, 1, 3]
    assert "kept checkpoints of epochs 0, 1, 3" in capsys.readouterr().out


def test_a_longer_run_takes_them_along(kept: RunDirectory, tmp_path: Path) -> None:
    longer = RunDirectory(iecl.extend(kept.path, 5, tmp_path / "longer", quiet=True).path)
    assert longer.kept_epochs() == [0, 1, 3]
    assert same(*states(longer, ("epoch-1",)).values(), *states(kept, ("epoch-1",)).values())


def test_disk_is_asked_for_them() -> None:
    measured = {"rows": [{"batch": 8, "steps": [1.0], "memory_megabytes": 9, "before": 0.0, "first": 1.0}]}
    measured |= {"images": 80, "opened": 80, "decode_seconds": 0.0, "knn_seconds": 0.0, "save_seconds": 0.0}
    measured |= {
        "open_seconds": 0.0,
        "fixed_megabytes": 1,
        "image_megabytes": 1,
        "processes": 1,
        "checkpoint_megabytes": 10.0,
    }
    measured |= {"weights_megabytes": 1.0, "metrics_megabytes": 0.0}
    flags = {"data": {"name": "shapes"}, "training": {"epochs": 4}}
    disk = [forecast(measured, make_config(flags=flags, sets=sets), 8)["disk_megabytes"] for sets in ([], [KEPT])]
    assert disk[1] - disk[0] == pytest.approx(30)


def test_a_block_is_loaded_as_it_was_at_each_moment(kept: RunDirectory) -> None:
    blocks = {epoch: iecl.load_block(kept.path, epoch) for epoch in (0, 1, 3, None)}
    for epoch, block in blocks.items():
        name = "last" if epoch is None else f"epoch-{epoch}"
        saved = {key: value for key, value in states(kept, (name,))[name].items() if key.startswith("saib.")}
        assert saved
        assert same({key.removeprefix("saib."): value for key, value in saved.items()}, block.state_dict())
        assert not any(p.requires_grad for p in block.parameters())
    x, noise = torch.randn(2, 3, 16, 16), Stream(1, torch.arange(2))
    made = [block(x, noise) for block in blocks.values()]
    assert all(view.shape == x.shape for view in made)
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(made))


def test_a_printed_block_is_loaded_for_the_batch_of_its_run(folder: Path, tmp_path: Path) -> None:
    choices = CHOICES | {"saib": {"form": "batch", "convs": 4}}
    run = iecl.pretrain(folder, tmp_path / "run", sets=SETS, settings=choices, **(RUN | {"epochs": 1}))
    assert iecl.load_block(run.path)(torch.randn(8, 3, 16, 16)).shape == (8, 3, 16, 16)


def test_a_moment_that_was_not_kept_and_a_run_without_a_block_are_named(kept: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"kept no checkpoint of epoch 2: it kept 0, 1, 3"):
        iecl.load_block(kept.path, 2)
    other = RunDirectory.fresh(tmp_path / "other")
    other.settings.write_text(kept.settings.read_text().replace('form = "certified"', 'form = "none"'))
    with pytest.raises(UserError, match=r"has no block: its saib.form is none"):
        iecl.load_block(other.path)
    other.settings.write_text(kept.settings.read_text())
    with pytest.raises(UserError, match=r"kept no checkpoint of epoch 0: it kept none"):
        iecl.load_block(other.path, 0)
    with pytest.raises(UserError, match="has no checkpoint"):
        iecl.load_block(other.path)


def test_a_run_may_begin_with_the_block_of_another_and_keep_it(kept: RunDirectory) -> None:
    config = read_config(kept)
    fixed = replace(config, saib=replace(config.saib, weights="frozen", init_from=str(kept.path)))
    made = {name: value for name, value in assemble_method(fixed).state_dict().items() if name.startswith("saib.")}
    saved = {key: value for key, value in states(kept, ("last",))["last"].items() if key.startswith("saib.")}
    assert same(made, saved)
    nowhere = replace(config, saib=replace(config.saib, init_from="nowhere"))
    with pytest.raises(UserError, match=r"there is no run in nowhere \(saib.init_from\)"):
        assemble_method(nowhere)
