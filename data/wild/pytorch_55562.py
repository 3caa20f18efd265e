"""A GradScaler could not be combined with a captured forward and backward pass. Its update made a new tensor
for the scale of the next iteration; the captured loss went on with the one of the capture, while the
optimizer took the new scale back out of the gradients. Repaired by updating one tensor in place, which lives
as long as the scaler.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "PyTorch"
LINK = "https://github.com/pytorch/pytorch/pull/55562"
MECHANISM = "moved-address"
CAUSE = "self._scale"
LINE = "self._scale = updated"
EXECUTORS = ("emulated", "cuda")

FEATURES, BATCH, LR = 4, 3, 0.1


class GradScaler:
    """Scales the loss, and grows the scale as long as gradients stay finite."""

    def __init__(self, fixed: bool, device: torch.device, growth_interval: int = 2):
        self.fixed, self.growth_interval = fixed, growth_interval
        self._scale = torch.full((), 256.0, device=device)
        self._growth_tracker = torch.zeros((), device=device)
        self._found_inf = torch.zeros((), device=device)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self._scale

    def step(self, weight: torch.Tensor, grad: torch.Tensor) -> None:
        unscaled = grad / self._scale
        self._found_inf = (~unscaled.isfinite()).any().float()
        weight.sub_(torch.where(self._found_inf > 0, torch.zeros_like(grad), unscaled), alpha=LR)

    def update(self) -> None:
        self._growth_tracker.add_(1).mul_(1 - self._found_inf)
        grow = self._growth_tracker >= self.growth_interval
        factor = torch.where(grow, 2.0, 1.0) * torch.where(self._found_inf > 0, 0.5, 1.0)
        self._growth_tracker.mul_(~grow)
        updated = self._scale * factor
        if self.fixed:
            self._scale.copy_(updated)
        else:
            self._scale = updated


class Trainer:
    """A linear model, trained with mixed precision's scaling."""

    def __init__(self, fixed: bool, device: torch.device):
        self.weight = torch.zeros(FEATURES, device=device)
        self.static_input = torch.ones(BATCH, FEATURES, device=device)
        self.static_target = torch.ones(BATCH, device=device)
        self.scaler = GradScaler(fixed, device)
        self.forward_backward()
        self.graph = capture(self.forward_backward, backend="cuda" if device.type == "cuda" else "emulated")

    def forward_backward(self) -> torch.Tensor:
        error = self.static_input @ self.weight - self.static_target
        grad_loss = self.scaler.scale(torch.ones_like(error) / BATCH)
        return (2 * error * grad_loss) @ self.static_input

    def iterate(self, grad: torch.Tensor) -> torch.Tensor:
        self.scaler.step(self.weight, grad)
        self.scaler.update()
        return self.weight

    def train(self) -> torch.Tensor:
        self.graph.replay()
        return self.iterate(self.graph.outputs)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    trainer, data = Trainer(fixed, device), torch.Generator().manual_seed(0)

    def vary() -> None:
        trainer.static_input.copy_(torch.rand(BATCH, FEATURES, generator=data))
        trainer.static_target.copy_(torch.rand(BATCH, generator=data))

    def eager() -> torch.Tensor:
        return trainer.iterate(trainer.forward_backward())

    return SimpleNamespace(
        step=trainer.train, eager=eager, own_graphs=True, vary=vary, requests=6, trainer=trainer
    )
