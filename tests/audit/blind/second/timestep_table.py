from types import SimpleNamespace

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
CHANNELS, STEPS = 8, 16


class TimeEmbedding:
    def __init__(self):
        self.table = None

    def build(self):
        t = torch.arange(STEPS, dtype=torch.float32, device=DEVICE)
        rates = torch.exp(-torch.arange(CHANNELS // 2, dtype=torch.float32, device=DEVICE))
        angle = t[:, None] * rates[None]
        return torch.cat([torch.sin(angle), torch.cos(angle)], dim=1)

    def __call__(self, timestep):
        if self.table is None:
            self.table = self.build()
        return self.table[timestep]


class Denoiser:
    def __init__(self):
        self.embed = TimeEmbedding()
        angles = torch.arange(CHANNELS * CHANNELS, dtype=torch.float32, device=DEVICE)
        basis = torch.cos(angles).view(CHANNELS, CHANNELS)
        self.weight = basis @ basis.T / CHANNELS

    def __call__(self, latent, timestep):
        return latent - 0.1 * torch.tanh((latent + self.embed(timestep)) @ self.weight)


class Runner:
    def __init__(self, sizes=(4, 2)):
        self.latent = torch.zeros(max(sizes), CHANNELS, device=DEVICE)
        self.timestep = torch.zeros(max(sizes), dtype=torch.long, device=DEVICE)
        self.model, self.sizes = Denoiser(), sizes
        self.graphs, self.batch, self.turn = {}, 2, 0

    def warm(self):
        for size in self.sizes:
            self.graphs[size] = graphs.capture(lambda n=size: self.forward(n), backend=BACKEND)

    def forward(self, size):
        return self.model(self.latent[:size], self.timestep[:size])

    def eager(self):
        return self.forward(self.batch)

    def run(self):
        if not self.graphs:
            self.warm()
        graph = self.graphs[self.batch]
        graph.replay()
        return graph.outputs

    def release(self):
        self.graphs.clear()
        self.model.embed.table = None

    def next_request(self):
        self.turn += 1
        self.batch = 4 if self.turn % 3 == 0 else 2
        values = torch.arange(self.batch * CHANNELS, dtype=torch.float32).view(self.batch, CHANNELS)
        self.latent[: self.batch].copy_(torch.sin(values + self.turn))
        self.timestep[: self.batch].copy_(torch.arange(self.batch) + self.turn)


def make_engine():
    runner = Runner()
    return SimpleNamespace(
        step=runner.run, vary=runner.next_request, eager=runner.eager, reset=runner.release
    )
