"""Tracking by a plan of several task-graphs came out wrong, without an error, once all of them used CUDA
graphs. A graph that consumes what another has made takes over the buffer of that one whenever it is executed.
If it has been captured before, its kernels go on with the buffer of that time, here that of the producer of
the first frame. Such graphs must be captured when their buffers are final; here a new buffer means a new
capture.
"""

from collections.abc import Callable
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "TornadoVM"
LINK = "https://github.com/beehive-lab/TornadoVM/issues/1006"
MECHANISM = "moved-address"
CAUSE = "state.buffer"
LINE = "state.buffer = persisted.buffer"
EXECUTORS = ("emulated", "cuda")

PIXELS = 6


def bilateral(depth: torch.Tensor, vertices: torch.Tensor) -> None:
    vertices.copy_(torch.tanh(depth))


def march(depth: torch.Tensor, vertices: torch.Tensor) -> None:
    vertices.copy_(depth**2 + 1)


def residual(vertices: torch.Tensor, errors: torch.Tensor) -> None:
    errors.copy_((vertices - vertices.mean()) ** 2)


class TaskGraph:
    """Tasks on objects, some of which another graph has left on the device."""

    def __init__(self, task: Callable, names: tuple[str, ...], device: torch.device):
        self.task = task
        self.states = {name: SimpleNamespace(buffer=torch.zeros(PIXELS, device=device)) for name in names}
        self.captured = None

    def run(self) -> None:
        self.task(**{name: state.buffer for name, state in self.states.items()})


class ExecutionPlan:
    """Executes task-graphs, each by a CUDA graph."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.backend = fixed, "cuda" if device.type == "cuda" else "emulated"
        self.graphs = {
            "preprocess": TaskGraph(bilateral, ("depth", "vertices"), device),
            "raycast": TaskGraph(march, ("depth", "vertices"), device),
            "track": TaskGraph(residual, ("vertices", "errors"), device),
        }

    def update_persisted_object_state(self, graph: TaskGraph, producer: TaskGraph, name: str) -> None:
        state, persisted = graph.states[name], producer.states[name]
        if self.fixed and state.buffer is not persisted.buffer:
            graph.captured = None
        state.buffer = persisted.buffer

    def execute(self, graph: TaskGraph) -> None:
        if graph.captured is None:
            graph.captured = capture(graph.run, backend=self.backend)
        graph.captured.replay()

    def frame(self, name: str, execute: Callable[[TaskGraph], None]) -> torch.Tensor:
        producer, track = self.graphs[name], self.graphs["track"]
        execute(producer)
        self.update_persisted_object_state(track, producer, "vertices")
        execute(track)
        return track.states["errors"].buffer


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    plan = ExecutionPlan(fixed, device)
    camera, frame = torch.Generator().manual_seed(0), SimpleNamespace(producer="preprocess")
    producers = iter(("raycast", "raycast", "preprocess", "raycast"))

    def vary() -> None:
        frame.producer = next(producers)
        plan.graphs[frame.producer].states["depth"].buffer.copy_(torch.rand(PIXELS, generator=camera))

    step, eager = (lambda run=run: plan.frame(frame.producer, run) for run in (plan.execute, TaskGraph.run))
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, requests=4, plan=plan)
