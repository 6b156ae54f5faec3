"""A torch that cannot write shares of weights trains all the same, and says what it lacks where they are asked for."""

import ast
import sys
from pathlib import Path

import pytest
import torch

import iecl
from iecl.errors import UserError
from iecl.runs.shards import with_shards
from iecl.training.machine import make_fabric
from iecl.training.settings import TrainingSettings
from iecl.training.sharding import put_shards


def test_what_an_older_torch_lacks_is_imported_where_it_is_used() -> None:
    for path in Path(iecl.__file__).parent.rglob("*.py"):
        at_once = [part for part in ast.parse(path.read_text()).body if isinstance(part, ast.Import | ast.ImportFrom)]
        assert not any("hf_storage" in ast.unparse(part) for part in at_once), path


def test_a_checkpoint_of_whole_tensors_needs_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed.checkpoint.hf_storage", None)
    state = {"method": {"weight": torch.ones(1)}, "optimizer": {"state": {}}, "step": 1}
    assert put_shards(tmp_path, state) is state


def test_shares_are_refused_by_the_version_that_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.8.1+cpu")
    with pytest.raises(UserError, match=r"shares of weights need torch 2\.9, this is 2\.8\.1\+cpu \(--strategy fsdp\)"):
        make_fabric(TrainingSettings(strategy="fsdp", loggers=()), tmp_path)
    with pytest.raises(UserError, match=r"need torch 2\.9, this is 2\.8\.1\+cpu \(.*last\.ckpt\)"):
        with_shards(tmp_path / "last.ckpt", {"shards": {"folder": "shards-1", "files": {}}})
    make_fabric(TrainingSettings(loggers=()), tmp_path)
