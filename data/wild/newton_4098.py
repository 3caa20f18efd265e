"""A stateful actuator in a CUDA graph stood still: after twelve steps its integral was that of one, with
three steps in a graph that of nine. Each step reads one state and writes another, then Python swaps the
two. A replay swaps nothing: if the number of steps in a graph is odd, it begins where it began before and
not where it ended. The repair offers `assign`, to copy the last state into the one that the graph begins
with.
"""

from types import SimpleNamespace

import torch

PROJECT = "Newton"
LINK = "https://github.com/newton-physics/newton/issues/4098"
MECHANISM = "left-behind"
CAUSE = "sim.current, sim.next"
LINE = "sim.current, sim.next = sim.next, sim.current"
EXECUTORS = ("emulated", "cuda")

JOINTS, SUBSTEPS, DT = 4, 3, 0.01


class State:
    """What an actuator carries from step to step."""

    def __init__(self, device: torch.device):
        self.integral = torch.zeros(JOINTS, device=device)

    def assign(self, other: "State") -> None:
        self.integral.copy_(other.integral)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    sim = SimpleNamespace(current=State(device), next=State(device))
    error, numbers = torch.ones(JOINTS, device=device), torch.Generator().manual_seed(0)

    def simulate() -> torch.Tensor:
        for substep in range(SUBSTEPS):
            torch.add(sim.current.integral, error, alpha=DT, out=sim.next.integral)
            if fixed and substep == SUBSTEPS - 1:
                sim.current.assign(sim.next)
            else:
                sim.current, sim.next = sim.next, sim.current
        return sim.current.integral * 2  # the effort

    def vary() -> None:
        error.copy_(torch.rand(JOINTS, generator=numbers))

    return SimpleNamespace(step=simulate, vary=vary, sim=sim)
