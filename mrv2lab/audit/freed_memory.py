"""freed-memory: a graph reads memory of which nobody is the owner any more: others are lent it next."""

import gc
from collections.abc import Sequence
from functools import cache
from itertools import islice

import torch

from mrv2lab.audit import frozen_host_value, lost_kernel, moved_address
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.memory import num_owners, storage_of
from mrv2lab.audit.names import Ranges
from mrv2lab.audit.recorder import Capture
from mrv2lab.audit.report import Finding
from mrv2lab.audit.trace import Event, TensorArgument

KIND, SHORT, RANK = "freed-memory", "freed", 4
ASKED = "always"


def find(evidence: Evidence) -> Findings:
    """What somebody has put another tensor in place of has moved, and is told so. Work that makes it anew in
    the eager pass is lost for this reason, unless a host value has decided that."""
    is_chosen = cache(lambda: any(frozen_host_value.find(evidence)))  # to look takes as long as a pass
    is_lost = cache(lambda: any(lost_kernel.find(evidence)))
    moved = {old.address for _, old, _ in moved_address.moved(evidence)}
    reached = {storage_of(tensor) for _, tensor in evidence.named}
    suspects = [
        (capture, memory)
        for capture, memory in evidence.read_by_graphs()
        if memory.data_ptr() in capture.owned - reached
        and any(one is capture for one in evidence.replayed)  # others may be gone with the memory
    ]
    if any(num_owners(memory) for _, memory in suspects):
        gc.collect()  # what nobody reaches owns nothing
    work = {
        id(one): _reads(one, [memory for by, memory in suspects if by is one]) for one in evidence.captures
    }
    for capture, memory in suspects:
        begin = memory.data_ptr()
        if num_owners(memory):
            continue
        is_resets = any(begin in span for span in evidence.passes.by_reset)
        if is_resets and evidence.differs and (is_chosen() or is_lost()):
            continue  # what is to be made anew was not: that is why it is read
        if is_resets and not evidence.differs:
            note = f"reset lets go of memory that the graph reads, at {evidence.let_go(begin)}: wrong if done"
            evidence.passes.notes.append(f"{note} between replays")
            continue
        reads = ((event, read) for event, read in work[id(capture)][begin] if read.address not in moved)
        for event, read in islice(reads, 1):
            name = capture.called[begin] or f"a tensor of shape {list(read.shape)}"
            text = told(capture, begin)
            twin = evidence.eager.get(event.key)
            at = evidence.eager.when(twin) if twin else evidence.order(event.key[0])
            if not (evidence.differs and is_chosen()):
                at = -1
            yield at, Finding(KIND, name, text, capture.trace.place(event))


def _reads(
    capture: Capture, memories: Sequence[torch.UntypedStorage]
) -> dict[int, list[tuple[Event, TensorArgument]]]:
    """By where memory begins the work of a capture that reads it, each with the first tensor there."""
    begins = [memory.data_ptr() for memory in memories]
    held = Ranges((range(at, at + memory.nbytes()), at) for at, memory in zip(begins, memories, strict=True))
    found: dict[int, list[tuple[Event, TensorArgument]]] = {at: [] for at in begins}
    for event in (event for event in capture.trace.own() if event.is_work):
        first: dict[int, TensorArgument] = {}
        for tensor in event.tensors:
            if (at := held.at(tensor.address)) is not None:
                first.setdefault(at, tensor)
        for at, tensor in first.items():
            found[at].append((event, tensor))
    return found


def told(capture: Capture, begin: int) -> str:
    """Words for memory of which nobody is the owner any more."""
    text = f"the graph reads it at 0x{begin:x}, and nobody keeps it any more: what is allocated"
    end = capture.let_go.get(begin)
    return text + " next may lie there" + (f". Its last owner let go at {end}" if end else "")
