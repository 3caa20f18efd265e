"""Split-KV decoding: the number of splits follows the host's longest sequence."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-grid", "frozen-host-value"]
SUBJECTS = ["max_seq_len", "num_splits", "split_kernel", "grid", "_heuristic"]


@triton.jit
def split_kernel(s_ptr, lens_ptr, part_ptr, stride, chunk, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    req, split = tl.program_id(0), tl.program_id(1)
    length = tl.load(lens_ptr + req)
    total = 0.0
    for at in range(0, chunk, BLOCK):
        pos = split * chunk + at + tl.arange(0, BLOCK)
        s = tl.load(s_ptr + req * stride + pos, mask=pos < length, other=0.0)
        total += tl.sum(s * s, axis=0)
    tl.store(part_ptr + req * SPLITS + split, total)


@triton.jit
def combine_kernel(part_ptr, out_ptr, used, SPLITS: tl.constexpr):
    req = tl.program_id(0)
    i = tl.arange(0, SPLITS)
    part = tl.load(part_ptr + req * SPLITS + i, mask=i < used, other=0.0)
    tl.store(out_ptr + req, tl.sum(part, axis=0))


class SplitDecode:
    MAX_SPLITS, CHUNK = 8, 4

    def __init__(self):
        torch.manual_seed(0)
        self.scores = torch.randn(2, 32, device=DEVICE)
        self.lens = torch.tensor([6, 4], dtype=torch.int32, device=DEVICE)
        self.max_seq_len = 6
        self.partials = torch.zeros(2, self.MAX_SPLITS, device=DEVICE)
        self.out = torch.zeros(2, device=DEVICE)

    def _heuristic(self):
        return min(self.MAX_SPLITS, triton.cdiv(self.max_seq_len, self.CHUNK))  # HERE

    def forward(self):
        splits = self._heuristic()  # HERE
        split_kernel[(2, splits)](  # HERE
            self.scores, self.lens, self.partials, 32, self.CHUNK, SPLITS=self.MAX_SPLITS, BLOCK=4
        )
        combine_kernel[(2,)](self.partials, self.out, splits, SPLITS=self.MAX_SPLITS)  # HERE
        return self.out


def make():
    layer = SplitDecode()

    def vary():
        layer.lens.add_(7)
        layer.max_seq_len += 7

    return {"step": layer.forward, "vary": vary, "reset": None}
