"""Only every second micro step applies the accumulated gradients; the graph was captured at another."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["lost-kernel", "frozen-host-value"]
SUBJECTS = ["micro_step", "accum", "apply", "add", "foreach"]


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain):
        ctx.save_for_backward(x, gain)
        return x * gain

    @staticmethod
    def backward(ctx, grad):
        x, gain = ctx.saved_tensors
        return grad * gain, (grad * x).sum(0)


class Trainer:
    def __init__(self, accumulate=2):
        torch.manual_seed(0)
        self.accumulate = accumulate
        self.micro_step = 0
        self.w = torch.randn(4, 4, device=DEVICE, requires_grad=True)
        self.gain = torch.ones(4, device=DEVICE, requires_grad=True)
        self.sums = [torch.zeros_like(p) for p in (self.w, self.gain)]
        self.x, self.y = torch.randn(6, 4, device=DEVICE), torch.randn(6, 4, device=DEVICE)

    def apply(self):
        with torch.no_grad():
            torch._foreach_add_([self.w, self.gain], self.sums, alpha=-0.05)  # HERE
            torch._foreach_zero_(self.sums)  # HERE

    def step(self):
        with torch.enable_grad():
            loss = (Scale.apply(self.x @ self.w, self.gain) - self.y).square().mean()
            grads = torch.autograd.grad(loss, [self.w, self.gain])
        torch._foreach_add_(self.sums, grads)
        if self.micro_step % self.accumulate == self.accumulate - 1:  # HERE
            self.apply()  # HERE
        return loss.detach(), self.w.detach(), self.gain.detach()


def make():
    trainer = Trainer()

    def vary():
        trainer.micro_step += 1
        trainer.x.add_(0.1)

    return {"step": trainer.step, "vary": vary, "reset": None}
