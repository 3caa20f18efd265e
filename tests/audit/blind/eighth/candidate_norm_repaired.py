# ranking tower: features are normalised over the candidates, the batch is padded to 8
import torch

torch.manual_seed(17)
PAD, D = 8, 4
n = 5
x = torch.zeros(PAD, D, device="cpu")
x[:n] = torch.randn(n, D)
n_dev = torch.tensor([n], device="cpu")
w = torch.randn(D, 2, device="cpu")
query_id = "q-0"


def rows():
    return n


def normalise(f):
    real = (torch.arange(PAD, device="cpu") < n_dev)[:, None]
    zero = torch.zeros_like(f)
    mean = torch.where(real, f, zero).sum(0, keepdim=True) / n_dev
    var = torch.where(real, (f - mean) ** 2, zero).sum(0, keepdim=True) / n_dev
    std = var.sqrt()
    return (f - mean) / (std + 1e-5)


def step():
    h = torch.tanh(normalise(x) @ w)
    return h.softmax(-1)


def vary():
    global query_id, n
    query_id = f"q-{int(query_id[2:]) + 1}"
    n = 3 + (n + 1) % 4
    n_dev.fill_(n)
    x[:n].copy_(torch.randn(n, D))
