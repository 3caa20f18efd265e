"""Vision-language model: features of some vision blocks are tapped by hooks and added to the
first language blocks."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM, PATCHES, TOKENS = 10, 6, 9


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.lin = nn.Linear(DIM, DIM)

    def forward(self, x):
        return x + F.silu(self.lin(self.norm(x)))


class Taps:
    """Outputs of the tapped blocks, newest run."""

    def __init__(self):
        self.features = {}
        self.runs = 0

    def keep(self, name, module, args, out):
        self.features[name] = out

    def attach(self, blocks, wanted):
        for i in wanted:
            blocks[i].register_forward_hook(partial(self.keep, i))

    def start(self):
        self.features = {}
        self.runs += 1


class VisionLanguage(nn.Module):
    DEEP = (0, 2)

    def __init__(self):
        super().__init__()
        self.vision = nn.ModuleList(Block() for _ in range(3))
        self.language = nn.ModuleList(Block() for _ in range(3))
        self.taps = Taps()
        self.taps.attach(self.vision, self.DEEP)
        self.last_visual = None

    def see(self, patches):
        self.taps.start()
        for block in self.vision:
            patches = block(patches)
        self.last_visual = patches

    def forward(self, patches, tokens, spot):
        self.see(patches)
        x = tokens.index_copy(0, spot, self.last_visual)
        deep = iter(self.DEEP)
        for block in self.language:
            x = block(x)
            level = next(deep, None)
            if level is not None:
                x = x.index_add(0, spot, self.taps.features[level])
        return x


torch.manual_seed(26)
model = VisionLanguage().to(DEVICE).eval()
patches = torch.zeros(PATCHES, DIM, device=DEVICE)
tokens = torch.zeros(TOKENS, DIM, device=DEVICE)
spot = torch.zeros(PATCHES, dtype=torch.long, device=DEVICE)
gen = torch.Generator().manual_seed(59)


def vary():
    patches.copy_(torch.randn(PATCHES, DIM, generator=gen))
    tokens.copy_(torch.randn(TOKENS, DIM, generator=gen))
    first = int(torch.randint(TOKENS - PATCHES + 1, (1,), generator=gen))
    spot.copy_(torch.arange(first, first + PATCHES))
    model.last_visual = None


@torch.no_grad()
def step():
    return model(patches, tokens, spot)


vary()
