"""The process of one cell: it trains, or goes on training, then measures, and writes down each result as it comes.

    python -m iecl.studies.worker < request.json

The first line of its input is the request. When its input ends, whoever started it is gone: it saves and leaves.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

import iecl
from iecl.allocation import keep_freed_memory
from iecl.console import ProgressLine, log_to_terminal, show
from iecl.data.cache import one_process_at_a_time
from iecl.data.defaults import folder_of, resolve_data
from iecl.data.factory import fits_in_memory, list_source
from iecl.data.folder import FolderSource
from iecl.data.pack_writer import pack
from iecl.data.places import is_files
from iecl.data.settings import DataSettings
from iecl.data.skipped_files import Skipping
from iecl.errors import Interrupted, UserError
from iecl.evaluation.card import ON_VOC
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.model import load_model
from iecl.evaluation.runner import measure, prepare
from iecl.files import read_json
from iecl.pretraining import start_resolved
from iecl.repository import ROOT
from iecl.runs.directory import RunDirectory
from iecl.runs.environment import git_commit
from iecl.studies.cell import short_hash
from iecl.studies.folder import StudyFolder
from iecl.training.config import RunConfig, config_from_values

MOST_HITS = 20_000
"""Test images of which a record says which ones were right: five kilobytes."""


def work(request: Mapping[str, Any]) -> None:
    """From a request to a record."""
    folder, name, contents = StudyFolder(request["folder"]), request["name"], request["contents"]
    config = config_from_values(request["values"])
    images = packed(config.data, contents[""], folder.data)
    run = RunDirectory(start_resolved(replace(config, data=images), folder.runs / name, request["init_from"]))
    done = folder.record(name).get("evaluations", {})
    record = request["record"] | _trained(run, config) | {"evaluations": done, "time": time.time()}
    folder.write(name, record)
    missing = [(key, one) for key, one in request["evaluations"].items() if key not in done]
    for (data, part), group in groupby(sorted(missing, key=_place), key=_place):
        asked = [(key, one, prepare(one["name"], one["options"])) for key, one in group]
        used = images.name
        if data:  # opened as `iecl evaluate --data` would
            other = replace(config.data, name=data, exclude="", labels="auto", decode_size=0)
            is_plain = asked[0][1]["name"] not in ON_VOC
            used = packed(resolve_data(other), contents[data], folder.data).name if is_plain else data
        with ProgressLine(quiet=True) as line:
            is_kept = any(evaluation.rereads for *_, evaluation in asked)
            context = EvaluationContext(load_model(run.path), run.path, used, line, keep_decoded=is_kept, part=part)
            for key, one, evaluation in asked:
                record["evaluations"][key] = _measured(
                    measure(one["name"], evaluation, context, seeds=one["seeds"]), one
                )
                folder.write(name, record)
    folder.tidy(name, request["keep"])


def _place(item: tuple[str, Mapping[str, Any]]) -> tuple[str, str]:
    """Evaluations on the same images share features."""
    return item[1]["data"], item[1]["part"]


def packed(settings: DataSettings, content: str, folder: Path) -> DataSettings:
    """The same images from one file, where a run would decode them at each start and keep them."""
    path = folder_of(settings.name)
    if path is None or not is_files(str(path)):
        return settings
    labels = "auto" if settings.labels == "none" else settings.labels  # an evaluation may need what a run ignores
    form = {"data.labels": labels, "data.max_pixels": settings.max_pixels}
    file = folder / f"{short_hash([content, settings.decode_size, form])}.iecl"
    with one_process_at_a_time(folder):
        if not file.exists():
            listed = list_source(replace(settings, validation=False), "pretrain", Skipping())
            if not isinstance(listed, FolderSource) or not fits_in_memory(listed, settings):
                return settings
            sets = [f"{key}={value}" for key, value in form.items()]
            pack(settings.name, file, side=settings.decode_size, sets=sets, exclude=settings.exclude)
    return replace(settings, name=str(file.absolute()), exclude="")


def _trained(run: RunDirectory, config: RunConfig) -> dict[str, Any]:
    """What a record says of a finished run."""
    summary, environment = run.read_summary(), read_json(run.environment)
    here = summary["steps"] - summary["steps_before"]  # of a resumed run, the last process knows its own steps only
    kept = ("steps", "images", "images_per_second", "peak_memory_megabytes", "verdict", "reasons", "last")
    training = {key: summary[key] for key in kept}
    return {
        "training": training | {"seconds": round(summary["seconds"] * summary["steps"] / here, 1) if here else None},
        "code": {"iecl": iecl.__version__, "git": git_commit(ROOT) if (ROOT / ".git").exists() else ""},
        "environment": {
            "processor": environment["processor"],
            "device": environment["device"],
            "torch": environment["packages"]["torch"],
            "precision": config.training.precision,
            "threads": torch.get_num_threads(),
        },
    }


def _measured(found: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of an evaluation."""
    numbers = {name: found[name] for name in found["numbers"]}
    best = found.get("optimum", {})
    numbers |= {f"optimum_{name}": best[name] for name in found["numbers"] if name in best}
    kept = ("protocol_id", "protocol_hash", "n_train", "n_test", "seconds")
    made = {"label": one["label"], "numbers": numbers} | {key: found[key] for key in kept}
    return made | ({"hits": found["hits"]} if "hits" in found and found["n_test"] <= MOST_HITS else {})


def _leave_with_parent() -> None:
    os.read(0, 1)  # not through sys.stdin, whose lock would be held when the interpreter ends
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Do what the first line of the input says; an error is the last line of the output."""
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    keep_freed_memory()  # the process is ours
    try:
        with log_to_terminal(quiet=True):
            work(request)
    except Interrupted as problem:
        show(str(problem))
        return 128 + problem.signal
    except UserError as problem:
        show(str(problem))
        show(problem.what)  # for the record, without advice and the paths in it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
