"""RL weight sync by load_state_dict(assign=True): the parameters are new tensors, the graph has the old
ones.
"""

import torch
from torch import nn

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["weight", "fc", "head", "bias"]


class Policy(nn.Module):
    def __init__(self, dim=8, vocab=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.fc = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        h = self.embed(ids)
        h = h + torch.nn.functional.silu(self.fc(h))  # HERE
        return self.head(h).log_softmax(-1)  # HERE


class RolloutWorker:
    """Serves the policy; between rollouts the trainer sends it a state dict."""

    def __init__(self):
        torch.manual_seed(0)
        self.policy = Policy().to(DEVICE).requires_grad_(False)
        self.ids = torch.randint(0, 12, (3,)).to(DEVICE)
        self.generation = 0

    def rollout(self):
        return self.policy(self.ids)  # HERE

    def receive(self):
        self.generation += 1
        state = {
            name: value * 0.9 + 0.01 if name.startswith(("fc", "head")) else value
            for name, value in self.policy.state_dict().items()
        }
        self.policy.load_state_dict(state, assign=True)


def make():
    worker = RolloutWorker()

    def vary():
        worker.ids.copy_((worker.ids + 1) % 12)
        worker.receive()

    return {"step": worker.rollout, "vary": vary, "reset": None}
