"""TensorNet lost accuracy in some systems in the mode that graphs need. There the list of neighbours has one
length, and what is left of it holds pairs (-1, -1), which are processed as any other; all of them were put
to the account of the first particle, whose features came out slightly off. Repaired by a ghost atom, which
takes the blame and is cut off at the end.
"""

from itertools import count
from types import SimpleNamespace

import torch

PROJECT = "TorchMD-Net"
LINK = "https://github.com/torchmd/torchmd-net/pull/236"
MECHANISM = "padding-leak"
CAUSE = "edge_index"
LINE = "edge_index = edge_index.masked_fill(mask, 0)"
EXECUTORS = ("emulated", "cuda")

NUM_ATOMS, MAX_NUM_PAIRS, CUTOFF, CHANNELS = 4, 16, 1.5, 3


class OptimizedDistance:
    """Pairs within the cutoff, in a list of one length."""

    def __init__(self, device: torch.device):
        self.edge_index = torch.full((2, MAX_NUM_PAIRS), -1, device=device)
        self.edge_weight = torch.zeros(MAX_NUM_PAIRS, device=device)

    def find(self, pos: torch.Tensor) -> None:
        distances = torch.cdist(pos, pos)
        near = (distances < CUTOFF) & ~torch.eye(NUM_ATOMS, dtype=torch.bool, device=pos.device)
        pairs = near.nonzero().T
        self.edge_index.fill_(-1)
        self.edge_weight.zero_()
        self.edge_index[:, : pairs.shape[1]].copy_(pairs)
        self.edge_weight[: pairs.shape[1]].copy_(distances[near])


class TensorNet:
    """Embedding and one interaction: each atom gathers from its neighbours."""

    def __init__(self, fixed: bool, device: torch.device):
        self.fixed, self.distance = fixed, OptimizedDistance(device)
        self.z = torch.arange(1.0, NUM_ATOMS + 1, device=device)
        self.emb = torch.linspace(0.1, 0.5, CHANNELS, device=device)

    def forward(self, static_shapes: bool) -> torch.Tensor:
        edge_index, edge_weight = self.distance.edge_index, self.distance.edge_weight
        z = self.z
        if not static_shapes:
            real = edge_index[0] >= 0
            edge_index, edge_weight = edge_index[:, real], edge_weight[real]
        elif self.fixed:
            mask = edge_index < 0
            z = torch.cat([z, torch.zeros(1, device=z.device)])
            edge_index = edge_index.masked_fill(mask, NUM_ATOMS)
        else:
            mask = edge_index < 0
            edge_index = edge_index.masked_fill(mask, 0)
        features = z[:, None] * self.emb
        messages = features[edge_index[1]] * torch.exp(-edge_weight)[:, None]
        gathered = torch.zeros_like(features).index_add_(0, edge_index[0], messages)
        return (features + torch.tanh(gathered))[:NUM_ATOMS]


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    model, steps = TensorNet(fixed, device), count(1)
    pos = torch.arange(NUM_ATOMS * 3.0, device=device).view(NUM_ATOMS, 3) * 0.2
    model.distance.find(pos)

    def vary() -> None:
        pos[0].sub_(0.2 * next(steps))
        model.distance.find(pos)

    return SimpleNamespace(
        step=lambda: model.forward(static_shapes=True),
        eager=lambda: model.forward(static_shapes=False),
        vary=vary,
        model=model,
    )
