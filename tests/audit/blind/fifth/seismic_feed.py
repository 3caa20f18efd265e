"""STA/LTA trigger on three-component seismic traces that come in through a pair of staging arrays.

While one array is worked on, the reader fills the other one.
"""

from dataclasses import dataclass

import numpy as np
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TRACES, SAMPLES, SHORT, LONG = 3, 96, 6, 30


@dataclass
class Staging:
    array: np.ndarray
    serial: int = -1

    @property
    def tensor(self):
        return torch.from_numpy(self.array)


class Reader:
    """Makes traces up: noise with an arrival somewhere."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.serial = 0

    def fill(self, staging):
        noise = self.rng.standard_normal(staging.array.shape).astype(np.float32)
        onset = int(self.rng.integers(LONG + 5, SAMPLES - 20))
        noise[:, onset:] += 5.0 * np.exp(-0.1 * np.arange(SAMPLES - onset, dtype=np.float32))
        staging.array[...] = noise
        staging.serial = self.serial
        self.serial += 1


class Feed:
    def __init__(self, reader):
        self.reader = reader
        self.working, self.filling = (Staging(np.zeros((TRACES, SAMPLES), np.float32)) for _ in range(2))
        self.on_device = torch.zeros(TRACES, SAMPLES, device=DEVICE)
        reader.fill(self.filling)
        self.flip()

    def flip(self):
        self.working, self.filling = self.filling, self.working
        self.on_device.copy_(self.working.tensor)
        self.reader.fill(self.filling)

    @property
    def traces(self):
        return self.on_device.view(self.working.array.shape)


class Trigger:
    def __init__(self, feed):
        self.feed = feed
        self.seen = set()

    def mean_over(self, energy, width):
        total = torch.cumsum(energy, -1)
        return (total[:, width:] - total[:, :-width]) / width

    def run(self):
        self.seen.add(self.feed.working.serial)
        traces = self.feed.traces
        energy = (traces - traces.mean(-1, keepdim=True)).square()
        short = self.mean_over(energy, SHORT)[:, LONG - SHORT :]
        ratio = short / self.mean_over(energy, LONG).clamp_min(1e-6)
        strongest, where = ratio.max(-1)
        return ratio, strongest, where + LONG


trigger = Trigger(Feed(Reader(seed=9)))


def step():
    ratio, strongest, where = trigger.run()
    return {"ratio": ratio, "strongest": strongest, "where": where}


def vary():
    trigger.feed.flip()
