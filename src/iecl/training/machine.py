"""What the machine can do: which accelerator, precision, strategy and loggers a run gets."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException

from iecl.console import counted
from iecl.errors import UserError, lacking
from iecl.launch import PER_CORE, Launch, usable_cores
from iecl.runs.shards import check_torch
from iecl.training.settings import TrainingSettings
from iecl.training.sharding import share_out

log = logging.getLogger("iecl.training")
MAPPED = 340
"""MB of libraries that a training process maps and uses, as measured with torch 2.15 on Linux."""


WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Where CUDA's matrix products are told to use no more than one stream's memory."""


@contextmanager
def lightning_quiet() -> Iterator[None]:
    """Let Lightning say no more than warnings: what it is about to do, we say ourselves."""
    logger = logging.getLogger("lightning_fabric")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def deterministic(is_on: bool) -> Iterator[None]:
    """While the block runs, torch takes kernels that give the same bits each time, or raises; then it is as before."""
    if not is_on:
        yield
        return
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn, before = torch.backends.cudnn, (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic)
    workspace = os.environ.get(WORKSPACE)
    torch.use_deterministic_algorithms(True)
    cudnn.benchmark, cudnn.deterministic = False, True  # which kernel is fastest differs from run to run
    os.environ.setdefault(WORKSPACE, ":4096:8")  # read when CUDA's first matrix product is computed
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        cudnn.benchmark, cudnn.deterministic = before
        if workspace is None:
            os.environ.pop(WORKSPACE, None)


def choose_accelerator(asked: str) -> str:
    """The accelerator to train on; asking for one that is not there is an error, not a slow surprise."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return next(name for name, here in present.items() if here)
    if asked == "gpu":
        asked = "mps" if present["mps"] else "cuda"
    if not present[asked]:
        raise UserError(f"this machine has no {asked} device", where="training.accelerator", do="use auto or cpu")
    return asked


def visible_gpus() -> list[str]:
    """The CUDA devices that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def choose_precision(asked: str, accelerator: str) -> str:
    """bf16 where there are units for it: without them it was measured 30 times slower than 32 bits on a CPU."""
    if asked == "16-mixed" and accelerator == "cpu":  # Lightning would take bf16, and the settings would not say so
        do = "take bf16-mixed, which needs no scaler, or 32-true"
        raise UserError("16-bit floats are trained with on GPUs only", where="training.precision", do=do)
    if asked != "auto":
        return asked
    if accelerator == "cuda":
        return "bf16-mixed" if torch.cuda.is_bf16_supported(including_emulation=False) else "16-mixed"
    if accelerator == "cpu":
        has_units = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return "bf16-mixed" if has_units else "32-true"
    return "32-true"


def on_this_machine(settings: TrainingSettings) -> TrainingSettings:
    """The settings with accelerator, precision and the number of processes chosen."""
    accelerator = choose_accelerator(settings.accelerator)
    count = torch.cuda.device_count() if accelerator == "cuda" else 1
    cores = usable_cores()
    if accelerator == "cpu" and settings.devices > PER_CORE * cores:
        words = f"{settings.devices} processes would wait for {counted(cores, 'core')}"
        raise UserError(words, where="--devices", do=f"give {cores} or less")
    if accelerator != "cpu" and settings.devices > count:
        raise UserError(f"this machine has {count} {accelerator} devices", where="--devices", do=f"give {count} or 0")
    chosen = replace(
        settings,
        accelerator=accelerator,
        precision=choose_precision(settings.precision, accelerator),
        devices=settings.devices or count,
    )
    chosen.check()
    return chosen


def peak_memory(device: torch.device) -> int:
    """The most memory that this process held, in MB: on the GPU if there is one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    kept = _kilobytes(Path("/proc/self/status"), "VmHWM")
    if kept:  # the system's other record, below, counts what the process that started this one held
        return kept // 2**10
    try:
        import resource
    except ImportError:  # Windows keeps no such record
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)


def free_memory(device: torch.device) -> int:
    """Memory that a run on this device may still take, in MB; 0: the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2**20
    free = _kilobytes(Path("/proc/meminfo"), "MemAvailable") // 2**10
    return min(free, _left_to_container(free))


def held_memory() -> int:
    """Memory that this process has now, in MB, its libraries included.

    Of those the system takes back what was not used for a while: how much of them is there now tells nothing.
    """
    return _kilobytes(Path("/proc/self/status"), "RssAnon") // 2**10 + MAPPED


def _left_to_container(free: int, folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container's limit leaves, in MB; `free` where there is none."""
    try:
        most, used = (int((folder / name).read_text(encoding="utf-8")) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or one that may take everything: "max"
        return free
    return max(0, most - used) // 2**20


def _kilobytes(file: Path, name: str) -> int:
    """A number of one of Linux's own tables; 0 where there is no such table."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)


@lightning_quiet()
def make_fabric(settings: TrainingSettings, folder: Path, launch: Launch | None = None) -> Fabric:
    """Lightning Fabric for this process: device, precision, loggers, and its place in a launch (see `joined`)."""
    if settings.strategy == "fsdp":
        check_torch("--strategy fsdp")
    accelerator = choose_accelerator(settings.accelerator)
    # Lightning is told who started the processes; left to itself it guesses, and refuses what it guesses.
    alone: dict[str, Any] = {"plugins": [LightningEnvironment()]}
    several: dict[str, Any] = {"strategy": _strategy(settings, launch), "plugins": [TorchElasticEnvironment()]}
    try:
        return Fabric(
            accelerator=accelerator,
            devices=launch.devices if launch else 1,
            num_nodes=launch.nodes if launch else 1,
            precision=choose_precision(settings.precision, accelerator),  # type: ignore[arg-type]
            loggers=[make_logger(name, folder) for name in settings.loggers],
            **(several if launch and launch.world > 1 else alone),
        )
    except (ValueError, RuntimeError, MisconfigurationException) as problem:
        raise UserError(f"Lightning refuses this set-up: {problem}", where="training.devices, precision") from problem


def _strategy(settings: TrainingSettings, launch: Launch | None) -> Any:
    if settings.strategy != "fsdp" or launch is None:
        return "ddp"
    return ModelParallelStrategy(share_out, data_parallel_size=launch.world, tensor_parallel_size=1)


def make_logger(name: str, folder: Path) -> Any:
    """A Lightning logger that writes into the run directory, without a network where it can be avoided."""
    if name == "tensorboard":
        from lightning_fabric.loggers.tensorboard import TensorBoardLogger

        return TensorBoardLogger(root_dir=folder, name="tensorboard", version="")
    if name == "csv":
        from lightning_fabric.loggers.csv_logs import CSVLogger

        return CSVLogger(root_dir=folder, name="csv", version="")
    try:
        from pytorch_lightning import loggers

        if name == "wandb":
            return loggers.WandbLogger(save_dir=folder, project="iecl", name=folder.name)
        # A database in the run directory unless the user has a server: MLflow has given up plain folders.
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(folder / 'mlflow.db').resolve()}"
        return loggers.MLFlowLogger(experiment_name="iecl", run_name=folder.name, tracking_uri=place)
    except ModuleNotFoundError as problem:
        raise lacking(f"logger {name}", problem.name or name, extra=name, where="training.loggers") from problem
