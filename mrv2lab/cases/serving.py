"""What most cases do: a variant goes into a seam of `ModelRunner`, which captures and serves requests.

A case says how its runner is made, and what is special about what was served.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mrv2lab.audit import AuditReport
from mrv2lab.cases.base import SEED, Observation, Variant, relative_errors
from mrv2lab.cases.decode_step import audit_decode_step
from mrv2lab.cases.workload import decode_graph, decode_latency, serve, workload
from mrv2lab.graphs import CapturedGraph, poison, replayed
from mrv2lab.runner import CUDAGraphMode, ModelRunner, ModelRunnerOutput, Request, RunnerConfig
from mrv2lab.verdict import TOLERANCE

Shape = dict[str, int]


@dataclass(frozen=True)
class Served:
    """A variant that has served its requests, and every graph that was replayed for them, in their order."""

    variant: Variant
    runner: ModelRunner
    shape: Shape
    steps: list[ModelRunnerOutput]
    replayed: list[CapturedGraph]


def decode_graphs(served: Served) -> list[CapturedGraph]:
    """The graph that a full batch of decodes replays; empty without graphs."""
    return decode_graph(served.runner, served.shape["batch_size"])


@dataclass(frozen=True)
class Serving:
    """How the variants of a case are observed and audited."""

    make_runner: Callable[..., ModelRunner]  # the variant goes into its seam, named arguments into its config
    baseline: Variant  # what all are compared with, served without a dummy run and without graphs
    # lists of requests that are served one after the other, `batch_size` requests at a time
    batches: Callable[[Shape], list[list[Request]]] = lambda shape: [workload(shape)]
    graphs: Callable[[Served], Sequence[CapturedGraph]] = decode_graphs  # whose nodes are counted
    metrics: Callable[[Served], dict[str, float]] = lambda served: {}  # what is special
    adapters: bool = False  # whether requests of the audited step have adapters
    of_draft: bool = False  # whether the audited step is the speculator's

    def observe(self, variant: Variant, backend: str, shape: Shape) -> Observation:
        """Capture and serve with the variant, and find its eager reference."""
        runner = self.make_runner(variant, backend, shape)
        # What nobody writes must not happen to be zero, as it often is in memory that is new.
        poisoned = poison(runner.cudagraph_manager.pool, backend)
        runner.warm_up_and_capture()
        del poisoned
        wanted = reference(self, backend, *shape.items())
        with replayed() as graphs:
            steps = serve(runner, self.batches(shape), shape["batch_size"], wanted)
        served = Served(variant, runner, shape, steps, graphs)
        idle: list[ModelRunnerOutput] = []
        if max(relative_errors(steps, wanted)) <= TOLERANCE:  # what is wrong is wrong, whoever did the work
            idle = serve(runner, self.batches(shape), shape["batch_size"], idle=True)
        kernels = sum((graph.kernels() for graph in self.graphs(served)), Counter[str]())
        return Observation(
            steps=steps,
            reference=wanted,
            config=runner.config,
            idle=idle,
            kernels=dict(kernels),
            metrics={
                "graph_nodes": sum(kernels.values()),
                "replayed_steps": sum(step.num_replays > 0 for step in steps),
                **self.metrics(served),
            },
            measure=lambda: decode_latency(runner, backend, shape, self.batches(shape)[0]),
        )

    def audit(self, variant: Variant, backend: str, shape: Shape, seed: int) -> AuditReport:
        """Audit the capture of a full batch of decodes, and such a step."""
        sizes = (shape["batch_size"],)
        runner = self.make_runner(variant, backend, shape, seed=seed, cudagraph_capture_sizes=sizes)
        return audit_decode_step(runner, variant, shape, seed, adapters=self.adapters, of_draft=self.of_draft)


@lru_cache(maxsize=16)
def reference(serving: Serving, backend: str, *shape: tuple[str, int]) -> list[ModelRunnerOutput]:
    """All batches, served eagerly by the baseline: what every variant is compared with."""
    runner = serving.make_runner(serving.baseline, backend, dict(shape))
    return serve(runner, serving.batches(dict(shape)), dict(shape)["batch_size"])


def config_of(
    variant: Variant, shape: Shape, mode: CUDAGraphMode = CUDAGraphMode.FULL, **fields: Any
) -> RunnerConfig:
    """The config of a runner of this shape; mode NONE for a variant that uses no graphs."""
    mode = mode if variant.uses_graphs else CUDAGraphMode.NONE
    fields = {"num_layers": shape["num_layers"], "cudagraph_mode": mode, "seed": SEED, **fields}
    return RunnerConfig(**fields)
