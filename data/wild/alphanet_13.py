"""A calculator for molecular dynamics with graphs answers for the wrong chemistry when it is given another
molecule with as many atoms, a review found. It captures a step once and keeps the atomic numbers in a buffer
of its own, filled when the graph is made; before a replay only positions and edges are copied in, and
whether the graph fits is a matter of sizes alone. Asked for is to refresh the numbers as well.
"""

from functools import partial
from itertools import cycle
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "AlphaNet"
LINK = "https://github.com/zmyybc/AlphaNet/pull/13"
MECHANISM = "stale-input"
CAUSE = "self._z"
LINE = "self._z = atoms.z.clone()"
EXECUTORS = ("emulated", "cuda")

NUM_ATOMS, MAX_Z, MARGIN = 4, 10, 4


class Potential:
    """Energies of atoms from messages along edges."""

    def __init__(self, device: torch.device):
        self.charges = torch.linspace(0.2, 2, MAX_Z, device=device)

    def energies(self, pos: torch.Tensor, z: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        distances = (pos[source] - pos[target]).square().sum(1)
        messages = self.charges[z][source] * torch.exp(-distances) * (source != target)
        return torch.zeros(NUM_ATOMS, device=pos.device).index_add_(0, target, messages) * self.charges[z]


class GraphRunner:
    """A captured step for one number of atoms, with room for more edges."""

    def __init__(self, potential: Potential, atoms: SimpleNamespace, backend: str):
        self.capacity = atoms.edges.shape[1] + MARGIN
        self.pos_in = torch.zeros_like(atoms.pos)
        self._edge_index = torch.zeros(2, self.capacity, dtype=torch.int64, device=atoms.pos.device)
        self._z = atoms.z.clone()
        self.load(atoms)
        potential.energies(self.pos_in, self._z, self._edge_index)  # warms up
        inputs = self.pos_in, self._z, self._edge_index
        self.graph = capture(lambda: potential.energies(*inputs), backend=backend)

    def fits(self, atoms: SimpleNamespace) -> bool:
        return len(atoms.pos) == len(self.pos_in) and atoms.edges.shape[1] <= self.capacity

    def load(self, atoms: SimpleNamespace) -> None:
        self.pos_in.copy_(atoms.pos)
        self._edge_index.zero_()  # an edge of an atom with itself counts for nothing
        self._edge_index[:, : atoms.edges.shape[1]].copy_(atoms.edges)


class Calculator:
    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.backend = fixed, "cuda" if device.type == "cuda" else "emulated"
        self.potential = Potential(device)
        self.runner: GraphRunner | None = None

    def calculate(self, atoms: SimpleNamespace) -> torch.Tensor:
        if self.runner is None or not self.runner.fits(atoms):
            self.runner = GraphRunner(self.potential, atoms, self.backend)
        self.runner.load(atoms)
        if self.fixed:
            self.runner._z.copy_(atoms.z)
        self.runner.graph.replay()
        return self.runner.graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    calculator = Calculator(fixed, device)
    ring = torch.arange(NUM_ATOMS, device=device)
    atoms = SimpleNamespace(
        pos=torch.arange(NUM_ATOMS * 3.0, device=device).view(NUM_ATOMS, 3) / 9,
        z=torch.tensor([1, 1, 8, 6], device=device),
        edges=torch.stack([ring, ring.roll(1)]),
    )
    molecules = cycle([(1, 1, 8, 6), (7, 1, 1, 1), (6, 8, 9, 1)])

    def vary() -> None:
        atoms.pos[0].mul_(1.1).add_(0.05)
        atoms.z.copy_(torch.tensor(next(molecules)))

    step = partial(calculator.calculate, atoms)
    eager = partial(calculator.potential.energies, atoms.pos, atoms.z, atoms.edges)
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, calculator=calculator)
