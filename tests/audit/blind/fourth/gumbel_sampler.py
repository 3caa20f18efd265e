"""Sampling without a sort: exponential noise on the probabilities, then the largest."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, HIDDEN, VOCAB = 5, 16, 40
SEED = 77
gen = torch.Generator().manual_seed(19)


class ExponentialSampler:
    def __init__(self) -> None:
        self.head = (torch.randn(HIDDEN, VOCAB, generator=gen) * 0.4).to(DEVICE)
        self.temperature = torch.ones(BATCH, device=DEVICE)
        self.penalty = torch.ones(BATCH, device=DEVICE)
        self.seen = torch.zeros(BATCH, VOCAB, dtype=torch.bool, device=DEVICE)
        self.calls = 0
        self._noise: torch.Tensor | None = None

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        if self._noise is None or self._noise.shape != like.shape:
            self._noise = torch.empty_like(like)
        return self._noise.exponential_()

    def penalise(self, logits: torch.Tensor) -> torch.Tensor:
        by = self.penalty[:, None]
        return torch.where(self.seen, torch.where(logits > 0, logits / by, logits * by), logits)

    def __call__(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        logits = self.penalise(hidden @ self.head) / self.temperature[:, None]
        probs = logits.softmax(-1)
        tokens = (probs / self.noise(probs).clamp_(min=1e-9)).argmax(-1)
        self.seen.scatter_(1, tokens[:, None], True)
        return tokens, probs.gather(1, tokens[:, None]).squeeze(1)


class Frontend:
    """Requests bring a temperature, a penalty, and a seed for the run."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> None:
        self.count += 1
        sampler.temperature.copy_(0.5 + torch.rand(BATCH, generator=gen))
        sampler.penalty.copy_(1.0 + 0.5 * torch.rand(BATCH, generator=gen))
        hidden.copy_(torch.randn(BATCH, HIDDEN, generator=gen))
        if self.count % 2:
            torch.manual_seed(SEED + self.count)
        if self.count % 3 == 0:
            sampler.seen[self.count % BATCH] = False


hidden = torch.randn(BATCH, HIDDEN, generator=gen).to(DEVICE)
sampler = ExponentialSampler()
frontend = Frontend()


def step():
    return sampler(hidden)


def vary():
    frontend.next()


def reset():
    sampler.seen.zero_()
    torch.manual_seed(SEED)
