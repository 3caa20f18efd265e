# recommender: user's recent items looked up by name
from collections import OrderedDict, deque

import torch

torch.manual_seed(13)
D, ITEMS, HIST = 4, 10, 3


class Catalogue:
    def __init__(self):
        self.rows = OrderedDict((f"item{i}", i) for i in range(ITEMS))
        self.table = torch.randn(ITEMS, D, device="cpu")


cat = Catalogue()
history = deque(["item1", "item4", "item2"], maxlen=HIST)
hist_dev = torch.tensor([1, 4, 2], device="cpu")
bias = torch.zeros(ITEMS, device="cpu")
stats = {"clicks": 0, "country": "SE"}


def user_vector():
    vecs = cat.table[hist_dev]
    decay = torch.linspace(0.25, 1.0, HIST, device="cpu")
    return (vecs * decay[:, None]).sum(0)


def step():
    u = user_vector()
    score = cat.table @ u + bias
    return score.topk(4)


def click(name):
    history.append(name)
    hist_dev.copy_(torch.tensor([cat.rows[n] for n in history]))


def vary():
    stats["clicks"] += 1
    stats["country"] = "SE" if stats["clicks"] % 2 else "NO"
    bias.copy_(0.1 * torch.randn(ITEMS))
    click(f"item{(3 * stats['clicks'] + 2) % ITEMS}")
