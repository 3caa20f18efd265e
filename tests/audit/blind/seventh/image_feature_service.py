"""Image embedding service with optional activation taps.

Operators may attach a tap to a stage of the backbone at run time, for example
to clip outlier activations while a corrupted camera is in the fleet.
"""

import torch
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Stage(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, cout)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = Stage(3, 8)
        self.body = Stage(8, 16)
        self.head = nn.Linear(16, 12)

    def forward(self, x):
        x = self.body(self.stem(x))
        return self.head(x.mean(dim=(2, 3)))


class OutlierClip:
    """Forward hook: limit activations to a quantile-like ceiling."""

    def __init__(self, ceiling):
        self.ceiling = ceiling

    def __call__(self, module, args, output):
        return output.clamp(max=self.ceiling)


class FeatureService:
    def __init__(self, batch=4):
        torch.manual_seed(31)
        self.backbone = Backbone().to(DEVICE).eval().requires_grad_(False)
        self.rng = torch.Generator(device=DEVICE).manual_seed(32)
        self.frames = torch.rand(batch, 3, 16, 16, device=DEVICE, generator=self.rng)
        self.taps = {}

    def attach(self, name, hook):
        stage = self.backbone.get_submodule(name)
        self.taps[name] = stage.register_forward_hook(hook)

    def detach(self, name):
        handle = self.taps.pop(name, None)
        if handle is not None:
            handle.remove()

    def receive(self):
        self.frames.uniform_(generator=self.rng)

    def embed(self):
        features = self.backbone(self.frames)
        return nn.functional.normalize(features, dim=1)


service = FeatureService()
_frames_seen = 0


def step():
    with torch.no_grad():
        return service.embed()


def vary():
    global _frames_seen
    _frames_seen += 1
    service.receive()
    if _frames_seen == 3:
        service.attach("stem", OutlierClip(0.6))
    elif _frames_seen == 6:
        service.detach("stem")
