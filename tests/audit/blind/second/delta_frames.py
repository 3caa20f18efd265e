from dataclasses import dataclass
from types import SimpleNamespace

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"


@dataclass
class StreamConfig:
    samples: int = 16
    coefficients: int = 5
    use_graph: bool = True


class Cepstrum:
    def __init__(self, config):
        n = torch.arange(config.samples, dtype=torch.float32)[:, None]
        k = torch.arange(config.coefficients, dtype=torch.float32)[None]
        self.basis = torch.cos(torch.pi / config.samples * (n + 0.5) * k).to(DEVICE)

    def __call__(self, frame):
        return torch.log1p(frame.square()) @ self.basis


class StreamingFeatures:
    def __init__(self, config):
        self.config = config
        self.cepstrum = Cepstrum(config)
        self.frame = torch.zeros(config.samples, device=DEVICE)
        self.graph = None
        self.previous = None
        self.time = 0

    def receive(self):
        self.time += 1
        n = torch.arange(self.config.samples, dtype=torch.float32)
        self.frame.copy_(torch.sin(n * 0.13 * self.time))

    def statics(self):
        if not self.config.use_graph:
            return self.cepstrum(self.frame)
        if self.graph is None:
            self.cepstrum(self.frame)
            self.graph = graphs.capture(lambda: self.cepstrum(self.frame), backend=BACKEND)
        self.graph.replay()
        return self.graph.outputs

    def extract(self):
        current = self.statics()
        delta = torch.zeros_like(current) if self.previous is None else current - self.previous
        self.previous = current
        return torch.cat([current, delta])

    def eager(self):
        self.config.use_graph = False
        return self.extract()

    def end_of_stream(self):
        self.previous, self.time = None, 0


def make_engine():
    stream = StreamingFeatures(StreamConfig())
    return SimpleNamespace(
        step=stream.extract, vary=stream.receive, reset=stream.end_of_stream, eager=stream.eager
    )
