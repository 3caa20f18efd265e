"""The kernel gets the block table from the first live request on: a slice at a host offset."""

import torch
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "moved-address"]
SUBJECTS = ["first", "first_request", "table"]


@DualKernel
def gather_pages_kernel(cache_ptr, table_ptr, o_ptr, blocks, PAGE: tl.constexpr):
    req, block = tl.program_id(0), tl.program_id(1)
    page = tl.load(table_ptr + req * blocks + block)
    i = tl.arange(0, PAGE)
    v = tl.load(cache_ptr + page * PAGE + i)
    tl.store(o_ptr + (req * blocks + block) * PAGE + i, v)


class PagedCache:
    def __init__(self):
        torch.manual_seed(0)
        self.pages = torch.randn(12, 4, device=DEVICE)
        self.table = torch.randperm(12).to(torch.int32).view(6, 2).to(DEVICE)
        self.first_request = 0


class Reader:
    def __init__(self, cache):
        self.cache = cache
        self.out = torch.zeros(2, 2, 4, device=DEVICE)

    def read(self):
        live = self.cache.table[self.cache.first_request :]  # HERE
        gather_pages_kernel[(2, 2)](self.cache.pages, live, self.out, 2, PAGE=4)  # HERE
        return self.out


def make():
    reader = Reader(PagedCache())

    def vary():
        reader.cache.first_request = (reader.cache.first_request + 1) % 5

    return {"step": reader.read, "vary": vary, "reset": None}
