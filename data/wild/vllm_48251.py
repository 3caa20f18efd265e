"""Reinforcement learning with MLA models: after a reload of weights requests went on with the old ones, or,
after a deep sleep, gave garbage. What is derived from the weights when they are loaded (W_UV here) was
assigned anew at each reload, and graphs captured before still read the old tensor. Repaired by copying into
the one that is there.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM"
LINK = "https://github.com/vllm-project/vllm/pull/48251"
MECHANISM = "moved-address"
CAUSE = "self.W_UV"
LINE = "self.W_UV = w_uv"
EXECUTORS = ("emulated", "cuda")

ROWS, RANK, HEAD = 3, 4, 6


class MLAAttention:
    """Keeps a part of a projection in the layout that decodes want."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.W_UV = fixed, torch.zeros(0)
        self.kv_b_proj = torch.zeros(2 * HEAD, RANK, device=device)
        self.latent = torch.ones(ROWS, RANK, device=device)

    def process_weights_after_loading(self) -> None:
        w_uv = self.kv_b_proj[HEAD:].T.contiguous()
        if self.fixed and self.W_UV.shape == w_uv.shape:
            self.W_UV.copy_(w_uv)
        else:
            self.W_UV = w_uv

    def decode(self) -> torch.Tensor:
        return self.latent @ self.W_UV


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    layer = MLAAttention(fixed, device)
    numbers = torch.Generator().manual_seed(0)

    def load_weights() -> None:
        layer.kv_b_proj.copy_(torch.rand(2 * HEAD, RANK, generator=numbers))
        layer.process_weights_after_loading()

    def vary() -> None:
        load_weights()  # the trainer has made a step
        layer.latent.copy_(torch.rand(ROWS, RANK, generator=numbers))

    load_weights()
    return SimpleNamespace(step=layer.decode, vary=vary, layer=layer)
