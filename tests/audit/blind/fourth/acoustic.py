"""Training of a frame classifier for speech, with a weight update for every two utterances."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FRAMES, BANDS, PHONES = 20, 10, 6


class Tdnn(nn.Module):
    """Two dilated convolutions over time and a classifier of every frame."""

    def __init__(self):
        super().__init__()
        self.near = nn.Conv1d(BANDS, 12, 3, padding=1)
        self.far = nn.Conv1d(12, 12, 3, padding=3, dilation=3)
        self.out = nn.Conv1d(12, PHONES, 1)
        gen = torch.Generator().manual_seed(60)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * 0.2)

    def forward(self, bands):
        return self.out(torch.relu(self.far(torch.relu(self.near(bands)))))


class Window:
    """Utterances between two updates of the weights."""

    def __init__(self, optimizer, size):
        self.optimizer, self.size, self.filled = optimizer, size, 0

    @property
    def is_full(self):
        return self.filled == self.size

    @contextmanager
    def utterance(self):
        """Around the loading of an utterance: a full window is worked off before."""
        if self.is_full:
            self.optimizer.step()
            self.clear()
        yield
        self.filled += 1

    def clear(self):
        self.optimizer.zero_grad()
        self.filled = 0


model = Tdnn().to(DEVICE)
start = {k: v.clone() for k, v in model.state_dict().items()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
window = Window(optimizer, size=2)
bands = torch.zeros(1, BANDS, FRAMES, device=DEVICE)
phones = torch.zeros(1, FRAMES, dtype=torch.long, device=DEVICE)
corpus = torch.Generator().manual_seed(61)


def step():
    loss = F.cross_entropy(model(bands), phones) / window.size
    loss.backward()
    slope = torch.stack([p.grad.norm() for p in model.parameters()])
    return loss.detach(), slope


def vary():
    with window.utterance():
        bands.copy_(torch.randn(1, BANDS, FRAMES, generator=corpus))
        phones.copy_(torch.randint(PHONES, (1, FRAMES), generator=corpus))


def reset():
    model.load_state_dict(start)
    window.clear()
