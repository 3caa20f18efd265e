from dataclasses import dataclass

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class TableConfig:
    rows: int
    dim: int = 4
    bag: int = 3


class OffloadedTable:
    def __init__(self, config, batch, phase):
        values = torch.sin(torch.arange(config.rows * config.dim, dtype=torch.float32) + phase)
        self.table = graphs.host(values.view(config.rows, config.dim).clone())
        self.ids = graphs.host(torch.zeros(batch * config.bag, dtype=torch.long))
        self.staged = graphs.host(torch.zeros(batch * config.bag, config.dim), pinned=True)
        self.rows = torch.zeros(batch * config.bag, config.dim, device=DEVICE)
        self.batch, self.config = batch, config

    def lookup(self):
        torch.index_select(self.table, 0, self.ids, out=self.staged)
        self.rows.copy_(self.staged, non_blocking=True)
        return self.rows.view(self.batch, self.config.bag, self.config.dim).sum(dim=1)


class ClickModel:
    def __init__(self, tables, batch=4, dense=3):
        self.tables = [OffloadedTable(t, batch, phase) for phase, t in enumerate(tables)]
        width = dense + sum(t.dim for t in tables)
        self.dense = torch.ones(batch, dense, device=DEVICE)
        self.weight = torch.cos(torch.arange(width, dtype=torch.float32)).to(DEVICE)

    def forward(self):
        embedded = [table.lookup() for table in self.tables]
        return torch.sigmoid(torch.cat([self.dense, *embedded], dim=1) @ self.weight)


model = ClickModel([TableConfig(rows=10), TableConfig(rows=7, dim=2)])
requests = iter(range(1, 10_000))


def step():
    return model.forward()


def vary():
    k = next(requests)
    n = torch.arange(model.dense.numel(), dtype=torch.float32).view_as(model.dense)
    model.dense.copy_(torch.sin(n + k))
    for table in model.tables:
        n = torch.arange(table.ids.numel())
        table.ids.copy_((n * n + 3 * k) % table.config.rows)
