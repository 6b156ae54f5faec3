"""Optional packages: a feature whose package is missing says in one line how to install it."""

import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import iecl
from iecl.backbones.factory import make_backbone
from iecl.data.factory import open_source
from iecl.data.settings import DataSettings
from iecl.errors import UserError
from iecl.evaluation.voc.average_precision import coco_metric
from iecl.training.machine import make_logger
from made_runs import MadeRun

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
Use = Callable[[Path], object]
"""Uses the feature, in an empty folder."""


def export_onnx(folder: Path) -> None:
    run = MadeRun(folder / "run", backbone="resnet10-w16")
    run.save_checkpoint(step=1)
    iecl.export(run.directory.path, folder / "out.onnx")


def saved_dataset(folder: Path) -> Path:
    """What a Hugging Face dataset leaves behind that was saved there."""
    for name in ("state", "dataset_info"):
        (folder / f"{name}.json").write_text("{}")
    return folder


CASES: list[tuple[str, str, Use]] = [
    ("timm", "timm", lambda _: make_backbone("timm/resnet18")),
    ("parquet", "pyarrow", lambda folder: iecl.embed(folder / "no run", "shapes", folder / "out.parquet")),
    ("datasets", "datasets", lambda folder: open_source(DataSettings(name=str(saved_dataset(folder))))),
    ("http", "aiohttp", lambda _: open_source(DataSettings(name="http://127.0.0.1:9/a.tar"))),
    ("s3", "s3fs", lambda _: open_source(DataSettings(name="s3://bucket/a.tar"))),
    ("onnx", "onnx", export_onnx),
    ("onnx", "onnxscript", export_onnx),
    ("onnx", "onnxruntime", export_onnx),
    ("detection", "pycocotools", lambda _: coco_metric()),
    ("detection", "torchmetrics", lambda _: coco_metric()),
    ("plots", "matplotlib", lambda folder: iecl.inspect(folder / "no run")),
    ("map", "umap", lambda folder: iecl.report(folder / "no run", maps=("umap",))),
    ("wandb", "pytorch_lightning", lambda folder: make_logger("wandb", folder)),
    ("wandb", "wandb", lambda folder: make_logger("wandb", folder)),
    ("mlflow", "pytorch_lightning", lambda folder: make_logger("mlflow", folder)),
    ("mlflow", "mlflow", lambda folder: make_logger("mlflow", folder)),
]


@pytest.mark.parametrize(("extra", "module", "use"), CASES, ids=[f"{extra}-{module}" for extra, module, _ in CASES])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    extra: str, module: str, use: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    words = rf"needs {module}, which is not installed \(.+\); pip install 'iecl\[{extra}\]'$"
    with pytest.raises(UserError, match=words) as caught:
        use(tmp_path)
    assert "\n" not in str(caught.value)


def test_every_extra_for_users_has_a_case() -> None:
    assert {extra for extra, _, _ in CASES} == set(PROJECT["optional-dependencies"]) - {"dev", "peers"}


def test_dev_has_every_extra_that_tests_use() -> None:
    (own,) = [line for line in PROJECT["optional-dependencies"]["dev"] if line.startswith("iecl[")]
    named = set(re.findall(r"[a-z]+", own.partition("[")[2]))
    others = {"dev", "wandb", "mlflow", "s3", "datasets"}  # three talk to servers, the last has a stand-in in the tests
    assert named == set(PROJECT["optional-dependencies"]) - others
