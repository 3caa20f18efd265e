"""With a draft model of its own, speculation was slower than none: the drafter ran eagerly in every step,
though its graphs had been captured. A dispatcher hands out a graph only once its keys are initialized, and
the runner initializes those of the drafter for the Eagle methods alone; for the method `draft_model` each
step is answered with no graph. Repaired by initializing them for this method as well.
"""

from functools import partial
from itertools import product
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture, new_pool

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/47460"
MECHANISM = "silent-eager"
CAUSE = "keys_initialized"
LINE = "if self.method in methods:"
EXECUTORS = ("emulated", "cuda")
SYMPTOM = "speed"

SIZES, HIDDEN, NUM_SPECULATIVE = (2, 4), 5, 2


class CUDAGraphDispatcher:
    """Which captured size serves a batch; none before it was told its keys."""

    keys, keys_initialized = (), False

    def initialize_cudagraph_keys(self) -> None:
        self.keys, self.keys_initialized = SIZES, True

    def dispatch(self, num_tokens: int) -> int | None:
        if not self.keys_initialized:
            return None
        return min((size for size in self.keys if size >= num_tokens), default=None)


class Model:
    """A projection and what dispatches it."""

    def __init__(self, seed: int, device: torch.device):
        self.weight = torch.sin(torch.arange(HIDDEN * HIDDEN, device=device) * seed * 1.0).view(HIDDEN, -1)
        self.hidden, self.out = (torch.zeros(max(SIZES), HIDDEN, device=device) for _ in range(2))
        self.dispatcher, self.graphs = CUDAGraphDispatcher(), {}

    def forward(self, size: int) -> None:
        self.out[:size].copy_(torch.tanh(self.hidden[:size] @ self.weight + self.hidden[:size]))

    def run(self, hidden: torch.Tensor, use_graphs: bool) -> torch.Tensor:
        self.hidden[: len(hidden)].copy_(hidden)
        size = self.dispatcher.dispatch(len(hidden)) if use_graphs else None
        self.forward(len(hidden)) if size is None else self.graphs[size].replay()
        return self.out[: len(hidden)].clone()


class GPUModelRunner:
    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.method = fixed, "draft_model"
        self.target, self.drafter = Model(1, device), Model(2, device)
        self.hidden, self.num_tokens = torch.ones(max(SIZES), HIDDEN, device=device), 1
        self.dummy_run(device.type.replace("cpu", "emulated"))
        self.check_and_update_cudagraph_mode()

    def dummy_run(self, backend: str) -> None:
        pool = new_pool(backend)
        for model, size in product((self.target, self.drafter), SIZES):
            model.forward(size)
            model.graphs[size] = capture(partial(model.forward, size), backend=backend, pool=pool)

    def check_and_update_cudagraph_mode(self) -> None:
        self.target.dispatcher.initialize_cudagraph_keys()
        methods = ["eagle", "extract_hidden_states"] + ["draft_model"] * self.fixed
        if self.method in methods:
            self.drafter.dispatcher.initialize_cudagraph_keys()

    def execute_model(self, use_graphs: bool = True) -> torch.Tensor:
        draft = self.target.run(self.hidden[: self.num_tokens], use_graphs)
        for _ in range(NUM_SPECULATIVE):
            draft = self.drafter.run(draft, use_graphs)
        return draft


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    runner = GPUModelRunner(fixed, device)
    sizes = iter((3, 1, 4, 2) * 4)

    def vary() -> None:
        runner.num_tokens = next(sizes)
        runner.hidden.add_(0.1 * runner.num_tokens)

    step, eager = runner.execute_model, partial(runner.execute_model, use_graphs=False)
    return SimpleNamespace(step=step, eager=eager, own_graphs=True, vary=vary, runner=runner)
