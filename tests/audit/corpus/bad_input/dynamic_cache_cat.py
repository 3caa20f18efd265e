"""A DynamicCache: keys and values are concatenated layer by layer, so every run has longer ones."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["moved-address"]
SUBJECTS = ["cache", "repeat", "grow", "shape", "keys", "alloc", "differ"]


class DynamicCache:
    def __init__(self):
        self.key_cache, self.value_cache = [], []

    def update(self, k, v, layer):
        if len(self.key_cache) <= layer:
            self.key_cache.append(k)
            self.value_cache.append(v)
        else:
            self.key_cache[layer] = torch.cat([self.key_cache[layer], k], dim=0)  # HERE
            self.value_cache[layer] = torch.cat([self.value_cache[layer], v], dim=0)  # HERE
        return self.key_cache[layer], self.value_cache[layer]


class Model:
    def __init__(self, layers=2, dim=4):
        torch.manual_seed(0)
        self.cache = DynamicCache()
        self.w = [torch.randn(dim, 3 * dim, device=DEVICE) for _ in range(layers)]
        self.x = torch.randn(1, dim, device=DEVICE)

    def step(self):
        h = self.x
        for number, w in enumerate(self.w):
            q, k, v = (h @ w).chunk(3, dim=-1)
            keys, values = self.cache.update(k, v, number)  # HERE
            h = h + torch.softmax(q @ keys.T, dim=-1) @ values  # HERE
        return h


def make():
    model = Model()
    return {"step": model.step, "vary": lambda: model.x.add_(0.1), "reset": None}
