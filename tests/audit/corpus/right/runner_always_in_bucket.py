"""A runner with graphs of its own, one per bucket: the batch grows, another graph is replayed, never none."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class GraphRunner:
    SIZES = (2, 4, 8)

    def __init__(self):
        torch.manual_seed(0)
        self.ids = torch.zeros(8, dtype=torch.long, device=DEVICE)
        self.embed = torch.randn(7, 4, device=DEVICE)
        self.head = torch.randn(4, 7, device=DEVICE)
        self.graphs, self.pool = {}, graphs.new_pool()
        self.requests = ["a", "b"]
        self.replays = 0

    def forward(self, size):
        return (self.embed[self.ids[:size]] @ self.head).log_softmax(-1)

    def warm_up(self):
        for size in reversed(self.SIZES):
            self.forward(size)
            self.graphs[size] = graphs.capture(lambda size=size: self.forward(size), pool=self.pool)

    def run(self):
        size = min(s for s in self.SIZES if s >= len(self.requests))
        graph = self.graphs[size]
        graph.replay()
        self.replays += 1
        return graph.outputs[: len(self.requests)]


def make():
    runner = GraphRunner()
    runner.warm_up()

    def vary():
        runner.ids.copy_((runner.ids * 2 + 3) % 7)
        runner.requests.append(f"r{len(runner.requests)}")

    return {"step": runner.run, "vary": vary, "reset": None}
