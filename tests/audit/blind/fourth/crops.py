"""Test-time augmentation of small images in front of a texture classifier."""

import random

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIDE, CROP, BATCH = 20, 16, 6
TRANSFORMS = {}


def transform(name):
    def register(fn):
        TRANSFORMS[name] = fn
        return fn

    return register


@transform("crop")
def crop(images, dice):
    top, left = dice.randint(0, SIDE - CROP), dice.randint(0, SIDE - CROP)
    return images[..., top : top + CROP, left : left + CROP]


@transform("flip")
def flip(images, dice):
    return images.flip(-1) if dice.random() < 0.5 else images


@transform("normalise")
def normalise(images, dice):
    mean = images.mean(dim=(-2, -1), keepdim=True)
    return (images - mean) / (images.std(dim=(-2, -1), keepdim=True) + 1e-5)


class Compose:
    """Named transforms, one after the other, over a common source of chance."""

    def __init__(self, *names, seed):
        self.stages = [TRANSFORMS[name] for name in names]
        self.seed = seed
        self.dice = random.Random(seed)

    def __call__(self, images):
        for stage in self.stages:
            images = stage(images, self.dice)
        return images

    def rewind(self):
        self.dice.seed(self.seed)


class Texture(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.head = nn.Linear(8 * 49, 5)
        gen = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * 0.1)

    def forward(self, images):
        features = F.max_pool2d(F.relu(self.conv(images)), 2)
        return self.head(features.flatten(1))


views = Compose("crop", "flip", "normalise", seed=11)
model = Texture().to(DEVICE).eval()
images = torch.zeros(BATCH, 3, SIDE, SIDE, device=DEVICE)
camera = torch.Generator().manual_seed(1)


@torch.no_grad()
def step():
    votes = torch.stack([model(views(images)).softmax(-1) for _ in range(3)])
    return {"mean": votes.mean(0), "spread": votes.std(0)}


def vary():
    images.copy_(torch.rand(BATCH, 3, SIDE, SIDE, generator=camera))


def reset():
    views.rewind()
