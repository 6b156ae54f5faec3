"""What README.md, the guide to own loops and the page on entropy show is run here, on forty tiny images.

Run: every line of the block under "The command", and every Python block of the three files, in order. Not run: the two
lines under "Start", which make an environment and train for minutes.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from iecl.cli.command import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENTROPY = (ROOT / "docs" / "entropy.md").read_text(encoding="utf-8")
OWN_LOOP = (ROOT / "docs" / "guides" / "own-loop.md").read_text(encoding="utf-8")
SETS = ["training.loggers=[]", "data.num_workers=0", "method.hidden_dim=16", "method.out_dim=8"]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def beside_photos(image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder that holds `photos/`, as the reader's does."""
    image_folder.rename(image_folder.with_name("photos"))
    monkeypatch.chdir(image_folder.parent)


def run_all(snippets: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for snippet in snippets:
        exec(snippet, names)
    return names


@pytest.mark.usefixtures("beside_photos")
def test_the_command_lines_of_the_readme_work_in_their_order() -> None:
    lines = next(block for block in blocks(README, "bash") if block.startswith("iecl ")).splitlines()
    assert len(lines) == 10
    shorter = ["--backbone", "resnet10-w16", "--epochs", "1", "--batch-size", "8"]
    shorter += [word for value in [*SETS, "data.image_size=16"] for word in ("--set", value)]
    for line in lines:
        words = shlex.split(line.replace("--epochs 400", "--epochs 2"), comments=True)[1:]
        assert main([*words, *(shorter if words[0] in ("plan", "pretrain") else [])]) == 0, line
    assert all(Path(made).exists() for made in ("runs/photos/summary.json", "photos.npz", "photos.safetensors"))


@pytest.mark.usefixtures("beside_photos")
def test_the_python_of_the_readme_runs_and_torchvision_gets_the_same_backbone() -> None:
    snippets = blocks(README, "python")
    assert snippets[0].count("epochs=100") == 1
    snippets[0] = snippets[0].replace("epochs=100", f"epochs=1, batch_size=8, quiet=True, sets={SETS!r}")
    assert "print((model.eval()(x)" in snippets[2]
    snippets[2] += "x_of_file = x\n"  # a later block has an x of its own
    names = run_all(snippets)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(names["model"].eval()(images), names["backbone"](images))
    with torch.no_grad():
        features = names["model"](names["x_of_file"])[:, :8]
    assert torch.allclose(features, torch.tensor(json.loads(names["said"]["proof_features"])), rtol=1e-4, atol=1e-6)
    assert names["same"].summary == names["run"].summary
    assert names["encoder"][1].weight.grad.abs().sum() > 0
    assert names["printed"](names["x"]).shape == (8, 3, 32, 32)


def test_the_python_of_the_guide_to_own_loops_runs() -> None:
    names = run_all(blocks(OWN_LOOP, "python"))
    assert names["total"].isfinite()
    change = names["query"] - names["x"]
    assert change.square().mean().sqrt().item() == pytest.approx(0.5, rel=1e-3)


def test_the_python_of_the_page_on_entropy_runs() -> None:
    names = run_all(blocks(ENTROPY, "python"))
    gain, proof = names["gain"], names["proof"]
    assert gain.total.item() == pytest.approx((gain.rescaling + gain.rest).item())
    assert (proof.log_det / 3072).mean() <= gain.total + 4 * gain.standard_error
    assert names["meter"].moments.count == 80
