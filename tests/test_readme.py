"""What README.md, the guides to own loops and weights, and the page on entropy show is run here, on forty tiny images.

Run: every line of the block under "The command", and every Python block of these files, in order. `pip install` is not.
"""

import json
import re
import shlex
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch

from iecl.cli.command import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENTROPY = (ROOT / "docs" / "entropy.md").read_text(encoding="utf-8")
WEIGHTS = (ROOT / "docs" / "guides" / "weights.md").read_text(encoding="utf-8")
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
    first, whole = (block.splitlines() for block in blocks(README, "bash") if block.startswith("iecl "))
    assert len(whole) == 12
    assert {line.partition("#")[0].strip() for line in first} <= {line.partition("#")[0].strip() for line in whole}
    shorter = ["--backbone", "resnet10-w16", "--epochs", "1", "--batch-size", "8"]
    shorter += [word for value in [*SETS, "data.image_size=16"] for word in ("--set", value)]
    for line in whole:
        words = shlex.split(line.replace("--epochs 400", "--epochs 2"), comments=True)[1:]
        assert main([*words, *(shorter if words[0] in ("plan", "pretrain") else [])]) == 0, line
    assert all(
        Path(made).exists()
        for made in ("runs/photos/summary.json", "photos.npz", "photos.safetensors", "doctor/photos/doctor.html")
    )


@pytest.mark.usefixtures("beside_photos")
def test_the_python_of_the_readme_runs_and_torchvision_gets_the_same_backbone() -> None:
    snippets = blocks(README, "python")
    assert snippets[0].count("epochs=100") == 1
    snippets[0] = snippets[0].replace("epochs=100", f"epochs=1, batch_size=8, quiet=True, sets={SETS!r}")
    names = run_all([*snippets, next(block for block in blocks(WEIGHTS, "python") if "proof_features" in block)])
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(names["model"].eval()(images), names["backbone"](images))
    with torch.no_grad():
        features = names["model"](names["x"])[:, :8]
    assert torch.allclose(features, torch.tensor(json.loads(names["said"]["proof_features"])), rtol=1e-4, atol=1e-6)
    assert names["same"].summary == names["run"].summary


def test_the_gain_of_the_block_is_the_measured_one() -> None:
    (path,) = (ROOT / "benchmarks" / "results" / "methods").glob("*.json")
    found = json.loads(path.read_text(encoding="utf-8"))["rows"]
    said = re.findall(r"^\| (\S+) \| ([\d.]+) ± ([\d.]+) % \| ([\d.]+) ± ([\d.]+) % \|$", README, re.MULTILINE)
    assert len(said) == 4
    for name, *numbers in said:
        arms = (name.lower(), f"{name.lower()} + block")
        values = [[100 * row["knn"] for row in found if row["arm"] == arm] for arm in arms]
        assert numbers == [f"{number:.1f}" for arm in values for number in (mean(arm), stdev(arm))]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_what_is_said_of_the_photographs_is_measured(page: str) -> None:
    (path,) = (ROOT / "benchmarks" / "results" / "photographs").glob("*.json")
    rows = {row["arm"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}
    measured = [rows[arm]["same_photograph"] for arm in ("trained", "untrained", "pixels")]
    measured += [rows[arm]["few_1"] for arm in ("trained", "untrained")]
    said = re.findall(r"([\d.]+) %", (ROOT / page).read_text(encoding="utf-8"))
    assert said[:5] == [f"{100 * share:.1f}" for share in measured]


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
