"""A small variational autoencoder for sensor frames, trained with LAMB through torch.func."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
FRAME, LATENT, BATCH = 24, 4, 16


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(FRAME, 32), nn.SiLU(), nn.Linear(32, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 32), nn.SiLU(), nn.Linear(32, FRAME))
        gen = seeded(0)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=gen) * 0.2)

    def forward(self, x, eps):
        mean, log_var = self.encoder(x).chunk(2, dim=-1)
        return self.decoder(mean + eps * torch.exp(0.5 * log_var)), mean, log_var


class Moments:
    """First and second moments of every gradient."""

    def __init__(self, params, betas=(0.9, 0.98)):
        self.betas = betas
        self.first = {k: torch.zeros_like(p) for k, p in params.items()}
        self.second = {k: torch.zeros_like(p) for k, p in params.items()}
        self.seen = 0

    def update(self, grads):
        self.seen += 1
        for key, grad in grads.items():
            self.first[key].lerp_(grad, 1 - self.betas[0])
            self.second[key].lerp_(grad * grad, 1 - self.betas[1])

    def corrected(self, key):
        unbias = [1 - beta**self.seen for beta in self.betas]
        return self.first[key] / unbias[0], self.second[key] / unbias[1]

    def clear(self):
        self.seen = 0
        for store in (self.first, self.second):
            for value in store.values():
                value.zero_()


class Lamb:
    def __init__(self, params, lr=0.02, eps=1e-4, decay=0.01):
        self.params, self.lr, self.eps, self.decay = params, lr, eps, decay
        self.moments = Moments(params)

    @torch.no_grad()
    def apply(self, grads):
        self.moments.update(grads)
        for key, p in self.params.items():
            mean, square = self.moments.corrected(key)
            direction = mean / (square.sqrt() + self.eps) + self.decay * p
            trust = (p.norm() / (direction.norm() + 1e-6)).clamp(0.1, 10.0)
            p.sub_(self.lr * trust * direction)


vae = Vae().to(DEVICE)
weights = {k: p.detach().clone() for k, p in vae.named_parameters()}
initial = {k: p.clone() for k, p in weights.items()}
optimizer = Lamb(weights)
frames = torch.zeros(BATCH, FRAME, device=DEVICE)
noise = torch.zeros(BATCH, LATENT, device=DEVICE)
stream = seeded(5)


def loss_of(params, x, eps):
    rebuilt, mean, log_var = functional_call(vae, params, (x, eps))
    divergence = 0.5 * (mean.square() + log_var.exp() - log_var - 1).sum(-1).mean()
    return (rebuilt - x).square().sum(-1).mean() + 0.1 * divergence


def step():
    grads, loss = grad_and_value(loss_of)(weights, frames, noise)
    optimizer.apply(grads)
    return loss, weights["decoder.2.bias"].clone()


def vary():
    phase = torch.rand(BATCH, 1, generator=stream) * 6.28
    grid = torch.linspace(0, 6.28, FRAME)
    frames.copy_(torch.sin(grid + phase))
    noise.copy_(torch.randn(BATCH, LATENT, generator=stream))


def reset():
    for key, p in weights.items():
        p.copy_(initial[key])
    optimizer.moments.clear()
