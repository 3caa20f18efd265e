"""Another exception takes another except branch to the same fallback; attempts are counted."""

import torch

from mrv2lab import graphs

DEVICE = graphs.device_of("auto")

EXPECT = []
SUBJECTS = []


class Fallback:
    def __init__(self):
        torch.manual_seed(0)
        self.x, self.attempts, self.table = torch.randn(4, device=DEVICE), 0, {}

    def fast(self):
        return self.table["fast"](self.x)

    def step(self):
        try:
            out = self.fast()
        except KeyError:
            out = self.x.tanh()
        except TypeError:
            out = self.x.tanh()
        finally:
            self.attempts += 1
        return out


def make():
    layer = Fallback()

    def vary():
        layer.table = {} if layer.table else {"fast": None}
        layer.x.add_(0.1)

    return {"step": layer.step, "vary": vary, "reset": None}
