"""tensor.set_ puts other storage under the same tensor object."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["bank", "view", "weight"]


class Bank:
    def __init__(self):
        torch.manual_seed(0)
        self.banks = [torch.randn(2, 3, device=DEVICE) for _ in range(3)]
        self.weight = torch.empty(0, device=DEVICE)
        self.weight.set_(self.banks[0])
        self.x = torch.randn(4, 3, device=DEVICE)

    def __call__(self):
        return self.x @ self.weight.t()  # HERE


def make():
    bank = Bank()

    def vary():
        bank.banks.append(bank.banks.pop(0))
        bank.weight.set_(bank.banks[0])

    return {"step": bank, "vary": vary, "reset": None}
