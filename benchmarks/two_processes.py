"""How much of a second process is left: a run's loop beside plain DDP of the same method, one and two processes each.

    python -m benchmarks.two_processes --rounds 5

Each process has one thread. Arms take turns, round after round, so that a busy moment meets all of them. Efficiency is
the speed of two processes over twice that of one, within a round; ours should be at least that of plain DDP.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from benchmarks.bench.turns import summary
from benchmarks.result import write
from iecl.console import ProgressLine
from iecl.launch import Launch, joined, outside_launch
from iecl.runs.directory import RunDirectory
from iecl.training.config import RunConfig, make_config, with_data
from iecl.training.loop import Loop, take_step
from iecl.training.machine import make_fabric
from iecl.training.trial import _RandomImages
from iecl.views.pipeline import make_views

WARM = 2


def planned(batch: int) -> RunConfig:
    """SimCLR with a ResNet-18 on small images; `batch` is that of all processes."""
    flags = {"data": {"name": "shapes", "image_size": 32, "decode_size": 32}, "backbone": {"name": "resnet18-small"}}
    sets = [f"training.batch_size={batch}", "training.precision=32-true", "training.loggers=[]"]
    config = make_config(method="simclr", flags=flags, sets=[*sets, "training.online_eval_epochs=0"])
    return with_data(config, replace(config.data, mean=(0.5,) * 3, std=(0.25,) * 3, num_workers=0))


def plain_step(loop: Loop, batches: Any) -> None:
    """What is left of a step without records, checks and agreements: views, DDP, optimizer."""
    config, batch = loop.config, next(batches)
    data, policies = config.data, config.augmentation.policies(loop.method.views)
    look: dict[str, Any] = {"size": data.image_size, "mean": data.mean, "std": data.std, "layout": loop.layout}
    views = make_views(batch, policies, loop.method.views, seed=0, epoch=0, **look)
    made = take_step(loop.trainee, views, loop.clock(0))
    torch.stack(list(made.losses.values())).sum().backward()
    loop.optimizer.step()
    loop.optimizer.zero_grad(set_to_none=True)


def work(rank: int, world: int, folder: str, is_plain: bool, own: int, steps: int) -> None:
    """One process of an arm: writes the seconds of a step, from barrier to barrier."""
    torch.set_num_threads(1)
    if world > 1:
        there = Launch("iecl", rank, world, rank, world)
        os.environ.update(there.variables("127.0.0.1", int(Path(folder, "port").read_text())))
    config, launch = planned(own * world), outside_launch()
    with joined(launch):
        fabric = make_fabric(config.training, Path(folder), launch)
        fabric.launch()
        source = _RandomImages(3, 32, own * world * (WARM + steps + 1))
        loop = Loop(fabric, config, RunDirectory(Path(folder)), ProgressLine(quiet=True), source)
        batches = loop.begin_epoch()
        for number in range(WARM + steps):
            if number == WARM:
                if world > 1:
                    dist.barrier()
                began, used = time.perf_counter(), time.process_time()
            plain_step(loop, batches) if is_plain else loop.optimize(batches)
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        if rank == 0:
            Path(folder, "seconds.json").write_text(json.dumps([seconds / steps, processor / steps]))
        if world > 1:
            dist.destroy_process_group()


def seconds_of(world: int, is_plain: bool, own: int, steps: int) -> tuple[float, float]:
    """Of a step of one arm: by the clock, and of the first process's processor."""
    with tempfile.TemporaryDirectory() as folder:
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            Path(folder, "port").write_text(str(free.getsockname()[1]))
        RunDirectory.fresh(Path(folder, "run"))
        multiprocessing.spawn(work, (world, folder, is_plain, own, steps), nprocs=world)
        clock, processor = json.loads(Path(folder, "seconds.json").read_text())
        return clock, processor


def main() -> None:
    """Measure, and print one row for each round and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--images", type=int, default=64, help="for each process")
    args = parser.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"ours": [], "plain DDP": []}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    load = [os.getloadavg()[0]]
    for number in range(args.rounds):
        for name in ("ours", "plain DDP") if number % 2 else ("plain DDP", "ours"):
            one, two = (seconds_of(world, name != "ours", args.images, args.steps) for world in (1, 2))
            found[name].append(one[0] / two[0])
            seconds[name].append((one[0], two[0]))
            print(f"round {number + 1} {name}: {one[0]:.3f} s and {two[0]:.3f} s a step, {100 * one[0] / two[0]:.0f} %")
            print(f"  of the processor: {one[1]:.3f} s and {two[1]:.3f} s, {100 * one[1] / two[1]:.0f} %", flush=True)
        load.append(os.getloadavg()[0])
    ratios = [ours / plain for ours, plain in zip(found["ours"], found["plain DDP"], strict=True)]
    content: dict[str, Any] = {
        "setting": f"SimCLR, ResNet-18 for small images, {args.images} images of 32 px for each process, 32 bits",
        "unit": "speed of two processes over twice that of one; ours over plain DDP's, round by round",
        "results": {name: summary(values) for name, values in (*found.items(), ("ours / plain DDP", ratios))},
        "seconds_of_a_step_with_one_process_and_with_two": seconds,
        "load_of_the_machine": load,
    }
    for name, row in content["results"].items():
        print(name, row)
    write("two_processes", "how much of a second process is left?", content)


if __name__ == "__main__":
    main()
