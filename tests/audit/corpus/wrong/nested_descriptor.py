"""The count sits in a NamedTuple three objects deep, replaced as a whole for each step."""

from typing import NamedTuple

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["num_reqs", "desc"]


class Descriptor(NamedTuple):
    num_reqs: int
    uniform: bool = True


class Batch:
    def __init__(self):
        self.desc = Descriptor(2)


class Runner:
    def __init__(self):
        self.batch = Batch()


class Server:
    def __init__(self):
        torch.manual_seed(0)
        self.runner = Runner()
        self.logits = torch.randn(8, 4, device=DEVICE)

    @torch.inference_mode()
    def step(self):
        n = self.runner.batch.desc.num_reqs  # HERE
        return self.logits.narrow(0, n - 1, 1).argmax(-1) + self.logits[:n].sum()


def make():
    s = Server()

    def vary():
        s.runner.batch.desc = Descriptor(s.runner.batch.desc.num_reqs % 7 + 1)

    return {"step": s.step, "vary": vary, "reset": None}
