"""Decoupled weight decay and learning rate come from the param group's dict, changed by a scheduler
between the steps.
"""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["lr"]


class Finetune:
    """Forward, backward and optimizer in one captured step."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2, momentum=0.0, foreach=True)
        self.warmup = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1.0 / (1 + n))
        self.x = torch.randn(5, 6, device=DEVICE)
        self.target = torch.randn(5, 2, device=DEVICE)
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)

    def step(self):
        with torch.enable_grad():
            loss = nn.functional.mse_loss(self.model(self.x), self.target)
            grads = torch.autograd.grad(loss, list(self.model.parameters()))
        for p, g in zip(self.model.parameters(), grads):
            p.grad.copy_(g)
        self.apply()
        return [p.detach() for p in self.model.parameters()]

    @torch.no_grad()
    def apply(self):
        for group in self.optimizer.param_groups:
            lr, decay = group["lr"], group["weight_decay"]  # HERE
            torch._foreach_mul_(group["params"], 1.0 - lr * decay)  # HERE
            torch._foreach_add_(group["params"], [p.grad for p in group["params"]], alpha=-lr)  # HERE

    def next_batch(self):
        self.x.mul_(0.9)
        self.warmup.last_epoch += 1
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] / (1 + self.warmup.last_epoch)


def make():
    trainer = Finetune()
    return {"step": trainer.step, "vary": trainer.next_batch, "reset": None}
