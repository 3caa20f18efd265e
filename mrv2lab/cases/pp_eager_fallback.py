"""Pipeline stages that never captured a graph. vLLM #33960, until #35162 (PIECEWISE and FULL graphs).

A stage that is not the first reads what the previous one sends. It comes in a new tensor in every step,
whose address nobody promises, and a graph would go on reading where it lay while the graph was captured. The
first version of the runner therefore captured nothing as soon as there were two stages: right and slow, with
a warning in the log. The cure is an address that stays: buffers of the stage's own, sized for the largest
batch, into which each step copies what arrived.
"""

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from mrv2lab.audit import AuditReport
from mrv2lab.cases import serving
from mrv2lab.cases.base import LIMITS, Case, Limit, Observation, Variant, relative_errors
from mrv2lab.cases.decode_step import audit_decode_step
from mrv2lab.cases.exercises.pp_eager_fallback import EXERCISE
from mrv2lab.cases.serving import Serving, Shape, config_of
from mrv2lab.cases.workload import no_adapters, serve, without_adapters
from mrv2lab.graphs import CapturedGraph, device_of
from mrv2lab.graphs.work import Amount
from mrv2lab.results import Latency
from mrv2lab.runner import CUDAGraphMode, Engine, ModelRunner, ModelRunnerOutput, Request
from mrv2lab.runner.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager
from mrv2lab.runner.pp_executor import run_stages
from mrv2lab.runner.pp_utils import PPGroup, get_pp_indices
from mrv2lab.runner.sequence import IntermediateTensors
from mrv2lab.verdict import TOLERANCE


def eager_fallback(stage: ModelRunner) -> None:
    """Capture nothing where there are several stages: "Pipeline parallel is currently eager-only". #33960."""
    if stage.pp_group.world_size > 1:
        return
    stage.capture_model()


def moving_buffers(stage: ModelRunner) -> None:
    """Strike out the early return, and capture. Graphs read the tensors that happen to be there."""
    stage.capture_model()


def persistent_buffers(stage: ModelRunner) -> None:
    """Give a stage that receives memory of its own. PIECEWISE graphs, one of the two kinds of #35162."""
    stage.resolve_cudagraph_mode(CUDAGraphMode.PIECEWISE)
    if not stage.pp_group.is_first_rank:
        stage.intermediate_tensors = stage.make_empty_intermediate_tensors(stage.config.max_num_tokens)
    stage.capture_model()


def full_and_piecewise(stage: ModelRunner) -> None:
    """The same buffers under FULL graphs for decodes and PIECEWISE ones for the rest: vLLM's own choice."""
    stage.resolve_cudagraph_mode(CUDAGraphMode.FULL_AND_PIECEWISE)
    if not stage.pp_group.is_first_rank:
        stage.intermediate_tensors = stage.make_empty_intermediate_tensors(stage.config.max_num_tokens)
    stage.capture_model()


def full_graphs(stage: ModelRunner) -> None:
    """The same buffers under FULL graphs alone. The other kind of #35162."""
    if not stage.pp_group.is_first_rank:
        stage.intermediate_tensors = stage.make_empty_intermediate_tensors(stage.config.max_num_tokens)
    stage.capture_model()


def eager(stage: ModelRunner) -> None:
    """The same as `full_graphs`, in stages that were asked for no graphs."""
    full_graphs(stage)


@dataclass
class StageReport:
    """What one stage brings back. `latency` and `speeds` come from a GPU only."""

    steps: list[ModelRunnerOutput]
    idle: list[ModelRunnerOutput]
    num_graphs: int
    kernels: dict[str, int]
    latency: Latency | None = None
    speeds: dict[str, float] = field(default_factory=dict)


def make_runner(
    variant: Variant, backend: str, shape: Shape, pp_group: PPGroup | None = None, **changes: Any
) -> ModelRunner:
    """A stage that the variant makes ready for replays; by default one that has the whole model."""
    config = config_of(variant, shape, **changes)
    return ModelRunner(config, backend, no_adapters, pp_group=pp_group, capture_stage=variant.fn)


def serve_stage(pp_group: PPGroup, variant: Variant, backend: str, shape: Shape) -> StageReport:
    """What the process of a stage does: start a runner, serve the workload and, on a GPU, time it."""
    runner, size = make_runner(variant, backend, shape, pp_group), shape["batch_size"]
    runner.warm_up_and_capture()
    steps, idle = (serve(runner, without_adapters(shape), size, idle=is_idle) for is_idle in (False, True))
    manager = runner.cudagraph_manager
    of_decodes = captured_graphs(manager, manager.dispatch(size, size, 1))
    report = StageReport(
        steps=[replace(step, logits=step.logits.cpu()) for step in steps],
        idle=[replace(step, logits=step.logits.cpu()) for step in idle],
        num_graphs=len(captured_graphs(manager)),
        kernels=sum((graph.kernels() for graph in of_decodes), Counter()),
    )
    if backend == "cuda":
        report.latency, report.speeds = summary(step_times_s(runner, size), size)
        report.speeds["num_gpus"] = min(torch.cuda.device_count(), pp_group.world_size)
    return report


def captured_graphs(
    manager: CudaGraphManager, only: BatchExecutionDescriptor | None = None
) -> list[CapturedGraph]:
    """Every graph of a stage, or those that one kind of batch replays: a FULL one, or PIECEWISE ones."""
    full = [graph for desc, graph in manager.graphs.items() if only in (None, desc)]
    if manager.breakable_cg_runner is None or (only and only.cg_mode is CUDAGraphMode.FULL):
        return full
    entries = manager.breakable_cg_runner.entries.items()
    sized = [capture for shapes, (capture, *_) in entries if only is None or shapes[0][0] == only.num_tokens]
    return full + [graph for capture in sized for graph in capture.graphs]


def captured_addresses(stage: ModelRunner, num_tokens: int) -> set[int]:
    """Every device address in the graphs that a batch of this many tokens replays."""
    desc = stage.cudagraph_manager.dispatch(num_tokens, num_tokens, 1)
    graphs = captured_graphs(stage.cudagraph_manager, desc)
    return {address for graph in graphs for node in graph.nodes for address in node.addresses}


def copy_without_check(buffers: IntermediateTensors, received: IntermediateTensors) -> None:
    """Copy what arrived, whatever its keys are; the runner uses `copy_same_keys`. vLLM goes over the buffers'
    keys (0.19.1, 0.23.0): one that is missing is an error, one more is ignored.
    """
    for name, tensor in received.items():
        buffers[name][: len(tensor)].copy_(tensor)


class LastStage(PPGroup):
    """The last of two stages, for a process that has no other: what arrives is drawn from a seed. As over the
    wire, it lands in new memory each time.
    """

    def __init__(self, seed: int, hidden_size: int, max_num_tokens: int, device: torch.device):
        super().__init__(rank_in_group=1, world_size=2)
        self.generator = torch.Generator().manual_seed(seed)
        self.shape, self.device = (max_num_tokens, hidden_size), device

    def recv_tensor_dict(self) -> IntermediateTensors:
        """Something new, for the largest batch."""
        names = ("hidden_states", "residual")
        return IntermediateTensors(
            {name: torch.randn(self.shape, generator=self.generator).to(self.device) for name in names}
        )

    def broadcast(self, token_ids: list[int]) -> None:
        """Nobody listens."""


def audit_step(variant: Variant, backend: str, shape: Shape, seed: int) -> AuditReport:
    """Audit a decode step of the last stage, in this process."""
    config = config_of(variant, shape)
    stage = LastStage(seed, config.hidden_size, config.max_num_tokens, device_of(backend))
    sizes = (shape["batch_size"],)
    runner = make_runner(variant, backend, shape, stage, seed=seed, cudagraph_capture_sizes=sizes)
    return audit_decode_step(runner, variant, shape, seed)


def observe(variant: Variant, backend: str, shape: Shape) -> Observation:
    """Run the workload in two processes, one for each stage, and in one that has the whole model."""
    first, last = run_stages(serve_stage, variant, backend, shape, backend=backend)
    steps = [as_one(a, b) for a, b in zip(first.steps, last.steps, strict=True)]
    wanted, stages = reference(backend, *shape.items()), {"first_stage": first, "last_stage": last}
    right = max(relative_errors(steps, wanted)) <= TOLERANCE
    replayed = {name: sum(step.num_replays > 0 for step in stage.steps) for name, stage in stages.items()}
    return Observation(
        steps=steps,
        reference=wanted,
        config=config_of(variant, shape),
        idle=last.idle,
        kernels=dict(Counter(first.kernels) + Counter(last.kernels)),
        metrics={f"graphs_{name}": stage.num_graphs for name, stage in stages.items()}
        | {f"replayed_steps_{name}": number for name, number in replayed.items()}
        | (first.speeds if right else {}),  # a wrong answer has no speed
        measure=lambda: first.latency,
    )


def as_one(first: ModelRunnerOutput, last: ModelRunnerOutput) -> ModelRunnerOutput:
    """A step of the pair. Its logits are the last stage's; what was done is told by stage. Each stage
    prepares the inputs of the step, as the one process of the reference does: that counts once.
    """
    work = {"first stage": first.work["target"], "last stage": last.work["target"]}
    outside = max(stage.work["step"].ops - stage.work["target"].ops for stage in (first, last))
    split = sum(stage.work["step"].splitting for stage in (first, last))
    work["step"] = Amount(0, outside + sum(amount.ops for amount in work.values()), split)
    return replace(last, num_replays=first.num_replays + last.num_replays, work=work)


def by_stages(step: ModelRunnerOutput, num_layers: int) -> ModelRunnerOutput:
    """A step of the whole model as if each stage had done its part, by the number of its layers."""
    parts = {}
    for rank, name in enumerate(("first stage", "last stage")):
        share = len(get_pp_indices(num_layers, rank, 2)) / num_layers
        parts[name] = Amount(*(round(share * number) for number in step.work["target"]))
    return replace(step, work={**parts, "step": step.work["step"]})


def reference(backend: str, *shape: tuple[str, int]) -> list[ModelRunnerOutput]:
    """The workload, run eagerly by one process with the whole model."""
    num_layers = dict(shape)["num_layers"]
    steps = serving.reference(SERVING, backend, *shape)
    return [replace(by_stages(step, num_layers), logits=step.logits.cpu()) for step in steps]


def step_times_s(runner: ModelRunner, batch_size: int, num_batches: int = 4) -> list[list[float]]:
    """Serve a few full batches that start together; seconds of each step, from plan to tokens, by batch. The
    first stage waits for the tokens that the last one samples, so its clock sees the whole pair.
    """
    prompt, num_tokens = tuple(range(8)), runner.config.max_model_len - 8
    batches = []
    for batch in range(num_batches):
        engine, times = Engine(runner), []
        for i in range(batch_size):
            engine.add_request(Request(f"timed-{batch}-{i}", prompt, num_tokens))
        for _ in range(num_tokens):
            start = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - start)
        engine.step()  # lets go of what has finished
        batches.append(times)
    return batches[1:]  # the first batch warms up


def summary(batches: list[list[float]], batch_size: int) -> tuple[Latency, dict[str, float]]:
    """Time of a decode step of the pair, and what a user would feel."""
    steps = np.array(batches) * 1e3  # [num_batches, num_tokens] ms; the first token comes from the prefill
    p20, median, p80 = np.percentile(steps[:, 1:], [20, 50, 80])
    speeds = {
        "ttft_ms": float(np.median(steps[:, 0])),
        "tpot_ms": float(steps[:, 1:].mean()),
        "requests_per_s": len(steps) * batch_size / float(steps.sum()) * 1e3,
    }
    return Latency(median=float(median), p20=float(p20), p80=float(p80)), speeds


BASELINE = Variant(eager, "baseline", "correct", uses_graphs=False)
SERVING = Serving(make_runner, BASELINE, without_adapters)

CASE = Case(
    name="pp_eager_fallback",
    title="Pipeline stages that never captured a graph",
    upstream="vllm-project/vllm #33960 (eager only), #35162 (fix)",
    variants=(
        BASELINE,
        Variant(eager_fallback, "buggy", "eager", finding=("silent-eager", "ModelRunner.run_model")),
        Variant(moving_buffers, "tempting", "wrong", finding=("moved-address", "intermediate_tensors")),
        Variant(persistent_buffers, "fixed", "correct"),
        Variant(full_and_piecewise, "fixed", "correct"),
        Variant(full_graphs, "fixed", "correct"),
    ),
    limits=LIMITS | {"num_layers": Limit(2, 2, 8)},
    observe=observe,
    audit_step=audit_step,
    exercise=EXERCISE,
)
