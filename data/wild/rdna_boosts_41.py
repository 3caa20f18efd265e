"""Turning graphs off made no difference to decoding with experts on the CPU: of 42,000 evaluations none
was a replay. A split of the model counts as prefill, which is not captured, if its first node has more
than one token, and the tokens are taken from the second dimension. Splits that begin on the path of the
experts have the number of used experts there, ten, for one token. Proposed repair: count tokens where the
operation says.
"""

from types import SimpleNamespace

import torch

from mrv2lab.graphs import capture

PROJECT = "llama-cpp-rdna-boosts"
LINK = "https://github.com/stew675/llama-cpp-rdna-boosts/issues/41"
MECHANISM = "silent-eager"
SYMPTOM = "speed"
CAUSE = "node.ne[1]"
LINE = "return node.ne[1] > 1"
EXECUTORS = ("emulated", "cuda")

EXPERTS, USED, HIDDEN = 6, 3, 4


def is_prefill(node: SimpleNamespace, fixed: bool) -> bool:
    if fixed and node.op == "MUL_MAT_ID":
        return node.ne[2] > 1  # [n_out, n_expert_used, n_tokens]
    return node.ne[1] > 1


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    backend = "cuda" if device.type == "cuda" else "emulated"
    numbers = torch.Generator().manual_seed(0)
    weights = torch.rand(EXPERTS, HIDDEN, generator=numbers).to(device)
    used = torch.arange(USED, device=device)
    token = torch.ones(HIDDEN, device=device)
    first_node = SimpleNamespace(op="MUL_MAT_ID", ne=(HIDDEN, USED, 1))
    kept: list = []

    def evaluate() -> torch.Tensor:
        routed = weights[used] * token
        return torch.softmax(routed, 1).sum(0)

    def graph_compute() -> torch.Tensor:
        if is_prefill(first_node, fixed):
            return evaluate()
        if not kept:
            evaluate()  # warms up
            kept.append(capture(evaluate, backend=backend))
        kept[0].replay()
        return kept[0].outputs

    def vary() -> None:
        token.copy_(torch.rand(HIDDEN, generator=numbers))
        used.copy_(torch.randperm(EXPERTS, generator=numbers)[:USED])

    return SimpleNamespace(step=graph_compute, eager=evaluate, own_graphs=True, vary=vary)
