"""#33960 and #35162 on vLLM's own classes: two ranks of a pipeline, one after the other in one process."""

import os
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from mrv2lab.upstream.model_runner import Request, Setup, Step, execute, make_model_runner
from mrv2lab.upstream.outcome import Outcome, Word
from mrv2lab.upstream.probe import Probe, Row, Seen, Variant
from mrv2lab.upstream.unfix import Edit

SETUP = Setup("FULL", (2, 4), max_num_reqs=4)
HIDDEN_SIZE = 16

STEPS = tuple(
    tuple(Request((token,), 2 + i) for i, token in enumerate(tokens))
    for tokens in ((5, 6, 7, 8), (9, 10), (11, 12, 13), (63, 1, 40, 22))
)

RETURN_EARLY = Edit(
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner.capture_model",
    find="compilation_counter.num_gpu_runner_capture_triggers += 1",
    put="""
if self.use_pp:
    logger.warning_once("Skipping CUDA graph capture: no graphs with pipeline parallelism, only eager steps.")
    return 0
...
""",
)
"""`capture_model` between #33960 and #35162: no graphs on any rank of a pipeline, and a
warning that says so."""

NOT_COPIED = Edit(
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model",
    find="new_tensors = _",
    put="new_tensors = intermediate_tensors.tensors",
)
"""What arrives is passed on as it is, instead of being copied to where the graphs read.

Not 0.23.0 without its fix: no release of MRV2 had the buffers and not the copy. V1 had, for a day: #13353,
mended by #13417.
"""


class Stage(torch.nn.Module):
    """One rank's part of a model: embedding and two products in all."""

    def __init__(self, is_first: bool):
        super().__init__()
        generator = torch.Generator().manual_seed(int(is_first))
        self.is_first = is_first
        self.embedding = torch.randn(64, HIDDEN_SIZE, generator=generator)
        self.weight = torch.randn(HIDDEN_SIZE, HIDDEN_SIZE, generator=generator) / 4

    def forward(
        self, input_ids: Any, positions: torch.Tensor, intermediate_tensors: Any = None, **unused: Any
    ) -> Any:
        """Token ids, or what the rank before sent -> what goes on, or hidden states; [num_tokens, ...]."""
        if not self.is_first:
            hidden_states, residual = intermediate_tensors["hidden_states"], intermediate_tensors["residual"]
            return torch.add(hidden_states @ self.weight, residual)
        residual = self.embedding[input_ids.long()]
        return make_intermediate_tensors(hidden_states=(residual @ self.weight).tanh(), residual=residual)

    def make_empty_intermediate_tensors(
        self, batch_size: int, dtype: torch.dtype, device: torch.device
    ) -> Any:
        """Buffers [batch_size, hidden_size], as vLLM's models make them."""
        zeros = torch.zeros(batch_size, HIDDEN_SIZE, dtype=dtype, device=device)
        return make_intermediate_tensors(hidden_states=zeros, residual=zeros.clone())


def make_intermediate_tensors(**tensors: torch.Tensor) -> Any:
    """vLLM's `IntermediateTensors`."""
    return import_module("vllm.sequence").IntermediateTensors(tensors)


def load(runner: Any) -> None:
    """The release's own `load_model`, which allocates what graphs will read; the model itself is at hand.

    It is said to be a pooling model: nothing here is sampled.
    """
    stand_ins: dict[str, Any] = {
        "get_model_loader": lambda config: SimpleNamespace(load_model=lambda **unused: runner.model),
        "init_model_state": lambda *unused: runner.model_state,
        "prepare_communication_buffer_for_model": lambda model: None,
        "PoolingRunner": lambda *unused: None,
    }
    runner.is_pooling_model, runner.encoder_cache, runner.num_speculative_steps = True, None, 0
    module = import_module("vllm.v1.worker.gpu.model_runner")
    stand_ins = {name: by for name, by in stand_ins.items() if hasattr(module, name)}  # of this release
    with patch.multiple(module, **stand_ins):
        runner.load_model()


def make_stages(setup: Setup) -> list[Any]:
    """A runner for each rank, loaded and captured."""
    os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"  # PIECEWISE without torch.compile
    stages = []
    for is_first in (True, False):
        runner = make_model_runner(Stage(is_first), replace(setup, is_first=is_first, is_last=not is_first))
        load(runner)
        runner.capture_model()
        stages.append(runner)
    return stages


def step(stages: list[Any], requests: tuple[Request, ...]) -> Step:
    """One step of the pair. What is sent arrives in new memory, as it does from another process."""
    first, last = stages
    sent = execute(first, requests)
    received = make_intermediate_tensors(**{name: t.clone() for name, t in sent.output.tensors.items()})
    output = execute(last, requests, received)
    work = {"first stage": sent.work["target"], "last stage": output.work["target"]}
    return Step(output.output, sent.graphs + output.graphs, work, output.fits)


def observe(setup: Setup = SETUP) -> Seen:
    """Capture on both ranks, then serve."""
    stages = make_stages(setup)
    metrics = {"graphs_captured": float(sum(len(s.cudagraph_manager.graphs) for s in stages))}
    return Seen(serve(stages), lambda: serve(make_stages(replace(setup, mode="NONE"))), metrics)


def serve(stages: list[Any]) -> list[Step]:
    """All steps of the pair."""
    return [step(stages, requests) for requests in STEPS]


def in_mode(mode: str) -> Variant:
    """As released. PIECEWISE graphs are breakable ones; only decodes are served, all graphs are captured."""
    return Variant(lambda: observe(replace(SETUP, mode=mode)))


def word(outcome: Outcome) -> tuple[Word, str]:
    """From what was captured, and how steps ran, to a word."""
    graphs = int(outcome.metrics["graphs_captured"])
    if outcome.verdict == "eager":
        modes = outcome.step_modes
        ran = f"{modes.count('eager')} of {len(modes)} steps ran without a graph"
        return "buggy", f"capture_model captured {graphs} graphs on two ranks; {ran}"
    if outcome.verdict == "correct":
        return "fixed", f"{graphs} graphs on two ranks; replays are right with tensors received anew"
    return "buggy", f"verdict {outcome.verdict} with {graphs} graphs on two ranks"


PROBE = Probe(
    variants={
        "eager": in_mode("NONE"),
        "eager_fallback": Variant(observe, (RETURN_EARLY,)),
        "moving_buffers": Variant(observe, (NOT_COPIED,)),
        "persistent_buffers": in_mode("PIECEWISE"),
        "full_and_piecewise": in_mode("FULL_AND_PIECEWISE"),
        "full_graphs": Variant(observe),
    },
    rows=(Row(observe, word, bug=("eager", "wrong")),),
)
