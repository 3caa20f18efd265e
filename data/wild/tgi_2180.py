"""With LoRA adapters and CUDA graphs every answer was that of the base model. Adapters are handed to the
forward pass with each batch, but graphs are captured in a warm-up that has none, and a replay takes no
arguments. The way out in that pull request: no graphs where adapters are loaded.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "text-generation-inference"
LINK = "https://github.com/huggingface/text-generation-inference/pull/2180"
MECHANISM = "frozen-host-value"
CAUSE = "adapter_data"
LINE = "if adapter_data is not None:"
EXECUTORS = ("emulated", "cuda")

ROWS, HIDDEN, RANK = 3, 4, 2


class Model:
    """A projection, with adapters or without."""

    def __init__(self, cuda_graphs: bool, device: torch.device):
        numbers = torch.Generator().manual_seed(1)
        self.weight = torch.rand(HIDDEN, HIDDEN, generator=numbers).to(device)
        self.adapters = [
            tuple(
                torch.rand(shape, generator=numbers).to(device) for shape in ((HIDDEN, RANK), (RANK, HIDDEN))
            )
            for _ in range(2)
        ]
        self.hidden = torch.ones(ROWS, HIDDEN, device=device)
        self.graph = None
        if cuda_graphs:
            self.forward(None)  # warms up
            backend = "cuda" if device.type == "cuda" else "emulated"
            self.graph = capture(lambda: self.forward(None), backend=backend)

    def forward(self, adapter_data: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
        out = self.hidden @ self.weight
        if adapter_data is not None:
            lora_a, lora_b = adapter_data
            out = out + self.hidden @ lora_a @ lora_b
        return torch.softmax(out, 1)

    def decode(self, adapter_data: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
        if self.graph is None:
            return self.forward(adapter_data)
        self.graph.replay()
        return self.graph.outputs


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    model = Model(cuda_graphs=not fixed, device=device)
    batch = SimpleNamespace(adapter_data=None)
    adapters = iter([model.adapters[0], None, model.adapters[1]] * 3)

    def vary() -> None:
        batch.adapter_data = next(adapters)
        model.hidden.add_(0.1)

    return SimpleNamespace(
        step=lambda: model.decode(batch.adapter_data),
        eager=lambda: model.forward(batch.adapter_data),
        own_graphs=True,
        vary=vary,
        model=model,
    )
