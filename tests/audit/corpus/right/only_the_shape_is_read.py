"""The prompt tensor is new for every batch; the captured step asks only for its shape, dtype and device."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class PromptBatch:
    def __init__(self, number):
        g = torch.Generator().manual_seed(number)
        self.prompt_ids = torch.randint(0, 50, (3, 7), generator=g).to(DEVICE)
        self.number = number

    @property
    def is_long(self):
        return self.prompt_ids.shape[1] > 128


class FirstTokenHead:
    """Positions depend on the prompt's length alone; the states come from a static buffer."""

    def __init__(self, dim=6):
        torch.manual_seed(0)
        self.batch = PromptBatch(0)
        self.states = torch.randn(3, dim, device=DEVICE)
        self.wpe = torch.randn(64, dim, device=DEVICE)

    def forward(self):
        ids = self.batch.prompt_ids
        if self.batch.is_long or ids.dtype != torch.long:
            raise ValueError("chunk the prompt first")
        rows, length = ids.shape
        at = torch.full((rows,), length, device=ids.device)
        return torch.nn.functional.layer_norm(self.states + self.wpe[at], (self.states.shape[-1],))

    def next_batch(self):
        self.batch = PromptBatch(self.batch.number + 1)
        self.states.mul_(0.8).add_(0.1)


def make():
    head = FirstTokenHead()
    return {"step": head.forward, "vary": head.next_batch, "reset": None}
