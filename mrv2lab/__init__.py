"""mrv2lab: five real bugs of vLLM's Model Runner V2, reproduced, repaired and measured.

The family: host code runs once, when a CUDA graph is captured, and what it decided then stays
frozen in the graph. Start with `notebooks/00_start_here.ipynb` or `mrv2lab doctor`.
"""

import os

import torch

if not torch.cuda.is_available():
    # Without a GPU, `@triton.jit` means Triton's interpreter. That is read where a kernel is defined; Triton
    # itself has some, so it has to be set before Triton is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

__version__ = "0.1.0"
