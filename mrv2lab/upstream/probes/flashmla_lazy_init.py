"""#42444 and #44253 on vLLM's own classes: which `FlashMLASchedMeta` do warm-up and capture see?

The target's graphs are made by the release's `ModelCudaGraphManager`, the draft's by its manager of the
speculator: of the draft's decodes up to 0.19.1, which graphs nothing else, of its prefill since 0.21.0. In
0.20.2 one class makes both, in the same way. Both attend by its `flash_mla_with_kvcache`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch

from mrv2lab.crash import Crash
from mrv2lab.graphs.work import counted, measured
from mrv2lab.upstream import model_runner
from mrv2lab.upstream.model_runner import Request, Setup, Step, execute, make_manager, make_model_runner
from mrv2lab.upstream.outcome import Outcome, Word
from mrv2lab.upstream.platform import pipeline_rank
from mrv2lab.upstream.probe import Probe, Row, Seen, Variant
from mrv2lab.upstream.unfix import Edit

SETUP = Setup("FULL_DECODE_ONLY", (2, 4), max_num_reqs=4)
NUM_HEADS, LATENT, ROPE, PAGE, MAX_PAGES = 4, 16, 16, 4, 8
PLANNER = "get_mla_metadata_kernel"

SEQ_LENS = ((1, 1, 1, 1), (30, 2, 17, 9), (5, 32), (31, 3, 18), (1, 6, 19, 11))
"""Lengths of the sequences, step by step; the first are those of the dummy batch."""

ONE_STATE = Edit(
    "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.capture",
    find="forward_fn, capture_attn_state = create_forward_fn(desc, warmup=False)",
    put="capture_attn_state = warmup_attn_state",
)
"""Capture with the state that warm-up has used, as before #42444."""

CAPTURED_STATE = Edit(
    "vllm.v1.worker.gpu.spec_decode.autoregressive.cudagraph_utils:PrefillSpeculatorCudaGraphManager.capture",
    find="attn_state = _",
    put="attn_state = attn_state_pair.captured",
)
"""Warm the speculator up with the state that the target captured, as before #44253."""

CRASH = Crash(
    ("IllegalAccess: an illegal memory access was encountered: flash_fwd_splitkv_mla_kernel",),
    within="third_party/flashmla/flash_mla_interface.py in flash_mla_with_kvcache",
)
"""The attention of the speculator's warm-up follows a plan that was never made."""


class Attention(torch.nn.Module):
    """One layer that attends by FlashMLA, through the metadata in vLLM's forward context."""

    def __init__(self, seed: int):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.query = torch.randn(64, NUM_HEADS * (LATENT + ROPE), generator=generator)
        self.k_cache = torch.randn(4 * MAX_PAGES, PAGE, 1, LATENT + ROPE, generator=generator)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, **unused: Any) -> torch.Tensor:
        """[num_tokens] -> [num_tokens, num_heads * latent]; one token a request."""
        metadata = import_module("vllm.forward_context").get_forward_context().attn_metadata["layer"]
        q = self.query[input_ids.long()].view(-1, 1, NUM_HEADS, LATENT + ROPE)
        out, _ = flashmla().flash_mla_with_kvcache(
            q, self.k_cache, metadata.block_table, metadata.seq_lens, LATENT, metadata.scheduler_metadata,
            softmax_scale=0.2, causal=True,
        )  # fmt: skip
        return torch.flatten(out, 1)


def flashmla() -> Any:
    """The release's Python half of FlashMLA."""
    return import_module("vllm.third_party.flashmla.flash_mla_interface")


class ModelState(model_runner.ModelState):
    """Metadata as `FlashMLAMetadataBuilder` makes it: the plan is a fresh, empty `FlashMLASchedMeta`.

    Plans are kept. vLLM drops those of its warm-ups, so a graph that was captured with one reads freed
    memory; on a GPU it finds the plan there until somebody takes the memory. The emulator forgets at once.
    """

    def __init__(self) -> None:
        self.plans: list[Any] = []
        self.seq_lens = torch.empty(0)  # the runner's persistent buffer, once there is one
        self.block_table = torch.randperm(4 * MAX_PAGES, generator=torch.Generator().manual_seed(2))
        self.block_table = self.block_table.view(4, MAX_PAGES).int()

    def prepare_attn(self, input_batch: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        num_reqs = input_batch.num_reqs_after_padding
        plan, _ = flashmla().get_mla_metadata()
        self.plans.append(plan)
        table, seq_lens = self.block_table[:num_reqs], self.seq_lens[:num_reqs]
        return {"layer": SimpleNamespace(block_table=table, seq_lens=seq_lens, scheduler_metadata=plan)}


@dataclass
class Speculator:
    """What `capture_model` calls a speculator, with the release's manager of the draft's graphs."""

    runner: Any
    manager: Any
    draft: Attention
    output: torch.Tensor
    states: "StatesOf" = lambda runner, kept: kept
    num_states_built: int = 0

    def capture(self, attn_states: Any = None) -> None:
        """Hand the manager what its release's `capture` asks for."""
        runner, plans = self.runner, self.runner.model_state.plans
        before = len(plans)
        if "model_state" in signature(self.manager.capture).parameters:  # up to 0.20 and since 0.26
            self.manager.capture(
                self.forward, runner.model_state, runner.input_buffers, runner.block_tables,
                runner.attn_groups, runner.kv_cache_config,
            )  # fmt: skip
        else:
            self.manager.capture(self.forward, self.states(runner, attn_states))
        self.num_states_built = len(plans) - before

    capture_model = capture  # its name up to 0.20

    def forward(self, num_reqs: int, num_tokens: int, attn_metadata: Any, *unused: Any, **named: Any) -> None:
        """The draft's forward pass into its persistent buffer, as managers call it."""
        context = import_module("vllm.forward_context").set_forward_context
        with context(attn_metadata, self.runner.vllm_config, num_tokens=num_tokens):
            buffers = self.runner.input_buffers
            drafted = self.draft(buffers.input_ids[:num_tokens], buffers.positions[:num_tokens])
            self.output[:num_tokens] = drafted

    def propose(self, num_reqs: int) -> Step:
        """Replay the graph that fits, or run eagerly with a state of its own."""
        manager = self.manager
        desc = dispatch(manager, num_reqs)
        batch = SimpleNamespace(num_reqs_after_padding=num_reqs)
        state = None if desc in manager.graphs else self.runner.model_state.prepare_attn(batch)
        with torch.inference_mode(), counted(), measured() as work:
            if desc in manager.graphs:
                manager.run_fullgraph(desc)
            else:
                self.forward(num_reqs, num_reqs, state, {}, None, None)
        return Step(self.output[:num_reqs].clone(), tuple(work.graphs), {"speculator": work.amount})


StatesOf = Callable[[Any, Any], Any]
"""What a speculator captures with, given the runner and what the target's capture has kept."""


class FreshStates:
    """States built anew whenever one is asked for: what releases from 0.26 on do instead of keeping pairs."""

    def __init__(self, runner: Any, kept: Any = None):
        self.runner = runner

    def __getitem__(self, desc: Any) -> Any:
        pair = import_module("vllm.v1.worker.gpu.cudagraph_utils").AttentionStatePair
        return pair(self._build(desc), self._build(desc))

    def _build(self, desc: Any) -> Any:
        runner = self.runner
        return import_module("vllm.v1.worker.gpu.cudagraph_utils").prepare_inputs_to_capture(
            desc.num_reqs, desc.num_tokens, runner.model_state, runner.input_buffers, runner.block_tables,
            runner.attn_groups, runner.kv_cache_config,
        )  # fmt: skip


def dispatch(manager: Any, num_reqs: int) -> Any:
    """The descriptor of a decode batch. What later releases ask besides has a default, or is the adapters."""
    batch = {"num_reqs": num_reqs, "num_tokens": num_reqs, "uniform_token_count": 1, "num_active_loras": 0}
    asked = signature(manager.dispatch).parameters
    return manager.dispatch(**{name: value for name, value in batch.items() if name in asked})


MANAGERS = ("target_dependent_ar.cudagraph_utils", "autoregressive.cudagraph_utils", "eagle.cudagraph")
"""Where the graph managers of draft models are: since 0.32, since 0.21, before. Later releases keep the
folders of earlier ones."""


def speculator_manager() -> Any:
    """The release's graph manager of a draft model: for its first pass, if that has one of its own."""
    package = "vllm.v1.worker.gpu.spec_decode"
    home = next(name for name in MANAGERS if find_spec(f"{package}.{name.partition('.')[0]}"))
    module = import_module(f"{package}.{home}")
    own = [cls for cls in vars(module).values() if getattr(cls, "__module__", None) == module.__name__]
    managers = [cls for cls in own if cls.__name__.endswith("CudaGraphManager")]
    return next((cls for cls in managers if cls.__name__.startswith("Prefill")), managers[0])


def make_runner(
    setup: Setup,
    *,
    states: StatesOf | None = None,
    attention: type[Attention] = Attention,
    model_state: type[ModelState] = ModelState,
) -> Any:
    """A runner whose model and draft attend by FlashMLA, or by another kind."""
    state = model_state()
    runner = make_model_runner(attention(seed=0), setup, state)
    state.seq_lens = runner.input_buffers.seq_lens
    output = torch.zeros(max(setup.capture_sizes), NUM_HEADS * LATENT)
    with pipeline_rank(is_first=True, is_last=True):
        manager = make_manager(speculator_manager(), runner, setup, draft_tokens=output)
    runner.speculator = Speculator(runner, manager, attention(seed=1), output)
    if states is not None:
        runner.speculator.states = states
    return runner


def serve(runner: Any, parts: Iterable[str]) -> list[Step]:
    """Every step's target and draft states side by side, or one of them."""
    steps = []
    for seq_lens in SEQ_LENS:
        requests = [Request((7 * n % 64,), n) for n in seq_lens]
        both = {"target": execute(runner, requests), "speculator": runner.speculator.propose(len(requests))}
        chosen = [both[part] for part in parts]
        graphs = tuple(graph for step in chosen for graph in step.graphs)
        work = {name: amount for step in chosen for name, amount in step.work.items() if name != "step"}
        output = torch.cat([step.output for step in chosen], dim=1)
        steps.append(Step(output, graphs, work, both["target"].fits))
    return steps


def observe(parts: tuple[str, ...] = ("target", "speculator"), setup: Setup = SETUP, **made: Any) -> Seen:
    """Capture target and speculator as `capture_model` does, then decode at other lengths.

    Args:
        made: of `make_runner`.
    """
    runner = make_runner(setup, **made)
    if parts == ("target",):
        speculator, runner.speculator = runner.speculator, None
        runner.capture_model()
        runner.speculator = speculator
    else:
        runner.capture_model()
    eager = replace(setup, mode="NONE")
    metrics = {"speculator_states_built": float(runner.speculator.num_states_built)}
    return Seen(serve(runner, parts), lambda: serve(make_runner(eager, **made), parts), metrics)


def word(outcome: Outcome) -> tuple[Word, str]:
    """From planners in the graph, and errors at other lengths, to a word."""
    if outcome.verdict == "crash":
        return "buggy", f"{outcome.message} ({outcome.where})"
    held = "its own planner in the graph" if outcome.kernels.get(PLANNER) else "no planner in the graph"
    if outcome.verdict == "correct":
        own = int(outcome.metrics["speculator_states_built"])
        built = f", from {own} attention states that its speculator built" if own else ""
        return "replaced" if own else "fixed", f"{held}{built}; right at other lengths"
    return "buggy", f"{held}; relative error {max(outcome.errors):.2f} at other lengths"


def row(part: str) -> Row:
    """The target alone, or the speculator behind it."""
    return Row(lambda: observe(parts=(part,)), word, bug=("wrong", "crash"), name=part, crash=CRASH)


PROBE = Probe(
    variants={
        "eager": Variant(partial(observe, setup=replace(SETUP, mode="NONE"))),
        "shared_state": Variant(observe, (ONE_STATE,)),
        "captured_reused": Variant(observe, (CAPTURED_STATE,), crash=CRASH),
        "state_pair": Variant(observe),
        "fresh_always": Variant(partial(observe, states=FreshStates)),
    },
    rows=(row("target"), row("speculator")),
)
