# paged attention; block tables kept as lists by the scheduler, a device mirror beside
import torch
import torch.nn.functional as F

BS, NB, D, MAXB = 4, 16, 8, 4
torch.manual_seed(1)


class Scheduler:
    def __init__(self):
        self.tables = {7: [3, 5, 0], 9: [1, 8, 2]}
        self.order = [7, 9]
        self.ticks = 0
        self.last_finished = "none"


sched = Scheduler()
kv = torch.randn(NB, BS, D, device="cpu")
q = torch.randn(2, D, device="cpu")
seq_lens = torch.tensor([9, 10], device="cpu")
table_dev = torch.tensor([[3, 5, 0, 0], [1, 8, 2, 0]], device="cpu")


def attend(i, rid):
    k = kv.index_select(0, table_dev[i]).reshape(-1, D)
    score = (k @ q[i]) / D**0.5
    pos = torch.arange(k.shape[0], device="cpu")
    score = torch.where(pos < seq_lens[i], score, torch.full_like(score, -1e9))
    return F.softmax(score, 0) @ k


def step():
    return torch.stack([attend(i, rid) for i, rid in enumerate(sched.order)])


def vary():
    sched.ticks += 1
    sched.last_finished = f"req-{sched.ticks}"
    q.copy_(torch.randn(2, D))
    seq_lens.add_(0)
    sched.tables[9][1] = (sched.tables[9][1] + 1) % NB
    table_dev[1, 1] = sched.tables[9][1]
