"""Pictures that are easy to tell apart, and a finished run on them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from made_runs import MadeRun


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Thirty pictures of three classes, told apart by their colour; one more file is broken."""
    folder = tmp_path / "pictures"
    noise = np.random.default_rng(0)
    for label, colour in enumerate(("blue", "green", "red")):
        (folder / colour).mkdir(parents=True)
        for number in range(10):
            pixels = noise.integers(0, 60, (16, 16, 3), dtype=np.uint8)
            pixels[..., 2 - label] += 180
            Image.fromarray(pixels).save(folder / colour / f"{number}.png")
    (folder / "green" / "broken.png").write_bytes(b"\x89PNG and no more")
    return folder


@pytest.fixture
def made_run(tmp_path: Path, pictures: Path) -> MadeRun:
    run = MadeRun(tmp_path / "run", data=str(pictures))
    run.save_weights()
    return run
