# sampler with penalties that are skipped if no request of the batch asks for them
import torch

torch.manual_seed(3)
B, V = 3, 12


class Params:
    def __init__(self, rep=1.0, user="a"):
        self.rep, self.user = rep, user


class Sampler:
    def __init__(self):
        self.params = [Params(), Params(), Params()]
        self.rep_dev = torch.ones(B, 1, device="cpu")
        self.seen = torch.zeros(B, V, dtype=torch.bool, device="cpu")
        self.temp = torch.full((B, 1), 0.7, device="cpu")

    @property
    def needs_penalty(self):
        return any(p.rep != 1.0 for p in self.params)

    def __call__(self, logits):
        logits = logits / self.temp
        pen = torch.where(logits > 0, logits / self.rep_dev, logits * self.rep_dev)
        logits = torch.where(self.seen, pen, logits)
        return torch.log_softmax(logits, -1)


sampler = Sampler()
logits = torch.randn(B, V, device="cpu")
calls = 0


def step():
    lp = sampler(logits)
    return lp.argmax(-1), lp


def vary():
    global calls
    calls += 1
    logits.copy_(torch.randn(B, V))
    sampler.seen[:, calls % V] = True
    sampler.params[1] = Params(rep=1.0 + 0.3 * calls, user=f"u{calls}")
    sampler.rep_dev[1] = sampler.params[1].rep
