"""The process of one pipeline stage, started by `pp_executor.run_stages`."""

import math
import os
import pickle
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from mrv2lab.limits import time_limit
from mrv2lab.runner.pp_utils import PPGroup

PARTNER_S = 3600  # for a message of the partner: whoever started both gives up earlier


def main(folder: Path, rank: int) -> NoReturn:
    """Join the others, run what the specification says, leave the result in the folder."""
    torch.set_num_threads(1)  # stages take turns; more threads would only fight for cores
    try:
        stage_main, args, backend, num_stages, limit_s = pickle.loads((folder / "spec.pkl").read_bytes())
        with time_limit(limit_s, f"stage {rank} of {num_stages}", wall_s=math.inf):
            result = stage_main(join(folder, rank, num_stages, backend), *args)
        dist.all_reduce(torch.zeros(1))  # nobody hangs up while another still listens
        (folder / f"{rank}.pkl").write_bytes(pickle.dumps(result))
        dist.destroy_process_group()
        status = 0
    except BaseException as error:  # a stage that calls sys.exit has no result either
        (folder / f"{rank}.died").write_text(f"{error.__class__.__name__}: {error}".splitlines()[0])
        traceback.print_exc()
        status = 1
    # What matters is on disk. Taking the libraries' threads down one by one can only spoil the status.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def join(folder: Path, rank: int, num_stages: int, backend: str) -> PPGroup:
    """Meet the other stages at a file, and take a device: NCCL with a GPU for each stage, else gloo."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all stages are on this machine
    device, wire = "cpu", "cpu"
    if backend == "cuda":
        num_gpus = torch.cuda.device_count()
        device = f"cuda:{rank % num_gpus}"
        torch.cuda.set_device(device)
        wire = device if num_gpus >= num_stages else "cpu"
    dist.init_process_group(
        "gloo" if wire == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=num_stages,
        timeout=timedelta(seconds=PARTNER_S),
    )
    return PPGroup(rank, num_stages, device, wire)
