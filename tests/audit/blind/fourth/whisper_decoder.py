"""Encoder-decoder speech model: keys and values of the encoder are made once for each audio."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FRAMES, HIDDEN, HEADS, VOCAB, BATCH = 12, 16, 2, 32, 3
gen = torch.Generator().manual_seed(8)


def weights(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape, generator=gen) / math.sqrt(shape[0])).to(DEVICE)


class Encoder:
    def __init__(self) -> None:
        self.inner, self.outer = weights(HIDDEN, 2 * HIDDEN), weights(2 * HIDDEN, HIDDEN)

    def __call__(self, mel: torch.Tensor) -> torch.Tensor:
        return mel + torch.nn.functional.gelu(mel @ self.inner) @ self.outer


class CrossAttention:
    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.wq, self.wk, self.wv = (weights(HIDDEN, HIDDEN) for _ in range(3))
        self.keys = torch.zeros(BATCH, FRAMES, HIDDEN, device=DEVICE)
        self.values = torch.zeros(BATCH, FRAMES, HIDDEN, device=DEVICE)
        self.is_filled = False

    def fill(self, mel: torch.Tensor) -> None:
        states = self.encoder(mel)
        torch.matmul(states, self.wk, out=self.keys)
        torch.matmul(states, self.wv, out=self.values)
        self.is_filled = True

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (HEADS, HIDDEN // HEADS)).transpose(1, 2)

    def __call__(self, x: torch.Tensor, mel: torch.Tensor) -> torch.Tensor:
        if not self.is_filled:
            self.fill(mel)
        q = self.split((x @ self.wq).unsqueeze(1))
        k, v = self.split(self.keys), self.split(self.values)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(HIDDEN // HEADS)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(1)


class Decoder:
    def __init__(self) -> None:
        self.embedding = weights(VOCAB, HIDDEN) * 4
        self.cross = CrossAttention(Encoder())
        self.out = weights(HIDDEN, HIDDEN)

    def __call__(self, ids: torch.Tensor, mel: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.embedding(ids, self.embedding)
        x = x + self.cross(x, mel) @ self.out
        x = torch.nn.functional.layer_norm(x, (HIDDEN,))
        return x @ self.embedding.t()


class Session:
    """What arrives: audio now and then, a token each step."""

    def __init__(self) -> None:
        self.mel = torch.zeros(BATCH, FRAMES, HIDDEN, device=DEVICE)
        self.ids = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
        self.tick = 0

    def audio(self) -> None:
        self.mel.copy_(torch.randn(BATCH, FRAMES, HIDDEN, generator=gen))
        decoder.cross.is_filled = False

    def token(self) -> None:
        self.ids.copy_(torch.randint(VOCAB, (BATCH,), generator=gen))


decoder = Decoder()
session = Session()
session.audio()
session.token()


def step():
    logits = decoder(session.ids, session.mel)
    return logits.log_softmax(-1)


def vary():
    session.tick += 1
    if session.tick % 2 == 0:
        session.audio()
    session.token()
