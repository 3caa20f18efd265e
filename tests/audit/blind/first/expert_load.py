"""Top-1 MoE routing whose experts are told how many tokens of a step they got."""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class MoEConfig:
    num_tokens: int = 6
    hidden: int = 8
    num_experts: int = 4


class Workspace:
    """Counters that the layers of a step share; a new step begins at zero."""

    def __init__(self, config: MoEConfig) -> None:
        self.counts = torch.zeros(config.num_experts, device=DEVICE)
        self.owner = -1

    def take(self, step_id: int) -> torch.Tensor:
        if self.owner != step_id:
            self.counts.zero_()
            self.owner = step_id
        return self.counts


class MoELayer:
    def __init__(self, config: MoEConfig, workspace: Workspace) -> None:
        self.config, self.workspace = config, workspace
        ramp = torch.arange(config.hidden * config.num_experts, dtype=torch.float32, device=DEVICE)
        self.gate = torch.sin(ramp * 1.7).view(config.hidden, config.num_experts)
        self.scale = torch.linspace(0.5, 2.0, config.num_experts, device=DEVICE)

    def __call__(self, x: torch.Tensor, step_id: int) -> torch.Tensor:
        counts = self.workspace.take(step_id)
        expert = (x @ self.gate).argmax(-1)
        counts.index_add_(0, expert, torch.ones(len(x), device=DEVICE))
        share = counts / self.config.num_tokens
        return x * (self.scale * (1.0 - share))[expert][:, None]


class Model:
    def __init__(self, config: MoEConfig) -> None:
        self.config = config
        self.workspace = Workspace(config)
        self.layers = [MoELayer(config, self.workspace) for _ in range(2)]
        self.x = torch.zeros(config.num_tokens, config.hidden, device=DEVICE)
        self.step_id = 0
        self.load()

    def load(self) -> None:
        count = self.config.num_tokens * self.config.hidden
        values = torch.cos(torch.arange(count, dtype=torch.float32) * 0.9 + self.step_id)
        self.x.copy_(values.view_as(self.x))

    def next_step(self) -> None:
        self.step_id += 1
        self.load()

    def forward(self) -> torch.Tensor:
        x = self.x
        for layer in self.layers:
            x = layer(x, self.step_id)
        return x


def make_engine():
    from types import SimpleNamespace

    model = Model(MoEConfig())

    def reset():
        model.step_id, model.workspace.owner = 0, -1
        model.workspace.counts.zero_()
        model.load()

    return SimpleNamespace(step=model.forward, vary=model.next_step, reset=reset)


_engine = make_engine()
step, vary, reset = _engine.step, _engine.vary, _engine.reset
