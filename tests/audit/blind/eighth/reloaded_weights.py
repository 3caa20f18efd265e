# quantised weights with reload (RL weight sync); dequantised copy is memoised by version
import torch

torch.manual_seed(8)
I, O, B = 6, 5, 3


class QLinear:
    def __init__(self):
        self.q = torch.randint(-8, 8, (O, I), dtype=torch.int8, device="cpu")
        self.scale = torch.rand(O, 1, device="cpu")
        self.version = 0
        self._memo_version = -1
        self._memo = torch.empty(O, I, device="cpu")
        self.source = "step-0.safetensors"

    def reload(self, q, scale, source):
        self.q.copy_(q)
        self.scale.copy_(scale)
        self.version += 1
        self.source = source

    def weight(self):
        if self._memo_version != self.version:
            self._memo.copy_(self.q.float() * self.scale)
            self._memo_version = self.version
        return self._memo

    def forward(self, x):
        return torch.relu(x @ self.weight().t())


lin = QLinear()
x = torch.randn(B, I, device="cpu")


def step():
    return lin.forward(x)


def vary():
    x.copy_(torch.randn(B, I))
    new = torch.randint(-8, 8, (O, I), dtype=torch.int8)
    lin.reload(new, torch.rand(O, 1), f"step-{lin.version + 1}.safetensors")
