from types import SimpleNamespace

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@torch.library.custom_op("trainer_ops::unscale_", mutates_args=("grad", "found_inf"))
def unscale_(grad: torch.Tensor, found_inf: torch.Tensor, scale: float) -> None:
    grad.mul_(1.0 / scale)
    found_inf.logical_or_(torch.isinf(grad).any())


class GradScaler:
    def __init__(self, scale=64.0, growth_interval=2):
        self.loss_scale = scale
        self.tensor = torch.full((), scale, device=DEVICE)
        self.growth_interval, self.good_steps = growth_interval, 0

    def update(self, overflow):
        self.good_steps = 0 if overflow else self.good_steps + 1
        if overflow:
            self.loss_scale *= 0.5
        elif self.good_steps % self.growth_interval == 0:
            self.loss_scale *= 2.0
        self.tensor.fill_(self.loss_scale)


class Trainer:
    def __init__(self):
        n = torch.arange(12, dtype=torch.float32)
        self.weight = (0.3 * torch.cos(n)).view(4, 3).to(DEVICE).requires_grad_()
        self.inputs = torch.ones(5, 4, device=DEVICE)
        self.master_grad = torch.zeros(4, 3, device=DEVICE)
        self.found_inf = torch.zeros((), dtype=torch.bool, device=DEVICE)
        self.scaler, self.steps = GradScaler(), 0

    def loss(self):
        return torch.tanh(self.inputs @ self.weight).square().mean()

    def backward(self):
        loss = self.loss()
        (grad,) = torch.autograd.grad(loss * self.scaler.tensor, [self.weight])
        self.found_inf.zero_()
        self.master_grad.copy_(grad)
        torch.ops.trainer_ops.unscale_(self.master_grad, self.found_inf, self.scaler.loss_scale)
        return loss.detach()

    def load(self):
        if self.steps:
            self.scaler.update(bool(self.found_inf))
        self.steps += 1
        n = torch.arange(20, dtype=torch.float32).view(5, 4)
        self.inputs.copy_(torch.sin(n * self.steps))


def make_engine():
    trainer = Trainer()
    return SimpleNamespace(step=trainer.backward, vary=trainer.load)
