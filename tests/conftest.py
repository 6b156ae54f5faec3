"""Shared by all tests: tiny pictures, tiny runs, one torch thread."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

# Two test processes share two cores; torch's own threads would fight over them.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep generated data sets of the tests out of the user's cache, and share them between test processes."""
    os.environ.setdefault("IECL_CACHE", str(tmp_path_factory.getbasetemp().parent / "iecl-cache"))


@pytest.fixture
def picture_folder(tmp_path: Path) -> Path:
    """Forty pictures of 16×16 in two class folders: reddish and bluish noise."""
    from PIL import Image

    noise = np.random.default_rng(0)
    for number in range(40):
        name, channel = (("red", 0), ("blue", 2))[number % 2]
        pixels = noise.integers(0, 120, (16, 16, 3), dtype=np.uint8)
        pixels[..., channel] += 130
        folder = tmp_path / "pictures" / name
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    return tmp_path / "pictures"


TINY = ["data.image_size=16", "training.loggers=[]", "training.log_steps=1", "training.meter_steps=2", "data.workers=0"]
TINY += ["training.precision=32-true"]  # where runs are equal bit for bit
"""Settings that make any run take seconds."""


@pytest.fixture
def tiny() -> list[str]:
    """A fresh copy of the settings of a tiny run."""
    return list(TINY)
