"""Filter bank of a cochlear implant: envelopes of the bands, mapped to electrode currents.

The mapping is registered as an operator of its own. It keeps scratch memory by shape, and the tables of
whichever processors are worn; a clinician may exchange a processor between requests.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ELECTRODES, SAMPLES = 8, 24


class Processor:
    """The maps of one implant, on the device."""

    def __init__(self, serial: int, threshold: torch.Tensor, comfort: torch.Tensor):
        self.serial, self.threshold, self.comfort = serial, threshold, comfort
        self.calls = 0

    def successor(self, threshold: torch.Tensor, comfort: torch.Tensor) -> "Processor":
        """The next processor takes the maps' memory over."""
        self.threshold.copy_(threshold)
        self.comfort.copy_(comfort)
        return Processor(self.serial + 1, self.threshold, self.comfort)


_SCRATCH: dict[tuple[int, ...], torch.Tensor] = {}
_WORN: dict[str, Processor] = {}


@torch.library.custom_op("cochlea_bank::currents", mutates_args=())
def currents(envelope: torch.Tensor, side: str) -> torch.Tensor:
    """Currents between the threshold and what is comfortable."""
    worn = _WORN[side]
    worn.calls += 1
    shape = tuple(envelope.shape)
    if shape not in _SCRATCH:
        _SCRATCH[shape] = torch.empty_like(envelope)
    scratch = _SCRATCH[shape]
    torch.log1p(envelope.abs(), out=scratch)
    scratch.clamp_(max=1.0)
    return torch.lerp(worn.threshold.unsqueeze(1), worn.comfort.unsqueeze(1), scratch)


@currents.register_fake
def _(envelope, side):
    return torch.empty_like(envelope)


rng = torch.Generator().manual_seed(31)
sound = torch.randn(ELECTRODES, SAMPLES, generator=rng).to(DEVICE)
for _side in ("left", "right"):
    _WORN[_side] = Processor(
        1,
        torch.rand(ELECTRODES, generator=rng).to(DEVICE),
        (2 + torch.rand(ELECTRODES, generator=rng)).to(DEVICE),
    )
visits = 0


def step():
    left, right = currents(sound, "left"), currents(sound, "right")
    return {"left": left, "right": right, "load": (left + right).mean()}


def vary():
    global visits
    visits += 1
    sound.copy_(visits * torch.randn(ELECTRODES, SAMPLES, generator=rng))
    side = "left" if visits % 2 else "right"
    _WORN[side] = _WORN[side].successor(
        torch.rand(ELECTRODES, generator=rng), 2 + torch.rand(ELECTRODES, generator=rng)
    )
