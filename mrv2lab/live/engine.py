"""One vLLM engine in this process: its graphs watched, its tokens forced, its logits kept.

Forced tokens: at every step all requests are given the same next token, whatever the model says. So two
runs see the same contexts, and their logits can be compared step by step. Exact tokens would be a poor
oracle: on random weights rounding flips near-ties.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import torch

from mrv2lab.graphs.cuda import num_nodes, read_nodes
from mrv2lab.live.protocol import await_turn, tell_progress
from mrv2lab.live.work import CountedStep, Meter

NUM_TOKENS = 24
VOCAB_SIZE = 2048


class Graphs:
    """Every CUDA graph this process makes from now on: its nodes stay readable, its replays are counted."""

    def __init__(self) -> None:
        self.made: list[torch.cuda.CUDAGraph] = []
        self.num_replays = 0
        self._told: Callable[[int], None] | None = None
        self._num_nodes: WeakKeyDictionary[torch.cuda.CUDAGraph, int] = WeakKeyDictionary()

    @contextmanager
    def telling(self, replayed: Callable[[int], None]) -> Iterator[None]:
        """Inside, `replayed` is called with the number of nodes of each graph that is replayed."""
        self._told = replayed
        try:
            yield
        finally:
            self._told = None

    def note(self, graph: torch.cuda.CUDAGraph) -> None:
        """A graph is replayed."""
        self.num_replays += 1
        if self._told is not None:
            if graph not in self._num_nodes:
                self._num_nodes[graph] = num_nodes(graph)
            self._told(self._num_nodes[graph])

    def watch(self) -> None:
        """Stand in for `torch.cuda.CUDAGraph`, before vLLM captures."""
        graphs, original = self, torch.cuda.CUDAGraph

        class WatchedGraph(original):  # type: ignore[misc, valid-type]
            def __new__(cls, keep_graph: bool = True) -> Any:
                return super().__new__(cls, True)

            def __init__(self, keep_graph: bool = True):
                super().__init__(True)
                graphs.made.append(self)

            def replay(self) -> None:
                graphs.note(self)
                super().replay()

        torch.cuda.CUDAGraph = WatchedGraph  # type: ignore[misc]

    def of_largest_size(self, llm: Any, num_active_loras: int | None = None) -> torch.cuda.CUDAGraph:
        """The target model's full graph of the largest size, else the first that was made (a piece).

        Args:
            num_active_loras: the key, where sizes have several graphs (0.24 and later); by default the
                highest one, for the graph of key 0 holds no LoRA kernel.
        """
        full = runner_of(llm).cudagraph_manager.graphs
        most = max((desc.num_tokens for desc in full), default=0)
        keyed: dict[int, torch.cuda.CUDAGraph] = {}
        for desc, graph in full.items():
            if desc.num_tokens == most:
                keyed.setdefault(getattr(desc, "num_active_loras", 0), graph)
        if not keyed:
            return self.made[0]
        return keyed.get(max(keyed) if num_active_loras is None else num_active_loras, keyed[max(keyed)])

    def pool_mib(self) -> float:
        """What the private pools of all graphs have taken from the device, in MiB."""
        segments = torch.cuda.memory_snapshot()
        private = [s["total_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0)]
        return float(sum(private)) / 2**20

    def kernels(self, graph: torch.cuda.CUDAGraph) -> dict[str, int]:
        """Nodes by name in one of them."""
        return dict(Counter(node.label for node in read_nodes(graph)))


def make_engine(model: str, cudagraph_mode: str, capture_sizes: Sequence[int], **options: Any) -> Any:
    """vLLM's `LLM` on a folder, without torch.compile unless `compilation_mode` asks for it."""
    from vllm import LLM

    await_turn()
    tell_progress(0.25, "starting the engine")
    begin = time.perf_counter()
    compilation = {"mode": options.pop("compilation_mode", 0), "cudagraph_mode": cudagraph_mode}
    settings = {
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.15,
        "kv_cache_memory_bytes": 1 << 30,
        "max_model_len": 2048,
        "max_num_seqs": 4,
        "seed": 0,
        "compilation_config": compilation | {"cudagraph_capture_sizes": list(capture_sizes)},
    }
    llm = LLM(model=model, **settings | options)
    llm.asked, llm.start_up_s = (cudagraph_mode, list(capture_sizes)), time.perf_counter() - begin
    tell_progress(0.75, "serving")
    return llm


def close(llm: Any, graphs: Graphs) -> None:
    """End an engine of this process, so that another one finds room."""
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    graphs.made.clear()
    cleanup_dist_env_and_memory()


@contextmanager
def without_graphs(runner: Any, *, drafts: bool = False) -> Iterator[None]:
    """Inside, no step finds a graph that fits; with `drafts` the speculator's do not either."""
    owners = (runner, getattr(runner, "speculator", None) if drafts else None)
    names = ("cudagraph_manager", "prefill_cudagraph_manager", "decode_cudagraph_manager")
    managers = [m for owner in owners for name in names if (m := getattr(owner, name, None)) is not None]
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(patch.object(manager, "_graphs_captured", False))
        yield


def runner_of(llm: Any) -> Any:
    """The engine's `GPUModelRunner`, which lives in this process."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner


@dataclass
class Served:
    """What one pass over the requests gave.

    Attributes:
        logits: for each step [num_reqs, vocab_size], float32 on the CPU; of drafted positions none.
        replays: for each step, how many graphs were replayed up to its logits.
        counted: of each rank, the steps of a second pass, with what graphs did in them and what was launched
            beside them.
        drafted: for each step [num_reqs, hidden_size], float32 on the CPU: what drafts make their logits of.
            Kept if asked for.
    """

    logits: list[torch.Tensor] = field(default_factory=list)
    replays: list[int] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)  # from one step's logits to the next one's
    counted: list[list[CountedStep]] = field(default_factory=list)
    drafted: list[torch.Tensor] = field(default_factory=list)


def requests(prompt_lengths: Sequence[int]) -> list[dict[str, list[int]]]:
    """One prompt of token ids of each length."""
    return [{"prompt_token_ids": [(7 * i + 3 * n) % 2000 for i in range(n)]} for n in prompt_lengths]


def serve(
    llm: Any,
    graphs: Graphs,
    prompt_lengths: Sequence[int],
    *,
    lora_request: Any = None,
    eager: bool = False,
    drafts: bool = False,
) -> Served:
    """Serve one prompt of each length with forced tokens.

    Args:
        eager: dispatch no step to a graph. That is the reference: the same engine, the same weights.
        drafts: keep what drafts compute, and with `eager` they find no graph either.
    """
    runner = runner_of(llm)
    watcher = Watcher(runner, graphs, len(prompt_lengths))
    watcher.start(eager=eager, drafts=drafts, keep_drafts=drafts)
    generate(llm, prompt_lengths, lora_request)
    served = watcher.stop()
    if not hasattr(runner, "cudagraph_manager"):  # the V1 runner, which is only asked for its answers
        return served
    watcher.start(eager=eager, drafts=True)
    with Meter(runner, graphs.telling, *llm.asked) as meter:  # by itself, for it costs time
        generate(llm, prompt_lengths, lora_request)
    watcher.stop()
    return replace(served, counted=[meter.steps])


def generate(llm: Any, prompt_lengths: Sequence[int], lora_request: Any = None) -> None:
    """Let the engine serve; whoever watches it sees what it does."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    llm.generate(requests(prompt_lengths), params, use_tqdm=False, lora_request=lora_request)


class Watcher:
    """Stands between a model and its sampler: keeps logits, forces tokens, counts replays.

    Args:
        runner: the `GPUModelRunner`; on ranks of a pipeline before the last there are no logits to keep.
        num_reqs: how many requests are served at once.
        every: of the logits, only every so many columns are kept.
    """

    def __init__(self, runner: Any, graphs: Graphs, num_reqs: int, *, every: int = 1):
        self.runner, self.model, self.graphs = runner, runner.model, graphs
        self.num_reqs, self.every = num_reqs, every

    def start(self, *, eager: bool, drafts: bool = False, keep_drafts: bool = False) -> None:
        """From now on; with `eager`, no step finds a graph that fits, and with `drafts` neither do drafts.

        Logits are compared between runs with the same drafts: these decide how many rows there are. Random
        heads almost never draft the token that is forced, so drafts that differ are rejected alike.
        """
        self.served, self._before = Served(), time.perf_counter()
        self._stack = ExitStack()
        if eager:
            self._stack.enter_context(without_graphs(self.runner, drafts=drafts))
        if keep_drafts:
            self._propose = self.runner.speculator.propose
            self._stack.enter_context(patch.object(self.runner.speculator, "propose", self._proposed))
        self._compute_logits = self.model.compute_logits
        self.model.compute_logits = self._forced
        self.graphs.num_replays = 0

    def stop(self) -> Served:
        """Leave the engine as it was, and hand over what was seen."""
        del self.model.compute_logits
        self._stack.close()
        return self.served

    def _forced(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits: torch.Tensor = self._compute_logits(hidden_states, *args, **kwargs)
        torch.cuda.synchronize()
        self.served.step_ms.append(1e3 * (time.perf_counter() - self._before))
        self._keep(logits)
        answer = torch.full_like(logits, -1e4)
        answer[:, 31 * len(self.served.logits) % VOCAB_SIZE] = 1e4
        self._before = time.perf_counter()
        return answer

    def _proposed(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        tokens: torch.Tensor = self._propose(*args, **kwargs)  # [num_reqs, 1]
        hidden_states = self.runner.speculator.hidden_states[: len(tokens)]
        self.served.drafted.append(hidden_states.to("cpu", torch.float32, copy=True))
        return tokens

    def _keep(self, logits: torch.Tensor) -> None:
        # With drafts each request has several rows; the context of the first is forced.
        rows = max(1, logits.shape[0] // self.num_reqs)
        self.served.logits.append(logits[::rows, :: self.every].float().cpu())
        self.served.replays.append(self.graphs.num_replays)
        self.graphs.num_replays = 0
