# KV ring buffer for streaming attention with a window
import torch

torch.manual_seed(7)
W, D = 5, 4


class Ring:
    def __init__(self):
        self.k = torch.zeros(W, D, device="cpu")
        self.v = torch.zeros(W, D, device="cpu")
        self.head = 0
        self.head_dev = torch.zeros(1, dtype=torch.long, device="cpu")
        self.filled = torch.zeros(1, dtype=torch.long, device="cpu")

    def append(self, k, v):
        self.k.index_copy_(0, self.head_dev, k[None])
        self.v.index_copy_(0, self.head_dev, v[None])
        self.head_dev.add_(1).remainder_(W)
        self.filled.add_(1).clamp_(max=W)

    def attend(self, q):
        s = self.k @ q
        valid = torch.arange(W, device="cpu") < self.filled
        s = torch.where(valid, s, torch.full_like(s, -1e9))
        return s.softmax(0) @ self.v


ring = Ring()
x = torch.randn(3, D, device="cpu")
audio_clock = {"ms": 0, "session": "s0"}


def step():
    q, k, v = x.unbind(0)
    ring.append(k, v)
    return ring.attend(q)


def vary():
    audio_clock["ms"] += 20
    audio_clock["session"] = f"s{audio_clock['ms'] // 40}"
    x.copy_(torch.randn(3, D))
