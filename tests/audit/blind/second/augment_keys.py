from dataclasses import dataclass
from types import SimpleNamespace

import torch
from mrv2lab import graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKEND = "cuda" if torch.cuda.is_available() else "emulated"
SIDE = 6


@dataclass(frozen=True)
class Recipe:
    flip: bool = False
    crop: int = 0
    turns: int = 0
    gamma: float = 1.0


def augment(image, recipe):
    if recipe.flip:
        image = image.flip(-1)
    if recipe.crop:
        inner = image[..., recipe.crop : -recipe.crop, recipe.crop : -recipe.crop]
        image = torch.zeros_like(image)
        image[..., : inner.shape[-2], : inner.shape[-1]].copy_(inner)
    if recipe.turns:
        image = torch.rot90(image, recipe.turns, dims=(-2, -1))
    return image.clamp(min=0) ** recipe.gamma


class Augmenter:
    def __init__(self):
        self.image = torch.zeros(2, SIDE, SIDE, device=DEVICE)
        self.recipe = Recipe()
        self.graphs = {}
        self.hits = self.seen = 0

    def run(self):
        recipe = self.recipe
        if recipe in self.graphs:
            self.hits += 1
        else:
            augment(self.image, recipe)
            self.graphs[recipe] = graphs.capture(lambda: augment(self.image, recipe), backend=BACKEND)
        self.graphs[recipe].replay()
        return self.graphs[recipe].outputs

    def eager(self):
        return augment(self.image, self.recipe)

    def load(self):
        k = self.seen = self.seen + 1
        self.recipe = Recipe(flip=k % 2 == 0, crop=k % 3 // 2, turns=k // 3 % 2, gamma=1.0 + 0.5 * (k % 2))
        n = torch.arange(self.image.numel(), dtype=torch.float32).view_as(self.image)
        self.image.copy_(torch.sin(n * 0.17 * k).abs())

    def forget(self):
        self.graphs.clear()
        self.hits = 0


def make_engine():
    augmenter = Augmenter()
    return SimpleNamespace(
        step=augmenter.run, vary=augmenter.load, eager=augmenter.eager, reset=augmenter.forget
    )
