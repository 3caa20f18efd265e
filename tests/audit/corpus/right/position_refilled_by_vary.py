"""A decode step counts on the host and writes the count to the device behind the forward, as its eager engine
wants. The runner writes position and count anew before each step, so what the graph froze is never read.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Request:
    num_computed = 7


def make():
    torch.manual_seed(0)
    request, lengths = Request(), iter(range(20, 90, 5))
    pos = torch.full((1,), request.num_computed, dtype=torch.long, device=DEVICE)
    table, x = torch.randn(128, 4, device=DEVICE), torch.randn(4, device=DEVICE)

    def step():
        y = table[pos] * x
        request.num_computed += 1
        pos.fill_(request.num_computed)
        return y

    def vary():
        x.mul_(-0.7)
        request.num_computed = next(lengths)
        pos.fill_(request.num_computed)

    return {"step": step, "vary": vary}
