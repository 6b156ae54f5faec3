"""Checkpoints that are damaged or do not fit: does a run go on from an older one, or refuse in one line?

    python -m benchmarks.faults.checkpoints FOLDER      # one JSON line for each fault

A small run is stopped on its way, with an older checkpoint beside the last one. Each fault is put into the last one of
a copy of that run, and the copy is resumed in a process of its own: a fault may end it.
"""

import json
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import iecl
from iecl import counter
from iecl.errors import Interrupted, UserError
from iecl.runs.checkpoint import load_checkpoint, write_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.training import run as _run  # noqa: F401  # imported once, before the processes part

OLDER, LAST, STEPS = 4, 6, 8
"""Steps of the two checkpoints, and of the whole run."""
SETS = [
    "data.image_size=16",
    "data.num_workers=0",
    "training.loggers=[]",
    "training.log_steps=1",
    "training.online_eval_epochs=0",
]
SETS += ["training.precision=32-true", "method.hidden_dim=16", "method.out_dim=8"]
Tally = tuple[int, int, int]
"""Tried, survived, lost."""
State = dict[str, Any]


def _moments(key: str, change: Callable[[torch.Tensor], Any]) -> Callable[[State], None]:
    """Change one thing that the optimizer remembers, of every weight."""

    def fault(state: State) -> None:
        for values in state["optimizer"]["state"].values():
            values[key] = change(values[key])

    return fault


def _set(*path: Any) -> Callable[[State], None]:
    """Put the last of the arguments where the others lead."""

    def fault(state: State) -> None:
        *way, key, value = path
        for step in way:
            state = state[step]
        state[key] = value

    return fault


def _without(*path: Any) -> Callable[[State], None]:
    def fault(state: State) -> None:
        *way, key = path
        for step in way:
            state = state[step]
        del state[key]

    return fault


def _weights(change: Callable[[torch.Tensor], Any]) -> Callable[[State], None]:
    def fault(state: State) -> None:
        state["method"] = {name: change(value) for name, value in state["method"].items()}

    return fault


UNFIT: dict[str, Callable[[State], None]] = {
    "moments of one number": _moments("exp_avg", lambda x: x.flatten()[:1].clone()),
    "second moments of one number": _moments("exp_avg_sq", lambda x: x.flatten()[:1].clone()),
    "moments of twice the size": _moments("exp_avg", lambda x: torch.cat([x, x])),
    "empty moments": _moments("exp_avg_sq", lambda x: x.flatten()[:0].clone()),
    "flat moments": _moments("exp_avg", lambda x: x.flatten().repeat(2)[: x.numel() + 1]),
    "moments of integers": _moments("exp_avg", lambda x: x.long()),
    "moments in half": _moments("exp_avg", lambda x: x.half()),
    "sparse moments": _moments("exp_avg", lambda x: x.to_sparse()),
    "moments without values": _moments("exp_avg", lambda x: x.to("meta")),
    "moments that are NaN": _moments("exp_avg", lambda x: x * torch.nan),
    "moments that are text": _moments("exp_avg", lambda x: "x"),
    "no second moments": lambda state: [v.pop("exp_avg_sq") for v in state["optimizer"]["state"].values()] and None,
    "counters of many numbers": _moments("step", lambda x: x.repeat(3)),
    "counters below zero": _moments("step", lambda x: x - 100),
    "counters that are NaN": _moments("step", lambda x: x * torch.nan),
    "a weight that is not there": _set("optimizer", "state", 10**6, {}),
    "no groups": _set("optimizer", "param_groups", []),
    "a group without weights": _set("optimizer", "param_groups", 0, "params", []),
    "groups in another order": lambda state: state["optimizer"]["param_groups"].reverse(),
    "another weight decay": _set("optimizer", "param_groups", 0, "weight_decay", float("nan")),
    "an optimizer that is a list": _set("optimizer", []),
    "a precision from elsewhere": _set("precision", {"scale": float("nan")}),
    "weights of another shape": _weights(lambda x: x[:1] if x.ndim else x),
    "weights of another type": _weights(lambda x: x.double()),
    "weights that are NaN": _weights(lambda x: x * torch.nan if x.is_floating_point() else x),
    "weights that are numbers": _weights(lambda x: 1.0),
    "no weights": _set("method", {}),
    "weights that are a list": _set("method", []),
}
"""Faults in what is remembered of the weights, and in the weights."""

WRONG: dict[str, Callable[[State], None]] = {
    "a later format": _set("format", 99),
    "an earlier format": _set("format", 0),
    "a format that is text": _set("format", "1"),
    "a format that is true": _set("format", True),
    "a step below zero": _set("step", -1),
    "a step that is NaN": _set("step", float("nan")),
    "a step that is true": _set("step", True),
    "a step that is a fraction": _set("step", 6.0),
    "a step that is text": _set("step", "6"),
    "a step after the end": _set("step", STEPS + 1),
    "a step of many digits": _set("step", 10**5000),
    "no step": _without("step"),
    "steps of another run": _set("steps", STEPS + 4),
    "no steps": _without("steps"),
    "a best that is text": _set("best", "0.5"),
    "a best that is NaN": _set("best", float("nan")),
    "a part too many": _set("other", 1),
}
"""Faults in the numbers and the parts of a checkpoint."""


def unfit_states(folder: Path) -> Tally:
    """Whole files whose weights or moments do not fit the run."""
    return _tally(_try_states(folder, UNFIT).values())


def wrong_numbers(folder: Path) -> Tally:
    """Whole files with a format, step or part that makes no sense."""
    return _tally(_try_states(folder, WRONG).values())


def flipped_bits(folder: Path, count: int = 20) -> Tally:
    """Files with one bit turned over, anywhere; one that no part of the file depends on may go unnoticed."""
    raw = _last(make_run(folder)).read_bytes()
    places = counter.uniform(counter.key(0, "flip"), torch.arange(count), 2).tolist()
    changed = []
    for place, bit in places:
        content = bytearray(raw)
        content[int(place * len(raw))] ^= 1 << int(8 * bit)
        changed.append(bytes(content))
    return _tally(_try_files(folder, changed))


def cut_files(folder: Path, count: int = 20) -> Tally:
    """Files of which only the first part is left."""
    raw = _last(make_run(folder)).read_bytes()
    return _tally(_try_files(folder, [raw[: len(raw) * number // count] for number in range(count)]))


def _try_states(folder: Path, faults: Mapping[str, Callable[[State], None]]) -> dict[str, dict[str, Any]]:
    """How each fault ended, by its name."""
    run, found = make_run(folder), {}
    for name, fault in faults.items():
        state = load_checkpoint(_last(run))
        fault(state)
        found[name] = _resume_copy(run, lambda path, state=state: write_checkpoint(path, state))
    return found


def _try_files(folder: Path, contents: Iterable[bytes]) -> list[dict[str, Any]]:
    run = make_run(folder)
    ends = [_resume_copy(run, lambda path, raw=raw: path.write_bytes(raw)) for raw in contents]
    # A bit in the padding of a file changes nothing: such a run goes on from the last checkpoint as if none was turned.
    return [end | {"survived": end["survived"] or (end["end"] == "resumed" and end["exact"])} for end in ends]


def _tally(ends: Iterable[Mapping[str, Any]]) -> Tally:
    survived = [bool(end["survived"]) for end in ends]
    return len(survived), sum(survived), len(survived) - sum(survived)


def _last(run: Path) -> Path:
    return run / "checkpoints" / "last.ckpt"


def make_run(folder: Path) -> Path:
    """A run that was stopped after step 6 of 8, with an older checkpoint of step 4; and a whole one beside it."""
    run, whole, images = folder / "run", folder / "whole", folder / "images"
    if not run.exists():
        noise = np.random.default_rng(0)
        for number in range(32):
            (images / str(number % 2)).mkdir(parents=True, exist_ok=True)
            pixels = noise.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(images / str(number % 2) / f"{number:02d}.png")
        words = {"method": "simclr", "backbone": "resnet10-w16", "epochs": 2, "batch_size": 8, "sets": SETS}
        for out, last in ((whole, STEPS), (run, LAST)):
            end = _in_a_process(lambda out=out, last=last: _train_until(images, out, last, words), folder)
            assert end["end"] == ("resumed" if last == STEPS else "stopped"), end
        assert load_checkpoint(_last(run))["step"] == LAST
    return run


def _train_until(images: Path, out: Path, last: int, words: Mapping[str, Any]) -> None:
    append = RunDirectory.append_metrics

    def stopping(self: RunDirectory, row: dict[str, Any]) -> None:
        append(self, row)
        if row["step"] == last < STEPS:
            signal.raise_signal(signal.SIGTERM)

    RunDirectory.append_metrics = stopping  # type: ignore[method-assign]  # in a process that ends here
    iecl.pretrain(images, out, quiet=True, **words)


def _resume_copy(run: Path, put: Callable[[Path], object]) -> dict[str, Any]:
    """Put a fault into the last checkpoint of a copy of a run, and resume it."""
    copy = run.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    put(_last(copy))
    found = _in_a_process(lambda: iecl.pretrain(out=copy, resume=True, quiet=True), run.parent)
    found["exact"] = _losses(copy) == _losses(run.with_name("whole"))
    found["is_older"] = f"from step {OLDER}" in RunDirectory(copy).log.read_text(encoding="utf-8")
    is_refused = found["end"] == "refused" and "\n" not in found["words"]
    return found | {"survived": is_refused or (found["end"] == "resumed" and found["is_older"] and found["exact"])}


def _losses(run: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["loss"]) for row in RunDirectory(run).read_metrics() if "loss" in row]


def _in_a_process(call: Callable[[], object], scratch: Path) -> dict[str, Any]:
    """How a call ended that may end its process: resumed, stopped, refused, traceback or the name of a signal."""
    note = scratch / "end.json"
    note.unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's idle threads do not matter to a fork
        child = os.fork()
    if child == 0:
        end, words = "resumed", ""
        try:
            call()
        except Interrupted:
            end = "stopped"
        except UserError as problem:
            end, words = "refused", str(problem)
        except BaseException:
            end, words = "traceback", traceback.format_exc()
        note.write_text(json.dumps({"end": end, "words": words}))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"end": signal.Signals(os.WTERMSIG(status)).name, "words": ""}
    found: dict[str, Any] = json.loads(note.read_text())
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, end in _try_states(folder, UNFIT | WRONG).items():
        print(json.dumps({"fault": name} | end))
    for name, tally in (("flipped bits", flipped_bits(folder)), ("cut files", cut_files(folder))):
        print(json.dumps({"fault": name, "tally": tally}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
