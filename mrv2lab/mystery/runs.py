"""Engines with faults, run beside a healthy one and audited."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from mrv2lab.audit import AuditReport, Finding
from mrv2lab.cases.base import raised_at, relative_errors
from mrv2lab.cases.decode_step import DecodeStep
from mrv2lab.cases.workload import decode_graph
from mrv2lab.crash import ending
from mrv2lab.errors import CaptureError
from mrv2lab.graphs.work import counted
from mrv2lab.limits import by_itself
from mrv2lab.mystery.engine import CONFIG, Part, build, make_ready, warm_up_and_capture
from mrv2lab.mystery.faults import RIGHT_PARTS, Fault
from mrv2lab.mystery.workload import SEED, Serving
from mrv2lab.results import Run, Rung, provenance
from mrv2lab.runner import CUDAGraphMode, ModelRunner, ModelRunnerOutput
from mrv2lab.runner.scheduler import SchedulerOutput
from mrv2lab.verdict import TOLERANCE, eager_shares, judge


def parts_of(faults: Sequence[Fault]) -> dict[str, Part]:
    return RIGHT_PARTS | {fault.place: fault.part for fault in faults}


@lru_cache(maxsize=2)
@by_itself
def reference(backend: str) -> list[ModelRunnerOutput]:
    """The workload, served eagerly by an engine in which nothing is wrong."""
    runner = build(RIGHT_PARTS, backend, CUDAGraphMode.NONE)
    runner.warm_up_and_capture()
    with counted():
        return list(Serving(runner).steps())


@dataclass(frozen=True)
class Batch:
    """What the scheduler asked for in one step."""

    num_reqs: int
    num_tokens: int

    @property
    def fits_a_graph(self) -> bool:
        return self.num_tokens <= max(CONFIG.cudagraph_capture_sizes)


def batches(backend: str) -> list[Batch]:
    """The steps of the workload. They are the same for every engine, as all tokens are forced."""
    return [Batch(len(step.req_ids), step.num_tokens) for step in reference(backend)]


@dataclass(frozen=True)
class Served:
    run: Run  # judged when all steps have been served, as cases judge theirs
    errors_at_once: tuple[float, ...] = ()  # the same errors, of copies that were made when each step ended


def run_with(faults: tuple[Fault, ...], backend: Rung, *, graphs: bool = True) -> Run:
    """Serve the workload with these faults; only the run of `serve_with`."""
    return serve_with(faults, backend, graphs).run


@lru_cache(maxsize=256)
@by_itself
def serve_with(faults: tuple[Fault, ...], backend: Rung, graphs: bool) -> Served:
    """Serve the workload with these faults, with graphs or without."""
    common: dict[str, Any] = {
        "case": "mystery",
        "variant": "graphs on" if graphs else "graphs off",
        "role": "unknown" if graphs else "baseline",
        "rung": backend,
        "expected": "correct",
        "provenance": provenance(SEED, uses_gpu=backend == "cuda"),
    }
    runner = build(parts_of(faults), backend, CUDAGraphMode.FULL if graphs else CUDAGraphMode.NONE)
    try:
        make_ready(runner)
    except CaptureError as error:
        ended = ending(error, next((fault.crash for fault in faults if fault.crash), None))
        return Served(Run(**common, **ended, errors=[], step_modes=[], where=raised_at(error)))
    steps, copies, wanted = [], [], reference(backend)
    with counted():
        for step in Serving(runner).steps():
            steps.append(step)
            copies.append(replace(step, logits=step.logits.clone()))
    errors = relative_errors(steps, wanted)
    shares = eager_shares(steps, wanted, [graphs and batch.fits_a_graph for batch in batches(backend)])
    run = Run(
        **common,
        verdict=judge(errors, shares),
        eager_share=max(shares, default=None),
        errors=errors,
        step_modes=["graph" if step.num_replays else "eager" for step in steps],
        kernels={name: n for graph in decode_graph(runner, 4) for name, n in graph.kernels().items()},
    )
    return Served(run, tuple(relative_errors(copies, wanted)))


def suspects(faults: tuple[Fault, ...], backend: Rung) -> list[int]:
    """Steps worth an audit, of those that fit a graph; if none of them is wrong, the first.

    The first decode step that went wrong, the first with a prompt that did, the first that ran eagerly.
    """
    run, asked = run_with(faults, backend), batches(backend)
    fit = [i for i, batch in enumerate(asked) if batch.fits_a_graph]
    wrong = [i for i in fit if run.errors and run.errors[i] > TOLERANCE]
    decode = [i for i in wrong if asked[i].num_tokens == asked[i].num_reqs]
    prompt = [i for i in wrong if i not in decode]
    return sorted({*decode[:1], *prompt[:1], *ran_eagerly(run, backend)[:1]}) or fit[:1]


@lru_cache(maxsize=256)
@by_itself
def audit_with(faults: tuple[Fault, ...], backend: Rung, number: int) -> AuditReport:
    """Audit one step, which has to fit a graph, of an engine with these faults."""
    runner = build(parts_of(faults), backend)
    fresh = runner.block_tables.step.start  # type: ignore[attr-defined]
    return _Step(runner, number).audit(f"step {number}", lambda: warm_up_and_capture(runner), fresh=fresh)


@by_itself
def buffers_with(faults: tuple[Fault, ...], backend: Rung, number: int) -> list[list[str]]:
    """What persistent buffers hold when a step begins, beside what the scheduler has asked for: a header and
    rows of a name, what belongs to the requests, and what belongs to the padding behind them.
    """
    crashed = run_with(faults, backend).raised
    runner = build(parts_of(faults), backend, CUDAGraphMode.NONE if crashed else CUDAGraphMode.FULL)
    make_ready(runner)
    step = _Step(runner, number)
    step.prepare()
    batch, slots = step.batch, runner.block_tables.slot_mapping
    num_reqs, num_tokens = batch.num_reqs, int(batch.num_scheduled_tokens.sum())
    held = {
        "query_start_loc": (batch.query_start_loc, num_reqs + 1),
        "seq_lens": (batch.seq_lens, num_reqs),
        "positions": (batch.positions, num_tokens),
        "slot_mapping": (slots[: batch.num_tokens_after_padding], num_tokens),
    }
    return [
        [f"step {number}", "requests", "padding"],
        ["asked: tokens", _words(batch.num_scheduled_tokens), ""],
        ["asked: lengths", _words(batch.seq_lens_np), ""],
        *([name, _words(tensor[:end]), _words(tensor[end:])] for name, (tensor, end) in held.items()),
    ]


def _words(values: torch.Tensor | np.ndarray) -> str:
    return " ".join(map(str, values.tolist()))


class _Step(DecodeStep):
    """Any step of the workload."""

    def __init__(self, runner: ModelRunner, number: int):
        self.runner, self.model, self.number = runner, runner.model, number

    def _scheduled(self) -> SchedulerOutput:
        serving = Serving(self.runner)
        for _ in zip(range(self.number), serving.steps(), strict=False):
            pass
        serving.arrive()
        scheduler_output = serving.engine.scheduler.schedule()
        self.runner._update_states(scheduler_output)
        return scheduler_output

    def _result(self) -> torch.Tensor:
        return self.runner.hidden_states[self.batch.logits_indices]


def ran_eagerly(run: Run, backend: Rung) -> list[int]:
    """Steps that fit a graph and ran without one; none of a run that crashed."""
    asked = enumerate(batches(backend))
    return [i for i, batch in asked if run.errors and batch.fits_a_graph and run.step_modes[i] == "eager"]


def names(fault: Fault, report: AuditReport) -> Finding | None:
    """The finding with which an audit names a fault: by kind, and by a cause in the subject.

    Of a step without a graph the audit knows no cause.
    """
    for finding in report.findings:
        causes = any(cause in finding.subject for cause in fault.causes)
        if finding.kind in fault.kinds and (causes or finding.kind == "silent-eager"):
            return finding
    return None
