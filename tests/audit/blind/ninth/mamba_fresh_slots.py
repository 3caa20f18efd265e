"""Selective-state-space decode; recurrent and conv states live in per-request slots."""

from types import SimpleNamespace

import torch

BATCH, SLOTS, DIM, STATE, TAPS = 4, 7, 6, 5, 3
SPARE = SLOTS  # a slot behind the real ones for padding rows


class SlotPool:
    def __init__(self):
        self.free = list(range(SLOTS))
        self.active = []  # slots in batch order

    def admit(self):
        slot = self.free.pop()
        self.active.append(slot)
        return slot

    def retire(self, row):
        self.free.append(self.active.pop(row))


class MambaDecode:
    def __init__(self, seed=13):
        g = self.gen = torch.Generator().manual_seed(seed)
        self.a_log = torch.rand(DIM, STATE, generator=g)
        self.w_in = torch.randn(DIM, DIM, generator=g) / DIM**0.5
        self.w_bcd = torch.randn(DIM, 2 * STATE + DIM, generator=g) / DIM**0.5
        self.taps = torch.randn(DIM, TAPS, generator=g)
        self.ssm = torch.zeros(SLOTS + 1, DIM, STATE)
        self.conv = torch.zeros(SLOTS + 1, DIM, TAPS)
        self.x = torch.zeros(BATCH, DIM)
        self.slot_of_row = torch.full((BATCH,), SPARE)
        self.is_new = torch.zeros(BATCH, dtype=torch.bool)
        self.pool, self.tick = SlotPool(), 0
        self.fresh = []
        self.vary()

    def vary(self):
        self.fresh = []
        if self.tick in (3, 4, 6, 7) and self.pool.active:
            self.pool.retire(0)
        while len(self.pool.active) < (2 if self.tick < 2 else 3):
            self.fresh.append(self.pool.admit())
        if self.tick == 5:
            self.fresh.append(self.pool.admit())
            self.pool.retire(1)
        n = len(self.pool.active)
        flags = [s in self.fresh for s in self.pool.active]
        self.slot_of_row.fill_(SPARE)
        self.slot_of_row[:n].copy_(torch.tensor(self.pool.active))
        self.is_new.fill_(False)
        self.is_new[:n].copy_(torch.tensor(flags))
        self.x[:n].copy_(torch.randn(n, DIM, generator=self.gen))
        self.tick += 1

    def step(self):
        for slot in self.fresh:
            self.ssm[slot].zero_()
        new = self.is_new[:, None, None]
        conv = self.conv[self.slot_of_row]
        conv = torch.where(new, torch.zeros_like(conv), conv)
        state = self.ssm[self.slot_of_row]
        u = self.x @ self.w_in
        conv = torch.cat([conv[..., 1:], u[..., None]], dim=-1)
        u = torch.nn.functional.silu((conv * self.taps).sum(-1))
        b, c, dt = (u @ self.w_bcd).split([STATE, STATE, DIM], dim=-1)
        dt = torch.nn.functional.softplus(dt)[..., None]
        decay = torch.exp(-dt * torch.exp(self.a_log))
        state = state * decay + dt * u[..., None] * b[:, None]
        self.conv.index_copy_(0, self.slot_of_row, conv)
        self.ssm.index_copy_(0, self.slot_of_row, state)
        return (state * c[:, None]).sum(-1) + u


def make():
    model = MambaDecode()
    return SimpleNamespace(step=model.step, vary=model.vary, rows=lambda: len(model.pool.active))
