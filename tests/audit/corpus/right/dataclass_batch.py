"""Host fields of a dataclass change (request ids, true count); the device work is padded to a constant
size.
"""

from dataclasses import dataclass, field

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


@dataclass
class Batch:
    tokens: torch.Tensor
    valid: torch.Tensor
    request_ids: list = field(default_factory=list)
    num_tokens: int = 3


def make():
    torch.manual_seed(0)
    table = torch.randn(10, 4, device=DEVICE)
    batch = Batch(
        torch.tensor([1, 2, 3, 0, 0, 0], device=DEVICE),
        torch.tensor([1.0, 1, 1, 0, 0, 0], device=DEVICE),
    )

    def step():
        return (table[batch.tokens] * batch.valid[:, None]).sum(0)

    def vary():
        batch.num_tokens = batch.num_tokens % 6 + 1
        batch.request_ids.append(f"r{len(batch.request_ids)}")
        batch.tokens.copy_((batch.tokens + 1) % 10)
        batch.valid.copy_((torch.arange(6, device=DEVICE) < batch.num_tokens).float())

    return {"step": step, "vary": vary, "reset": None}
