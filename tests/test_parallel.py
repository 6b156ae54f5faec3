"""What processes have in common: gathered rows with their gradient, synchronized norms, and meters that are merged."""

import os
import socket
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from iecl import parallel
from iecl.entropy import streamed
from iecl.meters.streaming import MOMENTS, SAMPLED
from iecl.parts.sync_norm import sync_norms

LAYOUTS = {4: torch.channels_last}


def gathered(rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """Rows of all processes, and the slope at ours of a loss that each process weighs in its own way."""
    rows = torch.arange(8.0).view(4, 2)[rank * 4 // world :][: 4 // world].requires_grad_()
    everyone = parallel.gather(rows)
    ((rank + 1) * everyone.square()).sum().backward()
    return {"rows": everyone.detach(), "slope": rows.grad}


def merged_entropies(rank: int = 0, world: int = 1) -> dict[str, float]:
    """Every entropy that can be accumulated, each process with every second row."""
    rows = torch.arange(40)[rank::world]
    z = torch.randn(40, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = {}
    for name in (*MOMENTS, *SAMPLED):
        meter = streamed(name, 6, capacity=30)
        meter.update(z[rows], rows)
        meter.merge_processes()
        found[name] = meter.value().item()
    return found


NORMS = {
    "images": (lambda: nn.BatchNorm2d(3), (8, 3, 4, 4)),
    "rows": (lambda: nn.BatchNorm1d(5), (8, 5)),
    "no weights": (lambda: nn.BatchNorm1d(5, affine=False), (8, 5)),
    "mean of all batches": (lambda: nn.BatchNorm2d(3, momentum=None), (8, 3, 4, 4)),
    "no statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (8, 3, 4, 4)),
}


def normalized(kind: str, rank: int = 0, world: int = 1) -> dict[str, torch.Tensor]:
    """Two batches through a norm: the last output and its slopes, and what the norm keeps."""
    make, shape = NORMS[kind]
    module = nn.Sequential(make()).double()
    noise = torch.Generator().manual_seed(0)
    for p in module.parameters():
        nn.init.normal_(p, generator=noise)
    if world > 1:
        assert sync_norms(module) == 1
    for _ in range(2):
        whole, slopes = (torch.randn(shape, generator=noise, dtype=torch.float64) for _ in range(2))
        whole = 3 * whole + torch.arange(8.0).view(8, *[1] * (whole.ndim - 1))  # halves with means of their own
        mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
        x = whole[mine].to(memory_format=LAYOUTS.get(len(shape), torch.contiguous_format)).requires_grad_()
        y = module(x)
        module.zero_grad()
        (y * slopes[mine]).sum().backward()
    found = {"y": parallel.gather(y.detach()), "x slope": parallel.gather(x.grad)}
    found |= {f"{name} slope": parallel.total(p.grad) for name, p in module.named_parameters()}
    return found | module.state_dict()


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(gathered(rank, 2), Path(folder) / f"gathered-{rank}.pt")
    torch.save({kind: normalized(kind, rank, 2) for kind in NORMS}, Path(folder) / f"norms-{rank}.pt")
    torch.save(merged_entropies(rank, 2), Path(folder) / f"entropies-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    torch.multiprocessing.spawn(work, args=(str(folder),), nprocs=2)
    return folder


def test_rows_come_in_rank_order_and_slopes_are_summed_over_processes(two_processes: Path) -> None:
    whole = torch.arange(8.0).view(4, 2)
    for rank in (0, 1):
        found = torch.load(two_processes / f"gathered-{rank}.pt", weights_only=True)
        assert torch.equal(found["rows"], whole)
        assert torch.equal(found["slope"], (1 + 2) * 2 * whole[2 * rank :][:2])


@pytest.mark.parametrize("kind", NORMS)
def test_a_synchronized_norm_is_torchs_norm_of_the_whole_batch(kind: str, two_processes: Path) -> None:
    whole = normalized(kind)
    for rank in (0, 1):
        found = torch.load(two_processes / f"norms-{rank}.pt", weights_only=True)[kind]
        assert found.keys() == whole.keys()
        for name, value in whole.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_meters_that_merge_over_processes_have_the_value_of_one_that_saw_all(two_processes: Path) -> None:
    for rank in (0, 1):
        found = torch.load(two_processes / f"entropies-{rank}.pt", weights_only=True)
        assert found == pytest.approx(merged_entropies(), abs=1e-9)


def test_threads_are_given_back_after_an_error() -> None:
    before, seen = torch.get_num_threads(), list[int]()

    def work() -> None:
        with parallel.threads(before + 1):
            seen.append(torch.get_num_threads())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


def test_a_first_process_that_ends_while_it_is_asked_is_named_without_torchs_stack(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It takes the first call, hears the second one out and is gone."""
    monkeypatch.setattr(parallel, "PATIENCE", 1.0)

    def answer(listener: socket.socket) -> None:
        with listener.accept()[0], listener.accept()[0] as line:
            line.recv(1)
            listener.close()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(listener.getsockname()[1]))
        first = threading.Thread(target=answer, args=(listener,), daemon=True)
        first.start()
        assert parallel.who_is_lost(1, 2) == "process 0 has ended without a word, or its machine cannot be reached"
        first.join(5)
    os.write(2, b"heard again")
    assert capfd.readouterr().err == "heard again"
