"""Block DCT image codec with a quality knob.

The quantisation table is edited with numpy, where the tooling lives, and the
DCT basis is memoised per block size.
"""

import functools
import math

import numpy as np
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@functools.lru_cache(maxsize=None)
def dct_basis(n):
    k = torch.arange(n, device=DEVICE, dtype=torch.float32)
    basis = torch.cos(math.pi / n * (k[None, :] + 0.5) * k[:, None])
    basis = basis * math.sqrt(2.0 / n)
    basis[0] *= math.sqrt(0.5)
    return basis


class QuantTable:
    """Host table with a device twin."""

    def __init__(self, block):
        ramp = np.arange(block, dtype=np.float32)
        self.base = 0.05 + 0.04 * (ramp[:, None] + ramp[None, :])
        self.host = self.base.copy()
        self.device = torch.empty(block, block, device=DEVICE)
        self.quality = 50
        self.upload()

    def set_quality(self, quality):
        self.quality = quality
        factor = 50.0 / quality if quality < 50 else 2.0 - quality / 50.0
        np.multiply(self.base, max(factor, 0.02), out=self.host)
        self.host[0, 0] = min(self.host[0, 0], 0.1)
        self.upload()

    def upload(self):
        self.device.copy_(torch.from_numpy(self.host))

    @property
    def block(self):
        return self.host.shape[0]


class Codec:
    def __init__(self, block=8, side=32, seed=121):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.table = QuantTable(block)
        self.image = torch.rand(side, side, device=DEVICE, generator=self.rng)
        self.side = side
        dct_basis(block)

    def load(self):
        self.image.uniform_(generator=self.rng)

    def _blocks(self, image):
        b, n = self.table.block, self.side // self.table.block
        return image.reshape(n, b, n, b).permute(0, 2, 1, 3)

    def _image(self, blocks):
        return blocks.permute(0, 2, 1, 3).reshape(self.side, self.side)

    def roundtrip(self):
        C = dct_basis(self.table.block)
        coeff = C @ self._blocks(self.image - 0.5) @ C.T
        symbols = torch.round(coeff / self.table.device)
        rebuilt = self._image(C.T @ (symbols * self.table.device) @ C) + 0.5
        mse = (rebuilt - self.image).square().mean()
        nonzero = (symbols != 0).sum()
        return symbols, rebuilt.clamp(0, 1), mse, nonzero


codec = Codec()
_qualities = iter([50, 75, 20, 20, 90, 35] * 8)


def step():
    return codec.roundtrip()


def vary():
    codec.load()
    codec.table.set_quality(next(_qualities))
