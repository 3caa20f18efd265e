"""A decode step whose position lies on the device: behind the forward the request's host counter is advanced
and written there for the next step. The first replay is right; no replay counts, so all write the same.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["num_computed"]


class Request:
    num_computed = 7


def make():
    torch.manual_seed(0)
    request = Request()
    pos = torch.full((1,), request.num_computed, dtype=torch.long, device=DEVICE)
    freq = torch.tensor([1.0, 0.5, 0.25, 0.125], device=DEVICE)
    q, out = torch.randn(1, 4, device=DEVICE), torch.zeros(1, 4, device=DEVICE)

    def step():
        out.copy_(q * torch.cos(pos[:, None] * freq))
        request.num_computed += 1
        pos.fill_(request.num_computed)  # HERE
        return out

    return {"step": step, "vary": lambda: q.mul_(-0.7)}
