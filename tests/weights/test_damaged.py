"""The table of damaged files: what was done to each, and the words with which it is refused or reported."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from iecl.backbones.factory import make_backbone
from iecl.cli.command import main
from iecl.weights.file import save_weights
from made_runs import MadeRun

NAME = "resnet10-w16"
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    run = MadeRun(tmp_path_factory.mktemp("made") / "run")
    run.save_checkpoint(step=3)
    return run


def exchanged(state: State) -> State:
    """Two layers of different shapes in each other's place."""
    names = ("layer2.0.conv2.weight", "layer3.0.conv2.weight")
    return state | {names[0]: state[names[1]], names[1]: state[names[0]]}


def flipped(file: Path, state: State) -> None:
    """One bit in the middle of a kernel, which no length and no name tells."""
    raw, kernel = bytearray(file.read_bytes()), state["layer3.0.conv2.weight"].contiguous().numpy().tobytes()
    place = bytes(raw).index(kernel) + len(kernel) // 2
    raw[place] ^= 1
    file.write_bytes(raw)


def cut(file: Path, state: State) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


AS_STATE: dict[str, tuple[Callable[[State], object], str]] = {
    "prefix renamed": (
        lambda state: {f"modul.{name}": tensor for name, tensor in state.items()},
        r"no known layout for this backbone: it holds modul\.conv1\.weight",
    ),
    "one layer missing": (
        lambda state: {name: tensor for name, tensor in state.items() if not name.startswith("layer3.0.conv2")},
        r"nearest: plain lacks 1 of 72 tensors, first layer3\.0\.conv2\.weight",
    ),
    "two layers exchanged": (exchanged, r"nearest: plain lacks 2 of 72 tensors, first layer2\.0\.conv2\.weight"),
    "the whole checkpoint, said to be a state dict": (
        lambda state: {"epoch": 3, "arch": "resnet", "state_dict": dict(state), "optimizer": {"lr": 0.1}},
        r"no known layout .*: it holds epoch \(int\), arch \(str\), state_dict \(table\), optimizer .*, with conv1",
    ),
}


@pytest.mark.parametrize("kind", AS_STATE)
def test_a_state_that_does_not_fit_is_refused(
    kind: str, made: MadeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = AS_STATE[kind]
    torch.save(change(dict(made.method.encoder().state_dict())), tmp_path / "file.pth")
    layout = ["--layout", "plain"] if "whole checkpoint" in kind else []
    assert main(["verify", str(tmp_path / "file.pth"), "--backbone", NAME, *layout]) == 2
    assert re.search(words, capsys.readouterr().err)


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut, r"file\.\w+ is damaged: .*; write or copy it again"),
        (flipped, "is damaged: (its fingerprint|the checksum)"),
    ],
)
def test_bytes_that_changed_are_noticed(
    damage: Callable[[Path, State], None],
    words: str,
    ending: str,
    made: MadeRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, state = tmp_path / f"file.{ending}", dict(made.method.encoder().state_dict())
    assert main(["export", str(made.directory.path), "--out", str(out)]) == 0
    damage(out, state)
    assert main(["verify", str(out), *(["--backbone", NAME] if ending == "pth" else [])]) == 2
    assert re.search(words, capsys.readouterr().err)


def test_random_weights_passed_as_trained_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(make_backbone(NAME, 5).state_dict(), tmp_path / "file.pth")
    assert main(["verify", str(tmp_path / "file.pth"), "--backbone", NAME]) == 0
    shown = capsys.readouterr().out
    assert "0 % of the parameters of its norms have moved" in shown
    assert "IT LOOKS LIKE AN UNTRAINED NETWORK" in shown
    assert "features of the built-in images: none in the file; compare it with --against RUN" in shown


def test_random_weights_in_the_place_of_a_runs_are_refused(
    made: MadeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_weights(tmp_path / "file.safetensors", make_backbone(NAME, 5).state_dict(), {})
    against = ["--against", str(made.directory.path)]
    assert main(["verify", str(tmp_path / "file.safetensors"), "--backbone", NAME, *against]) == 2
    assert re.search(r"gives other features than .*run: they differ by", capsys.readouterr().err)


def test_a_checkpoint_of_ours_says_what_it_is_when_it_is_taken_for_weights(
    made: MadeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "copied.pth"
    copied.write_bytes((made.directory.checkpoints / "last.ckpt").read_bytes())
    assert main(["verify", str(copied), "--backbone", NAME]) == 2
    assert re.search(r"it holds step \(int\), method \(table\), with backbone\.", capsys.readouterr().err)
