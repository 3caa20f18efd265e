"""A runner with graphs of its own runs eagerly once a request asks for prompt logprobs."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["silent-eager"]
SUBJECTS = ["forward", "run", "replay", "graph", "runner"]


class DecodeRunner:
    """Replays a graph by padded batch size; anything unusual takes the eager path."""

    BUCKETS = (2, 4, 8)

    def __init__(self):
        torch.manual_seed(0)
        self.ids = torch.zeros(8, dtype=torch.long, device=DEVICE)
        self.embed = torch.randn(11, 6, device=DEVICE)
        self.head = torch.randn(6, 11, device=DEVICE)
        self.graphs = {}
        self.requests = [{"prompt_logprobs": None} for _ in range(3)]
        self.fallbacks = 0

    def forward(self, size):
        return torch.log_softmax(self.embed[self.ids[:size]] @ self.head, dim=-1)

    def capture_all(self):
        for size in self.BUCKETS:
            self.forward(size)
            self.graphs[size] = graphs.capture(lambda: self.forward(size))

    def can_replay(self):
        return not any(r["prompt_logprobs"] for r in self.requests)  # HERE

    def run(self):
        size = next(b for b in self.BUCKETS if b >= len(self.requests))
        if self.can_replay():  # HERE
            self.graphs[size].replay()
            return self.graphs[size].outputs
        self.fallbacks += 1
        return self.forward(size)  # HERE


def make():
    runner = DecodeRunner()
    runner.capture_all()

    def vary():
        runner.ids.copy_((runner.ids + 3) % 11)
        runner.requests.append({"prompt_logprobs": 5})

    return {"step": runner.run, "vary": vary, "reset": None}
