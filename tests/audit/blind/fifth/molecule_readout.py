"""Message passing over a padded batch of molecules with a mean readout over the molecules of the batch.

Atoms and bonds lie in buffers of fixed size; atoms that are padding belong to an extra, last molecule and bonds
that are padding join the extra, last atom with itself.
"""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ATOMS, BONDS, MOLECULES, WIDTH = 48, 96, 8, 10


class MoleculeBatch:
    def __init__(self):
        self.atoms = torch.zeros(ATOMS + 1, WIDTH, device=DEVICE)
        self.ends = torch.full((2, BONDS), ATOMS, device=DEVICE)
        self.owner = torch.full((ATOMS + 1,), MOLECULES, device=DEVICE)
        self._sizes = ()

    def __len__(self):
        return len(self._sizes)

    def load(self, sizes, gen):
        self._sizes = tuple(sizes)
        total = sum(sizes)
        atoms, owner = torch.zeros(ATOMS + 1, WIDTH), torch.full((ATOMS + 1,), MOLECULES)
        atoms[:total] = torch.randn(total, WIDTH, generator=gen)
        owner[:total] = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        bonds, first = [], 0
        for size in sizes:
            chain = torch.arange(first, first + size - 1)
            bonds += [torch.stack([chain, chain + 1]), torch.stack([chain + 1, chain])]
            first += size
        bonds = torch.cat(bonds, 1)
        ends = torch.full((2, BONDS), ATOMS)
        ends[:, : bonds.shape[1]] = bonds
        for here, made in ((self.atoms, atoms), (self.ends, ends), (self.owner, owner)):
            here.copy_(made)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.near = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, h, ends):
        source, target = ends.unbind(0)
        gathered = torch.zeros_like(h).index_add_(0, target, self.near(h)[source])
        return torch.relu(self.own(h) + gathered)


class Energy(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, batch):
        h = batch.atoms
        for layer in self.layers:
            h = layer(h, batch.ends)
        per_atom = self.out(h).squeeze(-1)
        sums = torch.zeros(MOLECULES + 1, device=h.device).index_add_(0, batch.owner, per_atom)
        energies = sums[:-1]
        centred = energies.sum() / len(batch)
        return energies, centred


torch.manual_seed(5)
gen = torch.Generator().manual_seed(6)
model = Energy().to(DEVICE).requires_grad_(False)
batch = MoleculeBatch()
plan = iter([(5, 7, 4, 6), (9, 3), (4, 4, 4, 4, 4, 4, 4), (6, 5, 8), (10,), (3, 3, 3, 3, 3)] * 8)
batch.load(next(plan), gen)


def step():
    energies, centred = model(batch)
    return {"energies": energies, "mean": centred}


def vary():
    batch.load(next(plan), gen)
