"""Images that are easy to tell apart, and a finished run on them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from made_runs import MadeRun


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Thirty images of three classes, told apart by their color; one more file is broken."""
    folder = tmp_path / "images"
    noise = np.random.default_rng(0)
    for label, color in enumerate(("blue", "green", "red")):
        (folder / color).mkdir(parents=True)
        for number in range(10):
            pixels = noise.integers(0, 60, (16, 16, 3), dtype=np.uint8)
            pixels[..., 2 - label] += 180
            Image.fromarray(pixels).save(folder / color / f"{number}.png")
    (folder / "green" / "broken.png").write_bytes(b"\x89PNG and no more")
    return folder


@pytest.fixture
def made_run(tmp_path: Path, images: Path) -> MadeRun:
    run = MadeRun(tmp_path / "run", data=str(images))
    run.save_weights()
    return run
