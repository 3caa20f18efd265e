"""A process that has run a case, and forks a witness whenever it is asked: a first run takes longest.

Given: `asked`, a pipe both ways. What comes is what a witness is given, what goes is what it tells.
"""

import gc
import os
from runpy import run_path

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a look for a GPU must not begin CUDA here

import torch

from mrv2lab.cases import get

asked, case, shape = (globals()[name] for name in ("asked", "case", "shape"))

gc.set_threshold(100_000, 20, 100)
if not torch.cuda.is_available():  # else a run begins CUDA, which forks could not use any more
    get(case[0]).run(case[1], rung="emulated", **shape)
gc.collect()
gc.freeze()
while True:
    try:
        given = asked.recv()
    except EOFError:
        break
    if not (witness := os.fork()):
        try:
            run_path(os.path.join(os.path.dirname(__file__), "witness.py"), given | {"told": asked})
        finally:
            os._exit(1)
    os.waitpid(witness, 0)
