"""Random steps in half precision: `python -m tests.audit.half_precision [NUM] [BACKEND]` counts.

Of each step there is one that loses a hundredth to a twentieth of something inside, which is wrong, and one
whose sums are only split otherwise, which is not.
"""

import math
import random
import sys

import torch
from torch.nn import functional as F

from mrv2lab.audit import audit
from mrv2lab.graphs import device_of

ACTIVATIONS = (F.silu, F.gelu, torch.tanh, torch.relu, torch.sigmoid, lambda h: h)
ENDS = ("hidden", "sum", "loss", "logits", "score", "memory", "attention")
LOSSES = {
    "scale": lambda y, delta, other: y * (1 + delta),
    "add": lambda y, delta, other: y + delta * y.float().std() * other,
    "bias": lambda y, delta, other: y + delta * y.float().std(),
    "row": lambda y, delta, other: torch.cat([y[:1] * (1 + 4 * delta), y[1:]]),
    "one": lambda y, delta, other: torch.cat([y[:, :1] + y.float().std(), y[:, 1:]], 1),
}


class Step:
    """Layers of products that are summed in parts; `is_lossy` and `num_parts` are what a capture freezes."""

    def __init__(self, seed, device):
        draw, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        self.dtype = draw.choice([torch.bfloat16, torch.bfloat16, torch.float16])
        num_rows, self.width, depth = (draw.choice(of) for of in ([1, 4, 16], [64, 256, 1024], [1, 2, 4, 8]))

        def randn(*shape):
            return torch.randn(*shape, generator=generator).to(device, self.dtype)

        self.x, self.other, self.memory = (randn(num_rows, self.width) for _ in range(3))
        self.weights = [randn(self.width, self.width) / math.sqrt(self.width) for _ in range(depth)]
        self.keys, self.values = (randn(4, 512, self.width // 4) for _ in range(2))
        self.layers = [
            (draw.choice(ACTIVATIONS), draw.choice([None, "layer", "rms", "softmax"]), draw.random() < 0.5)
            for _ in range(depth)
        ]
        self.end, self.lossy = draw.choice(ENDS), draw.randrange(depth)
        self.loss, self.delta = LOSSES[draw.choice([*LOSSES])], draw.choice([0.01, 0.02, 0.05])
        self.is_lossy, self.num_parts, self.later_parts = False, 1, draw.choice([2, 4, 8])

    def product(self, h, w):
        size = self.width // self.num_parts
        parts = [slice(i * size, (i + 1) * size) for i in range(self.num_parts)]
        return sum(h[:, part] @ w[part] for part in parts)

    def __call__(self):
        h = self.x
        for number, (w, (activation, norm, is_residual)) in enumerate(
            zip(self.weights, self.layers, strict=True)
        ):
            y = h
            if norm is not None:
                norms = {"layer": F.layer_norm, "rms": F.rms_norm}
                y = norms[norm](y, (self.width,)) if norm in norms else torch.softmax(y, -1)
            y = activation(self.product(y, w))
            if self.is_lossy and number == self.lossy:
                y = self.loss(y, self.delta, self.other).to(self.dtype)
            h = h + y if is_residual else y
        return self.made_of(h)

    def made_of(self, h):
        if self.end == "attention":
            query = h.view(len(h), 4, -1).transpose(0, 1)
            return torch.softmax(query @ self.keys.mT / math.sqrt(query.shape[-1]), -1) @ self.values
        if self.end == "memory":
            self.memory.add_(h)
            return None
        results = {
            "sum": lambda: h.sum(1),
            "loss": lambda: h.square().mean(),
            "logits": lambda: torch.log_softmax(h.float(), -1).to(self.dtype),
            "score": lambda: h @ self.weights[0][:, 0],
        }
        return results.get(self.end, lambda: h)()

    def vary(self, is_wrong):
        self.x.mul_(1.1)
        self.is_lossy, self.num_parts = is_wrong, 1 if is_wrong else self.later_parts


def is_found(seed, is_wrong, backend):
    step = Step(seed, device_of(backend))
    return bool(audit(step, vary=lambda: step.vary(is_wrong), backend=backend).findings)


def main(num, backend):
    found = {
        is_wrong: sum(is_found(seed, is_wrong, backend) for seed in range(num)) for is_wrong in (True, False)
    }
    print(
        f"{backend}, torch {torch.__version__}: of {num} steps that lose something {found[True]} are found,"
    )
    print(f"of {num} whose sums are split otherwise {found[False]} are flagged")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 150, sys.argv[2] if sys.argv[2:] else "emulated")
