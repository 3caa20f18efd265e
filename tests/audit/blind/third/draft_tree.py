"""Verification of a draft tree: a node is accepted when it and all its ancestors match."""

import random

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

NODES, VOCAB, DIM = 16, 12, 8
ROUNDS = 4


class DraftTree:
    """Flat arrays over a budget of nodes; node 0 is the root and its own parent."""

    def __init__(self) -> None:
        self.parents = torch.zeros(NODES, dtype=torch.long, device=DEVICE)
        self.tokens = torch.zeros(NODES, dtype=torch.long, device=DEVICE)
        self.depths = torch.zeros(NODES, dtype=torch.long, device=DEVICE)
        self.live = torch.zeros(NODES, dtype=torch.bool, device=DEVICE)

    def pack(self, parents: list[int], tokens: list[int]) -> None:
        depths = [0]
        for parent in parents[1:]:
            depths.append(depths[parent] + 1)
        padding = [0] * (NODES - len(parents))
        self.parents.copy_(torch.tensor(parents + padding))
        self.tokens.copy_(torch.tensor(tokens + padding))
        self.depths.copy_(torch.tensor(depths + padding))
        self.live.copy_(torch.arange(NODES) < len(parents))


class TreeVerifier:
    def __init__(self, tree: DraftTree) -> None:
        gen = torch.Generator().manual_seed(29)
        self.tree = tree
        self.head = torch.randn(DIM, VOCAB, generator=gen).to(DEVICE)
        self.hidden = torch.zeros(NODES, DIM, device=DEVICE)
        self.front = torch.zeros(NODES, dtype=torch.bool, device=DEVICE)
        self.back = torch.zeros_like(self.front)
        self.jump = torch.zeros(NODES, dtype=torch.long, device=DEVICE)
        self.next_jump = torch.zeros_like(self.jump)

    def _swap(self) -> None:
        self.front, self.back = self.back, self.front
        self.jump, self.next_jump = self.next_jump, self.jump

    def verify(self) -> torch.Tensor:
        tree = self.tree
        greedy = (self.hidden @ self.head).argmax(dim=-1)
        root = tree.depths == 0
        self.front.copy_(tree.live & (root | (greedy[tree.parents] == tree.tokens)))
        self.jump.copy_(tree.parents)
        for _ in range(ROUNDS):
            torch.logical_and(self.front, self.front[self.jump], out=self.back)
            torch.index_select(self.jump, 0, self.jump, out=self.next_jump)
            self._swap()
        return self.front

    def __call__(self) -> tuple[torch.Tensor, torch.Tensor]:
        accepted = self.verify()
        reach = torch.where(accepted, self.tree.depths, -1)
        return accepted, reach.max()


tree = DraftTree()
verifier = TreeVerifier(tree)
drafter = random.Random(37)
weights = torch.Generator().manual_seed(38)


def vary() -> None:
    size = drafter.randint(6, NODES)
    parents = [0] + [drafter.randrange(max(0, node - 3), node) for node in range(1, size)]
    verifier.hidden.copy_(torch.randn(NODES, DIM, generator=weights))
    wanted = (verifier.hidden @ verifier.head).argmax(dim=-1).cpu().tolist()
    tokens = [wanted[p] if drafter.random() < 0.8 else drafter.randrange(VOCAB) for p in parents]
    tree.pack(parents, tokens)


vary()


def step() -> tuple[torch.Tensor, torch.Tensor]:
    return verifier()
