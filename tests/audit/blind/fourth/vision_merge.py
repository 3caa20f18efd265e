"""Multi-modal prefill: image features take the places of the placeholder tokens in a prompt."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, HIDDEN, VOCAB, PATCHES, PATCH_DIM = 16, 12, 30, 8, 10
IMAGE_TOKEN = VOCAB - 1
gen = torch.Generator().manual_seed(61)


def weights(*shape: int) -> torch.Tensor:
    return (torch.randn(*shape, generator=gen) / math.sqrt(shape[0])).to(DEVICE)


class VisionTower:
    def __init__(self) -> None:
        self.pixels = torch.randn(PATCHES, PATCH_DIM, generator=gen).to(DEVICE)
        self.inner, self.outer = weights(PATCH_DIM, 2 * HIDDEN), weights(2 * HIDDEN, HIDDEN)

    def __call__(self, out: torch.Tensor) -> None:
        torch.matmul(torch.nn.functional.gelu(self.pixels @ self.inner), self.outer, out=out)


class Arena:
    """One allocation for what passes between the encoders and the language model."""

    def __init__(self, size: int) -> None:
        self.memory = torch.zeros(size, device=DEVICE)
        self.used = 0

    def clear(self) -> None:
        self.used = 0

    def take(self, *shape: int) -> torch.Tensor:
        count = math.prod(shape)
        if self.used + count > self.memory.numel():
            raise MemoryError(f"{count} more do not fit into an arena of {self.memory.numel()}")
        taken = self.memory[self.used : self.used + count].view(shape)
        self.used += count
        return taken


class Model:
    def __init__(self) -> None:
        self.table, self.mix = weights(VOCAB, HIDDEN) * 5, weights(HIDDEN, HIDDEN)
        self.arena, self.tower = Arena(2 * PATCHES * HIDDEN), VisionTower()
        self.ids = torch.zeros(TOKENS, dtype=torch.long, device=DEVICE)
        self.admit(PATCHES)

    def admit(self, patches: int) -> None:
        """Make room for a prompt with an image, and write the prompt."""
        self.arena.clear()
        self.features = self.arena.take(PATCHES, HIDDEN)
        start = int(torch.randint(1, TOKENS - patches + 1, (1,), generator=gen))
        ids = torch.randint(IMAGE_TOKEN, (TOKENS,), generator=gen)
        ids[start : start + patches] = IMAGE_TOKEN
        self.ids.copy_(ids)

    def forward(self) -> torch.Tensor:
        is_image = self.ids == IMAGE_TOKEN
        source = (is_image.long().cumsum(0) - 1).clamp(0, PATCHES - 1)
        text = torch.nn.functional.embedding(self.ids, self.table)
        x = torch.where(is_image[:, None], self.features[source], text)
        scores = (x @ x.t() / math.sqrt(HIDDEN)).tril()
        return x + torch.tanh(scores @ x @ self.mix)


model = Model()
counts = [8, 8, 5, 6, 0, 3]
request = 0


def encode_images():
    model.tower(model.features)


encode_images()
beside = [encode_images]


def step():
    return model.forward()


def vary():
    global request
    request += 1
    model.admit(counts[request % len(counts)])
    model.tower.pixels.copy_(torch.randn(PATCHES, PATCH_DIM, generator=gen))
    encode_images()
