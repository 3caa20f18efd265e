"""Decodes telemetry of a satellite from a buffer of two lanes.

A header in front of the buffer, packed as the downlink has it, says which packet came last. Packets go to
the lanes by turns: those of even numbers carry pictures, those of odd numbers carry measurements.
"""

import struct

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LANE, CHANNELS = 12, 3
HEADER = struct.Struct("<IHf")  # number of the packet, words in it, temperature of the transmitter


class Downlink:
    """Header on the host, lanes on the device."""

    def __init__(self, seed: int):
        self.rng = torch.Generator().manual_seed(seed)
        self._header = memoryview(bytearray(HEADER.size))
        self.lanes = torch.zeros(2 * LANE, device=DEVICE)
        self.gain = torch.ones(CHANNELS, device=DEVICE)
        self._packets = 0
        self.receive()
        self.receive()

    @property
    def last(self) -> int:
        return HEADER.unpack_from(self._header)[0]

    def receive(self) -> None:
        """One packet."""
        words = torch.randn(LANE, generator=self.rng)
        number, self._packets = self._packets, self._packets + 1
        at = number % 2 * LANE
        self.lanes[at : at + LANE].copy_(words)
        HEADER.pack_into(self._header, 0, number, LANE, words.abs().mean().item())

    def measurements(self) -> torch.Tensor:
        """The lane of the last packet, by channel."""
        at = self.last % 2 * LANE
        return self.lanes.as_strided((CHANNELS, LANE // CHANNELS), (1, CHANNELS), at)


link = Downlink(61)


def step():
    scaled = link.measurements() * link.gain.unsqueeze(1)
    return {"scaled": scaled, "mean": scaled.mean(1), "peak": scaled.abs().amax(1)}


def vary():
    link.receive()
    link.receive()
    link.gain.copy_(0.5 + torch.rand(CHANNELS, generator=link.rng))
