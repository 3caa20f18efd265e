"""In the cartpole example the reset after a fixed number of steps never came once graphs were on. The host
counts steps where it simulates, in the loop over substeps that is captured, so the count advances during the
capture and stands still while the graph is launched. Proposed repair: count in the method that launches the
graph, by as many substeps as the graph holds.
"""

from itertools import count
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "Newton"
LINK = "https://github.com/newton-physics/newton/pull/1019"
MECHANISM = "frozen-host-value"
CAUSE = "self.sim_steps"
LINE = "self.sim_steps += 1"
EXECUTORS = ("emulated", "cuda")

SUBSTEPS, MAX_STEPS, DT = 2, 6, 0.05


class Simulator:
    """A cart that is pushed, with a pole on it."""

    def __init__(self, device: torch.device):
        self.q, self.u = torch.zeros(2, device=device), torch.zeros(2, device=device)
        self.tau = torch.zeros(2, device=device)

    def step(self) -> None:
        self.u.add_(DT * (self.tau + torch.sin(self.q)))
        self.q.add_(DT * self.u)

    def reset(self) -> None:
        self.q.copy_(torch.tensor([0.0, 0.3]))
        self.u.zero_()


class Example:
    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.backend = fixed, "cuda" if device.type == "cuda" else "emulated"
        self.sim = Simulator(device)
        self.use_cuda_graph, self.simulate_graph = True, None
        self.frames = 0
        self.reset()

    def reset(self) -> None:
        self.sim.reset()
        self.sim_steps = 0

    def simulate(self) -> None:
        for _ in range(SUBSTEPS):
            self.sim.step()
            if not self.fixed:
                self.sim_steps += 1

    def step(self) -> torch.Tensor:
        if self.frames and self.use_cuda_graph and self.simulate_graph is None:
            self.simulate_graph = capture(self.simulate, backend=self.backend)
        if self.simulate_graph is not None:
            self.simulate_graph.replay()
        else:
            self.simulate()
        if self.fixed:
            self.sim_steps = self.sim_steps + SUBSTEPS
        self.frames += 1
        pose = self.sim.q.clone()
        if self.sim_steps >= MAX_STEPS:
            self.reset()
        return pose


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    example, pushes = Example(fixed, device), count(1)

    def eager() -> torch.Tensor:
        example.use_cuda_graph = False
        return example.step()

    def vary() -> None:
        example.sim.tau.fill_(next(pushes) % 3 - 0.5)

    return SimpleNamespace(
        step=example.step, eager=eager, own_graphs=True, vary=vary, requests=8, example=example
    )
