"""Weights that are shared out over the processes of a run (`--strategy fsdp`), by torch's `fully_shard`.

Every process keeps its share of each weight, of its gradient and of what the optimizer remembers of it; blocks of the
encoders are put together when they are used, all other weights once for each step. Momentum copies are shared out like
what they follow. Frozen weights elsewhere are few, and some are drawn again within a step: every process has them
whole, and so it has all buffers.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.batchnorm import _BatchNorm

from iecl import parallel
from iecl.errors import UserError
from iecl.methods.contract import Method
from iecl.parts.momentum_copy import MomentumCopy
from iecl.runs.checkpoint import SHARDED
from iecl.runs.shards import PREFIX, SHARDS, checksum, with_tensors
from iecl.training.recomputation import blocks_in_rows


def share_out(trainee: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Leave each process its share of the weights; the module and the names of its weights stay what they are.

    It must take a call without arguments, in which nothing happens.

    Raises:
        UserError: a weight has no dimension.
    """
    method: Method = trainee.method  # type: ignore[assignment]
    copied = {p for part in method.modules() if isinstance(part, MomentumCopy) for p in part.parameters()}
    replicated = {p for p in method.parameters() if not p.requires_grad} - copied
    single = next((name for name, p in method.named_parameters() if not p.ndim and p not in replicated), None)
    if single is not None:
        words = f"{single} is a single number, which cannot be shared out"
        raise UserError(words, where="--strategy fsdp", do="use --strategy ddp, or give it one dimension")
    processes = mesh["data_parallel"]
    trainee.to(memory_format=torch.contiguous_format)  # no other can be shared out
    for encoder in method.encoders():
        for block in blocks_in_rows(encoder):
            fully_shard(block, mesh=processes, ignored_params=replicated)
    fully_shard(trainee, mesh=processes, ignored_params=replicated)
    norms = [part for part in method.modules() if isinstance(part, _BatchNorm)]
    moving = [value for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None]
    # Other buffers are the same everywhere. Statistics are those of the first process, as ddp has it.
    trainee.register_forward_pre_hook(lambda *_: parallel.take_from_first(moving))
    trainee()  # from its first call on torch knows what is the outermost module: a look at an encoder may come first
    for unit in _units(trainee):
        unit.reshard()
    # Nothing is changed in what a step returns.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    return trainee


def _units(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


@contextmanager
def whole(trainee: nn.Module) -> Iterator[None]:
    """Every weight as a plain tensor for a while; what is changed in it goes back to the shares.

    All processes must come here together. Does nothing where weights are not shared out.
    """
    units = _units(trainee)
    if not units:
        yield
        return
    shares = dict(trainee.named_parameters())
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    full = dict(trainee.named_parameters())
    try:
        yield
    finally:
        with torch.no_grad():
            for name, share in shares.items():
                if isinstance(share, DTensor):
                    share.copy_(placed_like(full[name].detach(), share))
        for unit in units:
            unit.reshard()
            unit.set_reshard_after_forward(unit is not trainee, recurse=False)


def placed_like(value: Tensor, target: Tensor) -> Tensor:
    """This process's share of a whole tensor, where it has a share of the target; else the tensor itself."""
    if not isinstance(target, DTensor):
        return value
    on_device = value.to(target.device)
    return distribute_tensor(on_device, target.device_mesh, target.placements, src_data_rank=None)


def put_together(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The same table with whole tensors; all processes must ask for it together."""
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in tensors.items()}


def put_shards(folder: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Write what is shared out over the processes into a new folder; returns the checkpoint without it.

    All processes must come here together. A state with whole tensors alone is returned as it is.

    Raises:
        UserError: a file cannot be written.
    """
    apart: dict[str, Any] = {}

    def take(name: str, value: Any) -> Any:
        if not isinstance(value, DTensor):
            return value
        apart[name] = value
        return None

    rest = with_tensors(state, take)
    if not apart:
        return state
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter  # which an older torch lacks

    names = (f"{PREFIX}{state['step']}" + (f"-{number}" if number else "") for number in count())
    free = next(name for name in names if not (folder / name).exists())
    place = folder / parallel.gather_objects(free)[0]
    try:
        save(apart, storage_writer=HuggingFaceStorageWriter(str(place), save_distributed=True))
    except CheckpointException as problem:
        words = "; ".join(f"process {rank}: {failure}" for rank, (failure, _) in problem.failures.items())
        raise UserError(f"a checkpoint cannot be written: {words}", where=str(place)) from problem
    files = sorted(place.iterdir())[parallel.rank() :: parallel.world()]
    own = {file.name: checksum(file) for file in files}
    sums = {name: value for part in parallel.gather_objects(own) for name, value in part.items()}
    return rest | {"format": SHARDED, SHARDS: {"folder": place.name, "files": sums}}
