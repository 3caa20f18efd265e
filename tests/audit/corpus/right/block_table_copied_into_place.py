"""The scheduler still builds new block tables, and copies them into the static one that the step slices."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class BlockTable:
    def __init__(self, max_reqs, max_blocks):
        self.gpu = torch.zeros(max_reqs, max_blocks, dtype=torch.long, device=DEVICE)
        self.rows = []
        self.latest = None

    def commit(self, rows):
        self.rows = rows
        self.latest = torch.nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], batch_first=True)
        self.gpu.zero_()
        self.gpu[: self.latest.shape[0], : self.latest.shape[1]].copy_(self.latest)


class PagedAttention:
    def __init__(self):
        torch.manual_seed(0)
        self.k = torch.randn(9, 2, 4, device=DEVICE)
        self.v = torch.randn(9, 2, 4, device=DEVICE)
        self.q = torch.randn(2, 4, device=DEVICE)
        self.lens = torch.tensor([3, 2], device=DEVICE)
        self.table = BlockTable(4, 5)
        self.table.commit([[1, 2], [3]])

    def forward(self):
        table = self.table.gpu[:2, :4]
        k, v = (cache[table].flatten(1, 2) for cache in (self.k, self.v))
        scores = torch.einsum("bd,btd->bt", self.q, k)
        ahead = torch.arange(8, device=DEVICE) >= self.lens[:, None]
        return torch.einsum("bt,btd->bd", scores.masked_fill(ahead, float("-inf")).softmax(-1), v)


def make():
    layer = PagedAttention()
    free = iter([4, 5, 6, 7, 8] * 9)

    def vary():
        layer.lens.add_(1).clamp_(max=8)
        rows = [row + [next(free)] for row in layer.table.rows]
        layer.table.commit([row[-4:] for row in rows])

    return {"step": layer.forward, "vary": vary, "reset": None}
