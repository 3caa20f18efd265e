"""Scale and causal mask come from cached_property and lru_cache of constants; the object that asks is new
each step.
"""

from functools import cache, cached_property

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@cache
def causal_mask(size):
    return torch.full((size, size), float("-inf"), device=DEVICE).triu(1)


class ModelConfig:
    def __init__(self, hidden, heads):
        self.hidden, self.heads = hidden, heads

    @cached_property
    def head_dim(self):
        return self.hidden // self.heads

    @property
    def softmax_scale(self):
        return self.head_dim**-0.5


class AttentionCall:
    """Made by the model for each forward; holds no state across them."""

    def __init__(self, config, x):
        self.config, self.x = config, x

    def run(self):
        heads = self.x.unflatten(-1, (self.config.heads, self.config.head_dim)).transpose(0, 1)
        scores = heads @ heads.transpose(1, 2) * self.config.softmax_scale + causal_mask(heads.shape[1])
        return (scores.softmax(-1) @ heads).transpose(0, 1).flatten(1)


class Model:
    def __init__(self):
        torch.manual_seed(0)
        self.config = ModelConfig(8, 2)
        self.x = torch.randn(5, 8, device=DEVICE)

    def forward(self):
        call = AttentionCall(self.config, self.x)
        return call.run() + AttentionCall(self.config, self.x * 2).run()


def make():
    model = Model()

    def vary():
        model.x.add_(0.1)
        model.config = ModelConfig(8, 2)

    return {"step": model.forward, "vary": vary, "reset": None}
