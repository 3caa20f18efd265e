# constrained decoding, grammar gives a mask of the allowed tokens for each step
import torch

torch.manual_seed(19)
B, V, H = 2, 10, 5


class Grammar:
    def __init__(self):
        self.state = 0
        self.mask = torch.zeros(B, V, device="cpu")
        self.visited = ["start"]

    def compile(self):
        m = torch.full((B, V), float("-inf"))
        for b in range(B):
            for j in range(4):
                m[b, (self.state * 3 + 2 * j + b) % V] = 0.0
        return m

    def advance(self):
        self.state += 1
        self.visited.append(f"rule{self.state}")
        self.mask.copy_(self.compile())


grammar = Grammar()
hidden = torch.randn(B, H, device="cpu")
lm_head = torch.randn(H, V, device="cpu")
tokens = torch.zeros(B, dtype=torch.long, device="cpu")


def apply_mask(logits):
    return logits + grammar.mask


def step():
    logits = apply_mask(hidden @ lm_head)
    tokens.copy_(logits.argmax(-1))
    return tokens.clone(), torch.softmax(logits, -1)


def vary():
    hidden.copy_(torch.randn(B, H))
    grammar.advance()
