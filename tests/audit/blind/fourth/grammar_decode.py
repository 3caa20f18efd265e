"""Structured output: an automaton on the host follows the tokens and says which may come next."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, HIDDEN, VOCAB, STATES = 4, 16, 20, 5
gen = torch.Generator().manual_seed(53)


class Grammar:
    """States, the tokens that each allows, and where each of them leads."""

    def __init__(self) -> None:
        allowed = torch.rand(STATES, VOCAB, generator=gen) < 0.3
        allowed[:, 0] = True
        self.allowed = allowed
        self.leads_to = torch.randint(STATES, (STATES, VOCAB), generator=gen).tolist()

    def advance(self, state: int, token: int) -> int:
        return self.leads_to[state][token % VOCAB]


class Matcher:
    def __init__(self, grammar: Grammar) -> None:
        self.grammar, self.state, self.length = grammar, 0, 0

    def accept(self, token: int) -> None:
        self.state = self.grammar.advance(self.state, token)
        self.length += 1

    def mask(self) -> torch.Tensor:
        return self.grammar.allowed[self.state]


class Engine:
    def __init__(self) -> None:
        self.embedding = torch.randn(VOCAB, HIDDEN, generator=gen).to(DEVICE)
        self.mix = (torch.randn(HIDDEN, HIDDEN, generator=gen) * 0.3).to(DEVICE)
        self.hidden = torch.zeros(BATCH, HIDDEN, device=DEVICE)
        self.tokens = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)
        self.allowed = torch.ones(BATCH, VOCAB, dtype=torch.bool, device=DEVICE)
        self.grammar = Grammar()
        self.restart()

    def restart(self) -> None:
        self.matchers = [Matcher(self.grammar) for _ in range(BATCH)]
        self.hidden.fill_(0.1)
        self.tokens.zero_()
        self.publish()

    def publish(self) -> None:
        self.allowed.copy_(torch.stack([m.mask() for m in self.matchers]))

    def forward(self) -> dict[str, torch.Tensor]:
        x = torch.tanh(self.hidden @ self.mix + torch.nn.functional.embedding(self.tokens, self.embedding))
        logits = (x @ self.embedding.t()).masked_fill(~self.allowed, float("-inf"))
        self.hidden.copy_(x)
        self.tokens.copy_(logits.argmax(-1))
        return {"tokens": self.tokens, "logprobs": logits.log_softmax(-1).amax(-1)}

    def follow(self) -> None:
        """Let the automata see what was sampled. Those that have run long enough begin again."""
        for row, token in enumerate(self.tokens.tolist()):
            self.matchers[row].accept(token)
            if self.matchers[row].length > 2 + row:
                self.matchers[row] = Matcher(self.grammar)
        self.publish()


engine = Engine()


def step():
    return engine.forward()


def vary():
    engine.follow()


def reset():
    engine.restart()
