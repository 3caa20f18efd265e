"""Relax's rewriting for CUDA graphs also took calls of the virtual machine's builtins into a graph.
Appending to the KV cache is one: it counts on the host how far the cache is filled, and writes there. In a
graph it counts once, so that each replay writes to the place of the capture. Repaired by leaving such
calls out, so that graphs are made of what lies between them.
"""

from itertools import groupby
from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "TVM"
LINK = "https://github.com/apache/tvm/pull/15145"
MECHANISM = "frozen-host-value"
CAUSE = "self.fill_count"
LINE = "self.data[self.fill_count].copy_(self.key)"
EXECUTORS = ("emulated", "cuda")

CONTEXT, HEAD = 16, 4


class Module:
    """A decode step, as bindings that run one after the other."""

    def __init__(self, device: torch.device):
        self.backend = "cuda" if device.type == "cuda" else "emulated"
        self.fill_count = 0
        self.data = torch.zeros(CONTEXT, HEAD, device=device)
        self.token, self.key, self.out = (torch.ones(HEAD, device=device) for _ in range(3))
        self.bindings = [self.project, self.append, self.finish]

    def project(self) -> None:
        torch.mul(self.token, 2, out=self.key)

    def append(self) -> None:  # vm.builtin.attention_kv_cache_append
        self.data[self.fill_count].copy_(self.key)
        self.fill_count += 1

    def finish(self) -> None:
        torch.sum(self.data, 0, out=self.out)

    def rewrite_cuda_graph(self, is_static) -> None:
        bindings = []
        for captured, region in groupby(self.bindings, is_static):
            calls = list(region)
            if captured:
                graph = capture(lambda calls=calls: [fn() for fn in calls], backend=self.backend)
                calls = [graph.replay]
            bindings += calls
        self.bindings = bindings

    def run(self) -> torch.Tensor:
        for fn in self.bindings:
            fn()
        return self.out


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    module = Module(device)
    module.run()  # loads what a capture cannot
    eagerly = list(module.bindings)
    module.rewrite_cuda_graph(lambda fn: fn != module.append if fixed else True)
    module.fill_count = 0

    def eager() -> torch.Tensor:
        module.bindings = eagerly
        return module.run()

    return SimpleNamespace(
        step=module.run, eager=eager, own_graphs=True, vary=lambda: module.token.add_(1), module=module
    )
