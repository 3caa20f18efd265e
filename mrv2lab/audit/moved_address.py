"""moved-address: the graph goes on using an address that is no longer the one the caller passes."""

from collections.abc import Iterator
from itertools import islice

from mrv2lab.audit import names
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.frozen_host_value import chooser, picked_another
from mrv2lab.audit.left_behind import setter
from mrv2lab.audit.memory import clone, strides
from mrv2lab.audit.passes import Passes
from mrv2lab.audit.report import Finding
from mrv2lab.audit.trace import Event, TensorArgument, Trace

KIND, SHORT, RANK = "moved-address", "addr", 1
ASKED = "always"


def find(evidence: Evidence) -> Findings:
    """Tensors from outside of the step that lie elsewhere now than where the graph reads or writes. Where
    results agree, those whose old memory nobody owns any more: that is wrong all the same."""
    is_found = False
    for order, old, finding in moved(evidence):
        if evidence.differs:
            is_found = True
            yield order, finding
            continue
        is_gone = evidence.path(old.address) is None and not evidence.is_owned(old.address)
        is_gone &= not any(old.address in span for span in evidence.passes.by_reset)
        if is_gone and any(name == finding.subject for name, _ in evidence.named):
            yield order, finding
    for finding in in_tables(evidence.passes):
        yield 0, finding
    if not evidence.repeats and not is_found:
        yield from islice(carried(evidence), 1)


def carried(evidence: Evidence) -> Findings:
    """State that each step binds anew for the next one, which two eager passes find elsewhere: a replay binds
    nothing."""
    for event in (event for capture in evidence.captures for event in capture.trace.own()):
        first = evidence.eager.get(event.key)
        second = evidence.again.get(event.key) if evidence.again else None
        if first is None or second is None:
            continue
        moved = {tensor.label for tensor, _ in first.elsewhere_in(second)}
        for _, new in (pair for pair in event.elsewhere_in(first) if pair[1].label in moved):
            name = names.into(evidence.passes.at_capture, new.address)  # what the capture has left there
            at, place, target = setter(evidence.eager, name) if name else (0, None, "")
            is_written = target.endswith("]") and not (name or "").endswith("]")  # into it: nothing is bound
            if place is not None and not is_written:
                text = "the step binds it to another tensor each time, and a replay binds nothing: "
                text += f"{event.name} goes on reading the one of the capture"
                yield at, Finding(KIND, target, text, place)


def in_tables(passes: Passes, *, is_null_meant: bool = True) -> Iterator[Finding]:
    """Addresses that a table holds and that lead nowhere any more; zero may be meant."""
    known = names.spans(passes.engine.roots) if passes.tables else {}
    held = ((table, clone(table.tensor).flatten().tolist()) for table in passes.tables)
    entries = ((table, *both) for table, now in held for both in zip(now, table.targets, strict=True))
    for table, address, target in entries:
        is_null = is_null_meant and not address
        if target is None or is_null or names.into(known, address) is not None:
            continue
        subject = table.path
        text = f"the graph reads addresses in it; that of {target} is 0x{address:x} there now"
        text += ", where nothing is"
        if target in known and address in passes.at_capture[target]:
            subject, text = target, f"{table.path} holds 0x{address:x} of it, which the graph reads"
            text += f"; it is at 0x{known[target].start:x} now"
        reads = (
            capture.trace.place(event)
            for capture in passes.captures
            for event in capture.trace.own()
            if any(tensor.address == table.tensor.data_ptr() for tensor in event.tensors)
        )
        yield Finding(KIND, subject, text, next(reads, None))


def moved(evidence: Evidence) -> Iterator[tuple[int, TensorArgument, Finding]]:
    """Each with what the graph uses, also where that is no fault."""
    for captured, event, trace in evidence.pairs():
        if event.sort == "view" or len(captured.tensors) != len(event.tensors):
            continue  # whoever reads a view is met later
        for old, new in captured.tensors_with(event):
            if old is None or new is None or old.is_own or not (old.address and new.address):
                continue  # what holds nothing lies nowhere
            if (name := _name(evidence, event, old, new, trace)) is not None:
                text = f"{event.name} reads or writes 0x{old.address:x} in the graph"
                text += f"; {name} is at 0x{new.address:x} now" + ", with other strides" * (
                    old.address == new.address
                )
                if place := evidence.let_go(old.address):
                    text += f", bound anew at {place}"
                where, change = evidence.eager.place(event), (old.address, new.address)
                yield evidence.eager.when(event), old, Finding(KIND, name, text, where, change)


def _name(
    evidence: Evidence, event: Event, old: TensorArgument, new: TensorArgument, trace: Trace
) -> str | None:
    """What has moved; None where it is another part of the same memory, or a host value chose it."""
    if old.address == new.address:
        if old.shape != new.shape or old.stride == new.stride:
            return None
        begin, then = evidence.passes.begin, evidence.passes.strides
        here = ((p, t) for p, t in evidence.named if t.data_ptr() == begin.get(p) and strides(t) != then[p])
        return (names.at(here, new.address) or (None,))[0]
    if new.is_own:  # made in this very pass; unless it took the place of the old one, it is a temporary
        if (found := evidence.path(new.address)) is None:
            return None
        path, _ = found
        return path if old.address in evidence.passes.at_capture.get(path, ()) else None
    if picked_another(evidence, event, old, new) and chooser(evidence, event, trace):
        return None
    if (found := evidence.path(new.address)) is not None:
        before = evidence.path(old.address)
        is_part = before is not None and before[1] is found[1]
        return _bound_anew(evidence, old, new) if is_part else found[0]
    name = evidence.eager.moved.get((event.key, new.label))
    is_fetched = name is not None and name.isidentifier() and not evidence.repeats  # another one each time
    return None if is_fetched else name


def _bound_anew(evidence: Evidence, old: TensorArgument, new: TensorArgument) -> str | None:
    """What was a view of the same memory at capture already, of the part that the graph uses."""
    begin, by = evidence.passes.begin, new.address - old.address
    moved = [(p, new.address - t.data_ptr()) for p, t in evidence.named if t.data_ptr() - by == begin.get(p)]
    inside = [(offset, path) for path, offset in moved if offset >= 0]
    return min(inside, default=(0, None), key=lambda found: found[0])[1]
