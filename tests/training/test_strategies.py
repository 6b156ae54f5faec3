"""Weights that are shared out over processes train, are saved and go on like those that every process has whole."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from two_processes import rewind

import iecl
from iecl.backbones.factory import make_backbone
from iecl.errors import UserError
from iecl.evaluation.model import load_model
from iecl.methods.moco_v2 import MoCoV2, MoCoV2Settings
from iecl.runs.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint, write_checkpoint
from iecl.runs.shards import LEAST_TORCH
from iecl.training.config import make_config
from iecl.training.loop import Trainee
from iecl.training.sharding import placed_like, put_shards, put_together, share_out, whole
from iecl.weights.file import load_weights
from made_images import TINY, make_images

pytestmark = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < LEAST_TORCH, reason="this torch writes no shares of weights"
)
HEADS = {"hidden_dim": 16, "out_dim": 8}
SLOW = {"name": "sgd", "lr": 5e-4}
"""Where sums are taken in another order: a larger rate makes a rounding in the first step visible in the tenth, as in a
run of copies whose rate is a ten-millionth larger."""
CASES: dict[str, dict[str, Any]] = {
    "moco-v2": {"settings": {"method": {**HEADS, "queue_size": 32}, "optimizer": {"name": "sgd", "lr": 0.05}}},
    "swav": {"settings": {"method": HEADS, "optimizer": {"name": "lars"}, "training": {"grad_accumulation": 2}}},
    "byol": {
        "settings": {
            "method": {**HEADS, "predictor_hidden_dim": 16},
            "training": {"gradient_checkpointing": True},
            "optimizer": {**SLOW, "grad_clip": 0.1},
        }
    },
    "ie-cl": {
        "settings": {
            "method": HEADS,
            "saib": {"form": "certified", "weights": "learned"},
            "objective": {"encoder": "spectral-norm"},
            "optimizer": SLOW,
        }
    },
    "deepcluster": {"settings": {"method": {"num_clusters": 6}, "optimizer": {"name": "sgd", "lr": 0.05}}},
}
TOLERANCE = 1e-4
"""Shares are added up in another order: how far weights may end apart, as a share of their size."""


def apart(one: Path, other: Path) -> float:
    """The largest difference between weights and between moments of two runs, as a share of their typical size."""
    first, second = (latest_checkpoint(run / "checkpoints") for run in (one, other))
    assert first is not None
    assert second is not None
    assert first["step"] == second["step"] == first["steps"]
    assert list(first["method"]) == list(second["method"])
    pairs = [(value, second["method"][name]) for name, value in first["method"].items()]
    for number, kept in first["optimizer"]["state"].items():
        pairs += [(value, second["optimizer"]["state"][number][key]) for key, value in kept.items()]
    return max(difference(*pair) for pair in pairs)


def difference(first: Tensor, second: Tensor) -> float:
    # A bias before a norm has no gradient: what is remembered of it is rounding, about 1e-9.
    scale = first.double().square().mean().sqrt().clamp_min(1e-4)
    return float((first.double() - second.double()).abs().max() / scale)


# In one process: what is shared out is there as a whole, but it is stored and moved as shares are.


@pytest.fixture
def trainee(tmp_path: Path) -> Iterator[nn.Module]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    torch.manual_seed(0)
    method = MoCoV2(make_backbone("resnet10-w16", 0), MoCoV2Settings(**HEADS, queue_size=16))
    made = Trainee(method).to(memory_format=torch.channels_last)
    yield share_out(made, init_device_mesh("cpu", (1, 1), mesh_dim_names=("data_parallel", "tensor_parallel")))
    torch.distributed.destroy_process_group()


def test_a_single_number_that_learns_is_refused_by_name(trainee: nn.Module) -> None:
    method = MoCoV2(make_backbone("resnet10-w16", 0), MoCoV2Settings(**HEADS, queue_size=16))
    method.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(UserError, match=r"scale is a single number.*--strategy ddp"):
        share_out(Trainee(method), init_device_mesh("cpu", (1, 1), mesh_dim_names=("data_parallel", "tensor_parallel")))


def state_of(trainee: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.AdamW([p for p in trainee.parameters() if p.requires_grad])
    for weight in trainee.parameters():
        weight.grad = torch.ones_like(weight) if weight.requires_grad else None
    optimizer.step()
    kept = {"method": trainee.method.state_dict(), "optimizer": optimizer.state_dict(), "precision": {}}
    return {"format": 1, "step": 5, "steps": 10, "best": 0.0, **kept}


def test_weights_are_plain_for_a_while_and_changes_in_them_stay(trainee: nn.Module) -> None:
    encoder = trainee.method.encoder()
    assert all(isinstance(weight, DTensor) for weight in trainee.parameters())
    before = {name: value.clone() for name, value in put_together(trainee.state_dict()).items()}
    with whole(trainee):
        assert not any(isinstance(weight, DTensor) for weight in trainee.parameters())
        for _ in range(2):
            encoder.eval()(torch.zeros(2, 3, 16, 16))
        with torch.no_grad():
            encoder.layer4[0].conv1.weight.add_(1)
    after = put_together(trainee.state_dict())
    changed = {name: after[name] - value for name, value in before.items() if not torch.equal(value, after[name])}
    assert list(changed) == ["method.backbone.layer4.0.conv1.weight"]
    torch.testing.assert_close(changed["method.backbone.layer4.0.conv1.weight"].unique().mean(), torch.tensor(1.0))


def test_a_checkpoint_of_shares_is_read_as_one_of_whole_tensors(trainee: nn.Module, tmp_path: Path) -> None:
    state = state_of(trainee)
    pointer = put_shards(tmp_path, state)
    write_checkpoint(tmp_path / "last.ckpt", pointer)
    read = load_checkpoint(tmp_path / "last.ckpt")
    assert read["format"] == 1
    assert read.keys() == state.keys()
    expected = put_together(state["method"])
    assert list(read["method"]) == list(expected)
    assert all(torch.equal(value, expected[name]) for name, value in read["method"].items())
    for number, kept in state["optimizer"]["state"].items():
        assert all(torch.equal(read["optimizer"]["state"][number][k], v) for k, v in put_together(kept).items())
    weight = state["method"]["backbone.layer4.0.conv1.weight"]
    assert torch.equal(placed_like(expected["backbone.layer4.0.conv1.weight"], weight).to_local(), weight.to_local())


def test_folders_that_no_checkpoint_needs_go_and_others_stay(trainee: nn.Module, tmp_path: Path) -> None:
    state = state_of(trainee)
    (tmp_path / "shards-3").mkdir()  # of a save that was killed
    for step in (5, 5, 6, 7):
        save_checkpoint(tmp_path, put_shards(tmp_path, state | {"step": step}), is_best=step == 5)
    assert {path.name for path in tmp_path.glob("shards-*")} == {"shards-5-1", "shards-6", "shards-7"}
    assert [load_checkpoint(tmp_path / f"{name}.ckpt")["step"] for name in ("best", "previous", "last")] == [5, 6, 7]


@pytest.mark.parametrize("damage", ["flipped", "gone", "elsewhere", "added"])
def test_a_damaged_folder_is_refused_by_name_and_an_older_one_serves(
    damage: str, trainee: nn.Module, tmp_path: Path
) -> None:
    state = state_of(trainee)
    for step in (5, 6):
        save_checkpoint(tmp_path, put_shards(tmp_path, state | {"step": step}))
    file = next((tmp_path / "shards-6").iterdir())
    if damage == "flipped":
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw)
    elif damage == "gone":
        file.unlink()
    elif damage == "added":
        file.with_name("more.safetensors").write_bytes(file.read_bytes())
    else:
        pointer = torch.load(tmp_path / "last.ckpt", weights_only=True)
        pointer["shards"]["folder"] = "../shards-6"
        torch.save(pointer, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match=r"damaged|is gone|holds 2 files"):
        load_checkpoint(tmp_path / "last.ckpt")
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert found["step"] == 5


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"strategy": "fsdp", "compile": True}, "training.compile"),
        ({"strategy": "fsdp", "precision": "16-mixed"}, "bf16-mixed or 32-true"),
    ],
)
def test_what_was_not_tried_with_shares_is_refused(training: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_config(flags={"data": {"name": "shapes"}, "training": training})


# Two processes, as srun starts them. They are slow to start: all runs are theirs, one after the other.


def in_two_processes(requests: list[dict[str, Any]]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1] % 20000 + 20000
    said = {"SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_JOB_ID": "1", "SLURM_NODELIST": "127.0.0.1"}
    said |= {"FIRST_PORT": str(port), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(__file__).with_name("two_processes.py"))]
    started = [
        subprocess.Popen(
            command,
            env=os.environ | said | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(json.dumps(requests))
        process.stdin.close()
        process.stdin = None
    try:
        ends = [(process.communicate(timeout=600)[1], process.returncode) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [code for _, code in ends] == [0, 0], ends


def request(folder: Path, out: Path, **more: Any) -> dict[str, Any]:
    words = {"backbone": "resnet10-w16", "epochs": 2, "batch_size": 8}
    # Copies lie in memory as convolutions like it, shares do not: sums would be taken in another order.
    sets = [*TINY, "training.channels_last=false", *more.pop("sets", [])]
    return {"data": str(folder), "out": str(out), "sets": sets, **words, **more}


@pytest.mark.slow
def test_shares_train_like_copies(tmp_path: Path) -> None:
    folder, pairs = make_images(tmp_path), [(case, strategy) for case in CASES for strategy in ("ddp", "fsdp")]
    in_two_processes(
        [
            request(folder, tmp_path / f"{case}-{strategy}", method=case, strategy=strategy, **CASES[case])
            for case, strategy in pairs
        ]
    )
    found = {case: apart(tmp_path / f"{case}-ddp", tmp_path / f"{case}-fsdp") for case in CASES}
    assert all(value <= TOLERANCE for value in found.values()), found
    assert any((tmp_path / "byol-fsdp" / "checkpoints").glob("shards-*"))
    assert not any((tmp_path / "byol-ddp" / "checkpoints").glob("shards-*"))


@pytest.mark.slow
def test_shares_go_on_under_another_strategy_and_another_number_of_processes(tmp_path: Path) -> None:
    folder, made = make_images(tmp_path), tmp_path / "whole"
    # Without batch norm, which would see half a batch in each process; with SGD, which does not blow up rounding.
    settings = {"method": {**HEADS, "queue_size": 32, "norm": False}, "optimizer": {"name": "sgd", "lr": 0.05}}
    first = request(
        folder, made, method="moco-v2", strategy="fsdp", settings=settings, sets=["training.keep_epochs=[1]"]
    )
    again = [
        {"out": str(tmp_path / name), "half_of": str(made), "resume": True, "strategy": name}
        for name in ("fsdp", "ddp")
    ]
    in_two_processes([first | {"backbone": "groups"}, *again])
    rewind(made, tmp_path / "one")
    iecl.pretrain(out=tmp_path / "one", resume=True, devices=1, strategy="auto", quiet=True)
    assert apart(made, tmp_path / "fsdp") == 0  # the same number of processes: bit for bit
    assert apart(made, tmp_path / "ddp") <= TOLERANCE
    assert apart(made, tmp_path / "one") <= TOLERANCE
    shared, alone = (load_weights(tmp_path / name / "weights.safetensors")[0] for name in ("fsdp", "one"))
    assert {name: value.shape for name, value in shared.items()} == {name: value.shape for name, value in alone.items()}
    read = load_model(str(tmp_path / "fsdp" / "checkpoints" / "last.ckpt")).backbone.state_dict()  # as evaluate does
    assert all(torch.equal(read[name], value) for name, value in shared.items())
