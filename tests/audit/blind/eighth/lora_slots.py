# LoRA slots: an adapter is loaded into a slot between steps
import torch

torch.manual_seed(4)
H, R, SLOTS, B = 8, 2, 3, 4


class LoraLinear:
    def __init__(self):
        self.weight = torch.randn(H, H, device="cpu")
        self.A = [torch.randn(H, R, device="cpu") for _ in range(SLOTS)]
        self.B = [torch.randn(R, H, device="cpu") for _ in range(SLOTS)]
        self.names = ["base", "sql", "chat"]
        self.hits = [0] * SLOTS

    def load(self, slot, name, a, b):
        self.names[slot] = name
        self.A[slot] = a.contiguous()
        self.B[slot].copy_(b)
        self.hits[slot] = 0

    def forward(self, x, slot_ids):
        y = x @ self.weight
        for s in range(SLOTS):
            delta = x @ self.A[s] @ self.B[s]
            y = y + torch.where((slot_ids == s)[:, None], delta, torch.zeros_like(delta))
        return y


lora = LoraLinear()
x = torch.randn(B, H, device="cpu")
slot_ids = torch.tensor([0, 1, 2, 1], device="cpu")
n = 0


def step():
    return lora.forward(x, slot_ids)


def vary():
    global n
    n += 1
    x.copy_(torch.randn(B, H))
    slot_ids.copy_(slot_ids.roll(1))
    lora.load(n % SLOTS, f"adapter-{n}", torch.randn(H, R), torch.randn(R, H))
    lora.hits[0] += 2
