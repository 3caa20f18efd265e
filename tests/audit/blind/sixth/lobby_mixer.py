"""Voice lobby: the streams of everybody who is in are mixed down to one.

Speakers hold a seat while they are in the lobby. Whoever leaves is forgotten by everybody, and the seat's
stream is silenced.
"""

import weakref

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEATS, FRAME = 6, 20


class Speaker:
    """Somebody with a seat."""

    def __init__(self, name: str, seat: int):
        self.name, self.seat = name, seat


class Lobby:
    """Seats, and the streams that come from them."""

    def __init__(self) -> None:
        self.streams = torch.zeros(SEATS, FRAME, device=DEVICE)
        self.volume = torch.ones(SEATS, device=DEVICE)
        self._present: weakref.WeakSet[Speaker] = weakref.WeakSet()

    def join(self, name: str) -> Speaker:
        taken = {speaker.seat for speaker in self._present}
        speaker = Speaker(name, next(seat for seat in range(SEATS) if seat not in taken))
        self._present.add(speaker)
        return speaker

    @property
    def headroom(self) -> float:
        """Keeps the sum of independent voices at the loudness of one."""
        return max(1, len(self._present)) ** -0.5

    def hear(self, frames: torch.Tensor) -> None:
        """Take in one frame of everybody; empty seats are silent."""
        silent = torch.ones(SEATS, 1)
        for speaker in self._present:
            silent[speaker.seat] = 0
        self.streams.copy_(frames * (1 - silent))

    def mix(self) -> torch.Tensor:
        loud = self.streams * self.volume.unsqueeze(1)
        return torch.tanh(loud.sum(0) * self.headroom)


rng = torch.Generator().manual_seed(29)
lobby = Lobby()
guests = [lobby.join(name) for name in ("ada", "bo", "cy", "di", "eve")]
lobby.hear(torch.randn(SEATS, FRAME, generator=rng))
turn = 0


def step():
    mixed = lobby.mix()
    return mixed, mixed.square().mean()


def vary():
    global turn
    turn += 1
    if turn in (1, 2, 4):
        guests.pop(0)
    elif turn == 5:
        guests.append(lobby.join("fay"))
    lobby.volume.copy_(0.5 + torch.rand(SEATS, generator=rng))
    lobby.hear(torch.randn(SEATS, FRAME, generator=rng))
