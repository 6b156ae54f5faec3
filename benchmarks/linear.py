"""Is the cached probe quick and as good as the literal one, and does a sweep reach the optimum?

python -m benchmarks.linear RUN [DATA ...]

RUN is a finished run: its backbone is measured. The two modes are compared on a part of its own data, one whole probe
of each in turn. A sweep is compared with L-BFGS on features of each DATA (by default `digits` and the run's own), over
several divisions of all pictures into train and test: a tenth of a point is less than one test picture of `digits`.
"""

import sys
import time
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

from benchmarks.result import summary, write
from iecl import counter
from iecl.console import ProgressLine
from iecl.data.source import ChosenSource, Source
from iecl.evaluation.bench import Bench
from iecl.evaluation.features import Features
from iecl.evaluation.linear import Linear, LinearSettings, linear
from iecl.evaluation.model import load_model

TRAIN, TEST, SEEDS = 1_000, 2_000, (0, 1, 2)
DIVISIONS, LARGEST_TRAIN, LARGEST_TEST = 4, 4_000, 8_000


def some(source: Source, count: int) -> Source:
    """A fixed part of the pictures."""
    order = counter.permutation(counter.key(0, "benchmark/part"), len(source)).numpy()
    return ChosenSource(source, np.sort(order[:count]))


def bench_of(run: str, data: str | None, train: int, test: int) -> Bench:
    """A bench with a part of the pictures; they are opened, and nothing else is done yet."""
    made = Bench(load_model(run), run, data, ProgressLine(quiet=True), keep_decoded=True)
    made.train_pictures = some(made.train_pictures, train)
    made.test_pictures = some(made.test_pictures, test)
    return made


def modes(run: str) -> dict[str, Any]:
    """Time and accuracy of whole probes, the two modes in turn; both begin with pictures in memory."""
    seconds: dict[str, list[float]] = {"cached": [], "literal": []}
    top1: dict[str, list[float]] = {"cached": [], "literal": []}
    for seed in SEEDS:
        for mode in seconds:
            bench = bench_of(run, None, TRAIN, TEST)
            began = time.process_time()  # one thread on a machine that others use too: its own seconds alone
            scores = Linear(LinearSettings(mode=mode, seed=seed)).measure(bench)
            seconds[mode].append(time.process_time() - began)
            top1[mode].append(scores.values["top1"])
            print(mode, seed, f"{seconds[mode][-1]:.1f} s", scores.values, scores.details, flush=True)
    ratios = [slow / quick for slow, quick in zip(seconds["literal"], seconds["cached"], strict=True)]
    return {
        "setting": f"{TRAIN} train and {TEST} test pictures, 200 epochs, features of both included",
        "ratio of processor time, literal over cached": summary(ratios),
        "seconds": {mode: summary(values) for mode, values in seconds.items()},
        "top1": {mode: summary(values) for mode, values in top1.items()},
    }


def optimum_gap(run: str, data: str | None) -> dict[str, Any]:
    """Accuracy of a sweep minus that of the optimum, in points, over several divisions."""
    bench = bench_of(run, data, LARGEST_TRAIN + LARGEST_TEST, LARGEST_TEST)
    sides = bench.train, bench.test
    values, labels = torch.cat([side.values for side in sides]), torch.cat([side.labels for side in sides])
    pool = Features(values, labels, torch.arange(len(labels)))
    count = min(LARGEST_TRAIN, len(pool) // 2)
    gaps, rows = [], []
    for number in range(DIVISIONS):
        order = counter.permutation(counter.key(number, "benchmark/division"), len(pool))
        train, test = pool.rows(order[:count]), pool.rows(order[count : count + LARGEST_TEST])
        found = linear(train, test, LinearSettings(mode="sweep", reference=True))
        assert found.optimum is not None
        gaps.append(100 * (found.top1 - found.optimum.reading.top1))
        rows.append(
            {
                "sweep": found.top1,
                "rate": found.rate,
                "optimum": found.optimum.reading.top1,
                "C": found.optimum.strength,
            }
        )
        print(data, rows[-1], flush=True)
    error = stdev(gaps) / DIVISIONS**0.5
    return {"train": count, "test": len(test), "mean_gap": mean(gaps), "standard_error": error, "divisions": rows}


def main(run: str, data: list[str]) -> None:
    torch.set_num_threads(1)
    named = data or ["digits", ""]
    content = {
        "backbone": f"{load_model(run).name}, {load_model(run).metadata['method']}",
        "sweep minus optimum, points": {name.rpartition("/")[2]: optimum_gap(run, name or None) for name in named},
        "modes": modes(run),
    }
    write(
        "linear",
        "is the cached probe quick and as good as the literal one, and does a sweep reach the optimum?",
        content,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
