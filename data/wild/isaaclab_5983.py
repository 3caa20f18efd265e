"""The first thrust that a drone was given had no effect, and its bodies were one step ahead, where capture is
put off until the first step. Before it captures, the manager simulates once to have the solver allocate its
buffers, and that run works on the live state: positions move, the staged wrench is used up and cleared. The
first replay starts from there. Repaired by saving both states before this warm-up and restoring them after.
"""

from copy import deepcopy
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "Isaac Lab"
LINK = "https://github.com/isaac-sim/IsaacLab/pull/5983"
MECHANISM = "not-rearmed"
CAUSE = "self.state_0"
LINE = "self.simulate()"
EXECUTORS = ("emulated", "cuda")

BODIES, SUBSTEPS, DT, GRAVITY = 3, 2, 0.05, -9.81


class State:
    """Positions, velocities and external wrenches of all bodies."""

    def __init__(self, device: torch.device):
        self.body_q, self.body_qd, self.body_f = (torch.zeros(BODIES, device=device) for _ in range(3))

    def assign(self, other: "State") -> None:
        for name, array in vars(other).items():
            getattr(self, name).copy_(array)


class SolverSemiImplicit:
    """Allocates when it is first used."""

    contact_f: torch.Tensor | None = None

    def step(self, state_in: State, state_out: State, dt: float) -> None:
        if self.contact_f is None:
            self.contact_f = torch.zeros_like(state_in.body_q)
        self.contact_f.copy_((-state_in.body_q).clamp(min=0) * 100)
        state_out.body_qd.copy_(state_in.body_qd + (GRAVITY + state_in.body_f + self.contact_f) * dt)
        state_out.body_q.copy_(state_in.body_q + state_out.body_qd * dt)
        state_out.body_f.copy_(state_in.body_f)


class NewtonManager:
    """Steps the simulation, by a graph from the first step on."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.graph, self.solver = fixed, None, SolverSemiImplicit()
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.state_0, self.state_1 = State(device), State(device)

    def simulate(self) -> torch.Tensor:
        for _ in range(SUBSTEPS):
            self.solver.step(self.state_0, self.state_1, DT / SUBSTEPS)
            self.state_0, self.state_1 = self.state_1, self.state_0
        self.state_0.body_f.zero_()
        return self.state_0.body_q

    def capture_relaxed_graph(self) -> None:
        live = self.state_0, self.state_1
        saved = [deepcopy(state) for state in live]
        self.simulate()
        if self.fixed:
            self.state_0, self.state_1 = live
            live[0].assign(saved[0])
            live[1].assign(saved[1])
        self.graph = capture(self.simulate, backend=self.backend)

    def step(self) -> torch.Tensor:
        if self.graph is None:
            self.capture_relaxed_graph()
        self.graph.replay()
        return self.state_0.body_q


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    manager = NewtonManager(fixed, device)
    thrusts = torch.Generator().manual_seed(0)

    def vary() -> None:
        manager.state_0.body_f.copy_(torch.rand(BODIES, generator=thrusts) * 20)

    vary()
    step, eager = manager.step, manager.simulate
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, manager=manager)
