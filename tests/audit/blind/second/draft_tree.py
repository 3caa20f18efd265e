from dataclasses import dataclass

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass
class TreeConfig:
    max_nodes: int = 8
    vocabulary: int = 10
    dim: int = 4


@dataclass
class Node:
    token: int
    parent: int


class TreePlan:
    def __init__(self, config):
        n = config.max_nodes
        self.nodes = []
        self.tokens = torch.zeros(n, dtype=torch.long, device=DEVICE)
        self.depth = torch.zeros(n, dtype=torch.long, device=DEVICE)
        self.bias = torch.zeros(n, n, device=DEVICE)

    def rebuild(self, nodes):
        self.nodes = nodes
        size = self.tokens.numel()
        visible = torch.eye(size, dtype=torch.bool)
        depth = torch.zeros(size, dtype=torch.long)
        for i, node in enumerate(nodes):
            if node.parent >= 0:
                visible[i] |= visible[node.parent]
                depth[i] = depth[node.parent] + 1
        self.bias.copy_(torch.where(visible, 0.0, float("-inf")))
        self.depth.copy_(depth)
        self.tokens[: len(nodes)].copy_(torch.tensor([node.token for node in nodes]))


class Verifier:
    def __init__(self, config):
        n = torch.arange(config.vocabulary * config.dim, dtype=torch.float32)
        self.embedding = torch.sin(n * 1.1).view(config.vocabulary, config.dim).to(DEVICE)
        self.plan = TreePlan(config)
        self.plan.rebuild([Node(0, -1)])
        self.verified = 0

    def verify(self):
        plan = self.plan
        x = self.embedding[plan.tokens] + 0.1 * plan.depth[:, None]
        attention = torch.softmax(x @ x.T + plan.bias, dim=-1)
        self.verified += len(plan.nodes)
        return torch.log_softmax((attention @ x) @ self.embedding.T, dim=-1)


verifier = Verifier(TreeConfig())
drafts = iter(range(1, 10_000))


def rows():
    return len(verifier.plan.nodes)


def step():
    return verifier.verify()


def vary():
    k = next(drafts)
    count = (5, 3, 8, 4)[k % 4]
    verifier.plan.rebuild([Node((3 * i + k) % 10, (i - 1) // (1 + k % 2)) for i in range(count)])


def reset():
    global drafts
    drafts = iter(range(1, 10_000))
    verifier.verified = 0
    verifier.plan.tokens.zero_()
    verifier.plan.rebuild([Node(0, -1)])
