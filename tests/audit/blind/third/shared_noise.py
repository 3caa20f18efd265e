"""Draft and target sample with the same Gumbel noise, drawn ahead and handed out window by window."""

from collections.abc import Iterator

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

BATCH, VOCAB, DEPTH = 4, 20, 12


def gumbel(*shape: int, seed: int) -> torch.Tensor:
    uniform = torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).clamp_(1e-6, 1 - 1e-6)
    return -torch.log(-torch.log(uniform))


class NoiseBank:
    """All the noise of a run. A window covers the batch at one draft position."""

    def __init__(self) -> None:
        self.storage = gumbel(DEPTH * BATCH, VOCAB, seed=21).to(DEVICE)
        self._windows = self._walk()
        self.advance()

    def _walk(self) -> Iterator[torch.Tensor]:
        while True:
            for start in range(0, self.storage.shape[0], BATCH):
                yield self.storage.narrow(0, start, BATCH)

    def advance(self) -> None:
        self.window = next(self._windows)


class CoupledSampler:
    def __init__(self, noise: NoiseBank) -> None:
        self.noise = noise
        self.draft_logits = torch.zeros(BATCH, VOCAB, device=DEVICE)
        self.target_logits = torch.zeros(BATCH, VOCAB, device=DEVICE)
        self.temperature = torch.full((BATCH, 1), 0.8, device=DEVICE)

    def pick(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        perturbed = logits / self.temperature + self.noise.window
        best, token = perturbed.max(dim=-1)
        return token, best - perturbed.mean(dim=-1)

    def verify(self) -> dict[str, torch.Tensor]:
        draft, _ = self.pick(self.draft_logits)
        target, margin = self.pick(self.target_logits)
        return {"token": target, "agreed": draft == target, "margin": margin}


bank = NoiseBank()
sampler = CoupledSampler(bank)
prompts = torch.Generator().manual_seed(2)


def load() -> None:
    target = torch.randn(BATCH, VOCAB, generator=prompts)
    sampler.target_logits.copy_(target)
    sampler.draft_logits.copy_(target + 0.2 * torch.randn(BATCH, VOCAB, generator=prompts))


load()


def step() -> tuple[torch.Tensor, ...]:
    verdict = sampler.verify()
    return verdict["token"], verdict["agreed"], verdict["margin"]


def vary() -> None:
    load()
    bank.advance()
