"""lru_cache holds a coefficient from before capture; the table changes and the cache is cleared."""

from functools import cache

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["frozen-host-value"]
SUBJECTS = ["coefficient", "TABLE", "lru_cache"]


TABLE = {"soft": 0.5}


@cache
def coefficient(name):
    return TABLE[name] ** 2  # HERE


def make():
    TABLE["soft"] = 0.5
    coefficient.cache_clear()
    torch.manual_seed(0)
    x = torch.randn(4, device=DEVICE)

    def step():
        return x * coefficient("soft")  # HERE

    def vary():
        TABLE["soft"] += 0.5
        coefficient.cache_clear()

    return {"step": step, "vary": vary, "reset": None}
