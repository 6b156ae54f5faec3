import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from images import save_numbered, save_solid
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from iecl import counter
from iecl.data import memory_cache
from iecl.data.batch import Batch
from iecl.data.folder import FolderSource
from iecl.data.listing import list_images
from iecl.data.loader import Loader, in_order
from iecl.data.memory_cache import load_into_memory
from iecl.data.source import ArraySource, Source
from iecl.errors import TrainingError, UserError

BAD = (3, 4, 5, 17)


def open_folder(folder: Path) -> FolderSource:
    listing = list_images(folder)
    return FolderSource(listing, np.arange(len(listing)) % 3, ("a", "b", "c"), side=8, max_pixels=1000)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> FolderSource:
    return open_folder(save_numbered(tmp_path_factory.mktemp("good"), 26))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> FolderSource:
    """26 files of which four are no images."""
    return open_folder(save_numbered(tmp_path_factory.mktemp("mixed"), 26, bad=BAD))


def unexpected(path: str, reason: str) -> None:
    raise AssertionError(f"{path}: {reason}")


def ignore(path: str, reason: str) -> None:
    """For tests that look at the batches only."""


def stream(batches: list[Batch]) -> dict[str, list[object]]:
    """Everything in the batches, row after row."""
    return {name: torch.cat([getattr(batch, name) for batch in batches]).tolist() for name in vars(batches[0])}


def test_every_row_is_the_image_that_its_index_names(good: FolderSource) -> None:
    batches = list(Loader(good, batch=4, seed=1, on_bad=unexpected).epoch(0))
    rows = stream(batches)
    assert [image[0][0][0] for image in rows["images"]] == rows["index"]  # an image's red value is its number
    assert rows["labels"] == [i % 3 for i in rows["index"]]
    assert rows["positions"] == list(range(24))  # 26 images make 6 steps of 4
    assert rows["sizes"] == [[8, 8]] * 24


def test_an_epoch_draws_no_image_twice_and_the_next_one_in_another_order(good: FolderSource) -> None:
    loader = Loader(good, batch=4, seed=1, on_bad=unexpected)
    first, second = (stream(list(loader.epoch(epoch)))["index"] for epoch in (0, 1))
    assert len(set(first)) == len(set(second)) == 24
    assert first != second


def test_the_order_depends_on_the_seed(good: FolderSource) -> None:
    orders = [stream(list(Loader(good, batch=4, seed=seed).epoch(0)))["index"] for seed in (1, 2)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_the_same_for_any_number_of_workers(mixed: FolderSource, workers: int) -> None:
    alone = Loader(mixed, batch=4, seed=1, on_bad=ignore)
    helped = Loader(mixed, batch=4, seed=1, workers=workers, on_bad=ignore)
    for epoch in (0, 1):  # the second with the workers of the first
        assert stream(list(helped.epoch(epoch))) == stream(list(alone.epoch(epoch)))


@pytest.mark.parametrize("world", [2, 4])
def test_the_global_stream_is_the_same_for_any_number_of_processes(mixed: FolderSource, world: int) -> None:
    whole = list(Loader(mixed, batch=8, seed=1, on_bad=ignore).epoch(3))
    parts = [
        list(Loader(mixed, batch=8 // world, seed=1, rank=rank, world=world, on_bad=ignore).epoch(3))
        for rank in range(world)
    ]
    together = [batch for step in zip(*parts, strict=True) for batch in step]
    assert stream(together) == stream(whole)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("first", [0, 2, 6])
def test_starting_later_equals_skipping(mixed: FolderSource, first: int, workers: int) -> None:
    loader = Loader(mixed, batch=4, seed=1, workers=workers, on_bad=ignore)
    late, whole = list(loader.epoch(2, first)), list(loader.epoch(2))
    assert [batch.index.tolist() for batch in late] == [batch.index.tolist() for batch in whole[first:]]


def test_starting_late_reads_nothing_before(good: FolderSource) -> None:
    read: list[int] = []

    class Noting(FolderSource):
        def read(self, index: np.ndarray) -> object:
            read.extend(index.tolist())
            return super().read(index)

    source = Noting(good.listing, good.labels, good.classes, side=8, max_pixels=1000)
    list(Loader(source, batch=4, seed=1).epoch(0, first=5))
    assert len(read) == 4


def test_a_bad_file_is_replaced_by_a_readable_one_at_the_same_position(mixed: FolderSource) -> None:
    order = stream(list(Loader(mixed, batch=26, seed=1, on_bad=ignore).epoch(0)))
    good_rows = [i not in BAD for i in range(26)]
    assert order["positions"] == list(range(26))
    assert not set(order["index"]) & set(BAD)
    assert [image[0][0][0] for image in order["images"]] == order["index"]
    assert order["labels"] == [i % 3 for i in order["index"]]
    assert len(set(order["index"])) == sum(good_rows)  # the readable ones are all there, four of them twice


def test_what_replaces_a_bad_file_changes_with_the_epoch(tmp_path: Path) -> None:
    bad = range(50)
    source = open_folder(save_numbered(tmp_path, 100, bad=tuple(bad)))
    loader = Loader(source, batch=100, seed=1, on_bad=ignore)
    orders = [counter.permutation(counter.key(1, "order", epoch), 100).tolist() for epoch in (0, 1)]
    made = [stream(list(loader.epoch(epoch)))["index"] for epoch in (0, 1)]
    replaced = [p for p in range(100) if orders[0][p] in bad and orders[1][p] in bad]
    same = sum(made[0][p] == made[1][p] for p in replaced)
    assert len(replaced) > 15  # about a quarter of 100
    assert same <= 3  # one in 50 agrees by chance


@pytest.mark.parametrize("workers", [0, 2])
def test_each_bad_file_is_reported_once_by_path_and_reason(mixed: FolderSource, workers: int) -> None:
    reports: list[tuple[str, str]] = []
    loader = Loader(mixed, batch=2, seed=1, workers=workers, on_bad=lambda *report: reports.append(report))
    for epoch in range(3):
        list(loader.epoch(epoch))
    assert sorted(reports) == [(mixed.path(i), "not an image") for i in BAD]


def test_a_file_that_is_deleted_while_training_is_replaced_and_reported(tmp_path: Path) -> None:
    source = open_folder(save_numbered(tmp_path, 12))
    reports: list[tuple[str, str]] = []
    loader = Loader(source, batch=12, seed=1, on_bad=lambda *report: reports.append(report))
    before = stream(list(loader.epoch(0)))["index"]
    (tmp_path / "007.png").unlink()
    after = stream(list(loader.epoch(0)))["index"]
    assert [new for old, new in zip(before, after, strict=True) if old != 7] == [i for i in before if i != 7]
    assert after[before.index(7)] != 7
    assert reports == [(str(tmp_path / "007.png"), "file is gone")]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("read", [lambda s, w: Loader(s, batch=2, seed=1, workers=w).epoch(0), None])
def test_a_source_without_one_good_file_is_an_error_that_counts_the_reasons(
    tmp_path: Path, workers: int, read: Callable[[Source, int], object] | None
) -> None:
    source = open_folder(save_numbered(tmp_path, 5, bad=(0, 1, 2, 3)))
    (tmp_path / "004.png").write_bytes(b"")
    batches = read(source, workers) if read else in_order(source, 2, workers, on_bad=ignore)
    with pytest.raises(UserError) as caught:
        list(batches)  # type: ignore[call-overload]
    expected = f"none of the 5 images in {tmp_path} can be read: 4 not an image, 1 empty file"
    assert caught.value.what == expected


def test_one_good_file_in_a_long_run_of_bad_ones_is_found(tmp_path: Path) -> None:
    source = open_folder(save_numbered(tmp_path, 200, bad=tuple(range(199))))
    (batch,) = Loader(source, batch=200, seed=1, on_bad=ignore).epoch(0)
    assert batch.index.tolist() == [199] * 200


def test_too_few_images_for_a_step_is_an_error_with_both_numbers(good: FolderSource) -> None:
    with pytest.raises(UserError) as caught:
        Loader(good, batch=14, seed=1, world=2)
    assert "has 26 images, fewer than the 28 of one step (training.batch_size); lower it" in str(caught.value)
    assert Loader(good, batch=13, seed=1, world=2).steps == 1


def children() -> int:
    return len(multiprocessing.active_children())


def test_a_consumer_that_stops_early_leaves_no_process_and_can_start_again(good: FolderSource) -> None:
    loader = Loader(good, batch=4, seed=1, workers=2)
    before = children()
    batches = loader.epoch(0)
    first = next(batches)
    during = children()
    batches.close()
    assert (during - before, children() - before) == (2, 0)
    assert next(loader.epoch(0)).index.tolist() == first.index.tolist()


def test_workers_outlive_an_epoch_and_end_when_closed(good: FolderSource) -> None:
    loader = Loader(good, batch=4, seed=1, workers=1)
    workers = []
    for epoch in (0, 1):
        list(loader.epoch(epoch))
        workers.append({process.pid for process in multiprocessing.active_children()})
    loader.close()
    assert workers[0] == workers[1] != set()
    assert not workers[0] & {process.pid for process in multiprocessing.active_children()}


def test_images_in_memory_need_no_worker() -> None:
    source = ArraySource("zeros", torch.zeros(8, 3, 4, 4, dtype=torch.uint8))
    before = children()
    batches = Loader(source, batch=2, seed=1, workers=2).epoch(0)
    next(batches)
    assert children() == before
    batches.close()


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch looks after silent workers every fifth of a second instead of every five."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))


@pytest.mark.usefixtures("quick_checks")
def test_a_worker_that_is_killed_becomes_a_clear_error_at_the_next_batches(good: FolderSource) -> None:
    handler = signal.getsignal(signal.SIGCHLD)
    batches = Loader(good, batch=1, seed=1, workers=2).epoch(0)
    next(batches)
    worker, _ = multiprocessing.active_children()
    worker.kill()
    # Wait, but leave the body: an error that came by signal would be raised here, in the middle of somebody's work.
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(TrainingError) as caught:
        list(batches)
    assert caught.value.what == "a process that decodes images was ended by SIGKILL"
    assert str(worker.pid) in caught.value.where
    assert caught.value.do == "most often the memory ran out: lower data.num_workers or training.batch_size"
    assert signal.getsignal(signal.SIGCHLD) is handler


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was ended by SIGSEGV"),
        (lambda: os._exit(3), "ended with exit code 3"),
    ],
)
def test_a_worker_that_ends_otherwise_is_not_said_to_have_run_out_of_memory(
    good: FolderSource, end: Callable[[], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, read_into = os.getpid(), FolderSource.read_into

    def fail_in_worker(self: FolderSource, images: np.ndarray, index: np.ndarray) -> object:
        return read_into(self, images, index) if os.getpid() == parent else end()

    monkeypatch.setattr(FolderSource, "read_into", fail_in_worker)
    with pytest.raises(TrainingError) as caught:
        list(Loader(good, batch=4, seed=1, workers=1).epoch(0))
    assert caught.value.what == f"a process that decodes images {words}"
    assert "memory" not in caught.value.do


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_should_stop_a_run_reaches_the_parent_only(good: FolderSource, number: signal.Signals) -> None:
    loader = Loader(good, batch=4, seed=1, workers=1)
    batches = loader.epoch(0)
    first = next(batches)
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, number)
    assert len([first, *batches]) == 6
    loader.close()


DEAF = """
import os, signal, sys, threading, time
import numpy as np
from iecl.data.folder import FolderSource
from iecl.data.listing import list_images
from iecl.data.loader import Loader
from pathlib import Path

heard, done = [], False
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: heard.append(number))
listing = list_images(Path(sys.argv[1]))
source = FolderSource(listing, np.full(len(listing), -1), (), side=8, max_pixels=1000)


def shoot():
    while not done:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.killpg(0, number)
        time.sleep(0.0005)


shooter = threading.Thread(target=shoot)
shooter.start()
counts = []
for _ in range(4):
    loader = Loader(source, batch=4, seed=1, workers=2)
    counts.append(len(list(loader.epoch(0))))
    loader.close()
left = Loader(source, batch=4, seed=1, workers=2)
batches = left.epoch(0)
next(batches)
done = True
shooter.join()
print(counts, len(heard) > 10)
"""


def test_signals_to_the_whole_group_end_no_worker_at_any_moment_and_a_process_with_workers_left_ends(
    good: FolderSource,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEAF, good.name],
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[6, 6, 6, 6] True\n"), done.stderr


HALF_A_REQUEST = """
import multiprocessing, os, signal, struct, sys
import numpy as np
from iecl.data.folder import FolderSource
from iecl.data.listing import list_images
from iecl.data.loader import Loader
from pathlib import Path

listing = list_images(Path(sys.argv[1]))
source = FolderSource(listing, np.full(len(listing), -1), (), side=8, max_pixels=1000)
loader = Loader(source, batch=2, seed=1, workers=3)
batches = loader.epoch(0)
next(batches)
for queue in loader._pool._running._index_queues:
    queue._writer._send(struct.pack("!i", 30000) + b"half")
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up as Linux lists them")
def test_workers_that_wait_for_the_rest_of_a_request_end_with_a_parent_that_was_killed(good: FolderSource) -> None:
    done = subprocess.run([sys.executable, "-c", HALF_A_REQUEST, good.name], capture_output=True, text=True, timeout=60)
    workers = done.stdout.split()
    assert (done.returncode, len(workers)) == (-signal.SIGKILL, 3), done.stderr
    end = time.monotonic() + 20
    while any(Path("/proc", worker).exists() for worker in workers):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_worker_that_is_busy_for_long_is_ended_all_the_same(
    good: FolderSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # how long torch waits for it
    parent, read_into = os.getpid(), FolderSource.read_into

    def stall(self: FolderSource, images: np.ndarray, index: np.ndarray) -> object:
        if os.getpid() != parent and index[0] != first:
            time.sleep(3600)
        return read_into(self, images, index)

    monkeypatch.setattr(FolderSource, "read_into", stall)
    first = next(Loader(good, batch=4, seed=1).epoch(0)).index[0]
    batches = Loader(good, batch=4, seed=1, workers=1).epoch(0)
    next(batches)
    (worker,) = multiprocessing.active_children()
    batches.close()
    assert not worker.is_alive()


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_worker_that_cannot_keep_its_memory_works_all_the_same(
    platform: str, good: FolderSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())  # a C library without mallopt, as musl
    loader = Loader(good, batch=13, seed=1, workers=1)
    assert len(list(loader.epoch(0))) == 2
    loader.close()


def test_a_batch_that_is_where_it_should_be_is_not_copied(good: FolderSource) -> None:
    (batch, *_) = Loader(good, batch=4, seed=1).epoch(0)
    moved = batch.to(torch.device("cpu"))
    assert all(value.data_ptr() == vars(moved)[name].data_ptr() for name, value in vars(batch).items())


@pytest.mark.parametrize("order", ["channels first", "channels last"])
def test_an_array_gives_the_same_rows_however_it_lies_in_memory(order: str) -> None:
    images = torch.randint(0, 255, (6, 3, 4, 5), dtype=torch.uint8)
    stored = images if order == "channels first" else images.to(memory_format=torch.channels_last)
    found = ArraySource("six", stored).read(np.array([5, 0, 5])).images
    assert torch.equal(found, images[[5, 0, 5]])
    assert found.is_contiguous()
    found.zero_()
    assert torch.equal(stored, images)  # what is read is a copy


def test_workers_draw_nothing_from_the_global_random_state(good: FolderSource) -> None:
    state = torch.get_rng_state()
    list(Loader(good, batch=4, seed=1, workers=1).epoch(0))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("workers", [0, 2])
def test_in_order_every_readable_sample_comes_once(mixed: FolderSource, workers: int) -> None:
    reports: list[tuple[str, str]] = []
    batches = list(in_order(mixed, 4, workers, on_bad=lambda *report: reports.append(report)))
    rows = stream(batches)
    expected = [i for i in range(26) if i not in BAD]
    assert rows["index"] == rows["positions"] == expected
    assert [image[0][0][0] for image in rows["images"]] == expected
    assert rows["labels"] == [i % 3 for i in expected]
    assert [len(batch.index) for batch in batches] == [
        3,
        2,
        4,
        4,
        3,
        4,
        2,
    ]  # 3; 4 and 5; 17 are missing; 26 = 6 * 4 + 2
    assert reports == [(mixed.path(i), "not an image") for i in BAD]


@pytest.mark.parametrize("workers", [0, 2])
def test_decoding_once_for_all_keeps_the_good_files_with_labels_sizes_and_paths(tmp_path: Path, workers: int) -> None:
    save_numbered(tmp_path, 9, bad=(2, 5))
    folder = open_folder(tmp_path)
    seen: list[tuple[int, int]] = []
    whole, skipped = load_into_memory(folder, workers, lambda *counts: seen.append(counts))
    kept = [0, 1, 3, 4, 6, 7, 8]
    assert whole.images[:, 0, 0, 0].tolist() == kept
    assert whole.labels.tolist() == [i % 3 for i in kept]
    assert [whole.path(i) for i in range(7)] == [str(tmp_path / f"{i:03d}.png") for i in kept]
    assert skipped == [(folder.path(i), "not an image") for i in (2, 5)]
    assert seen == [(9, 9)]


def test_decoding_very_many_files_once_for_all_keeps_none_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_cache, "_BATCH", 1)
    save_numbered(tmp_path, 60)
    open_now = len(list(Path("/proc/self/fd").iterdir()))
    most: list[int] = []
    load_into_memory(open_folder(tmp_path), 1, lambda *_: most.append(len(list(Path("/proc/self/fd").iterdir()))))
    assert max(most) < open_now + 40


def test_decoding_once_for_all_keeps_the_sizes_of_the_originals(tmp_path: Path) -> None:
    save_solid(tmp_path / "a.png", size=(20, 10))
    save_solid(tmp_path / "b.png", size=(3, 30))
    whole, _ = load_into_memory(open_folder(tmp_path), workers=0)
    assert whole.read(np.array([1, 0])).sizes.tolist() == [[30, 3], [10, 20]]


def test_an_array_reads_rows_by_number_with_their_size() -> None:
    images = torch.arange(5, dtype=torch.uint8).reshape(5, 1, 1, 1).expand(5, 3, 2, 6).contiguous()
    pixels = ArraySource("five", images).read(np.array([4, 0, 4]))
    assert pixels.images[:, 0, 0, 0].tolist() == [4, 0, 4]
    assert pixels.sizes.tolist() == [[2, 6]] * 3
