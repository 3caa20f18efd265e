from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class Lattice:
    batch: int = 2
    frames: int = 5
    states: int = 4


class Viterbi:
    def __init__(self, lattice):
        self.lattice = lattice
        n = torch.arange(lattice.states**2, dtype=torch.float32)
        self.transitions = torch.sin(n * 1.9).view(lattice.states, lattice.states).to(DEVICE)
        self.emissions = torch.zeros(lattice.batch, lattice.frames, lattice.states, device=DEVICE)
        self.lengths = torch.full((lattice.batch,), lattice.frames, dtype=torch.long, device=DEVICE)
        self.trellis = []

    def forward_pass(self):
        score = self.emissions[:, 0]
        self.trellis = []
        for t in range(1, self.lattice.frames):
            total = score[:, :, None] + self.transitions[None] + self.emissions[:, t, None, :]
            best, came_from = total.max(dim=1)
            alive = (t < self.lengths)[:, None]
            stay = torch.arange(self.lattice.states, device=DEVICE).expand_as(came_from)
            score = torch.where(alive, best, score)
            self.trellis.append(torch.where(alive, came_from, stay))
        return score

    def backtrack(self, state):
        path = [state]
        for came_from in reversed(self.trellis):
            state = came_from.gather(1, state[:, None]).squeeze(1)
            path.append(state)
        return torch.stack(path[::-1], dim=1)

    def decode(self):
        final, state = self.forward_pass().max(dim=1)
        return self.backtrack(state), final


decoder = Viterbi(Lattice())
utterances = iter(range(1, 10_000))


def step():
    return decoder.decode()


def vary():
    k = next(utterances)
    n = torch.arange(decoder.emissions.numel(), dtype=torch.float32).view_as(decoder.emissions)
    decoder.emissions.copy_(2 * torch.cos(n * 0.73 * k + k))
    decoder.lengths.copy_(torch.tensor([2 + k % 4, 5 - k % 3]))
