"""Freed memory is kept by the command and where it is asked for, and given back; else nothing happens."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

from iecl import allocation
from iecl.errors import UserError
from iecl.training import forecast
from iecl.training.config import make_config

PROGRAM = """
import resource, sys
from iecl.allocation import give_back_freed_memory, keep_freed_memory
SIZE = 5 * 2**23
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def held(): return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
if sys.argv[1] == "kept": keep_freed_memory()
def work(): [bytearray(SIZE) for _ in range(16)]
for _ in range(3): work()
before = faults()
work()
cleared, full = (faults() - before) * resource.getpagesize() // SIZE, held()
give_back_freed_memory()
print(cleared, full - held())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux does")
def test_all_but_a_few_large_blocks_are_not_cleared_again_and_can_be_given_back() -> None:
    if allocation._from_c("mallopt") is None:
        pytest.skip("the C library has no mallopt")
    cleared, given_back = {}, {}
    for arm in ("usual", "kept"):
        done = subprocess.run([sys.executable, "-c", PROGRAM, arm], capture_output=True, text=True, check=True)
        cleared[arm], given_back[arm] = map(int, done.stdout.split())

    assert cleared["usual"] == 16
    assert 0 < cleared["kept"] <= allocation._LEFT_TO_THE_SYSTEM
    assert given_back["kept"] > 2**27


def test_a_c_library_that_cannot_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert allocation._from_c("mallopt") is None
    allocation.keep_freed_memory()
    allocation.give_back_freed_memory()


FAMILY = """
import multiprocessing
import numpy, torch
from iecl.allocation import is_kept, keep_freed_memory
from iecl.data.batch import Pixels
from iecl.data.loader import Loader
from iecl.training.processes import run_in_processes

def rank():
    return {"kept": is_kept()}

class Telling:
    name, classes, labels, is_decoded = "telling", (), numpy.zeros(4, numpy.int64), False
    def __len__(self): return 4
    def path(self, index): return ""
    def read(self, index):
        shape = (len(index), 3, 1, 1)
        return Pixels(torch.full(shape, is_kept(), dtype=torch.uint8), torch.ones(len(index), 2, dtype=torch.int64), ())

def children():
    loader = Loader(Telling(), batch=4, seed=0, workers=1)
    (batch,) = loader.epoch(0)
    loader.close()
    return run_in_processes(rank, (), devices=1, nodes=1, lock=None)["kept"], bool(batch.images.any())

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")  # nothing is inherited
    print(*children())
    keep_freed_memory()
    print(*children())
"""


def test_ranks_and_workers_do_as_the_process_that_starts_them(tmp_path: Path) -> None:
    program = tmp_path / "family.py"
    program.write_text(FAMILY, encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "False", "True", "True"], done.stderr


@pytest.mark.parametrize("keeps", [False, True])
def test_a_forecast_is_made_as_its_run_would_be(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(command: list[str], **options: str) -> subprocess.CompletedProcess[str]:
        asked.append(json.loads(options["input"]))
        return subprocess.CompletedProcess(command, 1, stdout="")

    monkeypatch.setattr(allocation, "_kept", keeps)
    monkeypatch.setattr(subprocess, "run", answer)
    with pytest.raises(UserError, match="the probe ended"):
        forecast.predict(make_config(flags={"data": {"name": "shapes"}}), 1.0, quiet=True)
    assert asked[0]["keeps_memory"] is keeps


def test_the_command_keeps_freed_memory_and_an_import_does_not() -> None:
    program = "import sys, iecl.api, iecl.cli.command as c; from iecl.allocation import is_kept\n"
    program += "before = is_kept(); c.main(['list', 'methods']); print(before, is_kept(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False True False"
