"""Names that nothing has, and folders that cannot work, are refused before torch is imported."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from iecl.data.defaults import resolve_data
from iecl.training.config import make_config, with_data

TYPOS = {
    "no method is called 'simcrl'": ["pretrain", "--data", "shapes", "--method", "simcrl"],
    "no backbone is called 'resnet81'": ["pretrain", "--data", "shapes", "--backbone", "resnet81"],
    "augmentation.policy is 'simcrl'": ["pretrain", "--data", "shapes", "--augmentation", "simcrl"],
    "[method] has no setting 'temprature'": ["pretrain", "--data", "shapes", "--set", "method.temprature=1"],
    "[optimizer] has no setting 'rate'": ["pretrain", "--data", "shapes", "--set", "optimizer.rate=1"],
    "no host is called 'simcrl'": ["pretrain", "--data", "shapes", "--set", "method.host=simcrl"],
    "no evaluation is called 'knm'": ["evaluate", "knm", "run"],
    "no evaluation is called 'lineal'": ["evaluate", "all", "run", "--only", "lineal"],
    "[knn] has no setting 'neighbours'": ["evaluate", "knn", "run", "--set", "neighbours=3"],
    "[method] has no setting 'queue'": ["plan", "--data", "shapes", "--method", "simclr", "--set", "method.queue=1"],
    "[augmentation] has no setting 'hua'": ["views", "--data", "three", "--set", "augmentation.hua=0"],
    "3 images cannot be shared out to 99 processes (--devices)": ["pretrain", "--data", "three", "--devices", "99"],
    "there is no run and no file away.ckpt (MODEL)": ["verify", "away.ckpt"],
    "there is no run and no file away.pth (MODEL)": ["evaluate", "knn", "away.pth"],
    "there is no run and no file away (MODEL)": ["embed", "away", "--out", "features.npz"],
    "there is no run and no file away.pt (MODEL)": ["export", "away.pt", "--out", "weights.safetensors"],
    "there is no run and no file imagenette (--from); give a run directory, a file of weights, or imagenet": [
        *("pretrain", "--data", "three", "--from", "imagenette")
    ],
    "no method is called 'simcrl' (--method)": [
        *("pretrain", "--data", "three", "--from", "one", "--method", "simcrl")
    ],
    "there is no folder and no dataset called 'thre'": ["pretrain", "--data", "thre", "--from", "one"],
    "2 5 channels, 3 are wanted (--data); add --set data.channels=5": ["pretrain", "--data", "bands"],
    "there is no run in away (RUN)": ["report", "away"],
    "method.name was ie-cl, now simclr": ["pretrain", "--out", "begun", "--resume", "--method", "simclr"],
    "3 images do not fill a batch of 4": ["pretrain", "--data", "three", "--batch-size", "4"],
    "one holds 1 image": ["pretrain", "--data", "one"],
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """What each command ended with, and whether torch was imported by then; one process for all of them."""
    here = tmp_path_factory.mktemp("typos")
    for name, count in (("one", 1), ("three", 3)):
        (here / name).mkdir()
        for number in range(count):
            Image.new("RGB", (40, 40), (number, 0, 0)).save(here / name / f"{number}.png")
    (here / "begun").mkdir()
    config = make_config(flags={"data": {"name": "shapes"}})
    (here / "begun" / "settings.toml").write_text(with_data(config, resolve_data(config.data)).to_toml("for a test"))
    (here / "bands").mkdir()
    for number in range(2):
        np.save(here / "bands" / f"{number}.npy", np.zeros((40, 40, 5), np.uint8))
    program = (
        "import contextlib, io, json, sys\nfrom iecl.cli.command import main\nfound = {}\n"
        "for name, words in json.load(sys.stdin).items():\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as text: code = main(words)\n"
        "    found[name] = [code, text.getvalue(), 'torch' in sys.modules]\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(TYPOS), capture_output=True, text=True, check=True, cwd=here
    )
    found: dict[str, list[object]] = json.loads(done.stdout)
    assert not list(Path(here).glob("runs"))
    return found


@pytest.mark.parametrize("words", TYPOS)
def test_a_mistake_is_named_before_torch_is_imported(words: str, said: dict[str, list[object]]) -> None:
    code, text, is_imported = said[words]
    assert code == 2
    assert words in str(text)
    assert "loading torch" not in str(text)
    assert not is_imported
