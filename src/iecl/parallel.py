"""The only file that talks to other processes. Without a process group everything is the identity."""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

PATIENCE = 5.0
"""Seconds in which processes that have lost another one report to each other."""


def is_on() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if is_on() else 0


def world() -> int:
    """How many processes there are."""
    if _pretended:
        return _pretended[-1].world
    return dist.get_world_size() if is_on() else 1


@dataclass
class Pretence:
    """Processes that are not there, and what this one would have told them."""

    world: int
    gathered: list[tuple[int, bool]] = field(default_factory=list)
    """Bytes of the rows that were shown to the others, and whether they come back with a gradient."""
    summed: list[int] = field(default_factory=list)
    """Bytes of the tensors that were added up."""


_pretended: list[Pretence] = []


@contextmanager
def pretended(world: int) -> Iterator[Pretence]:
    """Let this process take itself for one of several that all see what it sees: to count what a step would send."""
    _pretended.append(Pretence(world))
    try:
        yield _pretended[-1]
    finally:
        _pretended.pop()


def has_others() -> bool:
    """Whether this process is one of several, or counts what it would be to be one."""
    return is_on() or bool(_pretended)


class _Gather(torch.autograd.Function):
    """All rows of all processes; backward sums what every process says about our rows.

    The sum matters: with the mean that DDP takes over processes it gives exactly the gradient of one process that holds
    the whole batch. Without it the step is silently too small by the number of processes.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.rows, rows = len(rows), rows.contiguous()
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        first = dist.get_rank() * ctx.rows
        return total[first : first + ctx.rows]


def gather(rows: Tensor) -> Tensor:
    """Rows of every process in rank order, with gradient; every process must bring the same number."""
    if _pretended:
        _pretended[-1].gathered.append((_bytes(rows), rows.requires_grad))
        return torch.cat([rows] * world())
    if not is_on():
        return rows
    gathered: Tensor = _Gather.apply(rows)
    return gathered


def total(value: Tensor) -> Tensor:
    """Sum of a tensor over all processes, without gradient."""
    value = value.detach()
    if _pretended:
        _pretended[-1].summed.append(_bytes(value))
        return value * world()
    if not is_on():
        return value
    summed = value.clone()
    dist.all_reduce(summed)
    return summed


def average(value: Tensor) -> Tensor:
    """Mean of a tensor over all processes, without gradient."""
    return total(value) / world() if has_others() else value.detach()


def _bytes(value: Tensor) -> int:
    return value.numel() * value.element_size()


@torch.no_grad()
def take_from_first(tensors: Sequence[Tensor]) -> None:
    """Give tensors of one type, in place, the values that they have in the first process."""
    if is_on() and tensors:
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.broadcast(flat, src=0)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, values in zip(tensors, parts, strict=True):
            tensor.copy_(values.view_as(tensor))


def largest(number: int) -> int:
    """The largest of the processes' numbers; it goes from memory to memory, so that nobody waits for a GPU."""
    if not is_on():
        return number
    found = torch.tensor(number)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=_between_hosts())
    return int(found)


_hosts: list[Any] = []


def _between_hosts() -> Any:
    """A group that talks about what is in memory: NCCL's knows GPUs only."""
    if "gloo" in dist.get_backend():
        return None
    if not _hosts:
        _hosts.append(dist.new_group(backend="gloo"))
    return _hosts[0]


def is_lost_peer(problem: RuntimeError) -> bool:
    """Whether an error says no more than that another process has ended."""
    words = ("gloo", "NCCL", "onnection closed", "onnection reset", "onnection refused", "onnection was likely closed")
    return isinstance(problem, dist.DistError) or any(word in str(problem) for word in words)


def leave_word(own: int, words: str) -> None:
    """Tell the other processes why this one ends."""
    with suppress(dist.DistError, RuntimeError, OSError), _torch_unheard():  # nobody may be there any more
        _board().set(f"ended {own}", words)


def who_is_lost(own: int, count: int) -> str:
    """After a talk that failed: which of the processes has ended, and why if it said so.

    Those that are left report to each other; whoever does not for `PATIENCE` seconds is lost.
    """
    silent, until = set(range(count)) - {own}, time.monotonic() + PATIENCE
    try:
        with _torch_unheard():
            board = _board()
            board.set(f"waits {own}", "")
            while silent and time.monotonic() < until:
                for other in sorted(silent):
                    if board.check([f"ended {other}"]):
                        return f"process {other} has ended: {board.get(f'ended {other}').decode(errors='replace')}"
                    silent -= {other} if board.check([f"waits {other}"]) else set()
                time.sleep(0.1)
    except (dist.DistError, RuntimeError, OSError):  # the board is the first process's, or torchrun's
        silent = {0}
    names = " and ".join(map(str, sorted(silent)))
    if not names:
        return "the connection between the processes is lost"
    return f"process {names} has ended without a word, or its machine cannot be reached"


def _board() -> PrefixStore:
    """What all processes can write to and read from while they meet."""
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    socket.create_connection(place, PATIENCE).close()  # where nobody listens torch would try again and again
    store = TCPStore(*place, is_master=False, timeout=timedelta(seconds=PATIENCE), wait_for_workers=False)
    # torchrun's is there for one attempt after the other.
    return PrefixStore(f"iecl {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


@contextmanager
def _torch_unheard() -> Iterator[None]:
    """What is written to the process's error output meanwhile is lost: torch's own stack, where a line of ours follows.

    The first process may end at any moment of a talk about who has ended: to ask whether it is there first is no help.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def gather_objects(thing: Any) -> list[Any]:
    """The same small plain object of every process, in rank order."""
    if not is_on():
        return [thing]
    things: list[Any] = [None] * world()
    dist.all_gather_object(things, thing)
    return things


def barrier() -> None:
    """Wait until every process is here."""
    if is_on():
        dist.barrier()


def meet_again(backend: str) -> None:
    """Meet the others after a restart by torchrun, whose board still has the addresses of those that were there before.

    torch would look for them there; under a name of this attempt only its own processes write.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    host, port, rank, world = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))
    store = PrefixStore(f"attempt {attempt}", TCPStore(host, int(port), is_master=False))
    dist.init_process_group(backend, store=store, rank=int(rank), world_size=int(world))


def leave() -> None:
    """End the talk with other processes: a process that goes while its threads still listen may be aborted."""
    _hosts.clear()
    if is_on():
        dist.destroy_process_group()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Torch with so many threads, and then with as many as before, whatever other packages did in between."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
