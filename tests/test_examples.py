"""The examples as a user starts them."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_the_own_loop_learns(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "own_loop.py"), run_name="__main__")
    printed = capsys.readouterr().out
    contrast = [float(value) for value in re.findall(r"contrast (\S+),", printed)]
    assert contrast[-1] < contrast[0] - 0.1
    before, after = (float(value) for value in re.findall(r"(\S+) %", printed))
    assert after > before
