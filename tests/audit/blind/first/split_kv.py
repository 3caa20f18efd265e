"""Flash-decoding: a planner cuts each sequence into splits, whose partial results are merged."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
REQS, MAX_LEN, MAX_SPLITS, DIM = 2, 12, 6, 4


@dataclass
class Plan:
    """What the planner tells the kernels, at full capacity; splits that are not used are empty."""

    owner: torch.Tensor
    begin: torch.Tensor
    end: torch.Tensor
    num_splits: int = 0

    @classmethod
    def allocate(cls) -> "Plan":
        return cls(*(torch.zeros(MAX_SPLITS, dtype=torch.int64, device=DEVICE) for _ in range(3)))


class Planner:
    def __init__(self) -> None:
        self.plan = Plan.allocate()

    def update(self, lens: list[int]) -> None:
        size = -(-sum(lens) // (MAX_SPLITS - REQS))
        pieces = [(r, at, min(at + size, n)) for r, n in enumerate(lens) for at in range(0, n, size)]
        self.plan.num_splits = len(pieces)
        pieces += [(0, 0, 0)] * (MAX_SPLITS - len(pieces))
        for target, values in zip((self.plan.owner, self.plan.begin, self.plan.end), zip(*pieces)):
            target.copy_(torch.tensor(values))


class SplitAttention:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        ramp = torch.arange(REQS * MAX_LEN * DIM, dtype=torch.float32, device=DEVICE)
        self.keys, self.values = (torch.sin(ramp * r).view(REQS, MAX_LEN, DIM) for r in (0.4, 0.9))
        self.numerator = torch.empty(REQS, DIM, device=DEVICE)
        self.denominator = torch.empty(REQS, 1, device=DEVICE)

    def __call__(self, query: torch.Tensor) -> torch.Tensor:
        plan, at = self.plan, torch.arange(MAX_LEN, device=DEVICE)
        inside = (at >= plan.begin[:, None]) & (at < plan.end[:, None])
        scores = torch.einsum("sd,std->st", query[plan.owner], self.keys[plan.owner]) / DIM**0.5
        weights = torch.where(inside, scores.exp(), torch.zeros_like(scores))
        self.numerator.zero_().index_add_(
            0, plan.owner, torch.einsum("st,std->sd", weights, self.values[plan.owner])
        )
        self.denominator.zero_().index_add_(0, plan.owner, weights.sum(-1, keepdim=True))
        return self.numerator / self.denominator


class Engine:
    def __init__(self) -> None:
        self.planner = Planner()
        self.attention = SplitAttention(self.planner.plan)
        self.query = torch.zeros(REQS, DIM, device=DEVICE)
        self.at(0)

    def at(self, turn: int) -> None:
        self.turn = turn
        self.planner.update([1 + (5 * turn) % MAX_LEN, 1 + (3 * turn + 4) % MAX_LEN])
        self.query.copy_(torch.cos(torch.arange(REQS * DIM) * 0.6 + turn).view(REQS, DIM))


engine = Engine()


def step():
    return engine.attention(engine.query)


def vary():
    engine.at(engine.turn + 1)


def reset():
    engine.at(0)
