"""Who has written the memory that a pass sees: what `empty` handed out, and what was computed from it."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from mrv2lab.audit import names
from mrv2lab.audit.memory import Allocation, Shadow
from mrv2lab.audit.ops import Given, Schema
from mrv2lab.audit.trace import Event


class UnwrittenIndex(BaseException):
    """Stops a pass before work that would address memory by a value nobody wrote. Never leaves the audit. Not
    an `Exception`, so that code under audit does not catch it."""

    def __init__(self, subject: str, reader: str, position: int, allocated: int | None):
        super().__init__(subject)
        self.subject, self.reader, self.position, self.allocated = subject, reader, position, allocated


Source = tuple[int, Allocation | None]
"""Memory that nobody wrote: where it begins, and who asked for it, if that was in this pass."""


@dataclass
class Writers:
    """What has been written of the memory that nobody had written."""

    _uncomputed: Mapping[int, object]  # memory of captures that no replay has computed yet
    _earlier: Mapping[int, Shadow]  # memory of other passes that nobody has written
    _any_write: bool  # what is worked out from unwritten memory counts as written too
    # what was read and by nobody written, by turn; of other passes by -1 - turn
    read: dict[int, Allocation] = field(default_factory=dict)
    _shadows: dict[int, Shadow] = field(default_factory=dict)
    _garbage: dict[int, Source] = field(default_factory=dict)  # computed from unwritten memory

    def lend(self, storage: int, shadow: Shadow | None = None) -> None:
        """Memory is lent anew: with a shadow, nobody has written it."""
        self._garbage.pop(storage, None)
        self._shadows.pop(storage, None)
        if shadow is not None:
            self._shadows[storage] = shadow

    def forget(self, storages: Iterable[int]) -> None:
        """This is no memory of the pass any more."""
        for storage in storages:
            self._shadows.pop(storage, None)

    def compute(self, storage: int) -> None:
        """What it holds is no garbage any more."""
        self._garbage.pop(storage, None)

    def write(self, storage: int, tensor: torch.Tensor | None) -> None:
        """Somebody has written this; without a tensor, a kernel, and which elements only the device knows."""
        self.compute(storage)
        for shadows in (self._shadows, self._earlier):
            if storage in shadows:
                shadows[storage].note_write(tensor)

    def note_read(self, given: Given) -> None:
        """Somebody reads this. A kernel may leave out what nobody wrote."""
        own = self._shadows.get(given.storage)
        shadow = own or self._earlier.get(given.storage)
        if shadow is not None:
            turn = shadow.allocation.cell if own else -1 - shadow.allocation.cell
            if turn not in self.read and not shadow.is_written(given.tensor):
                self.read[turn] = shadow.allocation

    def carry(self, made: Iterable[int], tensors: list[Given], in_capture: bool) -> None:
        """What was made of these tensors is garbage if one of them is."""
        sources = (self.source(g, in_capture) for g in tensors if not g.written or g.label == "self")
        if (found := next((source for source in sources if source is not None), None)) is not None:
            self._garbage.update(dict.fromkeys(made, found))

    def source(self, given: Given, in_capture: bool) -> Source | None:
        """The memory that somebody who reads this reads, and that nobody wrote."""
        if given.storage in self._garbage:
            return self._garbage[given.storage]
        shadow = self._shadows.get(given.storage)
        if shadow is not None and not shadow.is_written(given.tensor):
            return given.storage, shadow.allocation
        if not in_capture and given.storage in self._uncomputed:
            return given.storage, None
        return None

    def leaves_garbage(
        self, schema: Schema, tensor: torch.Tensor, tensors: list[Given], in_capture: bool
    ) -> bool:
        """Whether what an op writes is as much garbage as it was before, or as what it copies. An index that
        an op in place bounds is none. `t[:4] += x` ends with a copy of `t[:4]` onto itself."""
        if self._any_write:
            return False
        if schema.name == "aten.copy_":
            return any(self.source(given, in_capture) is not None for given in tensors[1:])
        return schema.is_update and (schema.keeps_garbage or tensor.is_floating_point())

    def refuse_garbage(self, event: Event, given: Given, in_capture: bool) -> None:
        """Before work that addresses memory by a tensor. UnwrittenIndex: nobody has written it."""
        if (found := self.source(given, in_capture)) is None:
            return
        if event.sort == "launch" and given.storage not in self._uncomputed:
            shadow = self._shadows.get(given.storage)
            if shadow is None or shadow.written.any():  # which part of it a kernel reads, its mask decides
                return
        storage, allocation = found
        name = names.in_frames(storage, sys._getframe(2)) or "a temporary"
        position = allocation.position if allocation else None
        raise UnwrittenIndex(name, event.name, event.key[0], position)
