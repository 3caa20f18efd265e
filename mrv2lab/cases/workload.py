"""What cases serve: requests that come and go, every token forced, and how a decode step is timed."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

import torch
import triton

from mrv2lab import progress
from mrv2lab.cases.base import SEED
from mrv2lab.graphs import CapturedGraph
from mrv2lab.graphs.base import idle_replays
from mrv2lab.graphs.work import counted
from mrv2lab.results import Latency
from mrv2lab.runner import (
    CUDAGraphMode,
    Engine,
    InputBatch,
    LoRAMapping,
    LoRAModelManager,
    ModelRunner,
    ModelRunnerOutput,
    Request,
    RunnerConfig,
    SamplingParams,
)
from mrv2lab.verdict import TOLERANCE, relative_error


def workload(shape: dict[str, int]) -> list[Request]:
    """More requests than run at once, of unequal length, so that adapters and batch size keep changing.

    Adapters go 1, 2, none, 3 and round again. All tokens are forced: every run sees the same ones. With
    4 at once no step of decodes is padded: those that leave leave a size that has a graph.

    They take about `num_steps`. With `to_the_limits` prompts fill the largest batch there may be, or the
    longest request ends where a request must; all come at once then, and leave by halves: every graph is met.
    """
    generator = torch.Generator().manual_seed(SEED)
    batch_size, second = shape["batch_size"], shape["num_steps"] // 3
    first = shape["num_steps"] - second
    lengths = [first + i % 3 for i in range(batch_size)] + [second - i % 3 for i in range(batch_size)]
    prompts = [5 + i % 4 for i in range(2 * batch_size)]
    if shape.get("to_the_limits"):
        left = [(batch_size - 1 - i).bit_length() for i in range(batch_size)]
        lengths = [shape["num_steps"] + left[0] - bits for bits in left]
        room = RunnerConfig.max_num_tokens // batch_size, RunnerConfig.max_model_len - max(lengths)
        prompts = [min(room)] * len(lengths)
    return [
        forced(generator, f"request-{i}", prompts[i], length, lora_id=(1, 2, 0, 3)[i % 4])
        for i, length in enumerate(lengths)
    ]


def without_adapters(shape: dict[str, int]) -> list[list[Request]]:
    """The workload without its adapters, for cases that are about something else."""
    return [[replace(request, lora_id=0) for request in workload(shape)]]


def forced(
    generator: torch.Generator, req_id: str, num_prompt: int, num_tokens: int, lora_id: int
) -> Request:
    """A request with a random prompt, whose every token is forced."""
    prompt, tokens = (
        tuple(torch.randint(RunnerConfig.vocab_size, (n,), generator=generator).tolist())
        for n in (num_prompt, num_tokens)
    )
    return Request(req_id, prompt, num_tokens, lora_id, SamplingParams(forced_token_ids=tokens))


def no_adapters(adapter_manager: LoRAModelManager, input_batch: InputBatch) -> None:
    """A dummy batch for cases in which nobody asks for an adapter: their graphs need no LoRA kernel."""
    tokens, requests = input_batch.num_tokens_after_padding, input_batch.num_reqs
    adapter_manager.set_adapter_mapping(LoRAMapping((0,) * tokens, (0,) * requests))


def serve(
    runner: ModelRunner,
    batches: Sequence[Sequence[Request]],
    at_once: int,
    wanted: Sequence[ModelRunnerOutput] = (),
    *,
    idle: bool = False,
) -> list[ModelRunnerOutput]:
    """Serve lists of requests one after the other, `at_once` requests at a time; returns every step, counted.

    Logits are the target's and those of unverified drafts. The first step that is not as `wanted` is told at
    once, and until the end. With `idle` replays do nothing (and without graphs nothing is served): a step
    that is right all the same has work that its graphs did not do.
    """
    if idle and runner.config.cudagraph_mode is CUDAGraphMode.NONE:
        return []
    num_tokens = sum(request.max_tokens for requests in batches for request in requests)
    doing, done = "serving", list[ModelRunnerOutput]()
    progress.tell(doing, 0.0)
    with counted(), idle_replays() if idle else nullcontext():
        for output in chain.from_iterable(_steps(runner, requests, at_once) for requests in batches):
            if output.draft_logits is not None and not runner.config.verify_drafts:
                output.logits = torch.cat([output.logits, output.draft_logits], dim=-1)
            done.append(output)
            for expected in wanted[len(done) - 1 : len(done)]:
                if doing == "serving" and relative_error(output.logits, expected.logits) > TOLERANCE:
                    doing = f"step {len(done)} of {len(wanted)} went wrong"
            progress.tell(doing, sum(len(step.req_ids) for step in done) / num_tokens)
    return done


def _steps(runner: ModelRunner, requests: Sequence[Request], at_once: int) -> Iterator[ModelRunnerOutput]:
    engine, waiting = Engine(runner), list(requests)

    def step() -> ModelRunnerOutput | None:
        while waiting and engine.num_unfinished < at_once:
            engine.add_request(waiting.pop(0))
        return engine.step()

    return iter(step, None)


def decode_graph(runner: ModelRunner, batch_size: int, num_adapters: int = 0) -> list[CapturedGraph]:
    """The FULL graph that a decode step of this many requests replays; empty if there is none."""
    manager = runner.cudagraph_manager
    graph = manager.graphs.get(manager.dispatch(batch_size, batch_size, 1, num_adapters))
    return [graph] if graph else []


def decode_latency(
    runner: ModelRunner, backend: str, shape: dict[str, int], wanted: list[Request] | None = None
) -> Latency | None:
    """Time one decode step's forward pass at the full batch size, of `workload`; None on the emulator."""
    if backend != "cuda":
        return None
    engine = Engine(runner)
    for request in (wanted or workload(shape))[: shape["batch_size"]]:
        engine.add_request(request)
    engine.step()
    scheduler_output = engine.scheduler.schedule()
    desc = runner.dispatch(scheduler_output)
    with torch.inference_mode():
        input_batch = runner.prepare_inputs(scheduler_output, desc)
        # By CUDA events, the L2 cache cleared before each run.
        median, p20, p80 = triton.testing.do_bench(
            lambda: runner.run_model(desc, input_batch), warmup=100, rep=400, quantiles=[0.5, 0.2, 0.8]
        )
    return Latency(median=median, p20=p20, p80=p80)
