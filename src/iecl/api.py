"""What notebooks and the command call. Everything heavy is imported inside the functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from iecl.arguments import Arguments, CommonSettings, speaks_python
from iecl.brought import at_hand
from iecl.console import log_to_terminal
from iecl.errors import UserError
from iecl.launch import rank_at_start
from iecl.runs.directory import RunDirectory

if TYPE_CHECKING:
    from torch import nn

    from iecl.reporting.page import ReportPage


@dataclass(frozen=True)
class Run:
    """A run directory as an object: `run.backbone`, `run.summary`, `run.metrics`."""

    path: Path
    things: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Objects that the run was given, by the names that its settings have for them."""

    @property
    def backbone(self) -> nn.Module:
        """The trained backbone, an ordinary torchvision or timm module in evaluation mode, or your own."""
        from iecl.evaluation.model import load_model

        with at_hand(self.things):
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

    def evaluate(self, name: str, data: Any = None, **options: Any) -> dict[str, Any]:
        """Measure the backbone: see `iecl.evaluate`."""
        with at_hand(self.things):
            return evaluate(name, self.path, data, **options)

    def embed(self, data: Any = None, out: str | Path = "", **options: Any) -> dict[str, Any]:
        """One feature vector for each image: see `iecl.embed`."""
        with at_hand(self.things):
            return embed(self.path, data, out, **options)

    def export(self, out: str | Path, **options: Any) -> dict[str, Any]:
        """Write the backbone as safetensors: see `iecl.export`."""
        with at_hand(self.things):
            return export(self.path, out, **options)

    def report(self, out: str | Path | None = None, **options: Any) -> ReportPage:
        """One page about the run: see `iecl.report`."""
        with at_hand(self.things):
            return report(self.path, out, **options)

    def _repr_html_(self) -> str:
        """The same page without new looks at images, for a notebook."""
        from iecl.reporting.making import describe
        from iecl.reporting.page import written

        return written(describe([self.path]))._repr_html_()

    def replay(self, step: int) -> dict[str, Any]:
        """Take one optimizer step again: see `iecl.replay`."""
        with at_hand(self.things):
            return replay(self.path, step)


@speaks_python
def pretrain(
    data: Any = "",
    out: str | Path = "",
    *,
    method: Any = "",
    recipe: str = "",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    sets: Iterable[str] = (),
    init_from: str | Path = "",
    layout: str = "",
    allow: Sequence[str] = (),
    download: bool = False,
    callbacks: Iterable[Any] = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **common: Unpack[CommonSettings],
) -> Run:
    """Train a backbone on images and return its run.

    Args:
        data: a folder of images, a list of paths in a .csv or .txt file, a pattern such as `photos/*/*.jpg`, several of
            these in a list, a packed file, a name from `iecl list datasets`; or an object: paths of images, arrays, a
            dataset with `__len__` and `__getitem__`, or a pair of one of these and its labels.
        out: the run directory; by default runs/<method>-<data>.
        method: a name from `iecl list methods`, `package.module:Class`, or a class; by default the recipe's, or ie-cl.
        recipe: a name from `iecl list recipes`, a TOML file, or a run directory.
        settings: further settings by section, as in `{"optimizer": {"grad_clip": 1.0}}`.
        sets: the same as text, as in `["optimizer.grad_clip=1.0"]`.
        init_from: a run, a file of weights, or `imagenet`, that the backbone starts from; everything else starts new.
        layout: how a file from elsewhere names its tensors, where that is not clear.
        allow: patterns of its tensors that may be missing, misshapen or unexpected.
        download: fetch the weights of `imagenet` that are not on this disk yet.
        callbacks: objects with methods `on_step_end`, `on_epoch_end` or `on_checkpoint`: each is called with an
            `iecl.training.callbacks.Moment`, in the first process of the run.
        resume: go on with the run in `out`; settings and objects given here must equal the run's.
        overwrite: replace a run in `out`.
        quiet: show warnings only.
        **common: `backbone` (a name from `iecl list backbones`, `package.module:factory`, an `nn.Module` whose weights
            the run starts from, or a function that makes one), `epochs`, `batch_size` and others of `CommonSettings`.
    """
    from iecl import pretraining

    quiet, arguments = quiet or rank_at_start() > 0, Arguments()
    given = arguments.settings(data, common, settings, "iecl.pretrain")
    arguments.callbacks(callbacks)
    asked = pretraining.Asked(out, arguments.method(method), recipe, given, tuple(sets), overwrite)
    with log_to_terminal(quiet), at_hand(things := arguments.things):
        if resume and init_from:
            raise UserError("a resumed run has its weights already", where="--init-from", do="leave it out")
        if resume:
            return Run(pretraining.resume(asked, quiet), things)
        if init_from:
            foreign = {"backbone": given.get("backbone", {}).get("name", ""), "layout": layout, "allow": allow}
            return Run(pretraining.start_from(str(init_from), foreign, asked, quiet, download=download), things)
        if layout or allow:
            raise UserError("which file has that layout or exception?", where="--init-from", do="name it")
        if download:
            raise UserError("which weights are to be fetched?", where="--download", do="add --from imagenet")
        return Run(pretraining.start_afresh(asked, quiet), things)


@speaks_python
def plan(
    data: Any = "",
    *,
    method: Any = "",
    recipe: str = "",
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    sets: Iterable[str] = (),
    out: str | Path = "",
    seconds: float = 20.0,
    gpu: str = "",
    images: float = 0,
    quiet: bool = True,
    **common: Unpack[CommonSettings],
) -> dict[str, Any]:
    """Try a few training steps and predict what a run will take: memory by batch size, time, disk.

    With `gpu`, estimate it for GPUs that are not here instead, `devices` of them in all: nothing is tried.

    Args:
        data: this, `method`, `recipe`, `settings`, `sets` and `common`: as for `pretrain`.
        method: a name from `iecl list methods`.
        recipe: a name from `iecl list recipes`, a TOML file, or a run directory.
        settings: further settings by section.
        sets: the same as text.
        out: the directory of the future run, which keeps the forecast and ends by comparing it with what happened.
        seconds: how long to try; starting torch and opening images come on top.
        gpu: a name of `iecl.training.scale.GPUS`, as in "a100".
        images: with `gpu`, in the data that it is for; 0: as many as ImageNet has.
        quiet: show no progress.
        **common: as for `pretrain`.
    """
    from iecl import pretraining
    from iecl.runs.claim import claim
    from iecl.runs.directory import write_json
    from iecl.training.forecast import predict

    arguments = Arguments()
    given, method = arguments.settings(data, common, settings, "iecl.plan"), arguments.method(method)
    if gpu:
        with at_hand(arguments.things):
            return pretraining.estimated(gpu, images, method=method, recipe=recipe, flags=given, sets=tuple(sets))
    if images:
        raise UserError("how many images there are is counted", where="--images", do="leave it out, or name a --gpu")
    asked = pretraining.Asked(out, method, recipe, given, tuple(sets), overwrite=False)
    with (
        at_hand(arguments.things),
        claim(out) if out else nullcontext() as claimed,
    ):  # what it refuses, it refuses before any work is done
        resolved, flags = pretraining.planned(asked)
        made = predict(resolved, seconds, quiet=quiet) | {"flags": flags}
        if claimed is None:
            return made
        write_json(claimed.run.forecast, made)
        claimed.run.remove_folders()  # those of a run
        return made | {"file": str(claimed.run.forecast)}


@speaks_python
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


@speaks_python
def load(path: str | Path) -> Run:
    """The run in a directory."""
    return Run(RunDirectory.existing(path).path)


@speaks_python
def evaluate(name: str, model: str | Path, data: Any = None, **options: Any) -> dict[str, Any]:
    """Measure a run or a file of weights with the protocol `name` (see `iecl evaluate --help`) on labeled images.

    `data` is as for `pretrain`, by default the run's own; `device` is where to compute, as in "cpu" or "cuda:1". All
    options are those of `iecl.evaluation.runner.evaluate`.
    """
    from iecl.evaluation.runner import evaluate as measure

    return _measured(partial(measure, name), model, data, options)


@speaks_python
def evaluate_all(model: str | Path, data: Any = None, **options: Any) -> dict[str, Any]:
    """Measure a run or a file of weights with every protocol that the data allow, and write its evaluation card."""
    from iecl.evaluation.card import evaluate_all as measure

    return _measured(measure, model, data, options)


def _measured(measure: Callable[..., dict[str, Any]], model: Any, data: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Call an evaluation, with names for what was given."""
    arguments = Arguments()
    found = arguments.data(data)
    names = found[0] if len(found) == 1 else found or None
    if "backbone" in options:
        options["backbone"] = arguments.backbone(options["backbone"])
    with at_hand(arguments.things):
        return measure(model, names, **options)


@speaks_python
def embed(
    model: str | Path, data: Any = None, out: str | Path = "", *, checkpoint: str = "final", **options: Any
) -> dict[str, Any]:
    """One feature vector for each image: the arrays `features`, `paths`, `labels`, `splits` and `index`.

    Args:
        model: a run directory or a file of weights.
        data: as for `pretrain`; by default the run's own.
        out: a .npz, .parquet or .csv file that gets them too.
        checkpoint: which weights of a run.
        **options: see `iecl.evaluation.embedding.embed`.
    """
    from iecl.evaluation.embedding import embed as look

    place = Path(out) if out else None
    return _measured(partial(look, out=place, checkpoint=checkpoint), model, data, options)


@speaks_python
def compare(results: Sequence[str | Path], evaluation: str = "") -> dict[str, Any]:
    """Compare results of runs: which may be compared, and which differences are more than noise.

    Args:
        results: run directories, result files, or numbers from elsewhere as LABEL=PERCENT.
        evaluation: only results of this evaluation.

    Returns:
        The rows, the comparisons of each with the first, and the text that the command prints.
    """
    from iecl.comparison.tables import compare as look

    return look([str(item) for item in results], evaluation)


@speaks_python
def pack(data: str | Path, out: str | Path, *, shards: bool = False, **options: Any) -> dict[str, Any]:
    """Decode a folder of images once, into a file to give in the folder's place: see `iecl.data.pack_writer.pack`.

    With `shards=True` the files go as they are into tar shards: see `iecl.data.shard_writer.pack_shards`.
    """
    if shards:
        from iecl.data.shard_writer import pack_shards

        return pack_shards(str(data), Path(out), **options)
    from iecl.data.pack_writer import pack as write

    return write(str(data), Path(out), **options)


@speaks_python
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


@speaks_python
def inspect(model: str | Path, data: str | None = None, **options: Any) -> dict[str, Any]:
    """Follow entropy from images through block and encoder to embeddings: see `iecl.inspection.report.inspect`."""
    from iecl.inspection.report import inspect as look

    return look(model, data, **options)


@speaks_python
def report(runs: str | Path | Sequence[str | Path], out: str | Path | None = None, **options: Any) -> ReportPage:
    """One page about a run or several, as an .html file that needs nothing else; a notebook shows it inline.

    Args:
        runs: run directories.
        out: the file; None: none is written.
        **options: see `iecl.reporting.making.make_report`.
    """
    from iecl.reporting.making import make_report

    named = [runs] if isinstance(runs, str | Path) else list(runs)
    return make_report(named, out, **options)


@speaks_python
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


@speaks_python
def replay(run: str | Path, step: int, *, quiet: bool = True) -> dict[str, Any]:
    """Take one optimizer step of a run again, exactly, and return what every layer did; the run is left as it is."""
    from iecl.training.replay import replay as take

    return take(run, step, quiet=quiet)
