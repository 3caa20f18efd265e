"""A custom op quantises into given buffers with a scale on the device; the host's copy of the scale is for
reports.
"""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


def _register():
    if hasattr(torch.ops.corpus, "quantise_rows_"):
        return

    @torch.library.custom_op("corpus::quantise_rows_", mutates_args=("out",))
    def quantise_rows_(x: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.round(x / scale).clamp(-127, 127).to(torch.int8))

    @quantise_rows_.register_fake
    def _(x, scale, out):
        return None


class W8A8Linear:
    def __init__(self, n_in=6, n_out=4, rows=3):
        torch.manual_seed(0)
        self.weight = torch.randint(-20, 20, (n_out, n_in), dtype=torch.int8).to(DEVICE)
        self.act = torch.empty(rows, n_in, dtype=torch.int8, device=DEVICE)
        self.act_scale = torch.full((1,), 0.05, device=DEVICE)
        self.reported_scale = 0.05
        self.reports = []

    def recalibrate(self, scale):
        self.reported_scale = scale
        self.act_scale.fill_(scale)

    def forward(self, x):
        self.reports = [f"scale {self.reported_scale:.3f}"]
        torch.ops.corpus.quantise_rows_(x, self.act_scale, self.act)
        return (self.act.float() @ self.weight.float().T) * self.act_scale


def make():
    _register()
    layer = W8A8Linear()
    x = torch.randn(3, 6, device=DEVICE)
    scales = iter([0.02, 0.08, 0.04] * 9)

    def vary():
        x.mul_(0.6)
        layer.recalibrate(next(scales))

    return {"step": lambda: layer(x) if callable(layer) else layer.forward(x), "vary": vary, "reset": None}
