"""Validation of a segmentation head with raw and averaged weights.

The averaged weights live next to the model, and are exchanged with the raw
ones for the validation passes that ask for them.
"""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SegHead(nn.Module):
    def __init__(self, channels=6, classes=5):
        super().__init__()
        self.mix = nn.Conv2d(channels, 16, 1)
        self.spread = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.out = nn.Conv2d(16, classes, 1)

    def forward(self, x):
        x = torch.relu(self.mix(x))
        x = x + torch.relu(self.spread(x))
        return self.out(x)


class AveragedWeights:
    """Exponential average of a model's parameters."""

    def __init__(self, model, decay):
        self.model = model
        self.decay = decay
        self.shadow = [p.detach().clone() for p in model.parameters()]
        self.installed = False

    @torch.no_grad()
    def track(self):
        for s, p in zip(self.shadow, self.model.parameters()):
            s.lerp_(p, 1.0 - self.decay)

    def exchange(self):
        """Install the average, or put the raw weights back; no copies."""
        for i, p in enumerate(self.model.parameters()):
            p.data, self.shadow[i] = self.shadow[i], p.data
        self.installed = not self.installed


class Validation:
    def __init__(self):
        torch.manual_seed(61)
        self.model = SegHead().to(DEVICE).requires_grad_(False)
        self.average = AveragedWeights(self.model, decay=0.7)
        self.rng = torch.Generator(device=DEVICE).manual_seed(62)
        self.maps = torch.randn(2, 6, 8, 8, device=DEVICE, generator=self.rng)
        self.target = torch.randint(0, 5, (2, 8, 8), device=DEVICE, generator=self.rng)
        self._pretrain()

    def _pretrain(self):
        for _ in range(5):
            for p in self.model.parameters():
                noise = torch.randn(p.shape, device=DEVICE, generator=self.rng)
                p.add_(noise, alpha=0.1)
            self.average.track()

    def next_batch(self):
        self.maps.normal_(generator=self.rng)
        self.target.random_(0, 5, generator=self.rng)

    def use_average(self, wanted):
        if wanted != self.average.installed:
            self.average.exchange()

    def evaluate(self):
        logits = self.model(self.maps)
        loss = nn.functional.cross_entropy(logits, self.target)
        return loss, logits.softmax(1)


validation = Validation()
_pass = 0


def step():
    with torch.no_grad():
        return validation.evaluate()


def vary():
    """Two raw batches, then two averaged ones, and so on."""
    global _pass
    _pass += 1
    validation.next_batch()
    validation.use_average(_pass % 4 in (2, 3))
