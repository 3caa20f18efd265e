"""Inference of an int8 detector head; weights arrive from a training job while it runs."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIDE, CHANNELS, BATCH = 10, 4, 3
PACKED = {}


class Packed:
    """What a layer is reduced to for inference: integers, and a step for every output."""

    def __init__(self, layer):
        self.codes = torch.zeros_like(layer.weight, dtype=torch.int8, requires_grad=False)
        self.steps = torch.ones(layer.weight.shape[0], 1, 1, 1, device=layer.weight.device)
        self.shift = torch.zeros(layer.weight.shape[0], device=layer.weight.device)

    @torch.no_grad()
    def pack(self, weight, bias):
        self.steps = self.steps.copy_(weight.abs().amax(dim=(1, 2, 3), keepdim=True) / 127)
        self.codes = self.codes.copy_((weight / self.steps).round())
        self.shift = self.shift.copy_(bias)


class QuantConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs, 3, 3))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.register_load_state_dict_post_hook(self.repack)

    @staticmethod
    def repack(layer, incompatible):
        if layer.name not in PACKED:
            PACKED[layer.name] = Packed(layer)
        PACKED[layer.name].pack(layer.weight, layer.bias)

    def forward(self, x):
        packed = PACKED[self.name]
        return F.conv2d(x, packed.codes * packed.steps, packed.shift, padding=1)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.boxes = QuantConv(CHANNELS, 8), QuantConv(8, 5)
        for name, layer in self.named_children():
            layer.name = name

    def forward(self, image):
        raw = self.boxes(F.relu(self.stem(image)))
        return torch.cat([raw[:, :4].exp(), raw[:, 4:].sigmoid()], dim=1)


def release(model, gen):
    """A checkpoint, as it comes over the wire."""
    return {k: (torch.randn(v.shape, generator=gen) * 0.15).to(DEVICE) for k, v in model.state_dict().items()}


detector = Detector().to(DEVICE).eval()
training = torch.Generator().manual_seed(130)
detector.load_state_dict(release(detector, training))
image = torch.zeros(BATCH, CHANNELS, SIDE, SIDE, device=DEVICE)
camera = torch.Generator().manual_seed(131)
frames = 0


@torch.no_grad()
def step():
    maps = detector(image)
    score, where = maps[:, 4].flatten(1).topk(5)
    boxes = maps[:, :4].flatten(2).gather(2, where[:, None].expand(-1, 4, -1))
    return score, boxes


def vary():
    global frames
    frames += 1
    image.copy_(torch.rand(BATCH, CHANNELS, SIDE, SIDE, generator=camera))
    if frames % 2 == 0:
        detector.load_state_dict(release(detector, training))
