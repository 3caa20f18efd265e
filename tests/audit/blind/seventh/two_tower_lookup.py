"""Two-tower recommender: feature lookups, pooling, and a dot-product score.

Tables are republished by an offline job; a shard arrives as a state dict.
Lookup functions are bound once per feature, which keeps the request path free
of attribute chains.
"""

import functools

import torch
from torch import nn
import torch.nn.functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Tables(nn.Module):
    def __init__(self, sizes, dim):
        super().__init__()
        self.tables = nn.ModuleDict({k: nn.Embedding(n, dim) for k, n in sizes.items()})
        self.register_buffer("popularity", torch.zeros(sizes["item"]))
        self.revision = 0

    def bound_lookups(self):
        return {
            name: functools.partial(F.embedding, weight=table.weight) for name, table in self.tables.items()
        }


class OfflineJob:
    """Produces complete, independent state dicts."""

    def __init__(self, template, seed):
        self.rng = torch.Generator(device=DEVICE).manual_seed(seed)
        self.shapes = {k: v.shape for k, v in template.state_dict().items()}

    def run(self):
        return {k: torch.randn(s, device=DEVICE, generator=self.rng) * 0.5 for k, s in self.shapes.items()}


class Recommender:
    def __init__(self, users=30, items=50, tags=12, dim=8):
        torch.manual_seed(101)
        sizes = {"user": users, "item": items, "tag": tags}
        self.tables = Tables(sizes, dim).to(DEVICE).requires_grad_(False)
        self.lookup = self.tables.bound_lookups()
        self.popularity = self.tables.popularity
        self.rng = torch.Generator(device=DEVICE).manual_seed(102)
        self.users = torch.zeros(4, dtype=torch.long, device=DEVICE)
        self.tags = torch.zeros(4, 3, dtype=torch.long, device=DEVICE)
        self.candidates = torch.zeros(4, 9, dtype=torch.long, device=DEVICE)
        self.arrive()

    def arrive(self):
        self.users.random_(0, 30, generator=self.rng)
        self.tags.random_(0, 12, generator=self.rng)
        self.candidates.random_(0, 50, generator=self.rng)

    def refresh(self, state):
        """Swap in a new publication and bump the revision for the dashboards."""
        missing, unexpected = self.tables.load_state_dict(state, strict=True)
        if missing or unexpected:
            raise RuntimeError(f"incomplete publication: {missing} {unexpected}")
        self.tables.revision += 1

    def score(self):
        user = self.lookup["user"](self.users) + self.lookup["tag"](self.tags).mean(1)
        item = self.lookup["item"](self.candidates)
        logits = torch.einsum("bd,bnd->bn", user, item)
        return logits + 0.1 * self.popularity[self.candidates]


recommender = Recommender()
job = OfflineJob(recommender.tables, seed=103)
_hour = 0


def step():
    with torch.no_grad():
        return recommender.score()


def vary():
    global _hour
    _hour += 1
    recommender.arrive()
    if _hour in (2, 3, 5):
        recommender.refresh(job.run())
