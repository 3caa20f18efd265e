"""Structured output: logits are masked by the grammar's allowed tokens, then sampled greedily.

Every request gets its own immutable plan; the plan before it is dropped.
"""

from dataclasses import dataclass, replace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB, DIM, BATCH = 24, 8, 3


@dataclass(frozen=True, eq=False)
class StepPlan:
    request: int
    phase: str
    allowed: torch.Tensor
    temperature: torch.Tensor
    penalty: torch.Tensor

    def with_phase(self, request, phase):
        return replace(self, request=request, phase=phase)


PHASES = {
    "object": range(0, 6),
    "key": range(4, 16),
    "value": range(10, 24),
    "free": range(0, 24),
}


class Grammar:
    def __init__(self):
        self.rows = {}

    def row(self, phase):
        if phase not in self.rows:
            row = torch.zeros(VOCAB, dtype=torch.bool)
            row[list(PHASES[phase])] = True
            self.rows[phase] = row
        return self.rows[phase]


class Sampler:
    def __init__(self):
        gen = torch.Generator().manual_seed(20)
        self.head = torch.randn(DIM, VOCAB, generator=gen).to(DEVICE)
        self.hidden = torch.zeros(BATCH, DIM, device=DEVICE)
        self.grammar = Grammar()
        self.plan = StepPlan(
            request=0,
            phase="free",
            allowed=torch.ones(BATCH, VOCAB, dtype=torch.bool, device=DEVICE),
            temperature=torch.ones(BATCH, 1, device=DEVICE),
            penalty=torch.zeros(VOCAB, device=DEVICE),
        )
        self.gen = torch.Generator().manual_seed(43)
        self.prepare()

    def prepare(self):
        request = self.plan.request + 1
        names = list(PHASES)
        plan = self.plan.with_phase(request, names[request % len(names)])
        for i in range(BATCH):
            plan.allowed[i] = self.grammar.row(names[(request + i) % len(names)])
        plan.temperature.copy_(torch.rand(BATCH, 1, generator=self.gen) + 0.3)
        plan.penalty.copy_(torch.rand(VOCAB, generator=self.gen))
        self.hidden.copy_(torch.randn(BATCH, DIM, generator=self.gen))
        self.plan = plan

    def sample(self):
        plan = self.plan
        logits = (self.hidden @ self.head - plan.penalty) / plan.temperature
        logits = logits.masked_fill(~plan.allowed, float("-inf"))
        return {"probs": logits.softmax(-1), "token": logits.argmax(-1)}


sampler = Sampler()


@torch.no_grad()
def step():
    return sampler.sample()


def vary():
    sampler.prepare()
