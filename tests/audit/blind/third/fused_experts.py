"""Gated experts whose two input projections are fused once; single experts are reloaded while serving."""

from functools import cached_property

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

TOKENS, DIM, INNER, EXPERTS, TOP = 5, 8, 6, 4, 2


class GatedExperts(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        self.router = nn.Parameter(torch.randn(DIM, EXPERTS, generator=gen))
        self.gate = nn.Parameter(torch.randn(EXPERTS, DIM, INNER, generator=gen) * DIM**-0.5)
        self.up = nn.Parameter(torch.randn(EXPERTS, DIM, INNER, generator=gen) * DIM**-0.5)
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, DIM, generator=gen) * INNER**-0.5)
        self.generation = 0

    @cached_property
    def fused(self) -> torch.Tensor:
        return torch.cat((self.gate.detach(), self.up.detach()), dim=-1)

    @torch.no_grad()
    def reload(self, expert: int, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> None:
        for parameter, value in ((self.gate, gate), (self.up, up), (self.down, down)):
            parameter[expert].copy_(value)
        if "fused" in self.__dict__:
            torch.cat((self.gate[expert], self.up[expert]), dim=-1, out=self.fused[expert])
        self.generation += 1

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weights, chosen = (hidden @ self.router).softmax(-1).topk(TOP, dim=-1)
        share = torch.zeros(TOKENS, EXPERTS, device=hidden.device).scatter(1, chosen, weights)
        gate, up = torch.einsum("td,edi->tei", hidden, self.fused).chunk(2, dim=-1)
        inner = nn.functional.silu(gate) * up
        return torch.einsum("te,tei,eid->td", share, inner, self.down)


class Engine:
    def __init__(self) -> None:
        self.experts = GatedExperts(seed=91).to(DEVICE)
        self.hidden = torch.zeros(TOKENS, DIM, device=DEVICE)
        self.random = torch.Generator().manual_seed(92)
        self.log: list[tuple[int, int]] = []
        self.admit()

    def admit(self) -> None:
        self.hidden.copy_(torch.randn(TOKENS, DIM, generator=self.random))

    def hot_reload(self) -> None:
        expert = len(self.log) % EXPERTS
        gate, up = torch.randn(2, DIM, INNER, generator=self.random) * DIM**-0.5
        self.experts.reload(expert, gate, up, torch.randn(INNER, DIM, generator=self.random) * INNER**-0.5)
        self.log.append((expert, self.experts.generation))

    def run(self) -> torch.Tensor:
        with torch.no_grad():
            return self.hidden + self.experts(self.hidden)


engine = Engine()


def step() -> torch.Tensor:
    return engine.run()


def vary() -> None:
    engine.admit()
    engine.hot_reload()
