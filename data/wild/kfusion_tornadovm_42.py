"""CUDA graphs had been asked for and never engaged. A task-graph is compiled to bytecode when it is executed
first, together with the mark of what is captured, and the code is kept for each device. The plan ran every
graph once to warm up and asked for CUDA graphs only then: the code without marks was there already, and the
request changed nothing. Repaired by asking before the first execution.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "KFusion-TornadoVM"
LINK = "https://github.com/beehive-lab/kfusion-tornadovm/pull/42"
MECHANISM = "silent-eager"
CAUSE = "self.vm_table"
LINE = "self.vm_table[device] = self.bytecode()"
EXECUTORS = ("emulated", "cuda")
SYMPTOM = "speed"


class TaskGraph:
    """Tasks on the buffers of a frame, and the code to run them."""

    def __init__(self, *tasks):
        self.tasks, self.use_cuda_graph, self.vm_table, self.captured = tasks, False, {}, None

    def launch(self) -> None:
        for task in self.tasks:
            task()

    def bytecode(self) -> list[str]:
        return ["CAPTURE"] * self.use_cuda_graph + ["LAUNCH"] * len(self.tasks)

    def code(self, device: str) -> list[str]:
        if device not in self.vm_table:
            self.vm_table[device] = self.bytecode()
        return self.vm_table[device]


class Interpreter:
    """Runs bytecode. What is marked is captured the first time and replayed from then on."""

    def __init__(self, device: torch.device):
        self.device, self.backend = device.type, "cuda" if device.type == "cuda" else "emulated"

    def execute(self, graph: TaskGraph) -> None:
        if graph.code(self.device)[0] != "CAPTURE":
            return graph.launch()
        if graph.captured is None:
            graph.captured = capture(graph.launch, backend=self.backend)
        graph.captured.replay()


class ExecutionPlan:
    """The stages of a frame: filter its depth, then find the camera by it."""

    def __init__(self, fixed: bool, device: torch.device):
        self.interpreter = Interpreter(device)
        self.depth, self.reference, self.filtered, self.errors = torch.ones(4, 8, device=device)
        self.graphs = TaskGraph(self.bilateral), TaskGraph(self.residual)
        if fixed:
            self.with_cuda_graph()
        self.execute(self.interpreter.execute)  # warms up
        self.with_cuda_graph()

    def bilateral(self) -> None:
        self.filtered.copy_(self.depth * 0.75 + self.depth.mean() * 0.25)

    def residual(self) -> None:
        self.errors.copy_((self.filtered - self.reference / 2) ** 2)

    def with_cuda_graph(self) -> None:
        for graph in self.graphs:
            graph.use_cuda_graph = True

    def execute(self, run) -> torch.Tensor:
        for graph in self.graphs:
            run(graph)
        return self.errors


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    plan, camera = ExecutionPlan(fixed, device), torch.Generator().manual_seed(0)
    step, eager = (lambda run=run: plan.execute(run) for run in (plan.interpreter.execute, TaskGraph.launch))

    def vary() -> None:
        plan.depth.copy_(torch.rand(8, generator=camera))

    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, plan=plan)
