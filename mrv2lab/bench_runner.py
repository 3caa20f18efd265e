"""What a decode step of the mini runner takes, eagerly and by graphs, and how much of that is its kernels.

A step is the forward pass as the runner does it, on a batch that lies ready: by the clock, from the call
until the device is done. What its kernels take CUPTI tells, which torch's profiler reads. The rest has two
parts. Where steps follow each other and nobody waits for any, the time of one shows the gaps: there is work,
or soon will be, and the device does none. What a step that is waited for takes beyond that is its launch:
until the device begins, and until Python hears that it has ended.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from mrv2lab.graphs import resolve
from mrv2lab.graphs.work import Amount, counted
from mrv2lab.results import Latency
from mrv2lab.runner import CUDAGraphMode, Engine, InputBatch, LoRAMapping, ModelRunner, RunnerConfig
from mrv2lab.runner.lora import LoRAModelManager
from mrv2lab.runner.model_runner import MakePwModel, break_at_attention, launch_for_nobody
from mrv2lab.runner.piecewise import PiecewiseDecoder
from mrv2lab.runner.sampler import SamplingParams
from mrv2lab.runner.scheduler import Request
from mrv2lab.timed import Row, in_turn, latency
from mrv2lab.verdict import eager_shares, judge, relative_error

Run = Callable[[], Any]

BATCHES = {"emulated": (1, 8), "cuda": (1, 2, 4, 8, 16, 32, 64)}
RANKS = {"emulated": (8,), "cuda": (8, 16, 32, 64)}
ADAPTERS, OF_ADAPTERS = (1, 4, 16), (1, 8, 64)
"""Numbers of adapters, and the batches of which graphs are timed with all of them, at all ranks."""

CALLS = {"emulated": 1, "cuda": 50}
IN_A_ROW, ROWS_OF_STEPS, TRACED = 20, 3, 20
"""Steps that nobody waits for, how often so many follow each other in one run, and steps that CUPTI sees."""

# A FULL graph attends as far as there may be a context, whatever the lengths are: so they are about as long.
_PROMPT = RunnerConfig.max_model_len - 2


class Shape(NamedTuple):
    """Requests, each of which has an adapter if there is one; slots for adapters, as many as there are."""

    batch: int
    adapters: int  # 0: no graph has a kernel for one
    rank: int


def no_adapters(adapter_manager: LoRAModelManager, input_batch: InputBatch) -> None:
    """Leave the host's values so that no kernel of an adapter is launched, however large a batch is."""
    adapter_manager.set_adapter_mapping(LoRAMapping((0,), (0,)))


MODES: dict[str, tuple[CUDAGraphMode, MakePwModel]] = {
    "eager": (CUDAGraphMode.NONE, break_at_attention),
    "piecewise": (
        CUDAGraphMode.PIECEWISE,
        lambda model, m: PiecewiseDecoder(model, backend=m.backend, pool=m.pool),
    ),
    "breakable": (CUDAGraphMode.PIECEWISE, break_at_attention),
    "full": (CUDAGraphMode.FULL, break_at_attention),
}


def shapes(backend: str) -> dict[Shape, tuple[str, ...]]:
    """What is timed, and in which modes."""
    found = {Shape(batch, n, 8): tuple(MODES) for n in (0, 4) for batch in BATCHES[backend]}
    batches = [batch for batch in OF_ADAPTERS if batch in BATCHES[backend]]
    more = (Shape(batch, n, rank) for batch in batches for n in ADAPTERS for rank in RANKS[backend])
    return found | dict.fromkeys((shape for shape in more if shape not in found), ("full",))


class Step(NamedTuple):
    """A decode that can be run again and again, and what it did when it was run once."""

    run: Run
    logits: torch.Tensor  # [batch, vocab_size]
    work: dict[str, Amount]


def decode_step(backend: str, mode: str, shape: Shape, *, warms_up: bool = True) -> Step:
    """Serve the prompts of a batch, prepare a decode of all its requests, and run it once."""
    config = RunnerConfig(
        cudagraph_mode=MODES[mode][0], cudagraph_capture_sizes=(shape.batch,), max_num_reqs=shape.batch,
        max_num_tokens=shape.batch * _PROMPT, max_loras=max(1, shape.adapters), max_lora_rank=shape.rank,
    )  # fmt: skip
    dummy_lora = launch_for_nobody if shape.adapters else no_adapters
    runner = ModelRunner(config, backend, dummy_lora, make_pw_model=MODES[mode][1])
    if warms_up:
        runner.warm_up_and_capture()
    engine = Engine(runner)
    for i in range(shape.batch):
        prompt = tuple((i + j) % config.vocab_size for j in range(_PROMPT - i % 8))
        lora_id = 1 + i % shape.adapters if shape.adapters else 0
        sampling = SamplingParams(forced_token_ids=(1, 2))
        engine.add_request(Request(f"request-{i}", prompt, 2, lora_id, sampling))
    engine.step()
    scheduler_output = engine.scheduler.schedule()
    desc = runner.dispatch(scheduler_output)
    with torch.inference_mode():
        input_batch = runner.prepare_inputs(scheduler_output, desc)
        runner.hidden_states.fill_(torch.nan)  # what a step does not write is not right by chance
        with counted():
            work = runner.run_model(desc, input_batch)
        logits = runner.model.compute_logits(runner.hidden_states[input_batch.logits_indices])
    return Step(partial(runner.run_model, desc, input_batch), logits, {"target": work.amount})


def rows(backend: str = "auto") -> Iterator[Row]:
    """Time all shapes, then trace one row after the other. BadInput: as `resolve`."""
    backend = resolve(backend)
    # All is timed before anything is traced: CUPTI, once it is there, slows down what is launched later.
    found = [pair for shape, modes in shapes(backend).items() for pair in time_shape(backend, shape, modes)]
    return (traced(row, device_spans(run)) if backend == "cuda" else row for row, run in found)


def time_shape(backend: str, shape: Shape, modes: Sequence[str]) -> list[tuple[Row, Run]]:
    """Time modes of one shape in turn, each judged against a runner that was asked for no graphs."""
    reference = decode_step(backend, "eager", shape, warms_up=False)
    steps = {mode: decode_step(backend, mode, shape) for mode in modes}
    works: dict[str, tuple[Run, int]] = {mode: (steps[mode].run, CALLS[backend]) for mode in modes}
    if backend == "cuda":
        works |= {f"{mode} queued": (_in_a_row(steps[mode].run), ROWS_OF_STEPS) for mode in modes}
    with torch.inference_mode():
        ms = in_turn(backend, works)
    rows, of_shape = [], shape._asdict() if shape.adapters else {"batch": shape.batch, "adapters": 0}
    for mode, step in steps.items():
        eager = eager_shares([step], [reference], [mode != "eager"])
        verdict = judge([relative_error(step.logits, reference.logits)], eager)
        taken = {"step": ms[mode]}
        if in_a_row := ms.get(f"{mode} queued"):
            taken["queued"] = Latency(**{name: value / IN_A_ROW for name, value in in_a_row})
        counts = {"nodes": float(step.work["target"].nodes), "ops": float(step.work["target"].ops)}
        rows.append(Row(labels={"mode": mode, **of_shape}, verdict=verdict, ms=taken, counts=counts))
    return [(row, step.run) for row, step in zip(rows, steps.values(), strict=True)]


def _in_a_row(run: Run) -> Run:
    return lambda: [run() for _ in range(IN_A_ROW)]


@torch.inference_mode()
def device_spans(run: Run) -> list[tuple[int, int]]:
    """When each kernel, copy or fill of `TRACED` steps began, and how long it took, both in ns."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        for _ in range(TRACED):
            run()
            torch.cuda.synchronize()
    events = trace.profiler.kineto_results.events()
    of_device = (e for e in events if e.device_type().name == "CUDA" and not e.is_user_annotation())
    return [(e.start_ns(), e.duration_ns()) for e in of_device]


def traced(row: Row, spans: Sequence[tuple[int, int]]) -> Row:
    """The row with what its kernels took, and the parts of a step that is right.

    Nothing of that where CUPTI has not seen the same number in each step, or fewer than graphs have nodes.
    """
    each, rest = divmod(len(spans), TRACED)
    counts, ms = row.counts | {"traced": len(spans) / TRACED}, dict(row.ms)
    if each and not rest and each >= counts["nodes"]:
        took = [ns / 1e6 for _, ns in sorted(spans)]
        ms["kernels"] = latency([sum(took[i : i + each]) for i in range(0, len(took), each)])
        if row.verdict == "correct":
            step, queued, busy = (1e3 * ms[name].median for name in ("step", "queued", "kernels"))
            counts |= {"over kernels": step / busy, "gaps us": queued - busy, "launch us": step - queued}
    return row.model_copy(update={"ms": ms, "counts": counts})
