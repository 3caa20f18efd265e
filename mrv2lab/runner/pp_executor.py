"""Starts one process for each pipeline stage and brings their results back. Mirrors `MultiprocExecutor` in
`vllm/v1/executor/multiproc_executor.py`.

A folder of its own is all that the processes share: what to run, the file they meet at (no port that
could be taken), a log and a result for each stage. They live no longer than the call that started them.
"""

import math
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import torch
import torch.distributed as dist

from mrv2lab.errors import Mrv2labError
from mrv2lab.forks import Fork, last_lines
from mrv2lab.graphs import resolve
from mrv2lab.limits import PATIENCE, cut_off, time_limit
from mrv2lab.runner.pp_utils import PPGroup

LIMIT_S = {"emulated": 60.0, "cuda": 240.0}
"""For how long each stage may run; by the clock they have `PATIENCE` times as long, starting included."""

PARTNER_S = 3600  # for a message of the partner: whoever started both gives up earlier
_GRACE_S = 2.0  # for a stage to end after another one
_TAIL = 8  # lines of each log that an error shows
# What the first matmul under the emulator imports, in half a second.
_SLOW = "torch.fx.experimental.symbolic_shapes"


class StageDied(Mrv2labError):
    """A stage ended without a result. The first line says which and why, the rest is the end of both logs."""


def run_stages(stage_main: Callable[..., Any], *args: Any, backend: str, num_stages: int = 2) -> list[Any]:
    """What `stage_main(pp_group, *args)` returned in each stage's process, first stage first.

    It is a function of a module, and what it returns can be pickled; functions of a notebook travel as code
    among `args`. On `cuda` each stage has a GPU and NCCL where there are enough; else all share one, and gloo
    carries CPU copies, because NCCL refuses two ranks on one GPU.

    StageDied: a stage crashed, or ran for longer than `LIMIT_S`. CutOff: they ran for less than that, and the
    clock ran out. Either way no process is left behind.
    """
    backend = resolve(backend)
    limit_s = LIMIT_S[backend]
    with tempfile.TemporaryDirectory(prefix="mrv2lab-pp-") as name:
        folder = Path(name)
        (folder / "spec.pkl").write_bytes(cloudpickle.dumps((stage_main, args, backend, num_stages, limit_s)))
        modules = [stage_main.__module__, _SLOW]
        stages = [
            Fork(main, folder, rank, log=folder / f"{rank}.log", folder=folder, modules=modules)
            for rank in range(num_stages)
        ]
        try:
            _wait(stages, folder, PATIENCE * limit_s)
            return [pickle.loads((folder / f"{rank}.pkl").read_bytes()) for rank in range(num_stages)]
        finally:
            for stage in stages:
                stage.end()


def _wait(stages: list[Fork], folder: Path, patience_s: float) -> None:
    """Return when every stage has ended well; one that has not ends the wait."""
    deadline = time.monotonic() + patience_s
    while running := [stage.sentinel for stage in stages if stage.status is None]:
        if not wait(running, deadline - time.monotonic()):
            break
        if any(stage.status for stage in stages):  # the other one may have died first, and be seen later
            deadline = min(deadline, time.monotonic() + _GRACE_S)
    statuses = [stage.status for stage in stages]
    if failed := [rank for rank, status in enumerate(statuses) if status]:
        first = min(failed, key=lambda rank: _time_of_death(folder, rank))
        raise StageDied(_obituary(folder, first, len(stages), f"ended with status {statuses[first]}"))
    if None in statuses:
        raise cut_off(f"stage {statuses.index(None)} of {len(stages)}", patience_s)


def _time_of_death(folder: Path, rank: int) -> int:
    """When a stage's exception was raised; a stage that had no time for one died of it first."""
    note = folder / f"{rank}.died"
    return note.stat().st_mtime_ns if note.exists() else 0


def _obituary(folder: Path, rank: int, num_stages: int, fate: str) -> str:
    logs = [last_lines(folder / f"{r}.log", _TAIL) for r in range(num_stages)]
    note = folder / f"{rank}.died"
    said = note.read_text() if note.exists() else ""  # empty where the disk is full
    last = said or (logs[rank] or ["not a word in its log"])[-1]
    tails = [line for r in range(num_stages) for line in (f"--- stage {r}, last lines:", *logs[r])]
    return "\n".join([f"stage {rank} of {num_stages} {fate}: {last}", *tails])


# ---- in the process of a stage ----


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
    lines = "gloo" if wire == "cpu" else "cpu:gloo,cuda:nccl"
    timeout = timedelta(seconds=PARTNER_S)
    dist.init_process_group(lines, f"file://{folder}/rendezvous", timeout, num_stages, rank)
    return PPGroup(rank, num_stages, device, wire)
