"""Watches functions that prepare the LoRA metadata of a dummy batch.

That of a dummy run is the seam of two cases, that of each pass of a capture the seam of a third.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch

from mrv2lab.cases.exercises.base import Observed
from mrv2lab.cases.exercises.watch import Watch
from mrv2lab.graphs import is_host, mode
from mrv2lab.graphs.mode import DispatchMode
from mrv2lab.results import Run
from mrv2lab.runner import InputBatch, LoRAMapping, LoRAModelManager
from mrv2lab.runner.lora_kernel_metadata import LoRAKernelMeta
from mrv2lab.runner.punica_wrapper import PunicaWrapper

_TORCH, _PACKAGE = Path(torch.__file__).parent, Path(__file__).parents[2]

TOKENS, PROMPTS = "token_mapping_meta", "prompt_mapping_meta"
FLAG, INDICES = "no_lora_flag_cpu", "_embeddings_indices"


@dataclass(frozen=True)
class Write:
    """One write into memory, while the function ran."""

    what: str | None  # `token_mapping_meta.no_lora_flag_cpu`, ...; None: no adapter metadata lies there
    dtype: torch.dtype  # of the tensor
    by_reader: bool  # from the reader's own line, not from a function that it called


@dataclass
class Dummy:
    """One dummy batch, as the function has left it."""

    num_tokens: int
    num_reqs: int
    max_num_tokens: int  # that there is room for
    slots_before: list[int | None]  # adapter ids by slot
    key: int | None = None  # adapters that the key of a captured graph speaks of; None for a dummy run
    mapping: LoRAMapping | None = None  # the last one that was programmed, or tried
    flags: dict[str, bool] = field(default_factory=dict)  # `no_lora_flag_cpu`, by kind of metadata
    counts: dict[str, int] = field(default_factory=dict)  # `num_active_loras_cpu`, the same
    # kinds of metadata whose flag is now another tensor, and whether it is marked as the host's; None for
    # what is no tensor
    rebound: dict[str, bool | None] = field(default_factory=dict)
    slots: list[int | None] = field(default_factory=list)
    rows_in_table: int = 0  # leading tokens whose entry of `_embeddings_indices` lies in that of all adapters
    writes: list[Write] = field(default_factory=list)  # in order

    @property
    def strangers(self) -> list[int]:
        """Adapters that the mapping names and that are in no slot."""
        wanted = self.mapping.index_mapping + self.mapping.prompt_mapping if self.mapping else ()
        return sorted(set(wanted) - {0} - set(self.slots))

    @property
    def new_adapters(self) -> list[int]:
        """Adapters that the function has put into slots."""
        return sorted({i for i in self.slots if i} - {i for i in self.slots_before if i})

    def stray(self, dtypes: set[torch.dtype]) -> bool:
        """The reader wrote into memory of these types that nobody reads."""
        return any(w.by_reader and w.what is None and w.dtype in dtypes for w in self.writes)

    def undone(self, what: str) -> bool:
        """The reader wrote this, and a function that was called later wrote it again."""
        mine = [i for i, w in enumerate(self.writes) if w.what == what and w.by_reader]
        others = [i for i, w in enumerate(self.writes) if w.what == what and not w.by_reader]
        return bool(mine and others) and max(others) > max(mine)


class DummyLoRAWatch(Watch):
    """Notes every dummy batch that the function is called for."""

    def __init__(self, fn: Callable[..., Any]):
        super().__init__(fn)
        self.batches: list[Dummy] = []  # in order

    @property
    def last(self) -> Dummy | None:
        """The one before the end: what it left, capture finds; or the one that failed."""
        return self.batches[-1] if self.batches else None

    @contextmanager
    def watching(self, *args: Any) -> Iterator[tuple[Any, ...]]:
        manager: LoRAModelManager = args[0]
        input_batch: InputBatch = args[1]
        (wrapper,) = manager.punica_wrapper_mapping.values()
        batch = Dummy(
            num_tokens=input_batch.num_tokens_after_padding,
            num_reqs=input_batch.num_reqs,
            max_num_tokens=len(wrapper._embeddings_indices),
            slots_before=list(manager.lora_index_to_id),
            key=args[2] if len(args) > 2 else None,
        )
        self.batches.append(batch)
        before = {kind: getattr(wrapper, kind).no_lora_flag_cpu for kind in (TOKENS, PROMPTS)}
        batch.flags = dict.fromkeys(before, True)
        update = wrapper.update_metadata

        def noted(mapping: LoRAMapping, lora_index_to_id: list[int | None]) -> None:
            batch.mapping = mapping
            update(mapping, lora_index_to_id)

        try:
            writes = _Writes(batch, _memory_of(wrapper), self.fn)
            with mock.patch.object(wrapper, "update_metadata", noted), writes:
                yield args
        finally:
            _look(batch, manager, wrapper, before)

    def adapter_in_no_slot(self, run: Run) -> Observed:
        """A mistake in every seam of this kind."""
        if (last := self.last) and last.strangers and run.raised:
            yield "adapter_in_no_slot", {"strangers": last.strangers, "slots": last.slots}


def _look(
    batch: Dummy, manager: LoRAModelManager, wrapper: PunicaWrapper, before: dict[str, torch.Tensor]
) -> None:
    """What the host and the device would read now."""
    for kind in (TOKENS, PROMPTS):
        meta: LoRAKernelMeta = getattr(wrapper, kind)
        flag: Any = meta.no_lora_flag_cpu
        batch.flags[kind] = bool(flag)
        batch.counts[kind] = int(meta.num_active_loras_cpu)
        if flag is not before[kind]:
            is_tensor = isinstance(flag, torch.Tensor)
            batch.rebound[kind] = flag.device.type == "cpu" and is_host(flag) if is_tensor else None
    batch.slots = list(manager.lora_index_to_id)
    rows = wrapper._embeddings_indices[: batch.num_tokens].tolist()
    in_table = [0 <= row < len(batch.slots) * wrapper.vocab_size for row in rows]
    batch.rows_in_table = in_table.index(False) if False in in_table else len(in_table)


def _memory_of(wrapper: PunicaWrapper) -> dict[int, str]:
    """Where the metadata lies: address of the memory to its name."""
    tensors = {INDICES: wrapper._embeddings_indices}
    for kind in (TOKENS, PROMPTS):
        held = vars(getattr(wrapper, kind)).items()
        tensors |= {f"{kind}.{name}": value for name, value in held if isinstance(value, torch.Tensor)}
    return {tensor.untyped_storage().data_ptr(): name for name, tensor in tensors.items()}


class _Writes(DispatchMode):
    """Notes what is written in place, and by whom."""

    def __init__(self, batch: Dummy, memory: dict[int, str], fn: Callable[..., Any]):
        super().__init__()
        self.batch, self.memory = batch, memory
        self.file = getattr(getattr(fn, "__code__", None), "co_filename", None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        __tracebackhide__ = True  # an error belongs to the line that asked for the op
        if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            what = self.memory.get(args[0].untyped_storage().data_ptr())
            self.batch.writes.append(Write(what, args[0].dtype, self._is_readers(sys._getframe(1))))
        return func(*args, **(kwargs or {}))

    def _is_readers(self, frame: FrameType | None) -> bool:
        """Whether the innermost line outside of torch and of the mode itself is the reader's own."""
        while frame is not None and (
            Path(frame.f_code.co_filename).is_relative_to(_TORCH) or frame.f_code.co_filename == mode.__file__
        ):
            frame = frame.f_back
        file = frame.f_code.co_filename if frame else ""
        return file == self.file or not Path(file).is_relative_to(_PACKAGE)
