# RoPE whose table of cosines grows as longer requests come
import torch

torch.manual_seed(6)
D, B = 8, 3
LIMIT = 4096


class Rope:
    def __init__(self):
        self.inv = 1.0 / (100.0 ** (torch.arange(0, D, 2, device="cpu") / D))
        self.length = 0
        self.table = None
        self.base_scale = 1.0
        self.ensure(16)

    def ensure(self, need):
        if need <= self.length:
            return
        self.length = max(need, self.length + 16)
        t = torch.arange(self.length, device="cpu") / self.base_scale
        ang = torch.outer(t, self.inv)
        fresh = torch.stack([ang.cos(), ang.sin()], -1)
        self.table = fresh

    def apply(self, x, pos):
        cs = self.table.index_select(0, pos)
        c, s = cs[..., 0], cs[..., 1]
        a, b = x[:, 0::2], x[:, 1::2]
        return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


rope = Rope()
q = torch.randn(B, D, device="cpu")
pos = torch.tensor([0, 3, 6], device="cpu")
served = []


def step():
    return rope.apply(q, pos)


def vary():
    served.append(len(served))
    q.copy_(torch.randn(B, D))
    pos.add_(4).remainder_(15)
    rope.base_scale = 2.0 + len(served)  # dynamic NTK: long contexts stretch
    rope.ensure(rope.length + 1)
