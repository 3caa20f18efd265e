"""Taste profile of a listener: what was played last counts most.

Tracks sit in an ordered shelf. Playing one brings it to the front and refreshes its embedding.
"""

from collections import OrderedDict

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTH, SHELF = 12, ("aria", "blues", "canon", "dirge", "etude")


class Shelf:
    """Embeddings by track, the last played at the end."""

    def __init__(self, rng: torch.Generator):
        self.rng = rng
        self._tracks: OrderedDict[str, torch.Tensor] = OrderedDict(
            (name, torch.randn(WIDTH, generator=rng).to(DEVICE)) for name in SHELF
        )

    def __getattr__(self, name: str):
        return getattr(self.__dict__["_tracks"], name)

    def __iter__(self):
        return iter(self._tracks.values())

    def play(self, name: str) -> None:
        track = self._tracks[name]
        track.mul_(0.9).add_(0.1 * torch.randn(WIDTH, generator=self.rng).to(DEVICE))
        self._tracks.move_to_end(name)


class Profile:
    """Folds a shelf into one vector, and scores candidates by it."""

    def __init__(self, shelf: Shelf, fade: float):
        self.shelf = shelf
        self.fade = torch.full((), fade, device=DEVICE)

    def fold(self) -> torch.Tensor:
        folded = torch.zeros(WIDTH, device=DEVICE)
        for track in self.shelf:
            folded = torch.lerp(track, folded, self.fade)
        return folded

    def score(self, candidates: torch.Tensor) -> torch.Tensor:
        return candidates @ self.fold()


rng = torch.Generator().manual_seed(13)
shelf = Shelf(rng)
profile = Profile(shelf, 0.5)
candidates = torch.randn(7, WIDTH, generator=rng).to(DEVICE)
plays = iter(("blues", "aria", "dirge", "canon", "aria", "etude", "blues", "dirge") * 4)


def step():
    scores = profile.score(candidates)
    return {"scores": scores, "chances": torch.softmax(scores, 0)}


def vary():
    shelf.play(next(plays))
    candidates.copy_(torch.randn(7, WIDTH, generator=rng))
    profile.fade.fill_(0.4 + 0.2 * torch.rand((), generator=rng).item())
    assert len(shelf.keys()) == len(SHELF)
