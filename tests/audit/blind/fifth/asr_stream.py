"""Streaming speech encoder: causal convolutions with a left context carried between chunks."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MELS, WIDTH, CHUNK, KERNEL = 8, 12, 6, 5


class LeftContext:
    """The last KERNEL - 1 frames that a convolution has seen.

    Those before the newest chunk are kept as well, for a client that sends a chunk again.
    """

    def __init__(self, channels):
        self.frames = torch.zeros(1, channels, KERNEL - 1, device=DEVICE)
        self.before = None

    def extend(self, x):
        full = torch.cat([self.frames, x], dim=-1)
        self.before, self.frames = self.frames, full[..., -(KERNEL - 1) :].contiguous()
        return full

    def rewind(self):
        if self.before is not None:
            self.frames.copy_(self.before)

    def clear(self):
        self.frames.zero_()


class CausalBlock(nn.Module):
    def __init__(self, inp, out):
        super().__init__()
        self.conv = nn.Conv1d(inp, out, KERNEL)
        self.gate = nn.Conv1d(inp, out, KERNEL)
        self.context = LeftContext(inp)

    def forward(self, x):
        full = self.context.extend(x)
        return self.conv(full).tanh() * torch.sigmoid(self.gate(full))


class StreamingEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([CausalBlock(MELS, WIDTH), CausalBlock(WIDTH, WIDTH)])
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, mel):
        for block in self.blocks:
            mel = block(mel)
        return F.log_softmax(self.out(mel.transpose(1, 2)), dim=-1)

    def contexts(self):
        return (block.context for block in self.blocks)


class Microphone:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def read(self):
        return torch.randn(1, MELS, CHUNK, generator=self.gen) * 2.0


torch.manual_seed(4)
encoder = StreamingEncoder().to(DEVICE).eval()
mic = Microphone(13)
chunk = torch.zeros(1, MELS, CHUNK, device=DEVICE)
chunk.copy_(mic.read())


def reset():
    for context in encoder.contexts():
        context.clear()


@torch.no_grad()
def step():
    return encoder(chunk)


def vary():
    chunk.copy_(mic.read())
