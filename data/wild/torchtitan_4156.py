"""Pre-training on packed documents could not be captured: attention over sequences of different lengths
needs their offsets and the longest of them. Where documents begin was found with `nonzero`, and the
longest by reading a maximum back; both wait for the device. The repair computes the offsets with a
cumulative sum, into as many entries as there can be documents, and gives the length of the pack as the
longest.
"""

from types import SimpleNamespace

import torch

PROJECT = "torchtitan"
LINK = "https://github.com/pytorch/torchtitan/pull/4156"
MECHANISM = "host-sync"
CAUSE = "nonzero"
LINE = "begins = torch.nonzero(positions == 0).flatten()"
EXECUTORS = ("emulated", "cuda")

SEQ_LEN, MAX_DOCUMENTS = 12, 6


def offsets(positions: torch.Tensor) -> torch.Tensor:
    """[documents + 1]"""
    begins = torch.nonzero(positions == 0).flatten()
    return torch.cat([begins, begins.new_full((1,), SEQ_LEN)])


def static_offsets(positions: torch.Tensor) -> torch.Tensor:
    """[MAX_DOCUMENTS + 1]; documents that are not there are empty."""
    document = (positions == 0).cumsum(0)  # of each token, from 1
    numbers = torch.arange(1, MAX_DOCUMENTS + 2, device=positions.device)
    return (document[None] < numbers[:, None]).sum(1)


def program(fixed: bool, device: torch.device) -> SimpleNamespace:
    positions = torch.arange(SEQ_LEN, device=device)
    values = torch.ones(SEQ_LEN, device=device)
    packs = iter([[5, 7], [3, 3, 6], [12], [1, 2, 3, 4, 2]] * 3)

    def varlen_attention() -> torch.Tensor:
        cu_seqlens = static_offsets(positions) if fixed else offsets(positions)
        document = torch.bucketize(torch.arange(SEQ_LEN, device=device), cu_seqlens[1:], right=True)
        is_seen = (document[:, None] == document[None]).tril()
        return (values[None] * is_seen).sum(1) / is_seen.sum(1)

    def vary() -> None:
        positions.copy_(torch.cat([torch.arange(length) for length in next(packs)]))
        values.add_(torch.arange(1.0, SEQ_LEN + 1, device=device))

    return SimpleNamespace(step=varlen_attention, vary=vary)
