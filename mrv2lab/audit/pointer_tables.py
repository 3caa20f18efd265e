"""Tables of addresses: integers on the device that lead into tensors. A replay follows what they hold."""

from typing import NamedTuple

import torch

from mrv2lab.audit import names
from mrv2lab.audit.memory import clone, storage_of
from mrv2lab.audit.recorder import Capture
from mrv2lab.graphs.memory import storage_or_none

_MOST = 4096  # entries
_SMALLEST = 1 << 16  # address that a system lends

Spans = dict[str, range]


class Table(NamedTuple):
    """A tensor that held addresses at capture; for each entry what that led to, or None."""

    path: str
    tensor: torch.Tensor
    targets: list[str | None]


def spans(named: names.Named) -> Spans:
    """The memory of every tensor that can be reached, by path, the shortest paths first."""
    held = ((path, storage_or_none(tensor)) for path, tensor in names.walk(named))
    return {path: range(s.data_ptr(), s.data_ptr() + s.nbytes()) for path, s in held if s is not None}


def tables(named: names.Named, captures: list[Capture], at_capture: Spans) -> list[Table]:
    """Those that the captures read."""
    read = {storage for capture in captures for storage in capture.kept}
    found: list[Table] = []
    for path, tensor in names.walk(named):
        if tensor.dtype is torch.int64 and tensor.numel() <= _MOST and storage_of(tensor) in read:
            targets = [into(at_capture, value) for value in clone(tensor).flatten().tolist()]
            if any(targets):
                found.append(Table(path, tensor, targets))
    return found


def into(known: Spans, address: int) -> str | None:
    """The path to the tensor that an address leads into."""
    if address < _SMALLEST:
        return None
    return next((path for path, span in known.items() if address in span), None)
