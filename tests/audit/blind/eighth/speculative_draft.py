# speculative decoding, the next draft starts behind the last accepted token
from dataclasses import dataclass

import torch

torch.manual_seed(2)
K, H, V = 4, 6, 11


@dataclass
class SpecState:
    accepted: int = 1
    proposed_total: int = 0
    accepted_total: int = 0


class Drafter:
    def __init__(self):
        self.state = SpecState()
        self.hidden = torch.randn(K + 1, H, device="cpu")
        self.accepted_dev = torch.tensor([1], device="cpu")
        self.head = torch.randn(H, V, device="cpu")
        self.mix = torch.randn(H, H, device="cpu") / 3

    def propose(self):
        h = self.hidden[self.state.accepted]
        scores = []
        for _ in range(K):
            h = torch.tanh(h @ self.mix)
            scores.append(h @ self.head)
        return torch.stack(scores)


drafter = Drafter()


def step():
    logits = drafter.propose()
    return logits.argmax(-1), logits.max(-1).values


def vary():
    s = drafter.state
    drafter.hidden.copy_(torch.randn(K + 1, H))
    s.accepted = (s.accepted + 1) % (K + 1)
    drafter.accepted_dev.fill_(s.accepted)
    s.proposed_total += K
    s.accepted_total += s.accepted
