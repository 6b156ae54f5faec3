"""One of two processes that somebody else has started, as srun does: takes the runs on its standard input, in turn.

    SLURM_PROCID=0 SLURM_NTASKS=2 ... python two_processes.py < requests.json

Each request is what `iecl.pretrain` is called with. Both processes must be given the same ones.
"""

import faulthandler
import json
import os
import sys

import torch

import iecl

torch.set_num_threads(1)
if __name__ == "__main__":
    faulthandler.dump_traceback_later(240)  # says where a process hangs
    for number, request in enumerate(json.load(sys.stdin)):
        os.environ["MASTER_PORT"] = str(int(os.environ["FIRST_PORT"]) + number)  # torch keeps that of shares open
        iecl.pretrain(**request, quiet=True)
