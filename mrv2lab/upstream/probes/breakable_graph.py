"""#42304 and #44050 on vLLM's own classes: does a PIECEWISE batch run graphs without torch.compile?

The model attends in an op that reads the longest sequence on the host. Piecewise graphs have to leave it
out, and at capture there is no metadata for it, as upstream. The op is ours, and carries vLLM's decorator
where breaks are asked for; or it is vLLM's own for plain attention, as released.
"""

import ast
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from mrv2lab.graphs.work import splitting
from mrv2lab.upstream import model_runner
from mrv2lab.upstream.model_runner import Request, Setup, Step, cudagraph_mode, execute, make_model_runner
from mrv2lab.upstream.outcome import Outcome, Word
from mrv2lab.upstream.probe import Probe, Row, Seen, Variant
from mrv2lab.upstream.unfix import Edit

SETUP = Setup("PIECEWISE", (2, 4), max_num_reqs=4)
NUM_LAYERS, HIDDEN_SIZE, MAX_MODEL_LEN = 2, 16, 12

STEPS = tuple(
    tuple(Request((7 * n % 64,), n) for n in seq_lens)
    for seq_lens in ((2, 3, 1, 1), (12, 4), (5, 9, 2, 11), (1, 1, 6))
)

FOR_AMD = re.compile(r"rocm|/amd/")

UNROUTED = Edit(
    "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.run_pw_graph",
    find="if not self.use_breakable_cg: ...",
    put="return model(**model_inputs)",
)
"""Piecewise batches before #44050: the plain model is called, compiled or not."""


@splitting()
def attention(query: torch.Tensor, keys: torch.Tensor, output: torch.Tensor) -> None:
    """Attend over as many keys as the longest sequence has; the length is read on the HOST.

    Args:
        query: [num_tokens, hidden_size], one token a request.
        keys: [max_model_len, hidden_size].
        output: [num_tokens, hidden_size], written in place.
    """
    metadata = import_module("vllm.forward_context").get_forward_context().attn_metadata
    if not metadata:
        output.zero_()  # a capture of pieces: nothing to attend to
        return
    longest, seq_lens = metadata["layer"].max_seq_len, metadata["layer"].seq_lens
    scores = query @ keys[:longest].T
    hidden = torch.arange(longest)[None, :] >= seq_lens.clamp(min=1)[:, None]
    output.copy_(scores.masked_fill(hidden, -1e30).softmax(dim=-1) @ keys[:longest])


def plain_attention(static_forward_context: dict[str, Any]) -> Callable[..., None]:
    """vLLM's op for plain attention over vLLM's FlashAttention; what its kernel would do is `attention`.

    Without metadata FlashAttention does not get as far as its kernel. The op is a break if the release made
    it one when its module was imported.

    Args:
        static_forward_context: where the op finds its layer, by name.
    """
    op = import_module("vllm.model_executor.layers.attention.attention").unified_attention_with_output
    upstream: Any = import_module("vllm.v1.attention.backends.flash_attn").FlashAttentionImpl

    class FlashAttention(upstream):  # type: ignore[misc]
        vllm_flash_attn_version = 2  # all that is asked for before the metadata

        def __init__(self) -> None:
            """Nothing of what the kernel needs."""

        def forward(
            self,
            layer: Any,
            query: Any,
            key: Any,
            value: Any,
            kv_cache: Any,
            metadata: Any,
            output: Any,
            **scales: Any,
        ) -> Any:
            if metadata is None:
                return super().forward(layer, query, key, value, kv_cache, metadata, output, **scales)
            attention(query, key, output)
            return output

    static_forward_context["layer"] = SimpleNamespace(impl=FlashAttention(), kv_cache=torch.empty(0))

    def attend(query: torch.Tensor, keys: torch.Tensor, output: torch.Tensor) -> None:
        with splitting():
            op(query, keys, keys, output, "layer")

    return attend


class Decoder(torch.nn.Module):
    """Two layers of attention between matrix products; each product may be wrapped as a piece of its own.

    A piece allocates the output of the attention behind it, as torch.compile's pieces do: it has one address.
    """

    def __init__(self, attend: Callable[..., None]):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(64, HIDDEN_SIZE, generator=generator)
        self.weights = torch.randn(NUM_LAYERS, HIDDEN_SIZE, HIDDEN_SIZE, generator=generator) / 4
        self.keys = torch.randn(MAX_MODEL_LEN, HIDDEN_SIZE, generator=generator)
        self.attend = attend
        self.pieces: list[Callable[..., Any]] = [self._embed, *map(self._layer, range(NUM_LAYERS))]

    def _embed(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_states = self.embedding[input_ids.long()]
        return hidden_states, torch.empty_like(hidden_states)

    def _layer(self, layer: int) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
        def piece(x: torch.Tensor, attended: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden_states = torch.add(x, attended @ self.weights[layer]).tanh()
            return hidden_states, torch.empty_like(hidden_states)

        return piece

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor, **unused: Any) -> torch.Tensor:
        """[num_tokens] -> [num_tokens, hidden_size]."""
        embed, *layers = self.pieces
        hidden_states, attended = embed(input_ids)
        for layer in layers:
            self.attend(hidden_states, self.keys, attended)
            hidden_states, attended = layer(hidden_states, attended)
        return torch.as_tensor(hidden_states)


class ModelState(model_runner.ModelState):
    """Lengths, and the longest on the host; for a capture that is the longest possible, as upstream."""

    seq_lens: torch.Tensor

    def prepare_attn(self, input_batch: Any, *args: Any, for_capture: bool = False) -> dict[str, Any]:
        seq_lens = self.seq_lens[: input_batch.num_tokens_after_padding]
        longest = MAX_MODEL_LEN if for_capture else int(seq_lens.max())
        return {"layer": SimpleNamespace(seq_lens=seq_lens, max_seq_len=longest)}


def make_runner(setup: Setup, *, plain: bool = False, wrap: bool = False, breakable: bool = True) -> Any:
    """A runner over the decoder.

    Args:
        plain: attend by vLLM's own op for plain attention. Otherwise by ours, made a break.
        wrap: make each product a graph of its own, as torch.compile's pieces are.
        breakable: what the environment variable says while the classes look.
    """
    os.environ["VLLM_USE_BREAKABLE_CUDAGRAPH"] = str(int(breakable))
    attend = attention
    if breakable and not plain:
        attend = import_module("vllm.compilation.breakable_cudagraph").eager_break_during_capture(attention)
    model, state = Decoder(attend), ModelState()
    runner = make_model_runner(model, setup, state)
    if plain:
        model.attend = plain_attention(runner.vllm_config.compilation_config.static_forward_context)
    state.seq_lens = runner.input_buffers.seq_lens
    if wrap:
        model.pieces = [wrapped(piece, runner.vllm_config) for piece in model.pieces]
    return runner


def wrapped(piece: Callable[..., Any], vllm_config: Any) -> Any:
    """The piece in vLLM's `CUDAGraphWrapper`, which torch.compile's backend puts around its pieces."""
    wrapper = import_module("vllm.compilation.cuda_graph").CUDAGraphWrapper
    options = import_module("vllm.compilation.cuda_graph").CUDAGraphOptions(weak_ref_output=False)
    return wrapper(piece, vllm_config, cudagraph_mode("PIECEWISE"), options)


def observe(setup: Setup = SETUP, **options: bool) -> Seen:
    """Capture, then serve."""
    runner = make_runner(setup, **options)
    runner.capture_model()
    steps = [execute(runner, requests) for requests in STEPS]
    metrics = {"graphs_per_step": float(steps[0].num_replays)}
    return Seen(steps, reference, metrics | decorated_functions())


def observe_downgraded() -> Seen:
    """The release's own resolver lowers the mode for a metadata builder that states no level of support."""
    asked = replace(SETUP, mode="FULL_DECODE_ONLY")
    runner = make_runner(asked)
    builder = import_module("vllm.v1.attention.backend").AttentionMetadataBuilder
    compilation_config = runner.vllm_config.compilation_config
    compilation_config.mode = import_module("vllm.config").CompilationMode.NONE
    compilation_config.cudagraph_mode = cudagraph_mode(asked.mode)
    support = builder.get_cudagraph_support(runner.vllm_config, None)
    mode = compilation_config.resolve_cudagraph_mode_and_sizes(support, "a backend")
    manager = type(runner.cudagraph_manager)
    runner.cudagraph_manager = model_runner.make_manager(manager, runner, replace(asked, mode=mode.name))
    runner.capture_model()
    steps = [execute(runner, requests) for requests in STEPS]
    return Seen(steps, reference, {"graphs_per_step": float(steps[0].num_replays)} | decorated_functions())


def reference() -> list[Step]:
    """The same steps without graphs."""
    runner = make_runner(replace(SETUP, mode="NONE"), breakable=False)
    return [execute(runner, requests) for requests in STEPS]


def decorated_functions() -> dict[str, float]:
    """How many functions and methods of this release are decorated as breaks, by its source.

    Those in files named for ROCm or AMD never run on CUDA: they are a number of their own.
    """
    found = Counter(
        "decorated_for_amd" if FOR_AMD.search(file.as_posix()) else "decorated"
        for file in Path(import_module("vllm").__path__[0]).rglob("*.py")
        if "eager_break_during_capture" in (text := file.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and "eager_break_during_capture" in {getattr(d, "id", None) for d in node.decorator_list}
    )
    return {name: float(found[name]) for name in ("decorated", "decorated_for_amd")}


def missing() -> str | None:
    """Why there is nothing to run, on a release before #42304."""
    if find_spec("vllm.compilation.breakable_cudagraph") is None:
        return "no BreakableCUDAGraphCapture in the release"
    return None


def word(outcome: Outcome) -> tuple[Word, str]:
    """From how piecewise steps ran to a word."""
    names = ("graphs_per_step", "decorated", "decorated_for_amd")
    graphs, decorated, for_amd = (int(outcome.metrics[name]) for name in names)
    attentions = f"{outcome.kernels.get('aten._softmax', 0)} of {NUM_LAYERS} attentions"
    seen = f"{graphs} graphs in the first step, {attentions} in them"
    observation = f"{seen}; decorated functions: {decorated}, and {for_amd} for AMD's GPUs"
    if outcome.verdict == "correct":
        return "fixed", observation
    return "buggy", f"verdict {outcome.verdict}: {observation}"


def variant(*edits: Edit, mode: str = "PIECEWISE", **options: bool) -> Variant:
    """`observe` with these settings."""
    return Variant(lambda: observe(replace(SETUP, mode=mode), **options), edits)


def row(name: str, **options: bool) -> Row:
    """Our attention with vLLM's decorator, or vLLM's own for plain attention as released."""
    return Row(lambda: observe(SETUP, **options), word, bug=("eager", "wrong"), name=name, needs=missing)


PROBE = Probe(
    variants={
        "eager": variant(mode="NONE"),
        "unrouted": variant(UNROUTED),
        "whole_graph": variant(plain=True),
        "downgraded": Variant(observe_downgraded),
        "piecewise": variant(wrap=True, breakable=False),
        "breakable": variant(),
        "full_graph": variant(mode="FULL"),
    },
    rows=(row("decorated"), row("plain attention", plain=True)),
)
