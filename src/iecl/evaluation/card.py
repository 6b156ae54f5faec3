"""All evaluations of one backbone on one page: the card, as Markdown for people and as JSON for programs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from iecl.comparison.protocols import deciding
from iecl.console import ProgressLine, one_line, plain_table
from iecl.data.listing import one_walk
from iecl.errors import UserError, did_you_mean
from iecl.evaluation import EVALUATIONS
from iecl.evaluation.compute import FULL, compute_called
from iecl.evaluation.context import EvaluationContext
from iecl.evaluation.model import load_model
from iecl.evaluation.paper_results import printed
from iecl.evaluation.runner import measure, prepare
from iecl.files import write_atomically
from iecl.runs.directory import RunDirectory, write_json

ON_VOC = ("detection", "segmentation")
"""Evaluations that read boxes and masks, not classes."""
OTHER = " *"
"""Marks a row of another protocol."""
Options = Mapping[str, Mapping[str, Any]]


@one_walk()
def evaluate_all(
    target: Path | str,
    data: str | tuple[str, ...] | None = None,
    *,
    voc: str | None = None,
    only: Iterable[str] = (),
    exclude: str = "",
    checkpoint: str = "final",
    seeds: int = 3,
    out: Path | str | None = None,
    device: str = "",
    precision: str = "",
    devices: int = 1,
    quiet: bool = True,
    options: Options | None = None,
    **external: Any,
) -> dict[str, Any]:
    """Measure a backbone with every protocol that the data allow, and write the card.

    Each result is written as soon as it is there; a long evaluation that was interrupted goes on from its last epoch.

    Args:
        target: as for `evaluate`.
        data: classes to tell apart; by default the run's own data.
        voc: a VOCdevkit folder; without it detection and segmentation are left out.
        only: names of evaluations; by default all.
        exclude: a list of images to leave out, as `iecl doctor` writes it.
        checkpoint: which weights of a run.
        seeds: repetitions of each evaluation that has a seed.
        out: folder for the card; by default the run's `evaluations/`.
        device: where to compute; empty: a GPU if there is one.
        precision: as for `evaluate`; evaluations that train the backbone do so in 32 bits all the same.
        devices: as for `evaluate`.
        quiet: show no progress.
        options: settings by evaluation, as in `{"linear": {"epochs": 100}}`.
        **external: as for `evaluate`: backbone, image_size, layout, allow, method.
    """
    chosen = {name: prepare(name, (options or {}).get(name, {})) for name in _names(only, voc)}
    model = load_model(target, checkpoint, **external)
    folder = _folder(target, out)
    results = []
    with ProgressLine(quiet) as line:
        rereads = any(evaluation.rereads for evaluation in chosen.values())
        where = compute_called(device, precision, devices)
        classes = EvaluationContext(model, target, data, line, keep_decoded=rereads, exclude=exclude, **where)
        pixels = EvaluationContext(model, target, voc, line, device=where["device"])
        for name, evaluation in chosen.items():
            context = pixels if name in ON_VOC else classes
            if not evaluation.is_frozen and context.precision != FULL:
                context = replace(context, precision=FULL)
            times = seeds if hasattr(evaluation.settings, "seed") and not evaluation.repeats_itself else 1
            file = None if Path(target).is_dir() else folder / f"{name}.json"
            results.append(measure(name, evaluation, context, seeds=times, checkpoint=checkpoint, out=file))
    card = {"model": str(target), "backbone": model.name, "weights": model.proof, "results": results}
    write_json(folder / "card.json", card)
    write_atomically(folder / "card.md", markdown(card))
    return card | {"file": str(folder / "card.md")}


def _names(only: Iterable[str], voc: str | None) -> list[str]:
    """The evaluations to run, in the order of the table."""
    wanted = list(only)
    for name in wanted:
        if name not in EVALUATIONS:
            raise UserError(f"no evaluation is called {name!r}", where="--only", do=did_you_mean(name, EVALUATIONS))
    lacking = [name for name in wanted if name in ON_VOC and voc is None]
    if lacking:
        raise UserError(f"{lacking[0]} needs boxes and masks", where="--voc", do="name a VOCdevkit folder")
    return [name for name in EVALUATIONS if (not wanted or name in wanted) and (voc is not None or name not in ON_VOC)]


def _folder(target: Path | str, out: Path | str | None) -> Path:
    if out is None and not Path(target).is_dir():
        raise UserError(f"where is the card of {target} to go?", where="--out", do="name a folder")
    folder = RunDirectory(target).evaluations if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def markdown(card: Mapping[str, Any]) -> str:
    """The card for people: a table of numbers, then what each was measured with."""
    parts = [f"# Evaluation of {card['model']}", f"{card['backbone']}; weights: {card['weights']}", ""]
    parts += [*numbers(card["results"]).split("\n"), ""]
    for result in card["results"]:
        parts += [f"## {result['evaluation']}", "", _spoken(result), ""]
        parts += [f"- {name.replace('_', ' ')}: {_words(value)}" for name, value in result["protocol"].items()]
        parts.append("")
    return "\n".join(map(one_line, parts))


def _spoken(result: Mapping[str, Any]) -> str:
    return f"`{result['protocol_id']}` on {result['data']}; protocol {result['protocol_hash']}"


def numbers(results: Iterable[Mapping[str, Any]]) -> str:
    """Every number of one model, with its standard deviation, its repetitions and how many images it rests on."""
    rows = [
        [result["evaluation"], name.replace("_", " "), _share(result, name), *_base(result, name)]
        for result in results
        for name in result["numbers"]
    ]
    return plain_table(["evaluation", "number", "value", "seeds", "n", "paper"], rows)


def compared(results: Iterable[Mapping[str, Any]]) -> str:
    """The first number of each evaluation for several models, next to what the paper prints for their methods.

    A row that was measured by another protocol than the first of its evaluation is marked.
    """
    rows, first, notes = [], dict[str, Mapping[str, Any]](), []
    for result in results:
        name, kind = result["numbers"][0], result["evaluation"]
        usual = first.setdefault(kind, result)
        mark = "" if result["protocol_hash"] == usual["protocol_hash"] else OTHER
        if mark:
            notes.append(f"{OTHER} {result['model']}: {_unlike(usual['protocol'], result['protocol'])}")
        spoken = [str(result["protocol"].get("image_size", "")), result["protocol_hash"] + mark]
        number = f"{kind} {name.replace('_', ' ')}"
        seeds, n, paper = _base(result, name)
        rows.append([result["model"], result["method"], number, _share(result, name), seeds, n, *spoken, paper])
    head = ["model", "method", "number", "measured", "seeds", "n", "px", "protocol", "paper"]
    return "\n".join([plain_table(head, rows), *map(one_line, notes)])


def _unlike(usual: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """In which parts two protocols differ, as in `another protocol: image size 32 against 64`."""
    here, there = deciding(usual), deciding(other)
    parts = [key for key in dict.fromkeys([*here, *there]) if here.get(key) != there.get(key)]
    words = (f"{key.replace('_', ' ')} {_words(there.get(key))} against {_words(here.get(key))}" for key in parts)
    return f"not comparable with the first row: {'; '.join(words)}"


def _share(result: Mapping[str, Any], name: str) -> str:
    deviations: Mapping[str, float] = result.get("deviation", {})
    spread = f" ± {100 * deviations[name]:.2f}" if name in deviations else ""
    return f"{100 * result[name]:.2f}{spread} %"


def _base(result: Mapping[str, Any], name: str) -> list[str]:
    """Repetitions, test images, and the paper's number where this is the one that it prints."""
    paper = printed(result["evaluation"], result["method"]) if name == result["numbers"][0] else None
    beside = "" if paper is None else f"{100 * paper:.2f} %"
    return [str(result["protocol"]["repetitions"]), f"{result['n_test']:,}", beside]


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
