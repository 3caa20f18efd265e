"""Images of several requests packed into one row of patches; each attends within itself."""

import random

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

PATCHES, DIM, IMAGES, SLOTS = 20, 8, 6, 24
TRASH = SLOTS - 1


class PackedImages:
    def __init__(self) -> None:
        self.patches = torch.zeros(PATCHES, DIM, device=DEVICE)
        self.ends = torch.zeros(IMAGES, dtype=torch.long, device=DEVICE)
        self.slots = torch.full((PATCHES,), TRASH, dtype=torch.long, device=DEVICE)
        self.used = 0

    def pack(self, images: list[torch.Tensor]) -> None:
        """Patches of later images come first in the embedding table, as their prompts do."""
        sizes = [image.shape[0] for image in images]
        self.used = sum(sizes)
        ends, slots, left = [], [], self.used
        for size in sizes:
            ends.append(ends[-1] + size if ends else size)
            left -= size
            slots.extend(range(left, left + size))
        self.patches[: self.used].copy_(torch.cat(images))
        self.ends.copy_(torch.tensor(ends + [self.used] * (IMAGES - len(ends))))
        self.slots.fill_(TRASH)
        self.slots[: self.used].copy_(torch.tensor(slots))


class PackedEncoder:
    def __init__(self) -> None:
        gen = torch.Generator().manual_seed(101)
        self.mix = (torch.randn(DIM, 2 * DIM, generator=gen) * DIM**-0.5).to(DEVICE)
        self.side = torch.cuda.Stream() if DEVICE.type == "cuda" else None
        self.index = torch.arange(PATCHES, device=DEVICE)

    def _segments(self, ends: torch.Tensor) -> torch.Tensor:
        image = torch.searchsorted(ends, self.index, right=True)
        return image[:, None] != image[None, :]

    def __call__(self, batch: PackedImages) -> torch.Tensor:
        if self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            foreign = self._segments(batch.ends)
        keys, values = (batch.patches @ self.mix).chunk(2, dim=-1)
        if self.side is not None:
            torch.cuda.current_stream().wait_stream(self.side)
        scores = (batch.patches @ keys.T).masked_fill(foreign, float("-inf"))
        encoded = torch.layer_norm(batch.patches + scores.softmax(-1) @ values, (DIM,))
        table = torch.empty(SLOTS, DIM, device=DEVICE)
        return table.index_copy_(0, batch.slots, encoded)


batch = PackedImages()
encoder = PackedEncoder()
sizes = random.Random(103)
camera = torch.Generator().manual_seed(104)


def vary() -> None:
    count = sizes.randint(2, IMAGES - 1)
    batch.pack([torch.randn(sizes.randint(1, 4), DIM, generator=camera) for _ in range(count)])


vary()


def step() -> torch.Tensor:
    return encoder(batch)


def rows() -> int:
    return batch.used
