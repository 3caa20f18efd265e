# token counts per expert for the permute; counts are cleared for the next step
import torch

torch.manual_seed(18)
T, E = 12, 4


class Permuter:
    def __init__(self):
        self.counts = torch.zeros(E, dtype=torch.long, device="cpu")
        self.one = torch.ones(T, dtype=torch.long, device="cpu")
        self.overflow = 0

    def run(self, ids):
        self.counts.index_add_(0, ids, self.one)
        ends = self.counts.cumsum(0)
        starts = ends - self.counts
        order = torch.argsort(ids, stable=True)
        self.rearm()
        return starts, ends, order

    def rearm(self):
        self.counts = torch.zeros(E, dtype=torch.long, device="cpu")


perm = Permuter()
ids = torch.randint(0, E, (T,), device="cpu")
x = torch.randn(T, 3, device="cpu")
trace = []


def step():
    starts, ends, order = perm.run(ids)
    return x.index_select(0, order), starts, ends


def vary():
    trace.append(("layer", len(trace)))
    perm.overflow = len(trace) // 3
    ids.copy_(torch.randint(0, E, (T,)))
    x.copy_(torch.randn(T, 3))
