"""What does it cost that a run can be trusted? Checks in each step, a proven checkpoint each epoch, a proof at the end.

    python -m benchmarks.trust_cost

Three runs take their steps in turn: one that looks at each loss and at the stop flag as training does, one that does
not, and that one again, which shows how far equal arms lie apart. Checkpoint and proof are shares of an epoch's steps.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch

from benchmarks.bench.turns import summary
from benchmarks.result import write
from iecl import parallel
from iecl.allocation import keep_freed_memory
from iecl.console import ProgressLine
from iecl.data.batch import Batch
from iecl.data.defaults import resolve_data
from iecl.data.factory import open_source
from iecl.runs.checkpoint import load_checkpoint, write_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.training.config import make_config, with_data
from iecl.training.loop import Loop
from iecl.training.machine import make_fabric
from iecl.training.signals import StopFlag
from iecl.weights.file import fingerprint
from iecl.weights.proof import FeatureProof, proof_features

BATCH, BACKBONE, ROUNDS, SAVES, WARM = 128, "resnet10-w16", 30, 7, 3


def make_loop(folder: Path, source: object = None) -> Loop:
    """A run of the default method on generated images, at its first step."""
    flags = {"data": {"name": "shapes"}, "backbone": {"name": BACKBONE}, "training": {"batch_size": BATCH}}
    config = make_config(
        flags=flags, sets=["training.loggers=[]", "training.log_steps=1000000", "training.online_eval_epochs=0"]
    )
    config = with_data(config, resolve_data(config.data))
    source = source or open_source(config.data, "pretrain")
    keep_freed_memory()  # as the command does
    return Loop(
        make_fabric(config.training, folder), config, RunDirectory.fresh(folder), ProgressLine(quiet=True), source
    )


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def steps_in_turn(loops: dict[str, Loop]) -> dict[str, list[float]]:
    """Seconds of each arm's steps, one of each in turn; the first rounds are left out."""
    batches: dict[str, Iterator[Batch]] = {name: loop.begin_epoch() for name, loop in loops.items()}
    times: dict[str, list[float]] = {name: [] for name in loops}
    with StopFlag() as stop:
        for number in range(WARM + ROUNDS):
            for name, loop in loops.items():
                began = time.perf_counter()
                loop.optimize(batches[name])
                if name == "checked":
                    parallel.largest(stop.signal)
                if number >= WARM:
                    times[name].append(time.perf_counter() - began)
    return times


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        first = make_loop(Path(scratch) / "checked")
        loops = {"checked": first}
        for name in ("bare", "bare again"):
            loops[name] = make_loop(Path(scratch) / name, first.source)
            loops[name].recorder.check = lambda step, losses: None  # type: ignore[method-assign]
        times = steps_in_turn(loops)
        epoch = first.steps_per_epoch * median(times["bare"])
        file, state = first.run.checkpoints / "trial.ckpt", first._state()
        writing, reading, proving = [], [], []
        for _ in range(SAVES):
            writing.append(seconds(lambda: write_checkpoint(file, state)) / epoch)
            reading.append(seconds(lambda: load_checkpoint(file)) / epoch)
            proving.append(seconds(lambda: prove(first)) / epoch)
    ratios = {
        f"step, {name} / bare": [a / b for a, b in zip(times[name], times["bare"], strict=True)]
        for name in ("checked", "bare again")
    }
    shares = {
        "checkpoint written and synced / epoch": writing,
        "checkpoint read back with checksums / epoch": reading,
        "proof of the weights / epoch": proving,
    }
    content = {
        "setting": f"ie-cl, shapes, {BACKBONE}, batch {BATCH}, {first.steps_per_epoch} steps in an epoch",
        "unit": "ratio of times in the same round, or share of the time of an epoch's steps",
        "results": {name: summary(values) for name, values in (ratios | shares).items()},
        "step_seconds": summary(times["bare"]),
    }
    write("trust_cost", "what does it cost that a run can be trusted?", content)


@torch.no_grad()
def prove(loop: Loop) -> None:
    """What a run does once, at its end."""
    encoder = loop.method.encoder().eval()
    FeatureProof.of(proof_features(encoder, loop.config.data.image_size))
    fingerprint(encoder.state_dict())


if __name__ == "__main__":
    main()
