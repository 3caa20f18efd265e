"""Rendered images did not show randomized models. To randomize a field for each world, its array is replaced
by one with a row for each; the graph of the physics step is made anew after that. A second graph, the one
that renders, was not, and it read the shared array that the field had been before. Repaired by making the
graph of the renderer anew as well.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "mjlab"
LINK = "https://github.com/mujocolab/mjlab/pull/417"
MECHANISM = "moved-address"
CAUSE = "self.fields"
LINE = "self.fields[name] = self.fields[name].repeat(NWORLD, 1)"
EXECUTORS = ("emulated", "cuda")

NWORLD, NGEOM, PIXELS, DT = 3, 2, 4, 0.05


class Simulation:
    """Worlds that share a model, stepped by one graph and rendered by another."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.backend = fixed, "cuda" if device.type == "cuda" else "emulated"
        self.fields = {
            "geom_friction": torch.full((1, NGEOM), 0.6, device=device),
            "geom_rgba": torch.linspace(0.2, 1, NGEOM, device=device)[None].clone(),
        }
        self.defaults = {name: field.clone() for name, field in self.fields.items()}
        self.qpos, self.qvel = (torch.ones(NWORLD, NGEOM, device=device) for _ in range(2))
        self.rays = torch.linspace(-1, 1, PIXELS, device=device)
        self.create_graph()
        self.create_render_graph()

    def create_graph(self) -> None:
        self.step_graph = capture(self.physics, backend=self.backend)

    def create_render_graph(self) -> None:
        self.render_graph = capture(self.render, backend=self.backend)

    def expand_model_fields(self, names: tuple[str, ...]) -> None:
        for name in names:
            if self.fields[name].shape[0] == 1:
                self.fields[name] = self.fields[name].repeat(NWORLD, 1)
        self.create_graph()
        if self.fixed:
            self.create_render_graph()

    def physics(self) -> torch.Tensor:
        self.qvel.mul_(1 - self.fields["geom_friction"] * DT)
        self.qpos.add_(self.qvel * DT)
        return self.qpos

    def render(self) -> torch.Tensor:
        hit = torch.exp(-((self.rays - self.qpos[..., None]) ** 2))
        return (hit * self.fields["geom_rgba"][..., None]).sum(1)

    def observe(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.step_graph.replay()
        self.render_graph.replay()
        return self.qpos, self.render_graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    sim, draws = Simulation(fixed, device), torch.Generator().manual_seed(0)
    sim.expand_model_fields(("geom_friction", "geom_rgba"))

    def vary() -> None:
        for name, default in sim.defaults.items():
            scale = torch.rand(NWORLD, NGEOM, generator=draws).to(device) + 0.5
            sim.fields[name].copy_(default * scale)

    def eager() -> tuple[torch.Tensor, torch.Tensor]:
        return sim.physics(), sim.render()

    return SimpleNamespace(step=sim.observe, eager=eager, own_graphs=True, vary=vary, sim=sim)
