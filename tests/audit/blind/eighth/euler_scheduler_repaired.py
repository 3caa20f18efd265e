# Euler scheduler of a diffusion pipeline
import torch

torch.manual_seed(11)
C, STEPS = 6, 8


class Euler:
    def __init__(self):
        self.sigmas = [10.0 * 0.6**i for i in range(STEPS + 1)]
        self.sigmas_dev = torch.tensor(self.sigmas, device="cpu")
        self.index = 0
        self.index_dev = torch.zeros(1, dtype=torch.long, device="cpu")

    def advance(self):
        self.index = (self.index + 1) % STEPS
        self.index_dev.fill_(self.index)

    def current(self):
        s = self.sigmas_dev.index_select(0, self.index_dev)
        return s, self.sigmas_dev.index_select(0, self.index_dev + 1)


net = torch.randn(C, C, device="cpu") / C
euler = Euler()
latent = torch.randn(2, C, device="cpu")
guidance = torch.tensor(3.0, device="cpu")
progress = {"percent": 0.0, "prompt": "a cat"}


def denoise(x, sigma):
    cond = torch.tanh(x / (sigma**2 + 1) ** 0.5 @ net)
    return x - guidance * cond


def step():
    s, s_next = euler.current()
    d = (latent - denoise(latent, s)) / s
    latent.add_(d * (s_next - s))
    return latent.clone()


def vary():
    euler.advance()
    progress["percent"] = 100 * euler.index / STEPS
    progress["prompt"] += "!"
    guidance.fill_(3.0 + 0.1 * euler.index)
