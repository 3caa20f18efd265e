"""An atomic histogram adds into fresh memory that nobody cleared."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["unwritten-read"]
SUBJECTS = ["counts", "empty", "histogram_kernel"]


@DualKernel
def histogram_kernel(ids_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    bins = tl.load(ids_ptr + i, mask=ok, other=0)
    tl.atomic_add(counts_ptr + bins, tl.full((BLOCK,), 1, tl.int32), mask=ok)


def make():
    torch.manual_seed(0)
    ids = torch.randint(0, 4, (12,), device=DEVICE)

    def expert_counts(ids):
        counts = torch.empty(4, dtype=torch.int32, device=ids.device)  # HERE
        histogram_kernel[(3,)](ids, counts, 12, BLOCK=4)  # HERE
        return counts

    def step():
        return expert_counts(ids)  # HERE

    def vary():
        ids.copy_((ids + 1) % 4)

    return {"step": step, "vary": vary, "reset": None}
