"""What notebooks and the command call. Everything heavy is imported inside the functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from iecl.console import log_to_terminal
from iecl.errors import UserError
from iecl.launch import rank_at_start
from iecl.names import suggestion
from iecl.runs.directory import RunDirectory

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Run:
    """A run directory as an object: `run.backbone`, `run.summary`, `run.metrics`."""

    path: Path

    @property
    def backbone(self) -> nn.Module:
        """The trained backbone, an ordinary torchvision or timm module in evaluation mode."""
        from iecl.evaluation.model import load_model

        return load_model(self.path).backbone

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting of the run."""
        return RunDirectory(self.path).read_settings()

    @property
    def summary(self) -> dict[str, Any]:
        """The verdict and the last readings; empty while the run is unfinished."""
        return RunDirectory(self.path).read_summary()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """All rows that were recorded, in order."""
        return list(RunDirectory(self.path).read_metrics())

    def evaluate(self, name: str, data: str | None = None, **options: Any) -> dict[str, Any]:
        """Measure the backbone: see `iecl.evaluate`."""
        return evaluate(name, self.path, data, **options)

    def embed(self, data: str | Path, out: str | Path, **options: Any) -> dict[str, Any]:
        """Write one feature vector for each image: see `iecl.embed`."""
        return embed(self.path, data, out, **options)

    def export(self, out: str | Path, **options: Any) -> dict[str, Any]:
        """Write the backbone as safetensors: see `iecl.export`."""
        return export(self.path, out, **options)


class CommonSettings(TypedDict, total=False):
    """Settings that nearly every run has: arguments of `pretrain` and `plan`, and flags of the command."""

    backbone: str
    epochs: int | None
    batch_size: int | None
    lr: float | None
    weight_decay: float | None
    image_size: int | None
    num_workers: int | None
    augmentation: str
    precision: str
    seed: int | None
    accelerator: str
    devices: int | None
    nodes: int | None
    strategy: str


PLACES = {
    "data": "data.name",
    "backbone": "backbone.name",
    "lr": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "image_size": "data.image_size",
    "num_workers": "data.num_workers",
    "augmentation": "augmentation.policy",
    **{name: f"training.{name}" for name in ("epochs", "batch_size", "precision", "seed")},
    **{name: f"training.{name}" for name in ("accelerator", "devices", "nodes", "strategy")},
}
"""Which setting each of them is."""


def pretrain(
    data: str | Path = "",
    out: str | Path = "",
    *,
    method: str = "",
    recipe: str = "",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    sets: Iterable[str] = (),
    init_from: str | Path = "",
    layout: str = "",
    allow: Sequence[str] = (),
    download: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **common: Unpack[CommonSettings],
) -> Run:
    """Train a backbone on images and return its run.

    Args:
        data: a folder of images, a packed file, or a name from `iecl list datasets`.
        out: the run directory; by default runs/<method>-<data>.
        method: a name from `iecl list methods`; by default the recipe's, or ie-cl.
        recipe: a name from `iecl list recipes`, a TOML file, or a run directory.
        settings: further settings by section, as in `{"optimizer": {"grad_clip": 1.0}}`.
        sets: the same as text, as in `["optimizer.grad_clip=1.0"]`.
        init_from: a run, a file of weights, or `imagenet`, that the backbone starts from; everything else starts new.
        layout: how a file from elsewhere names its tensors, where that is not clear.
        allow: patterns of its tensors that may be missing, misshapen or unexpected.
        download: fetch the weights of `imagenet` that are not on this disk yet.
        resume: go on with the run in `out`; settings given here must equal the run's.
        overwrite: replace a run in `out`.
        quiet: show warnings only.
        **common: `backbone`, `epochs`, `batch_size`, `lr` and the others of `CommonSettings`.
    """
    from iecl import pretraining

    quiet = quiet or rank_at_start() > 0
    given = _given({"data": str(data), **common}, settings, "iecl.pretrain")
    asked = pretraining.Asked(out, method, recipe, given, tuple(sets), overwrite)
    with log_to_terminal(quiet):
        if resume and init_from:
            raise UserError("a resumed run has its weights already", where="--init-from", do="leave it out")
        if resume:
            return Run(pretraining.resume(asked, quiet))
        if init_from:
            foreign = {"backbone": common.get("backbone", ""), "layout": layout, "allow": allow}
            return Run(pretraining.start_from(str(init_from), foreign, asked, quiet, download=download))
        if layout or allow:
            raise UserError("which file has that layout or exception?", where="--init-from", do="name it")
        if download:
            raise UserError("which weights are to be fetched?", where="--download", do="add --from imagenet")
        return Run(pretraining.start_afresh(asked, quiet))


def _given(
    common: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]] | None, caller: str
) -> dict[str, dict[str, Any]]:
    """What was given of the common settings, and the others, by section."""
    from iecl.settings import merge

    given: dict[str, dict[str, Any]] = {}
    for name, value in common.items():
        if name not in PLACES:
            raise UserError(f"{caller} has no argument {name!r}", do=suggestion(name, PLACES))
        section, _, key = PLACES[name].partition(".")
        if value is not None and value != "":
            given.setdefault(section, {})[key] = value
    return merge(given, settings or {})


def plan(
    data: str | Path = "",
    *,
    method: str = "",
    recipe: str = "",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    sets: Iterable[str] = (),
    out: str | Path = "",
    seconds: float = 20.0,
    quiet: bool = True,
    **common: Unpack[CommonSettings],
) -> dict[str, Any]:
    """Try a few training steps and predict what a run will take: memory by batch size, time, disk.

    Args:
        data: this, `method`, `recipe`, `settings`, `sets` and `common`: as for `pretrain`.
        method: a name from `iecl list methods`.
        recipe: a name from `iecl list recipes`, a TOML file, or a run directory.
        settings: further settings by section.
        sets: the same as text.
        out: the directory of the future run, which keeps the forecast and ends by comparing it with what happened.
        seconds: how long to try; starting torch and opening images come on top.
        quiet: show no progress.
        **common: as for `pretrain`.
    """
    from iecl import pretraining
    from iecl.runs.claim import claim
    from iecl.runs.directory import write_json
    from iecl.training.forecast import predict

    given = _given({"data": str(data), **common}, settings, "iecl.plan")
    asked = pretraining.Asked(out, method, recipe, given, tuple(sets), overwrite=False)
    with claim(out) if out else nullcontext() as claimed:  # what it refuses, it refuses before any work is done
        resolved, flags = pretraining.planned(asked)
        made = predict(resolved, seconds, quiet=quiet) | {"flags": flags}
        if claimed is None:
            return made
        write_json(claimed.run.forecast, made)
        claimed.run.remove_folders()  # those of a run
        return made | {"file": str(claimed.run.forecast)}


def extend(run: str | Path, epochs: int, out: str | Path = "", *, overwrite: bool = False, quiet: bool = False) -> Run:
    """Continue a run for more epochs than it was planned for, with a new schedule that is shown first.

    Args:
        run: the run directory to go on from; it is left as it is.
        epochs: passes over the data in all, those of `run` included.
        out: the new run directory; by default the old one's name with the number of epochs.
        overwrite: replace a run in `out`.
        quiet: show warnings only.
    """
    from iecl import pretraining

    with log_to_terminal(quiet or rank_at_start() > 0):
        return Run(pretraining.extend(RunDirectory.existing(run), epochs, out, overwrite=overwrite, quiet=quiet))


def load(path: str | Path) -> Run:
    """The run in a directory."""
    return Run(RunDirectory.existing(path).path)


def evaluate(name: str, model: str | Path, data: str | None = None, **options: Any) -> dict[str, Any]:
    """Measure a run or a file of weights with the protocol `name` on labeled images: see `iecl.evaluation.runner`."""
    from iecl.evaluation.runner import evaluate as measure

    return measure(name, model, data, **options)


def evaluate_all(model: str | Path, data: str | None = None, **options: Any) -> dict[str, Any]:
    """Measure a run or a file of weights with every protocol that the data allow, and write its evaluation card."""
    from iecl.evaluation.card import evaluate_all as measure

    return measure(model, data, **options)


def embed(
    model: str | Path, data: str | Path, out: str | Path, *, checkpoint: str = "final", **options: Any
) -> dict[str, Any]:
    """Write one feature vector for each image to a .npz or .parquet file: see `iecl.evaluation.embedding.embed`."""
    from iecl.evaluation.embedding import embed as write

    return write(model, str(data), Path(out), checkpoint=checkpoint, **options)


def pack(data: str | Path, out: str | Path, **options: Any) -> dict[str, Any]:
    """Decode a folder of images once, into a file to give in the folder's place: see `iecl.data.pack_writer.pack`."""
    from iecl.data.pack_writer import pack as write

    return write(str(data), Path(out), **options)


def export(
    run: str | Path, out: str | Path, *, format: str = "", overwrite: bool = False, **source: Any
) -> dict[str, Any]:
    """Write a backbone for another program, and prove that it loads: see `iecl.weights.export.write_export`.

    Args:
        run: a run directory, an exported file, or with `backbone` a file from elsewhere.
        out: the file; its ending goes with the format.
        format: safetensors, torchvision, timm, detectron2 or onnx; by default what the file's name suggests.
        overwrite: replace a file that is there.
        **source: `checkpoint`, `backbone`, `layout`, `allow` and `image_size`: see `iecl.evaluation.model.load_model`.
    """
    from iecl.evaluation.model import load_model
    from iecl.weights.export import check_place, write_export

    check_place(Path(out), format, overwrite)
    return write_export(load_model(run, **source), Path(out), format)


def inspect(model: str | Path, data: str | None = None, **options: Any) -> dict[str, Any]:
    """Follow entropy from images through block and encoder to embeddings: see `iecl.inspection.report.inspect`."""
    from iecl.inspection.report import inspect as look

    return look(model, data, **options)


def verify(path: str | Path, *, against: str | Path | None = None, **source: Any) -> dict[str, Any]:
    """Check that a file of weights, or a run's, gives the features it carries, and that somebody trained it.

    Args:
        path: a file that `iecl export` or a run wrote, a run directory, or with `backbone` a file from elsewhere.
        against: a run or exported file whose features it must give instead of its own.
        **source: `backbone`, `layout` and `allow`: see `iecl.evaluation.model.load_model`.
    """
    from iecl.evaluation.model import load_model
    from iecl.weights.verification import verify_model

    model, other = load_model(path, **source), load_model(against) if against else None
    return verify_model(model, str(path), other, str(against))


def replay(run: str | Path, step: int, *, quiet: bool = True) -> dict[str, Any]:
    """Take one optimizer step of a run again, exactly, and return what every layer did; the run is left as it is."""
    from iecl.training.replay import replay as take

    return take(run, step, quiet=quiet)


def study(
    source: str | Path | Mapping[str, Any],
    out: str | Path = "",
    *,
    workers: int = 1,
    threads: int = 1,
    retry: bool = False,
    keep: str = "weights",
    dry: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the cells of a study that are not finished yet, and write what it found; see docs/guides/studies.md.

    Args:
        source: a TOML file with `[study]` and `[arms.NAME]`, or the same as tables.
        out: folder for records, runs and results; by default studies/<name>.
        workers: cells at a time, each in a process of its own.
        threads: of each cell.
        retry: run cells again that failed.
        keep: what stays of a finished run: `none`, `weights` or `all`.
        dry: run nothing and write nothing, and say what is known.
        quiet: show warnings only.

    Returns:
        Means and paired differences (`rows`), every cell with its state (`cells`), the report as Markdown (`text`).
    """
    from iecl.studies.engine import look_at_cells, run_cells, seconds_left
    from iecl.studies.folder import StudyFolder
    from iecl.studies.report import report, write_report
    from iecl.studies.study import read_study

    asked = read_study(source)
    cells, folder = asked.cells(), StudyFolder(out or Path("studies") / asked.settings.name)
    how: dict[str, Any] = {"workers": workers, "threads": threads, "retry": retry, "keep": keep, "quiet": quiet}
    every = list(cells.values())
    found = look_at_cells(every, folder.path) if dry else run_cells(every, folder.path, **how)
    made = report(asked, dict(zip(cells, found, strict=True)))
    if not dry:
        made["files"] = write_report(made, folder.path)
    left = {"to_do": sum(one.state != "done" for one in found), "seconds_left": seconds_left(found, workers)}
    return made | left | {"folder": str(folder.path), "megabytes": round(folder.megabytes(), 1)}


def views(
    run: str | Path, step: int, out: str | Path, *, index: int | None = None, row: int | None = None
) -> dict[str, Any]:
    """Draw the views of one training image again, exactly, and write them beside it as an image.

    Args:
        run: the run directory.
        step: an optimizer step of the run, from 1 on.
        out: a .png file.
        index: which image of the data: its views in the epoch of that step.
        row: which of the step's own images; exactly one of the two is given.
    """
    from iecl.training.drawn_views import look, save_image

    seen = look(run, step, index=index, row=row)
    data = Run(Path(run)).settings["data"]
    save_image(seen, tuple(data["mean"]), tuple(data["std"]), Path(out))
    facts = {name: getattr(seen, name) for name in ("index", "step", "row", "epoch", "position")}
    return {"path": str(out), "image": seen.path, **facts, "draws": list(seen.draws)}


def preview(
    data: str | Path = "",
    out: str | Path = "views.png",
    *,
    images: int = 6,
    method: str = "",
    recipe: str = "",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    sets: Iterable[str] = (),
    **common: Unpack[CommonSettings],
) -> dict[str, Any]:
    """Draw what a run would see, before it is started: images, each augmentation alone, and whole views, as a PNG.

    Args:
        data: this, `method`, `recipe`, `settings`, `sets` and `common`: as for `pretrain`.
        out: a .png file.
        images: how many images to show.
        method: a name from `iecl list methods`.
        recipe: a name from `iecl list recipes`, a TOML file, or a run directory.
        settings: further settings by section.
        sets: the same as text, as in `["augmentation.query.hue=0"]`.
        **common: as for `pretrain`.

    Returns:
        The path, how many images there are, the words of each row, and which augmentations are off.
    """
    from iecl.data.defaults import resolve_data
    from iecl.training.config import make_config, with_data
    from iecl.training.view_sheet import write_sheet

    given = _given({"data": str(data), **common}, settings, "iecl.preview")
    resolved = make_config(method=method, recipe=recipe, flags=given, sets=sets)
    return write_sheet(with_data(resolved, resolve_data(resolved.data)), images, Path(out))
