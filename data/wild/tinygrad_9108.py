"""A sampler under the JIT drew the same numbers in every call, if random numbers had been drawn outside
before and not been realized. Each draw assigns seed + 1 to the seed. To a buffer that is a write, but the
draw outside left an expression, and an expression is only replaced by a longer one: the captured kernels read
the buffer below it, add what it had grown to, and write nothing back. Proposed repair: see to it that the
seed is realized.
"""

from types import SimpleNamespace

import torch

PROJECT = "tinygrad"
LINK = "https://github.com/tinygrad/tinygrad/issues/9108"
MECHANISM = "rng"
CAUSE = "self.seed"
LINE = "self.seed = self.seed.assign_add(1)"
EXECUTORS = ("emulated", "cuda")

VOCAB, TEMPERATURE = 8, 0.95


class Buffer:
    """A realized node: memory of the device."""

    def __init__(self, data: torch.Tensor):
        self.data = data

    def assign_add(self, number: int) -> "Buffer":
        self.data.add_(number)
        return self

    def load(self) -> torch.Tensor:
        return self.data

    def realize(self) -> "Buffer":
        return self


class Add:
    """A node that is computed where it is read."""

    def __init__(self, src: "Buffer | Add", number: int):
        self.src, self.number = src, number

    def assign_add(self, number: int) -> "Add":
        return Add(self, number)

    def load(self) -> torch.Tensor:
        return self.src.load() + self.number

    def realize(self) -> Buffer:
        return Buffer(self.load())


class DeviceRandom:
    """Numbers by counting from a seed, which each draw moves on."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.device = fixed, device
        self.seed = Add(Buffer(torch.full((), 1337, dtype=torch.int64, device=device)), 0)  # not realized yet

    def rand(self, numel: int) -> torch.Tensor:
        self.seed = self.seed.assign_add(1)
        if self.fixed:
            self.seed = self.seed.realize()
        counters = torch.arange(1, numel + 1, device=self.device) * 2654435761
        mixed = (counters + self.seed.load() * 40503 * 48271) % 4294967291
        return (mixed * 48271 % 2147483647).float() / 2147483647


class Sampler:
    """Draws the next token from the probabilities of a model."""

    def __init__(self, random: DeviceRandom):
        self.random = random
        self.logits = random.rand(VOCAB)  # of a prompt, drawn outside

    def multinomial(self) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities = torch.softmax(self.logits / TEMPERATURE, 0)
        uniform = self.random.rand(1)
        return (probabilities.cumsum(0) < uniform).sum(), uniform


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    sampler = Sampler(DeviceRandom(fixed, device))

    def vary() -> None:
        sampler.logits.mul_(-0.9)

    return SimpleNamespace(step=sampler.multinomial, vary=vary, sampler=sampler)
