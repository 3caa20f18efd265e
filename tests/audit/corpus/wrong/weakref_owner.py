"""A weak reference leads to an owner; the owner, and with it the tensor, is replaced."""

import weakref

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address", "frozen-host-value"]
SUBJECTS = ["owner", "state", "table"]


class Owner:
    def __init__(self, value):
        self.state = torch.full((4,), value, device=DEVICE)


class Client:
    def __init__(self, owner):
        self.owner = weakref.ref(owner)
        self.x = torch.ones(4, device=DEVICE)

    def __call__(self):
        return self.x + self.owner().state  # HERE


def make():
    owners = [Owner(1.0)]
    client = Client(owners[0])

    def vary():
        owners.append(Owner(owners[-1].state[0].item() + 1))
        client.owner = weakref.ref(owners[-1])

    return {"step": client, "vary": vary, "reset": None}
