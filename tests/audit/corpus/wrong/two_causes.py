"""Two independent bugs: a rebound block table and a frozen count. Each of them is a right answer; both is
best.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address", "frozen-host-value"]
SUBJECTS = ["block_table", "num_reqs"]


class State:
    pass


def make():
    torch.manual_seed(0)
    s = State()
    s.block_table = torch.tensor([3, 1, 2, 0], device=DEVICE)
    s.num_reqs = 2
    cache = torch.randn(8, 4, device=DEVICE)
    out = torch.zeros(4, 4, device=DEVICE)

    def step():
        out.zero_()
        out[: s.num_reqs].copy_(cache[s.block_table][: s.num_reqs])  # HERE

    def vary():
        s.block_table = (s.block_table + 1) % 8
        s.num_reqs = s.num_reqs % 4 + 1

    return {"step": step, "vary": vary, "reset": None}
