"""What does each part of IE-CL add to a training step? Ratios to the host's step, one step of each arm in turn.

`host again` is the host a second time: how far two equal arms lie apart is the noise of the run. `torch's spectral
norm` is the one that comes with torch, on the convolutions and linear layers of the same encoder. `meters` is what
reading them adds to a step on average: one reading over the default number of steps between two, on top of the host.
`its own work` is the part by itself (`own_work`) over the step, where whole steps lie further apart than it adds.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from benchmarks.bench.effort import Content, Effort
from benchmarks.bench.own_work import work_of
from benchmarks.bench.stepping import make, stepper
from benchmarks.bench.turns import Arm, over, ratios, seconds, summary, take_turns, timed
from iecl.meters.embedding import read_embedding
from iecl.methods.contract import Method, Step
from iecl.methods.ie_cl import IECL
from iecl.training.settings import TrainingSettings

PLAIN = ["objective.entropy=none", "saib.form=none"]
KL, ENTROPY = "objective.kl=gaussian-diag", "objective.entropy=coding-rate"
PARTS = {
    "host": [],
    "host again": [],
    "spectral norm": ["objective.encoder=spectral-norm"],
    "entropy": [ENTROPY],
    "kl": [KL],
    "kl and entropy": [KL, ENTROPY],
    "certified block": ["saib.form=certified", "saib.weights=learned", "saib.probability=1"],
    "sample block": ["saib.form=sample"],
    "batch block, as printed": ["saib.form=batch"],
    "batch block and entropy, as printed": ["saib.form=batch", ENTROPY],
}
LARGE = ("host", "host again", "spectral norm", "kl and entropy", "certified block", "batch block, as printed")
"""Parts that are tried where a step takes seconds: those that have a goal, and the printed form."""
TORCHS = "torch's spectral norm"
ALONE, OWN = ("spectral norm", "kl and entropy", "certified block"), ", its own work"
SYMMETRIC, HOSTS = "ie-cl", ("simclr", "moco-v2", "byol", "simsiam")
PRINTED = ("batch block, as printed", "batch block and entropy, as printed")
ON_HOSTS = ("host", "spectral norm", "entropy", "kl", "certified block", *PRINTED)
"""Parts that are tried on each of the hosts too: the printed block by itself, and with the term that trains it."""
MOVED = {("moco-v2", PRINTED[0]): ["saib.side=anchor"]}
"""The loss of MoCo-v2 reaches no block on the query: alone it stands on the anchor, as ours does there."""


@dataclass(frozen=True)
class _Setting:
    """What the step is taken with."""

    backbone: str
    side: int
    batch: int
    rounds: int
    parts: tuple[str, ...] = tuple(PARTS)

    host: str = SYMMETRIC

    @property
    def name(self) -> str:
        host = "" if self.host == SYMMETRIC else f", {self.host}"
        return f"{self.backbone}, {self.side} px, batch {self.batch}{host}"

    def make(self, sets: list[str]) -> Method:
        return make(self.host, [*PLAIN, *sets], backbone=self.backbone, batch=self.batch, side=self.side)


SETTINGS = (
    _Setting("resnet10-w32", 32, 128, rounds=5),
    _Setting("resnet18-small", 32, 256, rounds=3, parts=LARGE),
    _Setting("resnet50", 224, 8, rounds=5, parts=LARGE),
)
QUICK_SETTINGS = (_Setting("resnet10-w32", 32, 8, rounds=2),)
GOALS = {
    f"{setting.name}: {part}": f"at most {most}"
    for setting, norm in ((SETTINGS[1], 1.015), (SETTINGS[2], 1.03))
    for part, most in (
        (f"certified block{OWN}", 1.05),
        (f"spectral norm{OWN}", norm),
        (f"kl and entropy{OWN}", 1.02),
        ("meters", 1.02),
    )
}


def measure(effort: Effort) -> Content:
    """Every part at several sizes, and the main ones on each of the paper's hosts at the first."""
    settings = QUICK_SETTINGS if effort.is_quick else SETTINGS
    content: Content = {
        "setting": "symmetric host of ie-cl unless a row names another",
        "unit": "step time over the host's step time in the same round",
        "results": {},
        "host_seconds": {},
    }
    if effort.is_quick:
        effort.leave_out("all but the smallest setting", "quick")
    first = settings[0]
    for setting in (*settings, *(replace(first, host=host, parts=ON_HOSTS) for host in HOSTS)):
        torch.manual_seed(0)
        times = take_turns(_arms_of(setting), effort.rounds_of(setting.rounds), warm=1 if setting.parts == LARGE else 2)
        interval = TrainingSettings().meter_steps
        alone = {part: times.pop(part) for part in [*times] if part.endswith(OWN)}
        alone["meters"] = [one / interval for one in times.pop("meters")]
        found = ratios(times, "host")
        found |= {part: [1 + share for share in over(own, times["host"])] for part, own in alone.items()}
        content["results"] |= effort.rows({f"{setting.name}: {part}": own for part, own in found.items()}, GOALS)
        content["host_seconds"][setting.name] = summary(times["host"])
        effort.keep(content)
        gc.collect()  # gradients and the optimizer's state of one setting go before the next one's come
    return content


def _arms_of(setting: _Setting) -> dict[str, Arm]:
    """One step of each part, and a reading of the meters after the step that has most to read."""
    methods = {
        part: setting.make([*sets, *MOVED.get((setting.host, part), [])])
        for part, sets in PARTS.items()
        if part in setting.parts
    }
    if setting.host == SYMMETRIC:
        methods[TORCHS] = _normalized_by_torch(setting.make([]))
    steps = {part: stepper(method, batch=setting.batch, side=setting.side) for part, method in methods.items()}
    arms = {part: timed(step) for part, step in steps.items()}
    if setting.parts == LARGE:
        for part in ALONE:
            method = methods[part]
            assert isinstance(method, IECL)
            arms[part + OWN] = timed(work_of(part, method, batch=setting.batch, side=setting.side))
    read = _Read(methods["certified block"], steps["certified block"])
    return arms | {"meters": read.turn}


@dataclass
class _Read:
    """A step whose meters are read."""

    method: Method
    step: Callable[[], Step]
    number: int = field(default=0)

    def turn(self) -> float:
        """Seconds of the reading alone, as a run reads its meters right after a step."""
        made = self.step()
        anchor = made.projections["anchor"]
        other = made.projections.get("query", made.projections.get("key", anchor))
        self.number += 1

        def read() -> None:
            read_embedding(made.features, anchor, other)
            self.method.meters(self.number)

        return seconds(read)


def _normalized_by_torch(method: Method) -> Method:
    """The method with torch's own spectral norm on its encoder, and on the slow copy that follows it by name."""
    kind = type(method.encoder())
    for encoder in [part for part in method.modules() if type(part) is kind]:
        for layer in list(encoder.modules()):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                spectral_norm(layer)
    return method
