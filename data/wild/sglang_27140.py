"""Reinforcement learning with a linear-attention hybrid: the first rollout was fine, all after the first
update of weights were garbage, without an error. Between rollouts the engine gives back the memory of the
caches and takes it again. Weights are copied into where they lie; the recurrent states come back
elsewhere, and graphs still use the old place. Proposed repair: capture again after such a pause.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "SGLang"
LINK = "https://github.com/sgl-project/sglang/pull/27140"
MECHANISM = "moved-address"
CAUSE = "self.ssm_state"
LINE = "self.ssm_state = torch.zeros(ROWS, device=self.device)"
EXECUTORS = ("emulated", "cuda")

ROWS = 4


class ModelRunner:
    """A recurrent decode step."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.device = fixed, device
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.weight = torch.full((ROWS,), 0.5, device=device)
        self.x = torch.ones(ROWS, device=device)
        self.resume()
        self.decode()  # loads what a capture cannot
        self.init_cuda_graphs()
        self.ssm_state.zero_()

    def init_cuda_graphs(self) -> None:
        self.graph = capture(self.decode, backend=self.backend)

    def resume(self) -> None:
        self.ssm_state = torch.zeros(ROWS, device=self.device)

    def decode(self) -> torch.Tensor:
        self.ssm_state.mul_(self.weight).add_(self.x)
        return self.ssm_state + 1

    def replay(self) -> torch.Tensor:
        self.graph.replay()
        return self.graph.outputs

    def update_weights(self, weight: float) -> None:
        self.ssm_state = None
        self.resume()
        self.weight.fill_(weight)
        if self.fixed:
            self.init_cuda_graphs()


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    runner = ModelRunner(fixed, device)
    rollout = iter(range(1, 100))

    def vary() -> None:
        n = next(rollout)
        if n % 2 == 0:  # two tokens each
            runner.update_weights(0.5 + 0.1 * n)
        runner.x.fill_(n)

    return SimpleNamespace(
        step=runner.replay, eager=runner.decode, own_graphs=True, vary=vary, requests=6, runner=runner
    )
