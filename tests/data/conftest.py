"""Fixtures of the data tests."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for images.py: pytest imports tests without making them importable
NOBODY = 65534


@pytest.fixture
def ordinary_user() -> Iterator[Path]:
    """A new folder, and no more rights in it than its owner gives: root, who may do anything, becomes nobody."""
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as name:
        if is_root:
            os.chown(name, NOBODY, -1)
            os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            if is_root:
                os.seteuid(0)
