"""Validates a segmentation network with the moving average of its weights while training goes on."""

from contextlib import contextmanager

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Segmenter(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.encode = nn.Conv2d(2, 8, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.decode = nn.ConvTranspose2d(8, classes, 2, stride=2)

    def forward(self, image):
        return self.decode(torch.relu(self.norm(self.encode(image))))


class MovingAverage:
    """Averages in double precision; `applied` lends the average to the network for a while."""

    def __init__(self, module, decay=0.7):
        self.tensors = list(module.parameters()) + [b for b in module.buffers() if b.is_floating_point()]
        self.average = [t.detach().double() for t in self.tensors]
        self.backup = [torch.empty_like(t) for t in self.tensors]
        self.decay = decay
        self.active = False

    @torch.no_grad()
    def update(self):
        for average, t in zip(self.average, self.tensors, strict=True):
            average.lerp_(t.double(), 1 - self.decay)

    @contextmanager
    def applied(self):
        if self.active:
            yield
            return
        self.active = True
        with torch.no_grad():
            for keep, t, average in zip(self.backup, self.tensors, self.average, strict=True):
                keep.copy_(t)
                t.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for keep, t in zip(self.backup, self.tensors, strict=True):
                    t.copy_(keep)
            self.active = False


torch.manual_seed(19)
model = Segmenter().to(DEVICE).eval()
ema = MovingAverage(model)
images = torch.randn(2, 2, 12, 12, device=DEVICE)
iteration = 0


@torch.no_grad()
def predict():
    with ema.applied():
        return model(images).softmax(dim=1)


def step():
    with ema.applied():
        averaged = predict()
    raw = predict_raw()
    return averaged, (averaged - raw).abs().mean()


@torch.no_grad()
def predict_raw():
    return model(images).softmax(dim=1)


@torch.no_grad()
def vary():
    """Some training, and the next validation batch."""
    global iteration
    iteration += 1
    for k, p in enumerate(model.parameters()):
        wiggle = torch.sin(torch.arange(p.numel(), device=DEVICE) * (0.3 + k) + iteration).view_as(p)
        p.add_(wiggle, alpha=0.3)
    ema.update()
    images.copy_(torch.randn(images.shape, generator=torch.Generator().manual_seed(iteration)))
