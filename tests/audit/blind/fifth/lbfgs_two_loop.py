"""Quasi-Newton directions by the two-loop recursion, for a full-waveform misfit that an outside code evaluates.

The curvature pairs live in slots that are allocated once. A new pair overwrites the oldest slot, so memory
does not grow; `step` turns the current gradient into a direction.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE, MEMORY = 20, 4


class PairStore:
    def __init__(self, memory, size):
        self.moves = torch.zeros(memory, size, device=DEVICE)
        self.changes = torch.zeros(memory, size, device=DEVICE)
        self.rho = torch.zeros(memory, device=DEVICE)
        self._order = list(range(memory))  # oldest first

    def put(self, move, change):
        slot = self._order[0]
        self.moves[slot].copy_(move)
        self.changes[slot].copy_(change)
        self.rho[slot].copy_(1.0 / torch.dot(move, change))
        self._order = self._order[1:] + [slot]

    def newest_first(self):
        for slot in reversed(self._order):
            yield self.moves[slot], self.changes[slot], self.rho[slot]

    def oldest_first(self):
        return reversed(list(self.newest_first()))


class Direction:
    def __init__(self, store, size):
        self.store = store
        self.gradient = torch.zeros(size, device=DEVICE)

    def initial_scale(self):
        move, change, _ = next(self.store.newest_first())
        return torch.dot(move, change) / torch.dot(change, change)

    def __call__(self):
        q, weights = self.gradient.clone(), []
        for move, change, rho in self.store.newest_first():
            alpha = rho * torch.dot(move, q)
            q = q - alpha * change
            weights.append(alpha)
        r = self.initial_scale() * q
        for (move, change, rho), alpha in zip(self.store.oldest_first(), reversed(weights)):
            beta = rho * torch.dot(change, r)
            r = r + (alpha - beta) * move
        return -r


class Misfit:
    """An ill-conditioned quadratic in place of the outside code."""

    def __init__(self, gen):
        self.gen = gen
        basis = torch.randn(SIZE, SIZE, generator=gen)
        self.hessian = basis @ basis.T / SIZE + torch.diag(torch.logspace(-1, 1, SIZE))
        self.target = torch.randn(SIZE, generator=gen)
        self.at = torch.zeros(SIZE)

    def gradient(self, where):
        return self.hessian @ (where - self.target)

    def wander(self):
        after = self.at + 0.3 * torch.randn(SIZE, generator=self.gen)
        move, change = after - self.at, self.gradient(after) - self.gradient(self.at)
        self.at = after
        return move.to(DEVICE), change.to(DEVICE), self.gradient(after).to(DEVICE)


misfit = Misfit(torch.Generator().manual_seed(31))
store = PairStore(MEMORY, SIZE)
direction = Direction(store, SIZE)


def step():
    way = direction()
    return way, torch.dot(way, direction.gradient)


def vary():
    move, change, gradient = misfit.wander()
    store.put(move, change)
    direction.gradient.copy_(gradient)


for _ in range(MEMORY):
    vary()
