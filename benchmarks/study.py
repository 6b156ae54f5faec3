"""Studies: arms times seeds, each cell in a process of its own, kept as soon as it is there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from benchmarks.bench.report import machine_name
from benchmarks.result import RESULTS, write
from iecl.training.machine import choose_accelerator, choose_precision

AT_ONCE = 2
PRECISION = choose_precision("auto", choose_accelerator("auto"))
"""What every run of a study gets on this machine; rows of machines that differ in it do not belong into one file."""
Arms = Mapping[str, Sequence[str]]
"""What each arm adds to the common command."""


def python(*words: str, threads: int = 1) -> dict[str, Any]:
    """One Python program in a process whose peak memory is its own; its last line is its result. 0: all threads."""
    limit = {"OMP_NUM_THREADS": str(threads)} if threads else {}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=os.environ | limit)
    if done.returncode:
        return {"stopped": done.stderr.strip().splitlines()[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def iecl(*words: str, threads: int = 1) -> dict[str, Any]:
    """One `iecl` command."""
    return python("-m", "iecl", *words, "--json", threads=threads)


def pretrained(out: str, words: Sequence[str]) -> dict[str, Any]:
    """Train into `out` and return what a row should hold of it: cost, verdict and last readings."""
    made = iecl("pretrain", "--out", out, *words, "--set", "training.loggers=[]", "--quiet")
    if "stopped" in made:
        return made
    summary = made["summary"]
    kept = ("steps", "seconds", "images_per_second", "peak_memory_megabytes", "verdict")
    return {name: summary[name] for name in kept} | {"last": summary["last"]}


def study(
    name: str,
    question: str,
    setting: str,
    arms: Arms,
    seeds: Sequence[int],
    cell: Callable[[str, int], dict[str, Any]],
    only: Sequence[str] | None = None,
) -> None:
    """Run the cells that the result file does not have yet; stop and start it at will. `only`: some of the arms."""
    path = RESULTS / name / f"{machine_name()}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    known = {(row["arm"], row["seed"]) for row in rows}
    missing = [(arm, seed) for seed in seeds for arm in only or arms if (arm, seed) not in known]
    order = list(arms)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = {pool.submit(cell, arm, seed): (arm, seed) for arm, seed in missing}
        for finished in as_completed(waiting):
            arm, seed = waiting[finished]
            rows.append({"arm": arm, "seed": seed} | finished.result())
            rows.sort(key=lambda row: (order.index(row["arm"]), row["seed"]))
            common = f"{setting}; each cell on one thread, {AT_ONCE} at a time, precision {PRECISION}"
            write(name, question, {"setting": common, "arms": arms, "rows": rows})
