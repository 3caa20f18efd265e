"""Speculative decoding: score a tree of draft tokens in one pass of the target model.

The tree's shape follows the acceptance rate: wide when drafts are rejected early,
deep when they are mostly accepted.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NODES, DIM, VOCAB = 7, 16, 32

# parent of each node; -1 is the last accepted token
TREES = {
    "wide": (-1, 0, 0, 0, 1, 2, 3),
    "binary": (-1, 0, 0, 1, 1, 2, 2),
    "deep": (-1, 0, 1, 2, 3, 4, 0),
}


def ancestors(parents, node):
    while node >= 0:
        yield node
        node = parents[node]


@lru_cache(maxsize=16)
def visibility(parents):
    """Additive attention bias: a node sees itself and its ancestors."""
    bias = torch.full((len(parents), len(parents)), float("-inf"))
    for node in range(len(parents)):
        for seen in ancestors(parents, node):
            bias[node, seen] = 0.0
    return bias.to(DEVICE)


def depths(parents):
    return [sum(1 for _ in ancestors(parents, n)) - 1 for n in range(len(parents))]


class TreePolicy:
    """Chooses the tree from a moving acceptance rate."""

    def __init__(self):
        self.rate = 0.5

    def observe(self, accepted):
        self.rate = 0.5 * self.rate + 0.5 * accepted / NODES

    @property
    def parents(self):
        kind = "wide" if self.rate < 0.35 else "deep" if self.rate > 0.65 else "binary"
        return TREES[kind]


class Verifier:
    def __init__(self):
        gen = torch.Generator().manual_seed(3)
        rand = lambda *s: (torch.randn(*s, generator=gen) * 0.6).to(DEVICE)
        self.embed, self.place = rand(VOCAB, DIM), rand(NODES, DIM)
        self.wq, self.wk, self.wv = rand(DIM, DIM), rand(DIM, DIM), rand(DIM, DIM)
        self.policy = TreePolicy()
        self.tokens = torch.zeros(NODES, dtype=torch.long, device=DEVICE)
        self.depth = torch.zeros(NODES, dtype=torch.long, device=DEVICE)
        self.gen = torch.Generator().manual_seed(11)
        self.accepted = iter([6, 7, 1, 0, 1, 5, 7, 7] * 4)
        self.draft()

    def draft(self):
        self.tokens.copy_(torch.randint(VOCAB, (NODES,), generator=self.gen))
        self.depth.copy_(torch.tensor(depths(self.policy.parents)))

    def score(self):
        x = self.embed[self.tokens] + self.place[self.depth]
        att = (x @ self.wq) @ (x @ self.wk).T / DIM**0.5
        att = att + visibility(self.policy.parents)
        y = F.softmax(att, dim=-1) @ (x @ self.wv) + x
        return torch.log_softmax(y @ self.embed.T, dim=-1)


verifier = Verifier()


@torch.no_grad()
def step():
    logp = verifier.score()
    return {"logp": logp, "best": logp.amax(-1)}


def vary():
    verifier.policy.observe(next(verifier.accepted))
    verifier.draft()
