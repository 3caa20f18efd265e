"""Image grading in stages that register themselves, and may be loaded anew while the service runs.

A stage of a name that is known takes the place of the former one. Strengths are kept apart from the stages.
"""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HEIGHT, WIDTH = 6, 8
STRENGTH = {name: torch.ones((), device=DEVICE) for name in ("lift", "gamma", "gain")}


class StageType(type):
    """Notes every stage by its name."""

    known: dict[str, type] = {}

    def __init__(cls, name, bases, space):
        super().__init__(name, bases, space)
        if "key" in space:
            StageType.known[cls.key] = cls


class Stage(metaclass=StageType):
    """Something that is done to an image."""

    order = 0

    @classmethod
    def strength(cls) -> torch.Tensor:
        try:
            return OVERRIDES[cls.key]
        except KeyError:
            return STRENGTH[cls.key]


OVERRIDES: dict[str, torch.Tensor] = {}


class Gain(Stage):
    key, order = "gain", 3

    def __call__(self, image):
        return image * self.strength()


class Lift(Stage):
    key, order = "lift", 1

    def __call__(self, image):
        return image + 0.1 * self.strength() * (1 - image)


class Gamma(Stage):
    key, order = "gamma", 2

    def __call__(self, image):
        return image.clamp(min=1e-3).pow(self.strength())


def pipeline() -> list[Stage]:
    return [kind() for kind in sorted(StageType.known.values(), key=lambda kind: kind.order)]


def reload(kind: type) -> type:
    """The same stage as another class, as if its module had been imported again."""
    space = {"key": kind.key, "order": kind.order, "__call__": kind.__call__}
    del StageType.known[kind.key]
    return StageType(kind.__name__, (Stage,), space)


rng = torch.Generator().manual_seed(43)
image = torch.rand(HEIGHT, WIDTH, generator=rng).to(DEVICE)
requests = 0


def step():
    graded = image
    for stage in pipeline():
        graded = stage(graded)
    return graded


def vary():
    global requests
    requests += 1
    image.copy_(torch.rand(HEIGHT, WIDTH, generator=rng))
    reload(list(StageType.known.values())[0])
    for strength in STRENGTH.values():
        strength.fill_(0.5 + torch.rand((), generator=rng).item())
    OVERRIDES[f"preview-{requests}"] = torch.full((), float(requests), device=DEVICE)
