# ragged batches: a plan of splits is built when the first layer asks for it
import torch

torch.manual_seed(20)
TOK, D, B, LAYERS = 12, 4, 3, 2


class Planner:
    def __init__(self):
        self.lens = [3, 4, 5]
        self.seg_dev = torch.repeat_interleave(torch.arange(B), torch.tensor(self.lens)).to("cpu")
        self.plan = None
        self.builds = 0

    def begin(self, lens):
        self.lens = lens
        self.plan = None
        self.seg_dev.copy_(torch.repeat_interleave(torch.arange(B), torch.tensor(lens)))

    def get(self):
        if self.plan is None:
            ends = [sum(self.lens[: i + 1]) for i in range(B)]
            self.plan = [(e - n, e) for e, n in zip(ends, self.lens)]
        return self.plan


planner = Planner()
x = torch.randn(TOK, D, device="cpu")
w = torch.randn(LAYERS, D, D, device="cpu")


def pool(h):
    return torch.zeros(B, D, device="cpu").index_add_(0, planner.seg_dev, h)


def step():
    h = x
    outs = []
    for layer in range(LAYERS):
        h = torch.tanh(h @ w[layer])
        outs.append(pool(h))
    return torch.cat(outs, -1)


def vary():
    x.copy_(torch.randn(TOK, D))
    planner.builds += 1
    planner.begin(planner.lens[1:] + planner.lens[:1])


def reset():
    planner.plan = None
