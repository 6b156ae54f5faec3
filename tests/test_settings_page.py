"""The page of all settings says what a run gets, as `iecl describe` does, beside the default of the setting."""

import sys
from pathlib import Path

import pytest

from iecl.methods import METHODS
from iecl.recipes import read_recipe


def test_the_settings_page_shows_the_default_recipe_beside_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "docs"))
    from generate import settings_table  # type: ignore[import-not-found]

    table = settings_table(METHODS["simclr"].load().Settings, read_recipe("default", "simclr")["method"])
    assert "| setting | in the default recipe | in a recipe that leaves it out |" in table
    assert "| `temperature` | `0.2` | `0.1` |" in table
    assert "| `hidden_dim` | `512` | `2048` |" in table
    sys.modules.pop("generate", None)


def test_a_limit_that_nobody_meets_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "docs"))
    from generate import range_of

    assert range_of({"low": 1, "high": 2**63 - 1}) == "at least 1"
    assert range_of({"low": 1, "high": 256}) == "at least 1, at most 256"
    sys.modules.pop("generate", None)
