"""MoE layer whose experts live in host memory; a few slots on the device hold the ones in use.

Slots are handed out in least-recently-used order; two shared experts are always applied,
the routed one is taken by id from a table on the device.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERTS, SLOTS, DIM, TOKENS = 8, 4, 12, 5
SHARED = (0, 1)


class ExpertCache:
    def __init__(self, host):
        self.host = host
        self.bank = torch.zeros(SLOTS, DIM, DIM, device=DEVICE)
        self.location = torch.zeros(EXPERTS, dtype=torch.long, device=DEVICE)
        self._slots = OrderedDict()

    def ensure(self, expert):
        if expert in self._slots:
            self._slots.move_to_end(expert)
            return
        if len(self._slots) < SLOTS:
            slot = len(self._slots)
        else:
            _, slot = self._slots.popitem(last=False)
        self._slots[expert] = slot
        self.bank[slot].copy_(self.host[expert], non_blocking=True)
        self.location[expert] = slot

    def __getitem__(self, expert):
        return self.bank[self._slots[expert]]


class MoELayer:
    def __init__(self):
        gen = torch.Generator().manual_seed(8)
        self.cache = ExpertCache(torch.randn(EXPERTS, DIM, DIM, generator=gen) * 0.4)
        self.x = torch.zeros(TOKENS, DIM, device=DEVICE)
        self.routed = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.gen = torch.Generator().manual_seed(19)
        self.plan = [[2], [3], [4, 5], [6, 7, 2], [3], [5, 4]]
        self.turn = 0
        for expert in SHARED:
            self.cache.ensure(expert)
        self.prefetch()

    def prefetch(self):
        """Bring in the predicted experts, then whatever the step itself applies."""
        predicted = self.plan[self.turn % len(self.plan)]
        self.turn += 1
        for expert in (*predicted, *SHARED):
            self.cache.ensure(expert)
        self.routed.fill_(predicted[-1])
        self.x.copy_(torch.randn(TOKENS, DIM, generator=self.gen))

    def forward(self):
        routed = self.cache.bank[self.cache.location[self.routed]][0]
        out = F.silu(self.x @ routed)
        for expert in SHARED:
            out = out + F.silu(self.x @ self.cache[expert])
        return self.x + out


layer = MoELayer()


@torch.no_grad()
def step():
    return layer.forward()


def vary():
    layer.prefetch()
