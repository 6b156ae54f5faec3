"""One of two processes that somebody else has started, as srun does: takes the runs on its standard input, in turn.

    FIRST_PORT=29500 SLURM_PROCID=0 SLURM_NTASKS=2 ... python two_processes.py < requests.json

Each request is what `iecl.pretrain` is called with; with `half_of`, the run goes on from the first epoch of that one.
Both processes must be given the same requests.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import killing  # noqa: F401  # knows the backbone "groups"

import iecl
from iecl.runs.directory import RunDirectory


def rewind(whole: Path, out: Path) -> None:
    """A copy of a run that kept its first epoch, as it was then."""
    run = RunDirectory(shutil.copytree(whole, out.with_suffix(".part")))
    for path in (run.checkpoints / "previous.ckpt", run.checkpoints / "best.ckpt", run.summary, run.weights):
        path.unlink()
    shutil.copy(run.kept_checkpoint(1), run.checkpoints / "last.ckpt")
    run.path.rename(out)


if __name__ == "__main__":
    for number, request in enumerate(json.load(sys.stdin)):
        # Torch keeps the port of weights that were shared out.
        os.environ["MASTER_PORT"] = str(int(os.environ["FIRST_PORT"]) + number)
        half = request.pop("half_of", "")
        if half and os.environ["SLURM_PROCID"] == "0":
            rewind(Path(half), Path(request["out"]))
        while half and not Path(request["out"]).exists():
            time.sleep(0.1)
        iecl.pretrain(**request, quiet=True)
