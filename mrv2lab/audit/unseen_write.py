"""A lost kernel that nobody has seen: something writes a tensor eagerly, and the graph does not.

An op in C++ may launch on a stream of its own, or a library through `ctypes`: no op and no launch is met.
Every tensor that the step can read is given a pattern; who loses it in an eager pass, and not in a replay,
although no work that was seen writes it, has been written by such a one.
"""

from functools import partial

from mrv2lab.audit import lost_kernel
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.memory import Saved, storage_of
from mrv2lab.audit.recorder import Recorder
from mrv2lab.audit.report import Finding
from mrv2lab.audit.results import lost, mark
from mrv2lab.errors import AuditError

RANK = 1
ASKED = "nothing"
_FEW = 1 << 16  # elements of a tensor that is looked at after each line


def find(evidence: Evidence) -> Findings:
    """Where each such tensor is written, by line."""
    if not evidence.differs or evidence.eager.replayed():
        return
    passes, traces = evidence.passes, [evidence.eager, *(capture.trace for capture in evidence.captures)]
    given = (tensor for trace in traces for event in trace.own() for tensor in event.tensors)
    written = {tensor.address for tensor in given if tensor.written}
    small = {storage_of(t): (path, t) for path, t in reversed(evidence.named) if 0 < t.numel() <= _FEW}
    unseen = {
        path: t for path, t in small.values() if t.data_ptr() not in written and evidence.session.on_device(t)
    }
    lines, run = dict[str, int](), set[str]()

    def look(which: int, recorder: Recorder, position: int) -> None:
        with recorder.silent():
            left = {path: t for path, t in unseen.items() if path not in lines}
            lines.update(dict.fromkeys(lost(left, which), position))

    try:
        with Saved(unseen.values()):
            for which in range(2):
                mark(unseen.values(), which)
                passes.eager(passed=partial(look, which))
                mark(unseen.values(), which)
                passes.run()
                run |= lost(unseen, which).keys()
        left_alone = lines.keys() - run
    except AuditError:  # a pattern is no input that every step can go on with
        return
    for path in sorted(left_alone, key=lines.__getitem__):
        at, place = evidence.at(lines[path])
        text = "written in an eager pass by work that no audit can see, and not by the graph"
        yield at, Finding(lost_kernel.KIND, path, text, place)
