"""The varied batch asks for an adapter that is not loaded: the step raises."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["AuditError"]
SUBJECTS = ["KeyError", "adapter", "french", "AdapterNotLoaded"]


class AdapterNotLoaded(KeyError):
    pass


class Registry:
    def __init__(self):
        self.loaded = {"german": torch.randn(4, 4, device=DEVICE), "dutch": torch.randn(4, 4, device=DEVICE)}

    def get(self, name):
        if name not in self.loaded:
            raise AdapterNotLoaded(f"adapter {name!r} is not loaded")  # HERE
        return self.loaded[name]


class Layer:
    def __init__(self):
        torch.manual_seed(0)
        self.registry = Registry()
        self.x = torch.randn(2, 4, device=DEVICE)
        self.adapter = "german"

    def forward(self):
        return torch.relu(self.x @ self.registry.get(self.adapter))  # HERE


def make():
    layer = Layer()

    def vary():
        layer.adapter = "french"

    return {"step": layer.forward, "vary": vary, "reset": None}
