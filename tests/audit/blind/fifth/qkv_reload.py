"""Attention layer with rollout weight reloads.

A trainer pushes new q/k/v shards every few requests; the layer multiplies by one
packed matrix, which is put together after a load.
"""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, HEADS, TOKENS = 16, 4, 6


class PackedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(DIM, DIM, bias=False)
        self.k = nn.Linear(DIM, DIM, bias=False)
        self.v = nn.Linear(DIM, DIM, bias=False)
        self.o = nn.Linear(DIM, DIM, bias=False)
        self._packed = None
        self._replaced = []  # for the off-policy log-probabilities of open rollouts
        self.register_load_state_dict_post_hook(self._after_load)

    @staticmethod
    def _after_load(module, incompatible):
        if module._packed is not None:
            module._replaced.append(module._packed)
        module._packed = None

    @property
    def packed(self):
        if self._packed is None:
            self._packed = torch.cat([self.q.weight, self.k.weight, self.v.weight])
        return self._packed

    def forward(self, x):
        q, k, v = (x @ self.packed.T).chunk(3, dim=-1)
        split = lambda t: t.view(TOKENS, HEADS, -1).transpose(0, 1)
        y = F.scaled_dot_product_attention(split(q), split(k), split(v), is_causal=True)
        return x + self.o(y.transpose(0, 1).reshape(TOKENS, DIM))


class WeightChannel:
    """Stands for the broadcast group over which the trainer sends shards."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def receive(self, like):
        return {name: torch.randn(t.shape, generator=self.gen) * 0.35 for name, t in like.items()}


class RolloutWorker:
    RELOAD_EVERY = 2

    def __init__(self):
        torch.manual_seed(1)
        self.layer = PackedAttention().to(DEVICE).eval()
        self.channel = WeightChannel(5)
        self.x = torch.zeros(TOKENS, DIM, device=DEVICE)
        self.gen = torch.Generator().manual_seed(9)
        self.requests = 0
        self.feed()

    def feed(self):
        self.x.copy_(torch.randn(TOKENS, DIM, generator=self.gen))

    def sync_weights(self):
        fresh = self.channel.receive(self.layer.state_dict())
        self.layer.load_state_dict(fresh, strict=True)

    def before_step(self):
        self.requests += 1
        if self.requests % self.RELOAD_EVERY == 0:
            with torch.no_grad():
                self.sync_weights()
        self.feed()


worker = RolloutWorker()


@torch.no_grad()
def step():
    return worker.layer(worker.x)


def vary():
    worker.before_step()
