"""Tree speculative decoding: verify a draft tree with an ancestor mask."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NODES, DIM, CTX = 8, 16, 10

# parent index of each node, per tree shape; every shape has the same node count
TREE_SHAPES = {
    "wide": [-1, 0, 0, 0, 0, 0, 0, 0],
    "balanced": [-1, 0, 0, 1, 1, 2, 2, 3],
    "chain": [-1, 0, 1, 2, 3, 4, 5, 6],
}


def ancestor_mask(parents):
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node in range(len(parents)):
        cur = node
        while cur >= 0:
            mask[node, cur] = True
            cur = parents[cur]
    return mask


def depths(parents):
    out = []
    for p in parents:
        out.append(0 if p < 0 else out[p] + 1)
    return torch.tensor(out)


class TreeBank:
    """All masks are uploaded once so that switching shape costs nothing."""

    def __init__(self):
        self.masks = {k: ancestor_mask(p).to(DEVICE) for k, p in TREE_SHAPES.items()}
        self.depths = {k: depths(p).to(DEVICE) for k, p in TREE_SHAPES.items()}


class AcceptanceTracker:
    """Chooses a tree shape from an exponential average of accepted tokens."""

    def __init__(self):
        self.rate = 2.0
        self.shape = "balanced"

    def observe(self, accepted):
        self.rate = 0.5 * self.rate + 0.5 * accepted
        if self.rate < 1.4:
            self.shape = "wide"
        elif self.rate > 3.5:
            self.shape = "chain"
        else:
            self.shape = "balanced"


class Verifier:
    def __init__(self):
        gen = torch.Generator().manual_seed(21)
        self.bank = TreeBank()
        self.tracker = AcceptanceTracker()
        self.embed = torch.randn(50, DIM, generator=gen).to(DEVICE)
        self.depth_embed = torch.randn(NODES, DIM, generator=gen).to(DEVICE)
        self.proj = (torch.randn(DIM, 3 * DIM, generator=gen) / 4).to(DEVICE)
        self.ctx_k = torch.randn(CTX, DIM, generator=gen).to(DEVICE)
        self.ctx_v = torch.randn(CTX, DIM, generator=gen).to(DEVICE)
        self.draft = torch.zeros(NODES, dtype=torch.long, device=DEVICE)
        self.gen = torch.Generator().manual_seed(22)

    def propose(self):
        self.draft.copy_(torch.randint(0, 50, (NODES,), generator=self.gen))

    def verify(self):
        shape = self.tracker.shape
        h = self.embed[self.draft] + self.depth_embed[self.bank.depths[shape]]
        q, k, v = (h @ self.proj).chunk(3, -1)
        tree = (q @ k.T).masked_fill(~self.bank.masks[shape], float("-inf"))
        scores = torch.cat([q @ self.ctx_k.T, tree], dim=1) / DIM**0.5
        return scores.softmax(-1) @ torch.cat([self.ctx_v, v])


verifier = Verifier()
verifier.propose()
_accepted = iter([2, 3, 3, 6, 6, 1])


def step():
    return verifier.verify()


def vary():
    verifier.tracker.observe(next(_accepted))
    verifier.propose()
