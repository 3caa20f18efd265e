"""Int4 weights in groups, expanded once to a dense matrix and expanded again when the weights change."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, IN, OUT, GROUP = 4, 32, 24, 8
gen = torch.Generator().manual_seed(23)


def pack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two signed 4-bit numbers a byte, a scale for each group of inputs."""
    grouped = weight.unflatten(1, (IN // GROUP, GROUP))
    scale = grouped.abs().amax(-1, keepdim=True) / 7
    codes = (torch.round(grouped / scale) + 8).to(torch.uint8).flatten(1)
    return codes[:, 0::2] | (codes[:, 1::2] << 4), scale.squeeze(-1)


class Int4Linear:
    def __init__(self) -> None:
        packed, scale = pack(self.trained())
        self.packed, self.scale = packed.to(DEVICE), scale.to(DEVICE)
        self.dense = torch.empty(OUT, IN, device=DEVICE)
        self.generation, self.expanded = 0, -1

    @staticmethod
    def trained() -> torch.Tensor:
        return torch.randn(OUT, IN, generator=gen) / math.sqrt(IN)

    def expand(self) -> None:
        """Unpack into the dense matrix, unless it is up to date."""
        if self.expanded == self.generation:
            return
        low, high = self.packed & 15, self.packed >> 4
        codes = torch.stack([low, high], dim=-1).flatten(1).to(torch.float32) - 8
        torch.mul(codes, self.scale.repeat_interleave(GROUP, 1, output_size=IN), out=self.dense)
        self.expanded = self.generation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.expand()
        return x @ self.dense.t()


class WeightLoader:
    def __init__(self, layers: list[Int4Linear]) -> None:
        self.layers = layers

    def refresh(self) -> None:
        for layer in self.layers:
            packed, scale = pack(layer.trained())
            layer.packed.copy_(packed)
            layer.scale.copy_(scale)
            layer.generation += 1
        self.verify()

    def verify(self) -> None:
        """A probe through each layer: weights that came over the wire broken should not serve."""
        probe = torch.ones(1, IN, device=DEVICE)
        for layer in self.layers:
            if not torch.isfinite(layer(probe)).all():
                raise RuntimeError("received weights that are not finite")


layers = [Int4Linear(), Int4Linear()]
loader = WeightLoader(layers)
x = torch.randn(TOKENS, IN, generator=gen).to(DEVICE)
count = 0


def step():
    gate, up = (layer(x) for layer in layers)
    return torch.nn.functional.silu(gate) * up


def vary():
    global count
    count += 1
    x.copy_(torch.randn(TOKENS, IN, generator=gen))
    if count in (2, 4):
        loader.refresh()
