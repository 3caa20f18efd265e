"""Settings are found by __getattr__ in a stack of override dicts; a per-batch override changes one."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["logit_softcap", "softcap", "overlay", "overrides"]


class Settings:
    """Defaults below, overrides above; attributes fall through from top to bottom."""

    def __init__(self, **defaults):
        self.__dict__["layers"] = [defaults]

    def __getattr__(self, name):
        for overrides in reversed(self.__dict__["layers"]):
            if name in overrides:
                return overrides[name]  # HERE
        raise AttributeError(name)

    def push(self, **overrides):
        self.layers.append(overrides)


class Gemma2Attention(torch.nn.Module):
    def __init__(self, settings, dim=6):
        super().__init__()
        self.settings = settings
        self.qkv = torch.nn.Linear(dim, 3 * dim, bias=False, device=DEVICE)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) * self.settings.query_scale
        scores = torch.tanh(scores / self.settings.logit_softcap) * self.settings.logit_softcap  # HERE
        return scores.softmax(-1) @ v


def make():
    torch.manual_seed(0)
    settings = Settings(query_scale=2.0, logit_softcap=3.0, rope_theta=1e4)
    layer = Gemma2Attention(settings).requires_grad_(False)
    x = torch.randn(2, 5, 6, device=DEVICE)

    def vary():
        x.add_(0.1)
        settings.push(logit_softcap=settings.logit_softcap / 2)

    return {"step": lambda: layer(x), "vary": vary, "reset": None}
