"""How much memory does one more image in a batch take? Peak memory of a process at two batch sizes, and the slope.

    python -m benchmarks.bench.memory ARM NETWORK BATCH     # one measurement, in a process of its own

The steps are bare, on views that are ready, ours as well as lightly's: what images and workers hold besides differs
between datasets and not between methods. (`iecl plan` measures with them, and predicts a whole run.)
"""

import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch

from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.peers import OUR_SETS, FromLightly, peer_stepper
from benchmarks.bench.processes import answer, ask, can_tell_memory, peak_bytes
from benchmarks.bench.stepping import channels_last, make, stepper
from benchmarks.bench.turns import ratios, take_turns
from iecl.allocation import keep_freed_memory
from iecl.backbones.factory import make_backbone
from iecl.training.cost import views_of
from iecl.views.policies import ViewSpec

SIDE, STEPS, ROUNDS = 32, 4, 3
"""STEPS: from the second one on the optimizer has its state, and freed memory is in the places where it stays."""
LIGHTLY = "simclr from lightly"
GOAL = "at most 1.1"
"""Of ours over theirs."""
OURS: dict[str, tuple[str, list[str]]] = {
    "simclr": ("simclr", OUR_SETS["simclr"]),
    "simclr, recomputed": ("simclr", [*OUR_SETS["simclr"], "training.gradient_checkpointing=true"]),
    "ie-cl": ("ie-cl", []),
    "ie-cl, recomputed": ("ie-cl", ["training.gradient_checkpointing=true"]),
}


@dataclass(frozen=True)
class _Case:
    """A network and the two batches that are tried."""

    network: str
    few: int
    many: int


CASES = (_Case("resnet10-w16", 64, 256), _Case("resnet18-small", 16, 64))
QUICK_CASES, QUICK_ARMS = (_Case("resnet10-w16", 32, 128),), ("simclr", LIGHTLY)


def measure(effort: Effort) -> Content:
    """Megabytes for each image of a batch, plain and with activations computed again."""
    content: Content = {
        "setting": f"bare steps, views of {SIDE} px, 32 bits, each batch in a process of its own",
        "unit": "MB of peak memory for one more image in the batch",
        "results": {},
    }
    if not can_tell_memory():
        effort.leave_out("everything", "this system does not tell the peak memory of a process")
        return content
    names = [name for name in (*OURS, LIGHTLY) if not effort.is_quick or name in QUICK_ARMS]
    if find_spec("lightly") is None:
        names.remove(LIGHTLY)
        effort.leave_out(LIGHTLY, "not installed")
    if effort.is_quick:
        effort.leave_out("resnet18-small, ie-cl, recomputing", "quick")
    for case in QUICK_CASES if effort.is_quick else CASES:
        arms = {name: partial(_slope, name, case) for name in names}
        found = take_turns(arms, effort.rounds_of(ROUNDS, 1), warm=0)  # each process is as cold as the next
        rows = {f"{case.network}: {name}": values for name, values in found.items()}
        if LIGHTLY in found:
            rows[f"{case.network}: simclr / lightly's"] = ratios(found, LIGHTLY)["simclr"]
        content["results"] |= effort.rows(rows, {f"{case.network}: simclr / lightly's": GOAL})
        effort.keep(content)
    return content


def _slope(arm: str, case: _Case) -> float:
    few, many = (ask("memory", arm, case.network, str(batch))["bytes"] for batch in (case.few, case.many))
    return float(many - few) / (case.many - case.few) / 2**20


def main(arm: str, network: str, images: str) -> None:
    """Take a few steps and tell the most memory that was held."""
    torch.manual_seed(0)
    batch = int(images)
    if arm == LIGHTLY:
        full = channels_last(views_of(ViewSpec(), batch, SIDE)).global_crops
        step = peer_stepper(FromLightly("simclr", make_backbone(network)).to(memory_format=torch.channels_last))
        for _ in range(STEPS):
            step(full[0], full[1])
    else:
        keep_freed_memory()  # as our training does, which costs some of it; a loop around lightly has no such thing
        method, sets = OURS[arm]
        take = stepper(make(method, sets, backbone=network, batch=batch, side=SIDE), batch=batch, side=SIDE)
        for _ in range(STEPS):
            take()
    answer({"bytes": peak_bytes()})


if __name__ == "__main__":
    main(*sys.argv[1:])
