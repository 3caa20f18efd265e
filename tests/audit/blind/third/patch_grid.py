"""Vision encoder with a budget of patches: images of any aspect ratio, positions by row and column."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

PATCHES, DIM = 24, 8


@dataclass(frozen=True)
class ImageMeta:
    pixels: tuple[int, int]
    patch: int = 14

    @property
    def columns(self) -> int:
        return self.pixels[1] // self.patch

    @property
    def cells(self) -> int:
        return (self.pixels[0] // self.patch) * self.columns


_image: ContextVar[ImageMeta] = ContextVar("image")


@contextmanager
def encoding(meta: ImageMeta) -> Iterator[None]:
    token = _image.set(meta)
    try:
        yield
    finally:
        _image.reset(token)


class RowColumnEmbedding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("index", torch.arange(PATCHES, dtype=torch.float32))
        self.register_buffer("bands", 0.7 ** torch.arange(dim // 2, dtype=torch.float32))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        columns = _image.get().columns
        row = torch.floor(self.index / columns)
        column = self.index - row * columns
        angles = torch.stack(
            (torch.sin(row[:, None] * self.bands), torch.cos(column[:, None] * self.bands)), -1
        )
        return patches + angles.flatten(1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        gen = torch.Generator().manual_seed(31)
        self.embed = RowColumnEmbedding(DIM)
        self.register_buffer("qkv", torch.randn(DIM, 3 * DIM, generator=gen) * DIM**-0.5)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(patches)
        q, k, v = (hidden @ self.qkv).chunk(3, dim=-1)
        return hidden + (q @ k.T * DIM**-0.5).softmax(-1) @ v


SIZES = cycle([(56, 84), (56, 84), (84, 56), (42, 112), (28, 168)])
encoder = Encoder().to(DEVICE)
pixels = torch.zeros(PATCHES, DIM, device=DEVICE)
camera = torch.Generator().manual_seed(4)
meta = ImageMeta(next(SIZES))


def step() -> torch.Tensor:
    with encoding(meta), torch.no_grad():
        return encoder(pixels)


def vary() -> None:
    global meta
    meta = ImageMeta(next(SIZES))
    assert meta.cells == PATCHES
    pixels.copy_(torch.randn(PATCHES, DIM, generator=camera))
