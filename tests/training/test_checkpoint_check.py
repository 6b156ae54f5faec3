"""A checkpoint that does not fit is refused before anything of it is loaded."""

import json
import shutil
import subprocess
import sys
import zipfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.faults.checkpoints import UNFIT, WRONG
from torch import Tensor, nn

import iecl
from iecl.console import ProgressLine
from iecl.errors import UserError
from iecl.evaluation.model import load_model
from iecl.methods.contract import ParamGroup
from iecl.runs.checkpoint import load_checkpoint, write_checkpoint
from iecl.runs.directory import RunDirectory
from iecl.settings import read_toml
from iecl.training.checkpoint_check import check_checkpoint, unfit_tensors
from iecl.training.config import config_from_values
from iecl.training.loop import Loop
from iecl.training.machine import make_fabric
from iecl.training.optimizers import make_optimizer, recall
from iecl.training.replay import replay
from iecl.training.settings import OptimizerSettings
from made_images import TINY, make_images

ROOT = Path(__file__).parents[2]
RUN = {"method": "simclr", "backbone": "resnet10-w16", "epochs": 2, "batch_size": 10, "quiet": True}
RUN |= {"settings": {"method": {"hidden_dim": 16, "out_dim": 8}}, "sets": TINY}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs of four steps."""
    folder = tmp_path_factory.mktemp("fitting")
    return iecl.pretrain(make_images(folder), folder / "run", **RUN).path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it that is not finished: its last checkpoint stands for the only one, after the first epoch."""
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    folder = tmp_path / "run" / "checkpoints"
    (folder / "previous.ckpt").replace(folder / "last.ckpt")
    return tmp_path / "run"


def loop_of(run: Path) -> Loop:
    config = config_from_values(read_toml(run / "settings.toml"))
    return Loop(make_fabric(config.training, run), config, RunDirectory(run), ProgressLine(quiet=True))


def held(loop: Loop) -> dict[str, Any]:
    return deepcopy({"method": loop.method.state_dict(), "optimizer": loop.optimizer.state_dict(), "step": loop.step})


def is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(value, other[key]) for key, value in one.items())
    return bool(one == other)


@pytest.fixture(scope="module")
def untouched(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Loop:
    """The same run at its start, in another folder; whatever is refused leaves it so."""
    folder = tmp_path_factory.mktemp("untouched") / "run"
    shutil.copytree(finished, folder)
    (folder / "checkpoints" / "last.ckpt").unlink()
    (folder / "checkpoints" / "previous.ckpt").unlink()
    return loop_of(folder)


@pytest.mark.parametrize("fault", UNFIT | WRONG)
def test_a_checkpoint_that_does_not_fit_is_refused_and_nothing_of_it_is_loaded(
    fault: str, finished: Path, untouched: Loop
) -> None:
    state = load_checkpoint(finished / "checkpoints" / "previous.ckpt")
    (UNFIT | WRONG)[fault](state)
    write_checkpoint(untouched.run.checkpoints / "last.ckpt", state)
    before = held(untouched)
    with pytest.raises(UserError, match=r"no checkpoint can be used: .*last.ckpt") as caught:
        untouched.restore()
    assert "\n" not in str(caught.value)
    assert is_equal(held(untouched), before)


def test_both_shapes_are_named(run: Path) -> None:
    last = run / "checkpoints" / "last.ckpt"
    state = load_checkpoint(last)
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(3)
    state["method"]["backbone.conv1.weight"] = torch.zeros(8, 3, 3, 3)
    write_checkpoint(last, state)
    with pytest.raises(UserError) as caught:
        loop_of(run).restore()
    assert "backbone.conv1.weight is float32 [8, 3, 3, 3], not float32 [16, 3, 3, 3]" in caught.value.what
    assert "exp_avg of backbone.conv1.weight is float32 [3], not float32 [16, 3, 3, 3]" in caught.value.what


def test_a_whole_run_falls_back_on_the_older_checkpoint_and_goes_on_exactly(tmp_path: Path) -> None:
    # In a process of its own: moments that are too short end the process that steps with them.
    program = (
        "import json, sys, torch; from pathlib import Path; from benchmarks.faults import checkpoints as c\n"
        "torch.set_num_threads(1)\n"
        "some = ('moments of one number', 'second moments of one number', 'empty moments')\n"
        "found = c._try_states(Path(sys.argv[1]), {name: c.UNFIT[name] for name in some})\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert [(end["end"], end["is_older"], end["exact"]) for end in found.values()] == [("resumed", True, True)] * 3
    assert done.stderr.count("does not fit: exp_avg") == done.stderr.count("going on from an older checkpoint") == 3


def test_moments_in_another_order_of_memory_are_the_same_moments() -> None:
    # Compiled loops go through memory, whatever the order of the dimensions.
    def trained(is_turned: bool) -> Tensor:
        torch.manual_seed(0)
        layer = nn.Linear(4, 3)
        optimizer = make_optimizer([ParamGroup("all", list(layer.parameters()))], OptimizerSettings(name="adamw"), 0.1)
        values = torch.arange(12.0).reshape(3, 4)
        moments = values.T.contiguous().T if is_turned else values
        kept = {"step": torch.tensor(1.0), "exp_avg": moments, "exp_avg_sq": moments}
        recall(optimizer, {"state": {0: kept}})
        layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        return layer.weight.detach()

    assert torch.equal(trained(is_turned=True), trained(is_turned=False))


@pytest.mark.parametrize("name", ["adamw", "sgd", "lars"])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_what_every_optimizer_remembers_fits_itself(name: str, clip: float) -> None:
    torch.manual_seed(0)
    layer, steps = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1)), 2
    layer[1].requires_grad_(False)

    def fresh() -> torch.optim.Optimizer:
        return make_optimizer(
            [ParamGroup("all", list(layer[0].parameters()))], OptimizerSettings(name=name, grad_clip=clip), 0.1
        )

    trained = fresh()
    for _ in range(steps):
        layer(torch.ones(2, 4)).sum().backward()
        trained.step()
    state = {"format": 1, "step": steps, "steps": 9, "best": 0.5, "method": layer.state_dict(), "precision": {}}
    state["optimizer"] = deepcopy(trained.state_dict())
    check_checkpoint(state, layer, fresh(), steps=9, precision={})
    (first, *_) = state["optimizer"]["state"].values()
    first[min(first)] = torch.zeros(7)
    with pytest.raises(UserError, match=r"0.weight is float32 \[7\], not float32 \[3, 4\]"):
        check_checkpoint(state, layer, fresh(), steps=9, precision={})


@pytest.mark.parametrize("name", ["adamw", "sgd", "lars"])
def test_what_is_remembered_of_a_group_without_momentum_fits_too(name: str) -> None:
    layers = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))

    def fresh(momentum: float = 0.0) -> torch.optim.Optimizer:
        groups = [ParamGroup("all", list(layers[0].parameters()))]
        groups += [ParamGroup("head", list(layers[1].parameters()), momentum=momentum)]
        return make_optimizer(groups, OptimizerSettings(name=name), 0.1)

    trained = fresh()
    layers(torch.ones(2, 4)).sum().backward()
    trained.step()
    state = {"format": 1, "step": 1, "steps": 9, "best": 0.5, "method": layers.state_dict(), "precision": {}}
    state["optimizer"] = deepcopy(trained.state_dict())
    check_checkpoint(state, layers, fresh(), steps=9, precision={})
    recall(fresh(), state["optimizer"])
    with pytest.raises(UserError, match=r"group head: (momentum is 0.0, not 0.5|betas is)"):
        check_checkpoint(state, layers, fresh(0.5), steps=9, precision={})


@pytest.mark.parametrize(
    ("name", "then", "now", "words"),
    [
        ("host.summary.places", None, (5, 8), "the position code of All4One ran along the sequence then"),
        ("maker.inward.0.0.weight", (4, 3, 9, 9), (4, 4, 9, 9), "the view maker had no noise at its input then"),
        ("saib.blocks.0.stages.3.0.bias", None, (8,), "a norm and an activation ended the block of four convolutions"),
    ],
)
def test_a_network_of_an_earlier_version_is_told_in_words(
    name: str, then: tuple[int, ...] | None, now: tuple[int, ...], words: str
) -> None:
    saved = {} if then is None else {name: torch.zeros(then)}
    first, *_ = unfit_tensors(saved, {name: torch.zeros(now)})
    assert first.startswith(f"it is of an earlier version: {words}")
    assert not list(unfit_tensors({name: torch.zeros(now)}, {name: torch.zeros(now)}))


def test_the_scale_of_16_bit_gradients_is_looked_at() -> None:
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    own = torch.amp.GradScaler("cpu").state_dict()
    state = {"format": 1, "step": 0, "steps": 1, "best": float("-inf"), "method": layer.state_dict()}
    state |= {"optimizer": optimizer.state_dict(), "precision": dict(own)}
    check_checkpoint(state, layer, optimizer, steps=1, precision=own)
    for value in (0.0, float("nan"), -1.0, True, "1", 10**400, torch.ones(2)):
        with pytest.raises(UserError, match="scale of the precision is"):
            check_checkpoint(state | {"precision": own | {"scale": value}}, layer, optimizer, steps=1, precision=own)


def test_a_replay_and_a_longer_run_refuse_what_does_not_fit(run: Path) -> None:
    last = run / "checkpoints" / "last.ckpt"
    (run / "checkpoints" / "best.ckpt").unlink()
    state = load_checkpoint(last)
    UNFIT["moments of one number"](state)
    write_checkpoint(last, state)
    with pytest.raises(UserError, match="does not fit: exp_avg"):
        replay(run, 6)
    with pytest.raises(UserError, match="does not fit: exp_avg"):
        iecl.extend(run, 4, quiet=True)
    assert not run.with_name("run-4-epochs").exists()
    write_checkpoint(last, state | {"steps": 0})
    with pytest.raises(UserError, match="does not fit: steps is 0"):
        iecl.extend(run, 4, quiet=True)


def test_a_longer_run_goes_on_from_the_older_checkpoint_where_the_last_is_damaged(finished: Path, run: Path) -> None:
    folder = run / "checkpoints"
    (folder / "last.ckpt").replace(folder / "previous.ckpt")
    raw = (finished / "checkpoints" / "last.ckpt").read_bytes()
    (folder / "last.ckpt").write_bytes(raw[: len(raw) // 2])
    made = iecl.extend(run, 3, quiet=True)
    assert made.summary["steps"] == 12
    assert made.summary["steps_before"] == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds no checkpoint but a list"),
        (torch.zeros(2), r"holds no checkpoint but float32 \[2\]"),
        ({"format": 99, "step": 0}, "was written by a later version: its format is 99, not 1"),
        ({"step": 0, "format": 1, "method": [1]}, "the checkpoint holds no weights but a list"),
        ({"step": 0, "format": 1, "method": {"backbone.conv1.weight": "x"}}, "conv1.weight as 'x', which is no plain"),
    ],
)
def test_weights_are_not_taken_from_what_is_no_checkpoint(content: Any, message: str, run: Path) -> None:
    write_checkpoint(run / "checkpoints" / "best.ckpt", content)
    with pytest.raises(UserError, match=message):
        load_model(run, "best")


def nested(depth: int) -> bytes:
    """A pickle of lists in lists."""
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


@pytest.mark.parametrize("kind", ["compressed", "overlapping", "nested", "cut", "empty", "encrypted"])
def test_a_hostile_archive_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    torch.save({"step": 1}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {part.filename: archive.read(part) for part in archive.infolist()}
    if kind == "nested":
        parts = {name: nested(200_000) if name.endswith("data.pkl") else raw for name, raw in parts.items()}
    if kind in ("compressed", "overlapping"):
        parts["archive/data/0"] = bytes(2**20)
    how = zipfile.ZIP_DEFLATED if kind == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, raw in parts.items():
            archive.writestr(name, raw)
        if kind == "overlapping":  # many names for the same bytes
            archive.filelist += [archive.filelist[-1]] * 1000
    raw = path.read_bytes()
    if kind == "encrypted":
        path.write_bytes(raw.replace(b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00"))
    if kind in ("cut", "empty"):
        path.write_bytes(raw[: len(raw) // 2] if kind == "cut" else b"")
    with pytest.raises(UserError) as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return (tmp_path.joinpath("ran").touch, ())

    torch.save({"step": Code()}, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match="is damaged: UnpicklingError"):
        load_checkpoint(tmp_path / "last.ckpt")
    assert not (tmp_path / "ran").exists()
