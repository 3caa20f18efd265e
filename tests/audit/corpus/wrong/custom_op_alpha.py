"""A registered custom op takes a Python float that the scheduler anneals."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["alpha", "sharpness"]


OP = "corpus::soft_cap"


def _register():
    if hasattr(torch.ops.corpus, "soft_cap"):
        return

    @torch.library.custom_op(OP, mutates_args=())
    def soft_cap(x: torch.Tensor, alpha: float) -> torch.Tensor:
        return alpha * torch.tanh(x / alpha)

    @soft_cap.register_fake
    def _(x, alpha):
        return torch.empty_like(x)


class SoftCap(torch.nn.Module):
    def __init__(self, sharpness):
        super().__init__()
        self.sharpness = sharpness

    def extra_repr(self):
        return f"sharpness={self.sharpness}"

    def forward(self, scores):
        return torch.ops.corpus.soft_cap(scores, float(self.sharpness))  # HERE


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(8, 12, device=DEVICE)
        self.cap = SoftCap(2)

    def forward(self, x):
        return torch.log_softmax(self.cap(self.proj(x)), dim=-1)


def make():
    _register()
    torch.manual_seed(0)
    head = Head().requires_grad_(False)
    x = 3 * torch.randn(3, 8, device=DEVICE)

    def anneal():
        head.cap.sharpness += 3

    return {"step": lambda: head(x), "vary": anneal, "reset": None}
