"""The offsets are memoised by warm-up; an engine clears the memo before each step, the graph never
recomputes them.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value", "lost-kernel"]
SUBJECTS = ["cumsum"]


def make():
    torch.manual_seed(0)
    lens = torch.tensor([1, 2, 3, 4], device=DEVICE)
    table = torch.randn(64, 4, device=DEVICE)
    memo = {}

    def offsets():
        if "offsets" not in memo:
            memo["offsets"] = torch.cumsum(lens, 0)  # HERE
        return memo["offsets"]

    def step():
        return table[offsets()].sum(0)

    def vary():
        lens.add_(1)

    def reset():
        memo.clear()

    return {"step": step, "vary": vary, "reset": reset}
