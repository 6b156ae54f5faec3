"""Inject every fault and print a table: tried, survived, lost.

python -m benchmarks.faults            all of them; about two hours
python -m benchmarks.faults signal     those whose name has this word in it; the table keeps the other rows
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch

from benchmarks.bench.report import machine_name
from benchmarks.faults import checkpoints, data, kills, readers, runs, surroundings
from benchmarks.result import RESULTS, write
from iecl.console import plain_table
from iecl.files import write_atomically

Tally = tuple[int, int, int]


def main() -> int:
    """Exit code 0 if nothing was lost; every row is written as soon as it is there."""
    torch.set_num_threads(1)  # some faults are injected into forks of this process, which must have no other threads
    word, is_lost = sys.argv[1] if len(sys.argv) > 1 else "", False
    with tempfile.TemporaryDirectory() as scratch:
        faults = all_faults(Path(scratch))
        for name, inject in faults.items():
            if word in name:
                began = time.monotonic()
                tried, survived, lost = inject()
                print(f"{name}: {tried} tried, {survived} survived, {lost} lost", flush=True)
                keep(row(name, (tried, survived, lost), time.monotonic() - began), list(faults))
                is_lost = is_lost or lost > 0
    return int(is_lost)


def keep(made: dict[str, object], names: list[str]) -> None:
    """Put a row into the result and the table; those of faults that are called otherwise by now go."""
    path = RESULTS / "faults" / f"{machine_name()}.json"
    before = json.loads(path.read_text())["faults"] if path.exists() else []
    found = {one["fault"]: one for one in [*before, made]}
    every = [found[name] for name in names if name in found]
    write("faults", "which faults does a run survive?", {"faults": every})
    heads = ["fault", "tried", "survived", "lost"]
    table = plain_table(heads, [[str(one[head]) for head in heads] for one in every])
    write_atomically(RESULTS / "faults" / "table.md", table + "\n")


def row(name: str, tally: Tally, seconds: float) -> dict[str, object]:
    """One line of the result."""
    tried, survived, lost = tally
    return {"fault": name, "tried": tried, "survived": survived, "lost": lost, "seconds": round(seconds)}


def all_faults(scratch: Path) -> dict[str, Callable[[], Tally]]:
    """Every fault by name."""

    @cache
    def run() -> Path:
        return readers.make_run(scratch / "readers")

    def mutate(name: str) -> Tally:
        return (readers.MUTATED | readers.WRITTEN)[name](run())

    return {
        "checkpoint that does not fit": partial(checkpoints.unfit_states, scratch / "unfit"),
        "checkpoint with wrong numbers": partial(checkpoints.wrong_numbers, scratch / "wrong"),
        "checkpoint with flipped bits": partial(checkpoints.flipped_bits, scratch / "flipped"),
        "checkpoint cut short": partial(checkpoints.cut_files, scratch / "cut"),
        **kills.FAULTS,
        **runs.FAULTS,
        **surroundings.FAULTS,
        **data.FAULTS,
        **{name: partial(mutate, name) for name in readers.MUTATED | readers.WRITTEN},
    }


if __name__ == "__main__":
    sys.exit(main())
