"""Adapters are hot-swapped by copying into static slots; Python-side bookkeeping names the current one."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Lora:
    def __init__(self):
        torch.manual_seed(0)
        self.bank = {n: (torch.randn(8, 2, device=DEVICE), torch.randn(2, 8, device=DEVICE)) for n in "xyz"}
        self.a = torch.zeros(8, 2, device=DEVICE)
        self.b = torch.zeros(2, 8, device=DEVICE)
        self.current = None
        self.activate("x")

    def activate(self, name):
        self.current = name
        a, b = self.bank[name]
        self.a.copy_(a)
        self.b.copy_(b)

    def step(self):
        if self.current is None:
            raise RuntimeError("no adapter")
        return x_in @ self.a @ self.b


x_in = torch.linspace(-1, 1, 16, device=DEVICE).view(2, 8)


def make():
    lora = Lora()

    def vary():
        lora.activate("xyz"[("xyz".index(lora.current) + 1) % 3])

    return {"step": lora.step, "vary": vary, "reset": None}
