"""Shared by all tests: tiny images, tiny runs, one torch thread."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from made_images import TINY, make_images
from skips import (  # noqa: F401 - hooks
    pytest_collectreport,
    pytest_configure,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

# Two test processes share two cores; torch's own threads would fight over them.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums depend on the number of threads: a test that leaves another behind would fail others, far away."""
    yield
    left = torch.get_num_threads()
    torch.set_num_threads(1)
    assert left == 1, f"the test left torch with {left} threads"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep generated datasets of the tests out of the user's cache, and share them between test processes."""
    os.environ.setdefault("IECL_CACHE", str(tmp_path_factory.getbasetemp().parent / "iecl-cache"))


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Forty images of 16×16 in two class folders: reddish and bluish noise."""
    return make_images(tmp_path)


@pytest.fixture
def tiny() -> list[str]:
    """A fresh copy of the settings of a tiny run."""
    return list(TINY)
