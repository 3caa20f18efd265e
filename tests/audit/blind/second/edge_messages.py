from dataclasses import dataclass

import mrv2lab  # noqa: F401
import torch
import triton
import triton.language as tl

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NODES, MAX_EDGES, BLOCK = 6, 32, 4


@triton.jit
def _messages_kernel(out_ptr, x_ptr, src_ptr, dst_ptr, count_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = offsets < tl.load(count_ptr)
    src = tl.load(src_ptr + offsets, mask=live, other=0)
    dst = tl.load(dst_ptr + offsets, mask=live, other=0)
    x = tl.load(x_ptr + src, mask=live, other=0.0)
    tl.atomic_add(out_ptr + dst, x, mask=live)


@dataclass
class GraphBatch:
    src: torch.Tensor
    dst: torch.Tensor
    count: torch.Tensor
    num_edges: int = 0

    @classmethod
    def allocate(cls):
        ends = [torch.zeros(MAX_EDGES, dtype=torch.int32, device=DEVICE) for _ in range(2)]
        return cls(*ends, torch.zeros((), dtype=torch.int32, device=DEVICE))

    def load(self, edges):
        self.num_edges = len(edges)
        self.src[: len(edges)].copy_(torch.tensor([a for a, _ in edges], dtype=torch.int32))
        self.dst[: len(edges)].copy_(torch.tensor([b for _, b in edges], dtype=torch.int32))
        self.count.fill_(len(edges))


class MessagePassing:
    def __init__(self, rounds=2):
        self.rounds = rounds
        self.x = torch.ones(NODES, device=DEVICE)
        self.batch = GraphBatch.allocate()
        self.batch.load(ring(8))

    def forward(self):
        h = self.x
        grid = (triton.cdiv(self.batch.num_edges, BLOCK),)
        for _ in range(self.rounds):
            out = torch.zeros_like(h)
            _messages_kernel[grid](out, h, self.batch.src, self.batch.dst, self.batch.count, BLOCK=BLOCK)
            h = torch.tanh(0.3 * out + self.x)
        return h


def ring(num_edges):
    return [(i % NODES, (i * i + 1) % NODES) for i in range(num_edges)]


layer = MessagePassing()
traffic = [15, 6, 24, 7, 8, 30] * 100
sizes = iter(traffic)


def step():
    return layer.forward()


def vary():
    n = next(sizes)
    layer.batch.load(ring(n))
    layer.x.copy_(torch.sin(torch.arange(NODES, dtype=torch.float32) + n))


def reset():
    global sizes
    sizes = iter(traffic)
    layer.batch.load(ring(8))
    layer.x.fill_(1)
