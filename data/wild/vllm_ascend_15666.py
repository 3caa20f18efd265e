"""In reinforcement learning rollouts used old weights after an update, if graphs were on. Weights are copied
into where they lie; but one layer computes with a second tensor, the same weight cast to float32 once after
loading. The update runs that step again and binds a new tensor to the layer, and graphs go on reading the
first. Repaired by copying into the tensor that is there.
"""

from types import SimpleNamespace

import torch

PROJECT = "vLLM Ascend"
LINK = "https://github.com/vllm-project/vllm-ascend/pull/15666"
MECHANISM = "moved-address"
CAUSE = "layer.weight_fp32"
LINE = "layer.weight_fp32 = new_fp32"
EXECUTORS = ("emulated", "cuda")

TOKENS, HIDDEN, EXPERTS = 3, 4, 5


class UnquantizedLinearMethod:
    """Computes a layer in the precision that its model asks for."""

    def __init__(self, fixed: bool, precast_fp32_weight: bool = False):
        self.fixed, self.precast_fp32_weight = fixed, precast_fp32_weight

    def process_weights_after_loading(self, layer: "ReplicatedLinear") -> None:
        if not self.precast_fp32_weight:
            return
        new_fp32, old_fp32 = layer.weight.to(torch.float32).t().contiguous(), layer.weight_fp32
        if self.fixed and old_fp32 is not None and old_fp32.shape == new_fp32.shape:
            old_fp32.copy_(new_fp32)
        else:
            layer.weight_fp32 = new_fp32

    def apply(self, layer: "ReplicatedLinear", x: torch.Tensor) -> torch.Tensor:
        if self.precast_fp32_weight:
            return x.to(torch.float32) @ layer.weight_fp32
        return x @ layer.weight.t()


class ReplicatedLinear:
    def __init__(self, method: UnquantizedLinearMethod, outputs: int, device: torch.device):
        self.quant_method = method
        self.weight = torch.ones(outputs, HIDDEN, dtype=torch.bfloat16, device=device)
        self.weight_fp32: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quant_method.apply(self, x)


class Model:
    """A projection, and a gate in float32 behind it."""

    def __init__(self, fixed: bool, device: torch.device):
        self.projection = ReplicatedLinear(UnquantizedLinearMethod(fixed), HIDDEN, device)
        self.gate = ReplicatedLinear(UnquantizedLinearMethod(fixed, True), EXPERTS, device)
        self.hidden = torch.ones(TOKENS, HIDDEN, dtype=torch.bfloat16, device=device)
        self.load_weights(0)

    def layers(self) -> list[ReplicatedLinear]:
        return [self.projection, self.gate]

    def load_weights(self, version: int) -> None:
        numbers = torch.Generator().manual_seed(version)
        for layer in self.layers():
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=numbers))
            layer.quant_method.process_weights_after_loading(layer)

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.projection.forward(self.hidden))
        return torch.topk(torch.softmax(self.gate.forward(hidden), 1), 2)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    model, state = Model(fixed, device), SimpleNamespace(requests=0)

    def vary() -> None:
        state.requests += 1
        if state.requests % 2 == 0:  # the trainer has made a step
            model.load_weights(state.requests)
        numbers = torch.Generator().manual_seed(100 + state.requests)
        model.hidden.copy_(torch.randn(TOKENS, HIDDEN, generator=numbers))

    return SimpleNamespace(step=model.forward, vary=vary, requests=4, model=model)
