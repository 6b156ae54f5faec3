"""Two processes with half a batch each take the step of one with the whole, also in what they remember."""

from pathlib import Path
from typing import Any

import pytest
import torch
from stepping import clock, make, run_in_two_processes, survey, unlike_one_process, views_of, without_batch_norm

from iecl import parallel
from iecl.methods import METHODS

HEADS = {"hidden_dim": 16, "out_dim": 8}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "swav": ("swav", {**HEADS, "num_prototypes": 6, "local_crops": 2}),
    "swav with a queue": ("swav", {**HEADS, "num_prototypes": 6, "queue_size": 8, "queue_start_epoch": 0}),
    "dino": ("dino", {**HEADS, "num_prototypes": 6}),
    "deepcluster": ("deepcluster", {"num_clusters": 5, "components": 8}),
    "deepcluster-v2": ("deepcluster-v2", {**HEADS, "num_clusters": 5}),
    "minent": ("minent", {"hidden_dim": 16, "heads": (8, 6)}),
    "s3oc": ("s3oc", {"num_clusters": (8, 6)}),
}


def state_after_two_steps(case: str, rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """Losses and gradients (averaged over processes, as DDP does), and every buffer."""
    name, settings = CASES[case]
    method = make(METHODS[name].load(), **settings)
    without_batch_norm(method)
    method.before_epoch(survey, clock())
    found = {}
    for step in range(2):
        rows = range(8 * step, 8 * step + 8)
        given = views_of(list(rows), method.views.local_crops)
        mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
        parts = type(given)(
            tuple(x[mine] for x in given.global_crops),
            given.positions[mine],
            given.labels[mine],
            given.index[mine],
            tuple(x[mine] for x in given.local_crops),
        )
        losses = method.step(parts, clock(step)).losses
        sum(losses.values()).backward()
        found |= {f"loss {term} {step}": parallel.average(value) for term, value in losses.items()}
    found |= {n: parallel.average(p.grad) for n, p in method.named_parameters() if p.grad is not None}
    return found | dict(method.named_buffers())


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run_in_two_processes(state_after_two_steps, list(CASES), folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_losses_gradients_and_memory_equal_those_of_one_process(case: str, two_processes: Path) -> None:
    assert not unlike_one_process(state_after_two_steps(case), two_processes, case, rtol=1e-4, atol=2e-6)
