"""Adam with its step count and learning rate on the device; the host's epoch counter and loss log move on."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class CapturableAdam:
    def __init__(self, params, lr=0.05):
        self.params = params
        self.m = [torch.zeros_like(p) for p in params]
        self.v = [torch.zeros_like(p) for p in params]
        self.lr = torch.tensor(lr, device=DEVICE)
        self.t = torch.zeros((), device=DEVICE)

    @torch.no_grad()
    def apply(self, grads, b1=0.9, b2=0.99):
        self.t.add_(1)
        torch._foreach_lerp_(self.m, grads, 1 - b1)
        torch._foreach_mul_(self.v, b2)
        torch._foreach_addcmul_(self.v, grads, grads, 1 - b2)
        c1, c2 = 1 - b1**self.t, 1 - b2**self.t
        for p, m, v in zip(self.params, self.m, self.v):
            p.sub_(self.lr * (m / c1) / ((v / c2).sqrt() + 1e-6))


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.w = torch.randn(5, 3, device=DEVICE, requires_grad=True)
        self.b = torch.zeros(3, device=DEVICE, requires_grad=True)
        self.x, self.y = torch.randn(7, 5, device=DEVICE), torch.randn(7, 3, device=DEVICE)
        self.optimizer = CapturableAdam([self.w, self.b])
        self.epoch = 0

    def step(self):
        with torch.enable_grad():
            loss = (self.x @ self.w + self.b - self.y).square().mean()
            grads = torch.autograd.grad(loss, [self.w, self.b])
        self.optimizer.apply(grads)
        return loss.detach(), self.w.detach(), self.b.detach()

    def next_batch(self):
        self.epoch += 1
        self.x.copy_(self.x.roll(1, 0))
        self.optimizer.lr.fill_(0.05 / (1 + self.epoch))


def make():
    trainer = Trainer()
    return {"step": trainer.step, "vary": trainer.next_batch, "reset": None}
