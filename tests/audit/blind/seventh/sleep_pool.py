"""Sleep/wake with a memory pool: parameters are parked while the engine is idle."""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, ROWS = 16, 4


class WeightPool:
    """Keeps the mapping of each parameter reserved while its contents are away."""

    def __init__(self):
        self.regions = {}
        self.host = {}

    def park(self, name, param):
        self.host[name] = param.detach().to("cpu", copy=True)
        self.regions[name] = param.data
        param.data = torch.empty(0, device=param.device, dtype=param.dtype)
        self.regions[name].fill_(float("nan"))

    def restore(self, name, param):
        region = self.regions.pop(name)
        region.copy_(self.host.pop(name))
        param.data = region


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(DIM, 2 * DIM)
        self.fc2 = nn.Linear(2 * DIM, DIM)
        self.register_buffer("scale", torch.ones(DIM))

    def forward(self, x):
        return self.scale * (x + self.fc2(torch.relu(self.fc1(x))))


class Worker:
    def __init__(self):
        torch.manual_seed(241)
        self.model = nn.Sequential(Block(), Block()).to(DEVICE)
        self.pool = WeightPool()
        self.asleep = False
        self.generation = 0

    def sleep(self):
        for name, p in self.model.named_parameters():
            self.pool.park(name, p)
        self.asleep = True

    def wake_up(self):
        for name, p in self.model.named_parameters():
            self.pool.restore(name, p)
        self.asleep = False

    @torch.no_grad()
    def load_weights(self, state):
        params = dict(self.model.named_parameters())
        params.update(self.model.named_buffers())
        for name, tensor in state:
            params[name].copy_(tensor)
        self.generation += 1


def checkpoint(model, seed):
    gen = torch.Generator().manual_seed(seed)
    for name, t in list(model.named_parameters()) + list(model.named_buffers()):
        yield name, 0.3 * torch.randn(t.shape, generator=gen)


worker = Worker()
hidden = torch.zeros(ROWS, DIM, device=DEVICE)
_gen = torch.Generator().manual_seed(242)
_turn = [0]


def _load():
    hidden.copy_(torch.randn(ROWS, DIM, generator=_gen))


_load()


@torch.no_grad()
def step():
    assert not worker.asleep
    return worker.model(hidden)


def vary():
    _turn[0] += 1
    if _turn[0] in (2, 4):
        worker.sleep()
        worker.wake_up()
    if _turn[0] in (4, 5):
        worker.load_weights(checkpoint(worker.model, 243 + _turn[0]))
    _load()
