"""Advantage actor-critic update with Adam, warm-up of the rate and an entropy bonus that anneals."""

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BATCH, OBS, ACTIONS = 12, 6, 4


class Adam:
    def __init__(self, params, betas=(0.9, 0.99), eps=1e-8):
        self.params = list(params)
        self.beta1, self.beta2 = betas
        self.eps = eps
        self.lr = torch.zeros((), device=DEVICE)
        self.t = torch.zeros((), device=DEVICE)
        self.first = [torch.zeros_like(p) for p in self.params]
        self.second = [torch.zeros_like(p) for p in self.params]
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        self.t.add_(1)
        correct1 = 1 - self.beta1**self.t
        correct2 = 1 - self.beta2**self.t
        for p, m, v in zip(self.params, self.first, self.second, strict=True):
            m.lerp_(p.grad, 1 - self.beta1)
            v.mul_(self.beta2).addcmul_(p.grad, p.grad, value=1 - self.beta2)
            p.sub_(self.lr * (m / correct1) / ((v / correct2).sqrt() + self.eps))


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(OBS, 16)
        self.policy, self.value = nn.Linear(16, ACTIONS), nn.Linear(16, 1)

    def forward(self, obs):
        h = torch.tanh(self.trunk(obs))
        return F.log_softmax(self.policy(h), dim=-1), self.value(h).squeeze(-1)


class Trainer:
    def __init__(self):
        torch.manual_seed(8)
        self.net = ActorCritic().to(DEVICE)
        self.saved = [p.detach().clone() for p in self.net.parameters()]
        self.optimizer = Adam(self.net.parameters())
        self.obs = torch.randn(BATCH, OBS, device=DEVICE)
        self.returns = torch.randn(BATCH, device=DEVICE)
        self.actions = (torch.arange(BATCH, device=DEVICE) % ACTIONS).unsqueeze(1)
        self.bonus = torch.full((), 0.5, device=DEVICE)
        self.iteration = 0
        for p in self.net.parameters():
            p.grad = torch.zeros_like(p)

    def collect(self):
        self.iteration += 1
        self.optimizer.lr.fill_(min(1.0, self.iteration / 5) * 0.05)
        self.bonus.fill_(0.5 * 0.8**self.iteration)
        self.obs.copy_(torch.sin(torch.arange(BATCH * OBS).view(BATCH, OBS) * 0.7 + self.iteration))
        self.returns.copy_(torch.cos(torch.arange(BATCH) * 1.1 * self.iteration))

    def update(self):
        logp, value = self.net(self.obs)
        advantage = self.returns - value
        gain = (logp.gather(1, self.actions).squeeze(1) * advantage.detach()).mean()
        entropy = -(logp.exp() * logp).sum(-1).mean()
        loss = advantage.square().mean() - gain - self.bonus * entropy
        for p in self.net.parameters():
            p.grad.zero_()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


trainer = Trainer()
step, vary = trainer.update, trainer.collect


@torch.no_grad()
def reset():
    opt = trainer.optimizer
    for p, saved, m, v in zip(opt.params, trainer.saved, opt.first, opt.second, strict=True):
        p.copy_(saved)
        m.zero_()
        v.zero_()
    opt.t.zero_()
    opt.steps = 0
