"""Spectra of an analogue-digital converter that ranges itself.

Codes are integers; a tensor of codes knows what one of them is worth in volts, and turns into volts when it
is asked for as floats.
"""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CHANNELS, SAMPLES, FULL_SCALE = 3, 16, 2047


class Codes(torch.Tensor):
    """Integer codes. `lsb` is what one step is worth."""

    lsb: float = 1.0

    @staticmethod
    def of(codes: torch.Tensor, lsb: float) -> "Codes":
        made = codes.as_subclass(Codes)
        made.lsb = lsb
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.Tensor.float:
            self = args[0]
            with torch._C.DisableTorchFunctionSubclass():
                return self.as_subclass(torch.Tensor).to(torch.float32) * self.lsb
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


class Converter:
    """Digitises frames into one buffer, at the range that fits them."""

    def __init__(self, seed: int):
        self.rng = torch.Generator().manual_seed(seed)
        empty = torch.zeros(CHANNELS, SAMPLES, dtype=torch.int32, device=DEVICE)
        self.codes = Codes.of(empty, 1.0)
        self.peak = torch.zeros(CHANNELS, device=DEVICE)
        self.frames = 0
        self.digitise()

    def frame(self) -> torch.Tensor:
        amplitude = 0.5 * 3.0 ** (self.frames % 4)
        self.frames += 1
        return amplitude * torch.randn(CHANNELS, SAMPLES, generator=self.rng)

    def digitise(self) -> None:
        volts = self.frame()
        reach = 2.0 ** math.ceil(math.log2(volts.abs().max().item()))
        self.codes.lsb = reach / FULL_SCALE
        self.codes.copy_((volts / self.codes.lsb).round().int())
        self.peak.copy_(volts.abs().amax(1))


converter = Converter(3)
window = torch.hann_window(SAMPLES).to(DEVICE)
basis = torch.cos(torch.arange(8).unsqueeze(1) * torch.arange(SAMPLES).unsqueeze(0) * (math.pi / SAMPLES)).to(
    DEVICE
)


def step():
    volts = converter.codes.float()
    bins = (volts * window) @ basis.T
    crest = converter.peak / volts.square().mean(1).sqrt()
    return {"bins": bins, "crest": crest}


def vary():
    converter.digitise()
