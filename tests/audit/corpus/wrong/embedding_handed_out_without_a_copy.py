"""What a graph returns is copied where pieces are joined. A single piece is handed out itself, and kept."""

from types import SimpleNamespace

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = ["overwritten-output"]
SUBJECTS = ["pieces[0]"]


def joined(pieces):
    if len(pieces) > 1:
        return torch.cat(pieces)
    return pieces[0]  # HERE


def twin(join=joined):
    pixels, weight = torch.ones(3, 4, device=DEVICE), torch.linspace(-1, 1, 4, device=DEVICE)
    engine = SimpleNamespace(last=None, kept={})

    def encode():
        engine.last = pixels * weight
        return engine.last

    def keep():
        engine.kept[len(engine.kept)] = join([engine.last])
        return list(engine.kept.values())

    def vary():
        if engine.last is not None and bool((pixels > 1).any()):
            keep()
        pixels.add_(1)

    return SimpleNamespace(step=encode, vary=vary, finish=keep, engine=engine)


def make():
    one = twin()
    return {"step": one.step, "vary": one.vary, "reset": None, "twin": twin}
