"""The number of splits is decided from a dummy length of 1 and covers only that much."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-grid", "frozen-host-value"]
SUBJECTS = ["partial_sum_kernel", "max_seq_len", "num_splits"]


@triton.jit
def partial_sum_kernel(x_ptr, n_ptr, part_ptr, CHUNK: tl.constexpr):
    split = tl.program_id(0)
    i = split * CHUNK + tl.arange(0, CHUNK)
    v = tl.load(x_ptr + i, mask=i < tl.load(n_ptr), other=0.0)
    tl.store(part_ptr + split, tl.sum(v, 0))


def num_splits_for(max_seq_len, chunk=8):
    return max(1, (max_seq_len + chunk - 1) // chunk)


class Decode:
    def __init__(self):
        torch.manual_seed(0)
        self.max_seq_len = 1
        self.x = torch.randn(64, device=DEVICE)
        self.n = torch.tensor([1], dtype=torch.int32, device=DEVICE)
        self.parts = torch.zeros(8, device=DEVICE)

    def __call__(self):
        splits = num_splits_for(self.max_seq_len)  # HERE
        self.parts.zero_()
        partial_sum_kernel[(splits,)](self.x, self.n, self.parts, CHUNK=8)  # HERE
        return self.parts.sum()


def make():
    d = Decode()

    def vary():
        d.max_seq_len = d.max_seq_len % 40 + 20
        d.n.fill_(d.max_seq_len)

    return {"step": d, "vary": vary, "reset": None}
