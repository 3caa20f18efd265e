"""Rollout workers of a mixture of experts: the trainer streams new weights while old ones serve."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

TOKENS, DIM, EXPERTS, TOP = 6, 8, 6, 2
LAYERS: dict[str, "ExpertLayer"] = {}


@torch.library.custom_op("rollout_e1::moe_forward", mutates_args=())
def moe_forward(hidden: torch.Tensor, gate_logits: torch.Tensor, layer_name: str) -> torch.Tensor:
    return LAYERS[layer_name].mix(hidden, gate_logits)


@moe_forward.register_fake
def _(hidden: torch.Tensor, gate_logits: torch.Tensor, layer_name: str) -> torch.Tensor:
    return torch.empty_like(hidden)


class ExpertLayer:
    def __init__(self, name: str, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        first = (torch.randn(EXPERTS, DIM, DIM, generator=gen) * DIM**-0.5).to(DEVICE)
        self.gate = torch.randn(DIM, EXPERTS, generator=gen).to(DEVICE)
        self.banks = (first, first.clone())
        self.serving = 0
        self.name = name
        LAYERS[name] = self

    def receive(self, expert: int, weight: torch.Tensor) -> None:
        self.banks[1 - self.serving][expert].copy_(weight)

    def commit(self) -> None:
        self.serving = 1 - self.serving

    def mix(self, hidden: torch.Tensor, gate_logits: torch.Tensor) -> torch.Tensor:
        weights, chosen = gate_logits.softmax(-1).topk(TOP, dim=-1)
        share = torch.zeros_like(gate_logits).scatter(1, chosen, weights / weights.sum(-1, keepdim=True))
        bank = self.banks[self.serving]
        return torch.einsum("te,td,edf->tf", share, hidden, bank)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + moe_forward(hidden, hidden @ self.gate, self.name)


class WeightReceiver:
    """Two experts of every layer per engine step, and the switch when the last has come."""

    PER_STEP = 2

    def __init__(self, layers: list[ExpertLayer]) -> None:
        self.layers = layers
        self.arrived = 0
        self.trainer = torch.Generator().manual_seed(77)

    def poll(self) -> None:
        for expert in range(self.arrived, self.arrived + self.PER_STEP):
            for layer in self.layers:
                layer.receive(expert, torch.randn(DIM, DIM, generator=self.trainer) * DIM**-0.5)
        self.arrived += self.PER_STEP
        if self.arrived == EXPERTS:
            for layer in self.layers:
                layer.commit()
            self.arrived = 0


layers = [ExpertLayer(f"model.layers.{i}.mlp", seed=i) for i in range(2)]
receiver = WeightReceiver(layers)
tokens = torch.zeros(TOKENS, DIM, device=DEVICE)
prompts = torch.Generator().manual_seed(6)
tokens.copy_(torch.randn(TOKENS, DIM, generator=prompts))


def step() -> torch.Tensor:
    hidden = tokens
    for layer in layers:
        hidden = layer(hidden)
    return hidden


def vary() -> None:
    tokens.copy_(torch.randn(TOKENS, DIM, generator=prompts))
    receiver.poll()
