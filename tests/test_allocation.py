"""Freed memory is kept, and given back when asked for; where the C library cannot, nothing happens."""

import ctypes
import subprocess
import sys

import pytest

from iecl import allocation

PROGRAM = """
import resource, sys, torch
from iecl.allocation import give_back_freed_memory, keep_freed_memory
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def held(): return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
if sys.argv[1] == "kept": keep_freed_memory()
def work(): torch.empty(2**26, dtype=torch.uint8).fill_(1)
for _ in range(20): work()  # small pieces lie in a free block at first, and the next one is made beside it
before = faults()
for _ in range(8): work()
more, full = faults() - before, held()
give_back_freed_memory()
print(more, full - held())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux does")
def test_kept_memory_is_not_cleared_again_and_can_be_given_back() -> None:
    if allocation._from_c("mallopt") is None:
        pytest.skip("the C library has no mallopt")
    faults, given_back = {}, {}
    for arm in ("usual", "kept"):
        done = subprocess.run([sys.executable, "-c", PROGRAM, arm], capture_output=True, text=True, check=True)
        faults[arm], given_back[arm] = map(int, done.stdout.split())

    assert faults["kept"] < 100
    assert faults["usual"] > 8 * faults["kept"]
    assert given_back["kept"] > 2**25


def test_a_c_library_that_cannot_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert allocation._from_c("mallopt") is None
    allocation.keep_freed_memory()
    allocation.give_back_freed_memory()
