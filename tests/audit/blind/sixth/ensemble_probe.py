"""Disagreement of an ensemble of small regressors, all members in one call.

Members train elsewhere. Their weights come in as they are; calibration offsets are smoothed on the way.
"""

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MEMBERS, FEATURES, ROWS = 4, 5, 6


class Member(nn.Module):
    """One regressor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, 8)
        self.outer = nn.Linear(8, 1)
        self.register_buffer("offset", torch.zeros(1), persistent=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(rows))) + self.offset


class Ensemble:
    """Stacked state of all members."""

    def __init__(self, seed: int):
        self.rng = torch.Generator().manual_seed(seed)
        members = [Member().to(DEVICE) for _ in range(MEMBERS)]
        params, buffers = stack_module_state(members)
        self.skeleton = members[0]
        self.state = {name: value.detach() for name, value in (params | buffers).items()}
        for value in self.state.values():
            value.copy_(torch.randn(value.shape, generator=self.rng))

    def _one(self, state, rows):
        return functional_call(self.skeleton, state, (rows,))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return vmap(self._one, in_dims=(0, None))(self.state, rows).squeeze(-1)

    def incoming(self) -> dict[str, torch.Tensor]:
        shapes = {name: value.shape for name, value in self.state.items()}
        return {name: torch.randn(shape, generator=self.rng) for name, shape in shapes.items()}

    def publish(self, incoming: dict[str, torch.Tensor], smoothing: float) -> None:
        """Take over what the trainers have sent."""
        for name, value in incoming.items():
            held, value = self.state[name], value.to(DEVICE)
            if name in self.skeleton._non_persistent_buffers_set:
                self.state[name] = torch.lerp(held, value, smoothing)
            else:
                held.copy_(value)


ensemble = Ensemble(19)
rows = torch.randn(ROWS, FEATURES, generator=ensemble.rng).to(DEVICE)


def step():
    with torch.no_grad():
        guesses = ensemble(rows)
        return {"mean": guesses.mean(0), "spread": guesses.var(0)}


def vary():
    rows.copy_(torch.randn(ROWS, FEATURES, generator=ensemble.rng))
    ensemble.publish(ensemble.incoming(), 0.5)
