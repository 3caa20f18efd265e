"""Commentary arena: everybody who has a ticket is in the mix, at a loudness that depends on how many they are.

A ticket that nobody holds any more gives its place back by itself.
"""

import weakref

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PLACES, FRAME = 6, 20


class Ticket:
    """Holds a place."""

    def __init__(self, place: int):
        self.place = place


class Arena:
    """Places, and who sits there."""

    def __init__(self) -> None:
        self.streams = torch.zeros(PLACES, FRAME, device=DEVICE)
        self.taken = torch.zeros(PLACES, device=DEVICE)
        self._tickets: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()

    def admit(self) -> Ticket:
        place = min(set(range(PLACES)) - set(self._tickets))
        ticket = self._tickets[place] = Ticket(place)
        self.taken[place] = 1.0
        weakref.finalize(ticket, self.taken[place].fill_, 0.0).atexit = False
        return ticket

    @property
    def headroom(self) -> torch.Tensor:
        """Keeps the sum of independent voices at the loudness of one."""
        return self.taken.sum().clamp(min=1).rsqrt()

    def mix(self) -> torch.Tensor:
        loud = self.streams * self.taken.unsqueeze(1)
        return torch.tanh(loud.sum(0) * self.headroom)

    def __len__(self) -> int:
        return len(self._tickets)


rng = torch.Generator().manual_seed(47)
arena = Arena()
held = [arena.admit() for _ in range(5)]
arena.streams.copy_(torch.randn(PLACES, FRAME, generator=rng))
turn = 0


def step():
    if not len(arena):
        raise RuntimeError("nobody is left to comment")
    mixed = arena.mix()
    return {"mixed": mixed, "power": mixed.square().mean()}


def vary():
    global turn
    turn += 1
    if turn % 3:
        held.pop(0)
    else:
        held.append(arena.admit())
    arena.streams.copy_(torch.randn(PLACES, FRAME, generator=rng))
    if len(held) < 2:
        held.append(arena.admit())
