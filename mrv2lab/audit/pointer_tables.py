"""Tables of addresses: integers on the device that lead into tensors. A replay follows what they hold."""

from collections.abc import Iterator, Mapping
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
    held: list[int]
    targets: list[str | None]


class Astray(NamedTuple):
    """An entry that leads into no tensor now: its table, what it led to, the address, and where that is."""

    table: Table
    target: str
    address: int
    now: int | None


def spans(named: Mapping[str, object]) -> Spans:
    """The memory of every tensor that can be reached, by path, the shortest paths first."""
    held = ((path, storage_or_none(tensor)) for path, tensor in names.walk(named))
    found = {path: (s.data_ptr(), s.nbytes()) for path, s in held if s is not None}
    return {path: range(begin, begin + num_bytes) for path, (begin, num_bytes) in found.items()}


def tables(named: Mapping[str, object], captures: list[Capture], at_capture: Spans) -> list[Table]:
    """Those that the captures read."""
    read = {storage for capture in captures for storage in capture.kept}
    found: list[Table] = []
    for path, tensor in names.walk(named):
        if tensor.dtype is torch.int64 and tensor.numel() <= _MOST and storage_of(tensor) in read:
            held = clone(tensor).flatten().tolist()
            targets = [_into(at_capture, value) for value in held]
            if any(targets):
                found.append(Table(path, tensor, held, targets))
    return found


def astray(known: list[Table], named: Mapping[str, object], *, is_null_meant: bool) -> Iterator[Astray]:
    """Entries that led somewhere at capture, and do not now; zero may be meant."""
    spans_now = spans(named) if known else {}
    for table in known:
        now = clone(table.tensor).flatten().tolist()
        for address, target in zip(now, table.targets, strict=True):
            is_null = is_null_meant and not address
            if target is not None and not is_null and _into(spans_now, address) is None:
                at = spans_now.get(target)
                yield Astray(table, target, address, at.start if at else None)


def _into(known: Spans, address: int) -> str | None:
    if address < _SMALLEST:
        return None
    return next((path for path, span in known.items() if address in span), None)
