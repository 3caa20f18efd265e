"""RMSNorm over the scheduled tokens of a persistent batch, as a Triton kernel."""

import mrv2lab  # noqa: F401
import torch
import triton
import triton.language as tl
from dataclasses import dataclass

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTH, MAX_TOKENS = 16, 8


@triton.jit
def rms_norm_kernel(x_ptr, gain_ptr, out_ptr, eps, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, WIDTH)
    x = tl.load(x_ptr + row * WIDTH + offsets)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / WIDTH + eps)
    tl.store(out_ptr + row * WIDTH + offsets, x * scale * tl.load(gain_ptr + offsets))


@dataclass
class Batch:
    num_tokens: int
    offset: float


class PersistentBatch:
    """Hidden states of all requests, in a buffer that is as long as the longest batch."""

    def __init__(self) -> None:
        self.hidden = torch.zeros(MAX_TOKENS, WIDTH, device=DEVICE)
        self.num_tokens = 0

    def schedule(self, batch: Batch) -> None:
        count = batch.num_tokens * WIDTH
        values = torch.sin(torch.arange(count, dtype=torch.float32) * 0.3 + batch.offset)
        self.hidden[: batch.num_tokens].copy_(values.view(-1, WIDTH))
        self.num_tokens = batch.num_tokens


class Norm:
    def __init__(self) -> None:
        self.gain = 1.0 + 0.05 * torch.arange(WIDTH, dtype=torch.float32, device=DEVICE)
        self.out = torch.zeros(MAX_TOKENS, WIDTH, device=DEVICE)

    def __call__(self, batch: PersistentBatch) -> torch.Tensor:
        grid = (batch.num_tokens,)
        rms_norm_kernel[grid](batch.hidden, self.gain, self.out, 1e-6, WIDTH=WIDTH)
        return self.out


TRAFFIC = [Batch(3, 0.0), Batch(2, 0.5), Batch(6, 1.0), Batch(8, 1.5), Batch(4, 2.5)]
batch, norm = PersistentBatch(), Norm()
batch.schedule(TRAFFIC[0])
clock = {"turn": 0}


def step():
    return norm(batch) * 2.0


def vary():
    clock["turn"] = (clock["turn"] + 1) % len(TRAFFIC)
    batch.schedule(TRAFFIC[clock["turn"]])


def rows():
    return batch.num_tokens


def reset():
    clock["turn"] = 0
    batch.hidden.zero_()
    norm.out.zero_()
    batch.schedule(TRAFFIC[0])
