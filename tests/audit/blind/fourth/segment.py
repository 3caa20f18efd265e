"""Training of a pixel classifier with warm-up and cosine decay of the learning rate."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIDE, CLASSES, BATCH = 12, 3, 4
WARM, TOTAL = 3, 9


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 6, 3, padding=1, stride=2)
        self.up = nn.ConvTranspose2d(6, 6, 2, stride=2)
        self.skip = nn.Conv2d(1, 6, 3, padding=1)
        self.classify = nn.Conv2d(12, CLASSES, 1)
        gen = torch.Generator().manual_seed(70)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * 0.2)

    def forward(self, image):
        coarse = F.silu(self.up(F.silu(self.down(image))))
        return self.classify(torch.cat([coarse, F.silu(self.skip(image))], dim=1))


class NormalisedMomentum(torch.optim.Optimizer):
    """Steps of a set length for every tensor, along the running mean of its slopes."""

    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            rate, keep = group["lr"], group["momentum"]
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["mean"] = torch.zeros_like(p)
                state["mean"].lerp_(p.grad, 1 - keep)
                p.sub_(rate * state["mean"] / (state["mean"].norm() + 1e-6))


def pace(batch):
    if batch < WARM:
        return (batch + 1) / WARM
    return 0.5 * (1 + math.cos(math.pi * (batch - WARM) / (TOTAL - WARM)))


model = Segmenter().to(DEVICE)
start = {k: v.clone() for k, v in model.state_dict().items()}
rate = torch.tensor(0.3, device=DEVICE)
optimizer = NormalisedMomentum(model.parameters(), lr=rate)
scheduler = LambdaLR(optimizer, pace)
first_pace, first_rate = copy.deepcopy(scheduler.state_dict()), rate.clone()
image = torch.zeros(BATCH, 1, SIDE, SIDE, device=DEVICE)
label = torch.zeros(BATCH, SIDE, SIDE, dtype=torch.long, device=DEVICE)
scanner = torch.Generator().manual_seed(71)


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(image), label)
    loss.backward()
    optimizer.step()
    return loss.detach(), model.classify.weight.detach().norm()


def vary():
    image.copy_(torch.randn(BATCH, 1, SIDE, SIDE, generator=scanner))
    label.copy_((image[:, 0] > 0.3).long() + (image[:, 0] > 1.0).long())
    scheduler.step()


def reset():
    model.load_state_dict(start)
    for state in optimizer.state.values():
        state["mean"].zero_()
    scheduler.load_state_dict(copy.deepcopy(first_pace))
    rate.copy_(first_rate)
