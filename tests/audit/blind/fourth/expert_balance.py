"""Mixture of experts with load balancing: experts change places now and then, so that ranks are evenly busy."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, HIDDEN, EXPERTS, TOP_K, RANKS = 10, 16, 4, 2, 2
gen = torch.Generator().manual_seed(37)


class ExpertMap:
    """Where each logical expert lies among the physical ones."""

    def __init__(self) -> None:
        self.place = list(range(EXPERTS))

    def move(self, new_place: list[int]) -> torch.Tensor:
        """Returns which old physical expert each new one is."""
        old = self.place
        source = [0] * EXPERTS
        for expert in range(EXPERTS):
            source[new_place[expert]] = old[expert]
        self.place = list(new_place)
        return torch.tensor(source)


class MoE:
    def __init__(self) -> None:
        scale = 1 / math.sqrt(HIDDEN)
        self.router = (torch.randn(HIDDEN, EXPERTS, generator=gen)).to(DEVICE)
        self.w1 = (torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=gen) * scale).to(DEVICE)
        self.w2 = (torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=gen) * scale).to(DEVICE)
        self.experts = ExpertMap()
        self.load = torch.zeros(EXPERTS, device=DEVICE)

    def route(self, x: torch.Tensor) -> torch.Tensor:
        """Gate of every token for every expert, zero for those that it does not go to."""
        probs = (x @ self.router).softmax(-1)
        top, ids = probs.topk(TOP_K, dim=-1)
        return torch.zeros_like(probs).scatter_(1, ids, top / top.sum(-1, keepdim=True))

    def expert(self, physical: int, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x @ self.w1[physical]) @ self.w2[physical]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gates = self.route(x)
        self.load.copy_(gates.sum(0))
        out = x.clone()
        for logical, physical in enumerate(self.experts.place):
            out.addcmul_(gates[:, logical, None], self.expert(physical, x))
        return out

    def rebalance(self, order: list[int]) -> None:
        """Put the experts into another order, where they lie."""
        source = self.experts.move(order).to(DEVICE)
        for weight in (self.w1, self.w2):
            weight.copy_(weight[source])


def spread(load: list[float]) -> list[int]:
    """The heaviest expert and the lightest on one rank, and so on."""
    order = sorted(range(EXPERTS), key=lambda e: -load[e])
    pairs = [(order[i], order[-1 - i]) for i in range(RANKS)]
    place = [0] * EXPERTS
    for rank, pair in enumerate(pairs):
        for i, expert in enumerate(pair):
            place[expert] = rank * (EXPERTS // RANKS) + i
    return place


moe = MoE()
x = torch.randn(TOKENS, HIDDEN, generator=gen).to(DEVICE)
expected = [[0.1, 0.5, 0.2, 0.2], [0.4, 0.1, 0.3, 0.2]]
steps = 0


def step():
    return moe(x)


def vary():
    global steps
    steps += 1
    x.copy_(torch.randn(TOKENS, HIDDEN, generator=gen))
    if steps % 2 == 0:
        moe.rebalance(spread(expected[steps // 2 % 2]))
