"""The gate for skipped tests: a skip that is not listed fails a run of CI, and nothing else does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import skips

LISTED = {
    "listed": "def test_a():\n    pytest.skip('a block is built for one image size')",
    "expected": "@pytest.mark.xfail\ndef test_a():\n    assert False",
    "passes": "def test_a(): pass",
}
NEW = {
    "called": "def test_a():\n    pytest.skip('not installed')",
    "marked": "@pytest.mark.skipif(True, reason='not installed')\ndef test_a(): pass",
    "module": "pytest.importorskip('no_such_module', reason='not installed')",
}


def run_pytest(folder: Path, bodies: dict[str, str], ci: str, *words: str) -> subprocess.CompletedProcess[str]:
    for name, body in bodies.items():
        (folder / f"test_{name}.py").write_text(f"import pytest\n\n{body}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "skips", "-p", "xdist", "-p", "no:cacheprovider", *words]
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(skips.__file__).parent)}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


@pytest.mark.parametrize("words", [[], ["-n", "2"]], ids=["alone", "two workers"])
def test_skips_that_are_not_listed_fail_the_run_and_are_named(words: list[str], tmp_path: Path) -> None:
    done = run_pytest(tmp_path, LISTED | NEW, "true", *words)
    assert done.returncode == 1, done.stdout
    named = [line for line in done.stdout.splitlines() if line.endswith(": not installed")]
    assert {line.partition(".py")[0] for line in named} == {f"test_{name}" for name in NEW}
    assert "1 passed, 4 skipped, 1 xfailed in" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(("bodies", "ci"), [(LISTED, "true"), (LISTED | NEW, "")], ids=["listed", "no CI"])
def test_listed_skips_and_runs_by_hand_are_fine(bodies: dict[str, str], ci: str, tmp_path: Path) -> None:
    done = run_pytest(tmp_path, bodies, ci)
    assert done.returncode == 0, done.stdout
