"""A constexpr string picks the activation; the configuration changes it later."""

import torch
import triton
import triton.language as tl

from mrv2lab import graphs
from mrv2lab.kernels.dual import DualKernel

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["act", "cfg"]


@DualKernel
def act_kernel(x_ptr, o_ptr, n, ACT: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x_ptr + i, mask=i < n, other=0.0)
    if ACT == "relu":
        v = tl.maximum(v, 0.0)
    else:
        v = tl.where(v > 0, v, 0.1 * v)
    tl.store(o_ptr + i, v, mask=i < n)


class Mlp:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(0)
        self.x = torch.randn(20, device=DEVICE)
        self.out = torch.zeros(20, device=DEVICE)

    def __call__(self):
        act_kernel[(triton.cdiv(20, 8),)](self.x, self.out, 20, ACT=self.cfg["act"], BLOCK=8)  # HERE
        return self.out


def make():
    mlp = Mlp({"act": "relu"})

    def vary():
        mlp.cfg["act"] = "leaky" if mlp.cfg["act"] == "relu" else "relu"

    return {"step": mlp, "vary": vary, "reset": None}
