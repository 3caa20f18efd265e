"""Greedy rejection sampler whose draft length adapts to the acceptance rate."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, MAX_DRAFT, VOCAB, DIM = 4, 5, 12, 8
PLACEHOLDER = -1


class DraftController:
    def __init__(self):
        self.k = 2
        self.history = []

    def update(self, mean_accepted):
        self.history.append(mean_accepted)
        if mean_accepted >= self.k - 0.5:
            self.k = min(self.k + 1, MAX_DRAFT)
        elif mean_accepted < 0.4 * self.k:
            self.k = max(self.k - 1, 1)


class RejectionSampler:
    """Accepts the longest prefix of the draft that equals the target argmax."""

    def __call__(self, target_logits, draft_ids, num_draft):
        target = target_logits.argmax(-1)  # [rows, MAX_DRAFT + 1]
        alive = torch.ones(ROWS, dtype=torch.bool, device=DEVICE)
        out = torch.full((ROWS, MAX_DRAFT + 1), PLACEHOLDER, dtype=torch.long, device=DEVICE)
        accepted = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)
        for pos in range(draft_ids.shape[1]):
            proposed = alive & (num_draft > pos)
            match = proposed & (draft_ids[:, pos] == target[:, pos])
            out[:, pos] = torch.where(alive, target[:, pos], out[:, pos])
            accepted += match
            alive = alive & match
        out[:, MAX_DRAFT] = torch.where(alive, target[:, MAX_DRAFT], out[:, MAX_DRAFT])
        return out, accepted


class SpecDecodeWorker:
    def __init__(self):
        gen = torch.Generator().manual_seed(251)
        self.controller = DraftController()
        self.rejection = RejectionSampler()
        self.head = torch.randn(DIM, VOCAB, generator=gen).to(DEVICE)
        self.hidden = torch.zeros(ROWS, MAX_DRAFT + 1, DIM, device=DEVICE)
        self.draft_ids = torch.full((ROWS, MAX_DRAFT), PLACEHOLDER, dtype=torch.long, device=DEVICE)
        self.num_draft = torch.zeros(ROWS, dtype=torch.long, device=DEVICE)
        self.gen = torch.Generator().manual_seed(252)
        self.propose()

    def propose(self):
        """The draft model: right three times out of four."""
        k = self.controller.k
        self.hidden.copy_(torch.randn(ROWS, MAX_DRAFT + 1, DIM, generator=self.gen))
        best = (self.hidden @ self.head).argmax(-1)[:, :k]
        miss = (torch.rand(ROWS, k, generator=self.gen) < 0.25).to(DEVICE)
        self.draft_ids.fill_(PLACEHOLDER)
        self.draft_ids[:, :k].copy_(torch.where(miss, (best + 1) % VOCAB, best))
        self.num_draft.fill_(k)
        self.num_draft[ROWS - 1] = max(0, k - 2)

    def verify(self):
        logits = self.hidden @ self.head
        return self.rejection(logits, self.draft_ids, self.num_draft)


worker = SpecDecodeWorker()
_rates = iter([1.9, 2.8, 3.9, 0.5, 0.2, 2.7])


def step():
    return worker.verify()


def vary():
    worker.controller.update(next(_rates))
    worker.propose()
