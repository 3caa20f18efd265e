# prefetch of expert weights on a copy stream while the gate is computed
import torch

torch.manual_seed(9)
H, B = 6, 4


class Prefetcher:
    def __init__(self):
        self.copy_stream = torch.cuda.Stream()
        self.store = torch.randn(3, H, H, device="cpu")
        self.staged = torch.zeros(H, H, device="cpu")
        self.layer = torch.tensor([0], device="cpu")
        self.bytes_moved = 0

    def start(self):
        main = torch.cuda.current_stream()
        self.copy_stream.wait_stream(main)
        with torch.cuda.stream(self.copy_stream):
            self.staged.copy_(self.store.index_select(0, self.layer)[0])

    def finish(self):
        torch.cuda.current_stream().wait_stream(self.copy_stream)


pre = Prefetcher()
x = torch.randn(B, H, device="cpu")
gate = torch.randn(H, 1, device="cpu")


def step():
    pre.start()
    g = torch.sigmoid(x @ gate)
    y = x @ pre.staged
    out = torch.relu(y) * g
    pre.finish()
    return out


def vary():
    x.copy_(torch.randn(B, H))
    pre.layer.add_(1).remainder_(3)
    pre.bytes_moved += H * H * 4
