"""A library in somebody's process: training and measuring leave that process as it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from iecl.backbones.factory import make_backbone
from made_images import TINY

PROGRAM = """
import logging, multiprocessing, os, random, resource, signal, sys, warnings
import lightning_fabric, matplotlib, numba, numpy, torch  # what these do on import is theirs

def new_pages():  # of a dozen large blocks that are asked for and freed again and again: of most none, if they are kept
    def work(): [torch.empty(5 * 2**23, dtype=torch.uint8).fill_(1) for _ in range(12)]
    for _ in range(3): work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def state():
    loggers = {name: logging.getLogger(name) for name in ("root", "iecl", "lightning_fabric", "torch", "PIL")}
    loggers["root"] = logging.getLogger()
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "hooks": [str(sys.excepthook), str(sys.stdout), str(sys.stderr)],
        "torch threads": torch.get_num_threads(),
        "torch arithmetic": [torch.get_float32_matmul_precision(), str(torch.get_default_dtype()),
            torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(), torch.backends.mkldnn.enabled,
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic],
        "torch random": torch.get_rng_state().tolist(),
        "numpy random": str(numpy.random.get_state(legacy=False)),
        "random": str(random.getstate()),
        "warnings": [str(one) for one in warnings.filters],
        "loggers": {name: [one.level, one.propagate, str(one.handlers)] for name, one in loggers.items()},
        "signals": [str(signal.getsignal(one)) for one in sorted(signal.valid_signals())],
        "blocked signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "backend of plots": matplotlib.get_backend(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "is freed memory cleared again": new_pages() > 12 * 10_000,
    }

signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
matplotlib.use("svg")
numpy.random.rand(), random.random()
before = state()
import iecl
data, out, sets = sys.argv[1], sys.argv[2], sys.argv[3:]
tiny = {"method": "ie-cl", "backbone": "resnet10-w16", "epochs": 1, "batch_size": 8, "sets": sets}
trained = iecl.pretrain(data, out, **tiny, quiet=True)
trained.evaluate("knn")
iecl.inspect(trained.path, images=16)
after = state()
import json
print(json.dumps({name: [before[name], after[name]] for name in before if before[name] != after[name]}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as Linux does")
def test_training_and_measuring_leave_the_process_as_it_was(image_folder: Path, tmp_path: Path) -> None:
    sets = [*TINY, "data.num_workers=1", "data.cache_megabytes=0", "training.deterministic=true"]
    command = [sys.executable, "-c", PROGRAM, str(image_folder), str(tmp_path / "run"), *sets]
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}  # a notebook on a cluster
    done = subprocess.run(command, env=os.environ | slurm, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def test_first_weights_leave_the_generators_of_all_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("GPUs were seeded"))
    before = torch.get_rng_state()
    make_backbone("resnet10-w16", seed=3)
    assert torch.equal(torch.get_rng_state(), before)
