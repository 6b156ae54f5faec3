"""In 64-bit arithmetic two processes with half a batch each take the step of one with the whole, to the last digits."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from stepping import clock, make, run_in_two_processes, unlike_one_process, views_of, without_batch_norm
from torch import Tensor

from iecl import parallel
from iecl.methods import METHODS
from iecl.methods.contract import Method
from iecl.methods.ie_cl import IECL
from iecl.objective.settings import ObjectiveSettings
from iecl.saib.certified import CertifiedSAIB
from iecl.saib.settings import SAIBSettings
from iecl.views.pipeline import Views

HEADS = {"hidden_dim": 16, "out_dim": 8, "queue_size": 16}
GROUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "groups": ("moco-v2", {**HEADS, "norm_groups": 4, "norm": True}),
    "groups, symmetric": ("moco-v2", {**HEADS, "norm_groups": 2, "symmetric": True}),
    "groups, no queue": ("moco-v2", {**HEADS, "queue_size": 0, "norm_groups": 4}),
    "groups, smoothed": ("light-moco", {**HEADS, "norm_groups": 4, "num_neighbors": 3, "plain_epochs": 0}),
}
EXPANSIONS = {"total": 3, "rest": 6}
"""Which part is maximized, and on how many images: fewer than a process has, and more."""
CASES = [*GROUPS, *EXPANSIONS]


def method_of(case: str) -> Method:
    if case in GROUPS:
        name, settings = GROUPS[case]
        return make(METHODS[name].load(), **settings)
    host = make(METHODS["moco-v2"].load(), **HEADS, symmetric=True)
    without_batch_norm(host)
    block = CertifiedSAIB(image_size=16, hidden_dim=4, cascade=2)
    objective = ObjectiveSettings(expansion=case, expansion_images=EXPANSIONS[case])
    return IECL(host, block, objective, SAIBSettings(side="both"))


@patch.object(Tensor, "float", Tensor.double)  # what is widened to 32 bits is widened to 64 here
def state_after_two_steps(case: str, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
    """Losses, gradients (averaged over processes, as DDP does), readings and every buffer."""
    method, found = method_of(case).double(), {}
    for step in range(2):
        given, mine = views_of(list(range(8 * step, 8 * step + 8))), slice(rank * 8 // world, (rank + 1) * 8 // world)
        full = tuple(x[mine].double().contiguous(memory_format=torch.channels_last) for x in given.global_crops)
        made = method.step(Views(full, given.positions[mine], given.labels[mine], given.index[mine]), clock(step))
        sum(made.losses.values()).backward()
        if case in GROUPS:
            method.after_step(clock(step))
        found |= {f"loss {term} {step}": parallel.average(value) for term, value in made.losses.items()}
    found |= {n: parallel.average(p.grad) for n, p in method.named_parameters() if p.grad is not None}
    return found | dict(method.named_buffers()) | method.meters()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    run_in_two_processes(state_after_two_steps, CASES, folder)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_everything_equals_that_of_one_process(case: str, two_processes: Path) -> None:
    assert not unlike_one_process(state_after_two_steps(case), two_processes, case, rtol=1e-11, atol=1e-13)
