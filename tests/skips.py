"""Where CI is set, a skip that tests/allowed_skips.txt does not list fails the run: pytest hooks, for conftest.py."""

import os
from pathlib import Path

import pytest

ALLOWED = Path(__file__).with_name("allowed_skips.txt")
_seen = pytest.StashKey[dict[str, str]]()
_config: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    """Start to count, in the process that hears of all tests."""
    if os.environ.get("CI") and not hasattr(config, "workerinput"):
        config.stash[_seen] = {}
        _config.append(config)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One test: with pytest-xdist, from any worker."""
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A whole module that skips itself."""
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not _config or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    _config[-1].stash[_seen][report.nodeid] = reason.removeprefix("Skipped: ")


def new_skips(config: pytest.Config) -> list[str]:
    """Skipped tests that are not on the list."""
    lines = ALLOWED.read_text(encoding="utf-8").splitlines()
    allowed = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    return [
        f"{test}: {reason}"
        for test, reason in config.stash.get(_seen, {}).items()
        if reason not in allowed and not test.startswith(tuple(allowed))
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that is otherwise fine."""
    if session.exitstatus == pytest.ExitCode.OK and new_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which."""
    found = new_skips(config)
    if found:
        terminalreporter.section(f"skips that {ALLOWED.name} does not list", red=True)
        for line in found:
            terminalreporter.line(line)
