"""What does exact kNN cost beyond its matrix product? 2,500 against 50,000 features of length 512, interleaved.

python -m benchmarks.knn
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.result import summary, write
from benchmarks.stepping import ratios
from iecl.evaluation.features import Features
from iecl.evaluation.knn import STANDARD, KNNSettings, knn_by_each

QUERIES, BANK, WIDTH, CLASSES, REPEATS = 2_500, 50_000, 512, 10, 5
TILE = 256
VOTES: dict[str, list[KNNSettings]] = {
    "k=20, one vote": [STANDARD[0]],
    "k=200, the three standard votes": list(STANDARD),
}


def made(count: int, seed: int) -> Features:
    drawn = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=drawn)
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    return Features(centres[labels] + 4 * torch.randn(count, WIDTH, generator=drawn), labels, torch.arange(count))


def product(queries: Tensor, bank: Tensor) -> None:
    """All cosines and nothing else, a tile at a time as anyone would write it."""
    for part in queries.split(TILE):
        part @ bank.T


def product_in_place(queries: Tensor, bank: Tensor) -> None:
    """The same into memory that is used again and again: fresh memory costs a good part of the time."""
    room = queries.new_empty(TILE, len(bank))
    for part in queries.split(TILE):
        torch.mm(part, bank.T, out=room[: len(part)])


def main() -> None:
    torch.set_num_threads(1)
    bank, queries = made(BANK, 1), made(QUERIES, 2)
    arms: dict[str, Callable[[], object]] = {
        "product": partial(product, queries.values, bank.values),
        "product into the same memory": partial(product_in_place, queries.values, bank.values),
    }
    arms |= {name: partial(knn_by_each, bank, queries, votings) for name, votings in VOTES.items()}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(REPEATS):
        for name, arm in arms.items():
            began = time.process_time()  # one thread on a machine that others use too: its own seconds alone
            arm()
            times[name].append(time.process_time() - began)
    content = {
        "setting": f"{QUERIES} against {BANK} features of length {WIDTH}, {CLASSES} classes",
        "unit": "processor time over that of the bare matrix product in the same round",
        "results": {name: summary(values) for name, values in ratios(times, "product").items()},
        "product_seconds": summary(times["product"]),
    }
    write("knn", "what does exact kNN cost beyond its matrix product?", content)


if __name__ == "__main__":
    main()
