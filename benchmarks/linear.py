"""Is the cached probe quick and does it say what the literal one says, and does a sweep reach the optimum?

python -m benchmarks.linear RUN [DATA ...]

RUN is a finished run: its backbone is measured. The modes are compared on a part of its own data, one whole probe of
each in turn: features of the plain view, of four crops that are kept, and of new crops in each epoch. A sweep is
compared with L-BFGS on features of each DATA (by default `digits` and the run's own), over several divisions of all
images into train and test: a tenth of a point is less than one test image of `digits`.
"""

import sys
import time
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

from benchmarks.bench.turns import summary
from benchmarks.result import write
from iecl import counter
from iecl.console import ProgressLine
from iecl.data.source import ChosenSource, Source
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.features import Features
from iecl.evaluation.linear import Linear, LinearSettings, linear
from iecl.evaluation.model import load_model

TRAIN, TEST, SEEDS = 2_000, 1_000, (0, 1, 2)
MODES = {
    "cached": LinearSettings(),
    "four crops": LinearSettings(crops=4),
    "literal": LinearSettings(mode="literal"),
}
DIVISIONS, LARGEST_TRAIN, LARGEST_TEST = 4, 2_000, 8_000


def some(source: Source, count: int) -> Source:
    """A fixed part of the images."""
    order = counter.permutation(counter.key(0, "benchmark/part"), len(source)).numpy()
    return ChosenSource(source, np.sort(order[:count]))


def bench_of(run: str, data: str | None, train: int, test: int) -> EvaluationContext:
    """A bench with a part of the images; they are opened, and nothing else is done yet."""
    made = EvaluationContext(load_model(run), run, data, ProgressLine(quiet=True), keep_decoded=True)
    made.train_images = some(made.train_images, train)
    made.test_images = some(made.test_images, test)
    return made


def modes(run: str) -> dict[str, Any]:
    """Time and accuracy of whole probes, the modes in turn; all begin with images in memory."""
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    top1: dict[str, list[float]] = {mode: [] for mode in MODES}
    for seed in SEEDS:
        for mode, settings in MODES.items():
            bench = bench_of(run, None, TRAIN, TEST)
            began = time.process_time()  # one thread on a machine that others use too: its own seconds alone
            scores = Linear(replace(settings, seed=seed)).measure(bench)
            seconds[mode].append(time.process_time() - began)
            top1[mode].append(scores.values["top1"])
            print(mode, seed, f"{seconds[mode][-1]:.1f} s", scores.values, scores.details, flush=True)
    results = {}
    for quick in ("cached", "four crops"):
        ratios = [slow / fast for slow, fast in zip(seconds["literal"], seconds[quick], strict=True)]
        results[f"processor time, literal over {quick}"] = summary(ratios)
        gaps = [100 * (one - other) for one, other in zip(top1[quick], top1["literal"], strict=True)]
        results[f"top-1 in points, {quick} minus literal"] = summary(gaps)
    return results | {f"top-1 in per cent, {mode}": summary([100 * value for value in top1[mode]]) for mode in top1}


def divisions(run: str, data: str | None) -> list[dict[str, Any]]:
    """A sweep and the optimum on several divisions."""
    bench = bench_of(run, data, LARGEST_TRAIN + LARGEST_TEST, LARGEST_TEST)
    sides = bench.train, bench.test
    values, labels = torch.cat([side.values for side in sides]), torch.cat([side.labels for side in sides])
    pool = Features(values, labels, torch.arange(len(labels)))
    count = min(LARGEST_TRAIN, len(pool) // 2)
    rows = []
    for number in range(DIVISIONS):
        order = counter.permutation(counter.key(number, "benchmark/division"), len(pool))
        train, test = pool.rows(order[:count]), pool.rows(order[count : count + LARGEST_TEST])
        found = linear(train, test, LinearSettings(mode="sweep", reference=True))
        assert found.optimum is not None
        reached = {"sweep": found.top1, "optimum": found.optimum.metrics.top1}
        rows.append(
            reached
            | {
                "rate": found.hyperparameters.lr,
                "decay": found.hyperparameters.weight_decay,
                "C": found.optimum.strength,
                "train": count,
                "test": len(test),
            }
        )
        print(data, rows[-1], flush=True)
    return rows


def main(run: str, data: list[str]) -> None:
    torch.set_num_threads(1)
    found = {name.rpartition("/")[2] or "its own": divisions(run, name or None) for name in data or ["digits", ""]}
    gaps = {name: [100 * (row["sweep"] - row["optimum"]) for row in rows] for name, rows in found.items()}
    results = {f"sweep minus optimum in points, {name}": summary(values) for name, values in gaps.items()}
    sizes = f"{TRAIN} train and {TEST} test images"
    content = {
        "setting": f"{load_model(run).name}; the modes: {sizes}, 200 epochs, features included",
        "results": results | modes(run),
        "mean_gap_and_its_error": {
            name: [mean(values), stdev(values) / len(values) ** 0.5] for name, values in gaps.items()
        },
        "divisions": found,
    }
    question = "is the cached probe quick, does it say what the literal one says, does a sweep reach the optimum?"
    write("linear", question, content)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
