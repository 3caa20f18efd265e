"""Speech that never stopped or stopped too soon, for other prompts after each restart of the server. The
sampler of the talker's first layer took seed and offset of its random numbers from the host's generator, and
the call is captured: each replay draws the same numbers, those of the capture. Repaired by sampling with
torch, whose generator a graph advances on the device.
"""

from types import SimpleNamespace

import torch

PROJECT = "SGLang-Omni"
LINK = "https://github.com/sgl-project/sglang-omni/pull/419"
MECHANISM = "rng"
CAUSE = "self.offset"
LINE = "offset, self.offset = self.offset, self.offset + ROWS"
EXECUTORS = ("emulated", "cuda")

ROWS, VOCABULARY, SEED = 4, 32, 123


class HostGenerator:
    """Numbers by a counter on the host, which goes into the kernel as a scalar."""

    def __init__(self, device: torch.device):
        self.offset, self.rows = 0, torch.arange(ROWS, device=device)

    def uniform(self) -> torch.Tensor:
        offset, self.offset = self.offset, self.offset + ROWS
        return hashed(self.rows + offset)


class DeviceGenerator(HostGenerator):
    """The same numbers by a counter on the device."""

    def __init__(self, device: torch.device):
        super().__init__(device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)

    def uniform(self) -> torch.Tensor:
        numbers = hashed(self.rows + self.counter)
        self.counter.add_(ROWS)
        return numbers


def hashed(counters: torch.Tensor) -> torch.Tensor:
    mixed = (counters + SEED) * 2654435761 % 2147483648
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2147483648
    return (mixed >> 7).float() / (1 << 24)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    generator = DeviceGenerator(device) if fixed else HostGenerator(device)
    logits = torch.zeros(ROWS, VOCABULARY, device=device)
    inputs = torch.Generator().manual_seed(0)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        uniform = generator.uniform()
        cdf = torch.softmax(logits, 1).cumsum(1)
        return (cdf < uniform[:, None]).sum(1), uniform

    return SimpleNamespace(
        step=step, vary=lambda: logits.copy_(torch.rand(ROWS, VOCABULARY, generator=inputs))
    )
