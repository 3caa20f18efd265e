"""MoE layer with expert-parallel load balancing (physical expert placement)."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERTS, TOPK, DIM, TOKENS = 4, 2, 16, 10


class ExpertPlacement:
    """Which logical expert lives in each physical slot, with load counters."""

    def __init__(self):
        self.phys_to_logical = list(range(EXPERTS))
        self.window = []

    def record(self, counts):
        self.window.append(counts)
        self.window = self.window[-2:]

    def plan(self):
        load = [sum(col) for col in zip(*self.window)]
        return sorted(range(EXPERTS), key=lambda e: (-load[e], e))


class FusedExperts:
    def __init__(self, gen):
        self.w1 = (torch.randn(EXPERTS, DIM, 32, generator=gen) / 4).to(DEVICE)
        self.w2 = (torch.randn(EXPERTS, 32, DIM, generator=gen) / 6).to(DEVICE)

    def permute_(self, old, new):
        """Shuffle weights in place so that slot i holds logical expert new[i]."""
        order = torch.tensor([old.index(e) for e in new], device=DEVICE)
        self.w1.copy_(self.w1[order])
        self.w2.copy_(self.w2[order])


class MoELayer:
    def __init__(self):
        gen = torch.Generator().manual_seed(41)
        self.placement = ExpertPlacement()
        self.experts = FusedExperts(gen)
        self.gate = torch.randn(DIM, EXPERTS, generator=gen).to(DEVICE)

    def route(self, x):
        probs = (x @ self.gate).softmax(-1)
        weights, ids = probs.topk(TOPK, dim=-1)
        return weights / weights.sum(-1, keepdim=True), ids

    def forward(self, x):
        weights, ids = self.route(x)
        out = torch.zeros_like(x)
        for slot, logical in enumerate(self.placement.phys_to_logical):
            coef = (weights * (ids == logical)).sum(-1, keepdim=True)
            hidden = torch.nn.functional.silu(x @ self.experts.w1[slot])
            out += coef * (hidden @ self.experts.w2[slot])
        return out

    def rebalance(self):
        old, new = self.placement.phys_to_logical, self.placement.plan()
        if new != old:
            self.experts.permute_(old, new)
            self.placement.phys_to_logical = new


class Engine:
    REBALANCE_EVERY = 3

    def __init__(self):
        self.layer = MoELayer()
        self.x = torch.zeros(TOKENS, DIM, device=DEVICE)
        self.gen = torch.Generator().manual_seed(42)
        self.ticks = 0
        self.load_inputs()

    def load_inputs(self):
        self.x.copy_(torch.randn(TOKENS, DIM, generator=self.gen))

    def next_batch(self):
        self.ticks += 1
        self.load_inputs()
        loads = [[5, 5, 5, 5], [4, 6, 5, 5], [1, 9, 3, 7], [2, 8, 4, 6], [9, 1, 2, 8], [3, 3, 3, 11]]
        self.layer.placement.record(loads[(self.ticks - 1) % len(loads)])
        if self.ticks % self.REBALANCE_EVERY == 0:
            self.layer.rebalance()


engine = Engine()


def step():
    return engine.layer.forward(engine.x)


def vary():
    engine.next_batch()
