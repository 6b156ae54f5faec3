"""What an outside launcher says of this process (torchrun, SLURM, variables set by hand), and what it may use."""

import os
import platform
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iecl.errors import UserError

WARNINGS = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""What a scheduler is told to send some time before it takes the machine away: `sbatch --signal=USR1@120`."""
STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)) + WARNINGS
"""What asks a run to stop: Ctrl-C, a system that needs the machine, a terminal that was closed, a scheduler."""
PER_CORE = 4
"""Processes for each core above which a number was hardly meant."""


def is_gpu_at_hand() -> bool:
    """Whether this machine has a GPU that torch could use, as far as can be seen without torch."""
    is_apple = sys.platform == "darwin" and platform.machine() == "arm64"
    return is_apple or any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists()


@dataclass(frozen=True)
class Launch:
    """This process among all those that a launcher started with the same command."""

    launcher: str
    rank: int
    world: int
    local_rank: int
    """Its number on its machine."""
    devices: int
    """Processes on each machine."""

    @property
    def nodes(self) -> int:
        """Machines."""
        return self.world // self.devices

    def variables(self, address: str, port: int) -> dict[str, str]:
        """The environment that torch.distributed reads, with the place where all processes meet."""
        numbers = {
            "RANK": self.rank,
            "WORLD_SIZE": self.world,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_WORLD_SIZE": self.devices,
            "GROUP_RANK": self.rank // self.devices,
            "MASTER_PORT": port,
        }
        return {"MASTER_ADDR": address} | {name: str(number) for name, number in numbers.items()}


def outside_launch(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """The launch that this process is a part of; None: it was started alone, and starts others itself if need be.

    >>> outside_launch({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    Launch(launcher='torchrun', rank=3, world=4, local_rank=1, devices=2)
    >>> outside_launch({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NNODES": "2"}).devices
    1

    Raises:
        UserError: the variables contradict each other.
    """
    if "WORLD_SIZE" in environment and "RANK" in environment:
        rank, world, local = (_number(environment, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        launcher, devices = "torchrun", _number(environment, "LOCAL_WORLD_SIZE", world)
    elif "SLURM_PROCID" in environment and environment.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        rank, world, local = (
            _number(environment, name, default)
            for name, default in (("SLURM_PROCID", 0), ("SLURM_NTASKS", 1), ("SLURM_LOCALID", 0))
        )
        nodes = _number(environment, "SLURM_STEP_NUM_NODES", _number(environment, "SLURM_NNODES", 1))
        launcher, devices = "SLURM", world // max(1, nodes)
    else:
        return None
    if not (0 <= rank < world and 0 <= local < devices and world % devices == 0):
        what = f"{launcher} says that this is process {rank} of {world}, and {local} of {devices} on this machine"
        raise UserError(what, where="environment", do="start all machines with the same number of processes")
    return Launch(launcher, rank, world, local, devices)


def meeting_place(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Where the processes of an outside launch meet: as the launcher says, or on SLURM's first machine."""
    listed = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_NODELIST", "127.0.0.1"))
    first = re.sub(r"\[(\d+)[^]]*\]", r"\1", listed).split(",")[0]  # node[07-09,12] begins with node07
    job = int("0" + re.sub(r"\D", "", environment.get("SLURM_JOB_ID", ""))[-4:])
    address = environment.get("MASTER_ADDR", first)
    return address, _number(environment, "MASTER_PORT", 15000 + job)


@contextmanager
def joined(launch: Launch | None) -> Iterator[None]:
    """While the block runs, the environment says what torch.distributed reads of a launch; then it is as before."""
    said = {} if launch is None else launch.variables(*meeting_place())
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def rank_at_start(environment: Mapping[str, str] = os.environ) -> int:
    """0 for the process that speaks: of several that were started with the same command, the first.

    It alone makes directories and writes settings; the others join it to train. Machines that were started by hand are
    told apart by NODE_RANK.
    """
    launched = outside_launch(environment)
    if launched is not None:
        return launched.rank
    return _number(environment, "NODE_RANK", 0) or _number(environment, "LOCAL_RANK", 0)


def node_rank(environment: Mapping[str, str] = os.environ) -> int:
    """The number of this machine among those that were started by hand."""
    return _number(environment, "NODE_RANK", 0)


def attempts(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """What starts a command again when it ends too early, by names that stay, and how often it did so before.

    >>> attempts({"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2"})
    {'SLURM job 4711': 2}
    """
    found = {}
    if "SLURM_JOB_ID" in environment:
        found[f"SLURM job {slurm_job(environment)}"] = _number(environment, "SLURM_RESTART_COUNT", 0)
    if "TORCHELASTIC_RUN_ID" in environment:  # many are called none: the process that starts ours tells them apart
        name = f"torchrun {environment['TORCHELASTIC_RUN_ID']} {platform.node()} {os.getppid()}"
        found[name] = _number(environment, "TORCHELASTIC_RESTART_COUNT", 0)
    return found


def slurm_job(environment: Mapping[str, str] = os.environ) -> str:
    """The number of this job as scontrol takes it; one of an array has two numbers."""
    if "SLURM_ARRAY_JOB_ID" in environment and "SLURM_ARRAY_TASK_ID" in environment:
        return f"{environment['SLURM_ARRAY_JOB_ID']}_{environment['SLURM_ARRAY_TASK_ID']}"
    return environment.get("SLURM_JOB_ID", "")


def requeue(environment: Mapping[str, str] = os.environ) -> str:
    """Ask SLURM to run this job again; returns what went wrong, or nothing."""
    job = slurm_job(environment)
    if not job:
        return "this is no SLURM job"
    try:
        done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"scontrol requeue {job}: {problem}"
    return f"scontrol requeue {job}: {done.stderr.strip() or done.returncode}" if done.returncode else ""


def when_parent_ends(act: Callable[[], object]) -> None:
    """Do something as soon as the process that started this one is gone, whatever this one is doing then."""
    from multiprocessing import connection, parent_process

    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        act()

    threading.Thread(target=watch, daemon=True).start()


def usable_cores() -> int:
    """Cores that this process may use, which on a shared machine are fewer than there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return min(cores, int(granted)) if granted.isdigit() and int(granted) else cores


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        what = f"{name} is {text!r}, it must be a whole number" if text else f"{name} is not set"
        raise UserError(what, where="environment", do="start all processes with torchrun or srun")
    return int(text)
