"""Fine-tuning of a small encoder for plankton counts, from the head downwards."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FEATURES, CLASSES, BATCH = 14, 4, 12


def block(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.GELU())


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([block(FEATURES, 16), block(16, 16)])
        self.head = nn.Linear(16, CLASSES)
        gen = torch.Generator().manual_seed(6)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.dim() > 1:
                    p.copy_(torch.randn(p.shape, generator=gen) / p.shape[1] ** 0.5)

    def forward(self, x):
        for layer in self.blocks:
            x = layer(x)
        return self.head(x)


class Curriculum:
    """Which parts learn: the head from the start, one block more every other batch."""

    def __init__(self, model, pace=2):
        self.model, self.pace, self.batches = model, pace, 0
        self.apply()

    def apply(self):
        opened = self.batches // self.pace
        for depth, layer in enumerate(reversed(self.model.blocks), start=1):
            layer.requires_grad_(depth <= opened)

    def tick(self):
        self.batches += 1
        self.apply()


class Momentum:
    """Heavy ball over whatever has a gradient."""

    def __init__(self, params, lr=0.1, beta=0.8):
        self.params, self.lr, self.beta = list(params), lr, beta
        self.speed = [torch.zeros_like(p) for p in self.params]

    def forget(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def apply(self):
        for p, speed in zip(self.params, self.speed):
            if p.grad is not None:
                speed.mul_(self.beta).add_(p.grad)
                p.add_(speed, alpha=-self.lr)


model = Encoder().to(DEVICE)
start = {k: v.clone() for k, v in model.state_dict().items()}
optimizer = Momentum(model.parameters())
curriculum = Curriculum(model)
inputs = torch.zeros(BATCH, FEATURES, device=DEVICE)
labels = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
net_tow = torch.Generator().manual_seed(17)


def step():
    optimizer.forget()
    loss = F.cross_entropy(model(inputs), labels, label_smoothing=0.05)
    loss.backward()
    optimizer.apply()
    return {"loss": loss.detach(), "weights": torch.stack([p.detach().norm() for p in model.parameters()])}


def vary():
    inputs.copy_(torch.randn(BATCH, FEATURES, generator=net_tow))
    labels.copy_(torch.randint(CLASSES, (BATCH,), generator=net_tow))
    curriculum.tick()


def reset():
    model.load_state_dict(start)
    for speed in optimizer.speed:
        speed.zero_()
    curriculum.batches = 0
    curriculum.apply()
