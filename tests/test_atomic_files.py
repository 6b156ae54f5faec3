"""Files that are written whole: an error, a kill or another process in the middle never shows."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import iecl
from iecl import files
from iecl.files import atomic_file, atomic_path, lock, remove_leftovers, write_atomically

SIZE = 2**18


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that is there already."""
    (tmp_path / "file").write_bytes(b"old")
    return tmp_path / "file"


class BrokenError(Exception):
    """Not foreseen by the code under test."""


def by_content(path: Path) -> None:
    write_atomically(path, b"new")


def by_file(path: Path) -> None:
    with atomic_file(path) as opened:
        opened.write(b"new")


def by_path(path: Path) -> None:
    with atomic_path(path) as part:
        part.write_bytes(b"new")


def by_another_file_in_its_place(path: Path) -> None:
    with atomic_path(path) as part:
        write_atomically(part, b"new")


@pytest.mark.parametrize("write", [by_content, by_file, by_path, by_another_file_in_its_place])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_file_gets_its_content_and_nothing_stands_beside_it(
    tmp_path: Path, write: Callable[[Path], None], is_there: bool
) -> None:
    if is_there:
        (tmp_path / "file").write_bytes(b"old and longer")
    write(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("write", [by_content, by_file, by_path, by_another_file_in_its_place])
@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_disk_that_fails_at_the_end_leaves_the_old_file_and_nothing_else(
    file: Path, write: Callable[[Path], None], fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if fails == "fsync" else (Path, "replace")), full)
    with pytest.raises(OSError, match="No space left"):
        write(file)
    assert file.read_bytes() == b"old"
    assert names(file.parent) == ["file"]


def broken_file(path: Path) -> None:
    with atomic_file(path) as opened:
        opened.write(b"half")
        raise BrokenError


def broken_path(path: Path) -> None:
    with atomic_path(path) as part:
        part.write_bytes(b"half")
        raise BrokenError


@pytest.mark.parametrize("write", [broken_file, broken_path])
def test_an_error_in_the_middle_leaves_the_old_file_and_nothing_else(file: Path, write: Callable[[Path], None]) -> None:
    with pytest.raises(BrokenError):
        write(file)
    assert file.read_bytes() == b"old"
    assert names(file.parent) == ["file"]


def test_a_file_is_on_the_disk_before_it_takes_its_name_and_its_folder_after(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        is_folder = os.path.samestat(os.fstat(handle), file.parent.stat())
        done.append("folder" if is_folder else f"file of {os.fstat(handle).st_size} bytes")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", lambda part, path: done.append("rename") or replace(part, path))
    write_atomically(file, "néw")
    assert done == ["file of 4 bytes", "rename", "folder"]


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    path, is_over = tmp_path / "file", threading.Event()
    write_atomically(path, b"a" * SIZE)
    program = (
        "import sys; from pathlib import Path; from iecl.files import write_atomically\n"
        f"for number in range(60): write_atomically(Path(sys.argv[1]), b'ab'[number % 2 :][:1] * {SIZE})"
    )
    seen: set[bytes] = set()

    def read() -> None:
        while not is_over.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    is_over.set()
    reader.join()
    assert seen == {b"a" * SIZE, b"b" * SIZE}
    assert names(tmp_path) == ["file"]


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_the_file(file: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from iecl.files import atomic_file\n"
        "with atomic_file(Path(sys.argv[1])) as file: file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(file)])
    assert child.wait() == -signal.SIGKILL
    assert names(file.parent) == [f".file.{child.pid}.part", "file"]
    assert file.read_bytes() == b"old"
    write_atomically(file, b"new")
    assert names(file.parent) == ["file"]


def test_a_part_that_is_being_written_is_left_alone_and_the_last_to_finish_stays(file: Path) -> None:
    with atomic_file(file) as first:
        first.write(b"first")
        with atomic_file(file) as second:  # as from another container, whose processes have the same numbers
            second.write(b"second")
            assert len(names(file.parent)) == 3
            assert remove_leftovers(file.parent, "file") == 2
        assert file.read_bytes() == b"second"
    assert file.read_bytes() == b"first"
    assert names(file.parent) == ["file"]


def test_only_parts_of_the_file_itself_are_leftovers(tmp_path: Path) -> None:
    own = [".a[1].json.7.part", "..a[1].json.7.part.8.part"]
    others = [".a1.json.7.part", ".a[1].json.part", ".a[1].json.seven.part", ".b.7.part", "a[1].json.7.part"]
    for name in own + others:
        (tmp_path / name).touch()
    write_atomically(tmp_path / "a[1].json", "")
    assert names(tmp_path) == sorted([*others, "a[1].json"])
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [".a[1].json.part", ".a[1].json.seven.part", "a[1].json", "a[1].json.7.part"]


def test_a_part_that_was_taken_for_a_leftover_before_it_was_locked_is_made_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[str] = []

    def late(handle: int) -> bool:
        if not parts:
            (part,) = file.parent.glob(".*.part")
            part.unlink()
            parts.append(part.name)
        return lock(handle)

    monkeypatch.setattr(files, "lock", late)
    write_atomically(file, b"new")
    assert parts
    assert file.read_bytes() == b"new"
    assert names(file.parent) == ["file"]


def test_where_files_cannot_be_locked_nothing_is_taken_for_a_leftover(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(handle: int) -> bool:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files, "lock", unable)
    (file.parent / ".file.7.part").touch()
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"
    assert names(file.parent) == [".file.7.part", "file"]


def test_who_may_read_a_file_is_up_to_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", "")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_no_other_module_has_a_way_of_its_own_to_write_a_whole_file() -> None:
    source = Path(iecl.__file__).parent
    own = [str(path.relative_to(source)) for path in source.rglob("*.py") if "fsync" in path.read_text()]
    assert own == ["files.py"]
