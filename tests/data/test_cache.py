import multiprocessing
from pathlib import Path

import pytest

from iecl.data.cache import cache_folder, one_process_at_a_time


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"IECL_CACHE": "/one", "XDG_CACHE_HOME": "/two", "HOME": "/three"}, "/one"),
        ({"IECL_CACHE": "~/one", "HOME": "/three"}, "/three/one"),
        ({"IECL_CACHE": "", "XDG_CACHE_HOME": "/two", "HOME": "/three"}, "/two/iecl"),
        ({"HOME": "/three"}, "/three/.cache/iecl"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IECL_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def add_one(folder: Path, rounds: int) -> None:
    for _ in range(rounds):
        with one_process_at_a_time(folder):
            count = int((folder / "count").read_text())
            (folder / "count").write_text(str(count + 1))


def test_two_processes_that_count_in_one_file_lose_no_count(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("0")
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=add_one, args=(tmp_path, 200)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert (tmp_path / "count").read_text() == "400"
