"""Two-ear hearing aid: per-band amplification followed by a soft compressor.

The compressor is registered as an operator of its own, so that exported models can name it.
Audiologists refit an ear between requests; the band gains of a fitting live in a table on the device.
"""

from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BANDS, SAMPLES = 6, 32


@dataclass(frozen=True)
class Fitting:
    """What the audiologist has set for one ear."""

    knee: float
    ratio: float
    serial: int = 0


_WORN: dict[str, Fitting] = {"left": Fitting(0.8, 2.0), "right": Fitting(1.0, 1.5)}


@torch.library.custom_op("hearing_aid::compress", mutates_args=())
def compress(signal: torch.Tensor, gain: torch.Tensor, ear: str) -> torch.Tensor:
    """Amplify each band, then bend what lies above the knee."""
    fitting = _WORN[ear]
    loud = signal * gain.unsqueeze(1)
    level = loud.abs()
    bent = fitting.knee + (level - fitting.knee) / fitting.ratio
    return torch.sign(loud) * torch.where(level > fitting.knee, bent, level)


@compress.register_fake
def _(signal, gain, ear):
    return torch.empty_like(signal)


class Aid:
    """Both ears and the tables their signals go through."""

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(11)
        self.rng = rng
        self.signal = torch.randn(BANDS, SAMPLES, generator=rng).to(DEVICE)
        self.gain = {ear: (1 + torch.rand(BANDS, generator=rng)).to(DEVICE) for ear in ("left", "right")}
        self.visits = 0

    def hear(self) -> torch.Tensor:
        sides = [compress(self.signal, table, ear) for ear, table in self.gain.items()]
        return torch.stack([side.sum(0) for side in sides])

    def refit(self, ear: str) -> None:
        """A visit: new band gains, and a knee that suits them."""
        self.visits += 1
        gains = 1 + torch.rand(BANDS, generator=self.rng)
        self.gain[ear].copy_(gains)
        worn = _WORN[ear]
        _WORN[ear] = Fitting(1.5 / float(gains.max()), worn.ratio + 0.5, worn.serial + 1)


aid = Aid()


def step():
    return aid.hear()


def vary():
    aid.signal.copy_(torch.randn(BANDS, SAMPLES, generator=aid.rng))
    if aid.visits % 2 == 0:
        aid.refit("left")
    else:
        aid.refit("right")
