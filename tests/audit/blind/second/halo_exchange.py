from dataclasses import dataclass

import torch
from mrv2lab import graphs  # noqa: F401

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Domain:
    field: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor

    @classmethod
    def allocate(cls, cells):
        return cls(torch.zeros(cells, device=DEVICE), *(torch.zeros(1, device=DEVICE) for _ in range(2)))


class Exchange:
    def __init__(self, domains):
        self.domains = domains
        self.stream = torch.cuda.Stream()

    def start(self):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for i, domain in enumerate(self.domains):
                domain.left.copy_(self.domains[i - 1].field[-1:])
                domain.right.copy_(self.domains[(i + 1) % len(self.domains)].field[:1])

    def wait(self):
        if not torch.cuda.is_current_stream_capturing():
            self.stream.synchronize()

    def close(self):
        torch.cuda.current_stream().wait_stream(self.stream)


class HeatSolver:
    def __init__(self, parts=2, cells=6, alpha=0.2):
        self.domains = [Domain.allocate(cells) for _ in range(parts)]
        self.exchange = Exchange(self.domains)
        self.alpha = alpha

    def advance(self):
        self.exchange.start()
        self.exchange.wait()
        updated = []
        for domain in self.domains:
            padded = torch.cat([domain.left, domain.field, domain.right])
            updated.append(domain.field + self.alpha * (padded[:-2] - 2 * domain.field + padded[2:]))
        self.exchange.close()
        for domain, field in zip(self.domains, updated, strict=True):
            domain.field.copy_(field)
        return torch.cat(updated)


solver = HeatSolver()
sources = iter(range(1, 10_000))


def step():
    return solver.advance()


def vary():
    k = next(sources)
    for i, domain in enumerate(solver.domains):
        n = torch.arange(domain.field.numel(), dtype=torch.float32)
        domain.field.add_(torch.sin(n * k + i).to(DEVICE))
