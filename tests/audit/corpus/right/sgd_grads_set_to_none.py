"""SGD with momentum; gradients are set to None and made anew in every step."""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.x, self.y = torch.randn(6, 3, device=DEVICE), torch.randn(6, 1, device=DEVICE)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss = nn.functional.mse_loss(self.net(self.x), self.y)
            loss.backward()
        self.optimizer.step()
        return [p.detach() for p in self.net.parameters()]


def make():
    trainer = Trainer()
    return {"step": trainer.step, "vary": lambda: trainer.x.mul_(1.1), "reset": None}
