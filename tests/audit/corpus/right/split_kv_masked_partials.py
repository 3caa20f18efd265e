"""A split-KV kernel leaves the partials of splits beyond a sequence unwritten, and the combine kernel
masks them.
"""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@triton.jit
def partial_kernel(s_ptr, lens_ptr, part_ptr, stride, CHUNK: tl.constexpr, SPLITS: tl.constexpr):
    req, split = tl.program_id(0), tl.program_id(1)
    length = tl.load(lens_ptr + req)
    if split * CHUNK >= length:
        return
    pos = split * CHUNK + tl.arange(0, CHUNK)
    s = tl.load(s_ptr + req * stride + pos, mask=pos < length, other=0.0)
    tl.store(part_ptr + req * SPLITS + split, tl.sum(s * s, axis=0))


@triton.jit
def combine_kernel(part_ptr, lens_ptr, out_ptr, CHUNK: tl.constexpr, SPLITS: tl.constexpr):
    req = tl.program_id(0)
    i = tl.arange(0, SPLITS)
    used = i * CHUNK < tl.load(lens_ptr + req)
    part = tl.load(part_ptr + req * SPLITS + i, mask=used, other=0.0)
    tl.store(out_ptr + req, tl.sum(part, axis=0))


class SplitDecode:
    def __init__(self, reqs=3, max_len=16, chunk=4):
        torch.manual_seed(0)
        self.chunk, self.max_len = chunk, max_len
        self.scores = torch.randn(reqs, max_len, device=DEVICE)
        self.lens = torch.tensor([3, 9, 5], dtype=torch.int32, device=DEVICE)
        self.longest = 9

    def forward(self):
        reqs, splits = len(self.lens), triton.cdiv(self.max_len, self.chunk)
        partials = torch.empty(reqs, splits, device=DEVICE)
        out = torch.empty(reqs, device=DEVICE)
        partial_kernel[(reqs, splits)](
            self.scores, self.lens, partials, self.max_len, CHUNK=self.chunk, SPLITS=splits
        )
        combine_kernel[(reqs,)](partials, self.lens, out, CHUNK=self.chunk, SPLITS=splits)
        return out.sqrt()


def make():
    layer = SplitDecode()

    def vary():
        layer.lens.copy_(torch.tensor([layer.longest % 16 + 1, 4, 13], dtype=torch.int32))
        layer.longest = max(layer.longest % 16 + 1, 13)

    return {"step": layer.forward, "vary": vary, "reset": None}
