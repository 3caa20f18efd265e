"""A stale input that the step makes itself: Python fills memory of the host's, and a graph copies from there.

A replay runs no Python, and copies what that memory holds by then. It is the cause where the replay is right
once it holds what an eager step writes there, by whatever means: numpy tells nobody.
"""

from functools import partial

import torch

from mrv2lab.audit import stale_input
from mrv2lab.audit.evidence import Evidence, Findings
from mrv2lab.audit.memory import Saved, clone, put, storage_of
from mrv2lab.audit.recorder import Recorder
from mrv2lab.audit.report import Finding
from mrv2lab.audit.results import agree, lost, mark
from mrv2lab.errors import AuditError

RANK = 1
ASKED = "nothing"
_FEW = 1 << 16  # elements of a tensor that is looked at after each line


def find(evidence: Evidence) -> Findings:
    """Where each such tensor is written, by line."""
    if not evidence.differs or evidence.eager.replayed():
        return
    passes, read = evidence.passes, {at for one in evidence.captures for at in one.kept}
    named = ((path, t) for path, t in evidence.named if storage_of(t) in read and 0 < t.numel() <= _FEW)
    hosts = {path: t for path, t in named if not evidence.session.on_device(t)}
    lines, written, held = dict[str, int](), dict[str, torch.Tensor](), dict[str, torch.Tensor]()

    def look(which: int, recorder: Recorder, position: int) -> None:
        with recorder.silent():
            for path, mask in lost(hosts, which).items():
                lines.setdefault(path, position)
                written[path] = mask | written.get(path, mask)
            held.update({path: clone(hosts[path]) for path in lines})

    before = {path: clone(tensor) for path, tensor in hosts.items()}
    try:
        with Saved(hosts.values()):
            for which in range(2):
                mark(hosts.values(), which)
                passes.eager(passed=partial(look, which))
        wanted = {path: torch.where(written[path], held[path], before[path]) for path in lines}
        as_eager = partial(put, [(hosts[path], content) for path, content in wanted.items()])
        served = passes.run(before=as_eager, writes=[hosts[path] for path in wanted]) if wanted else None
    except AuditError:  # a pattern is no input that every step can go on with
        return
    if served is None or not agree(served.results, evidence.results.eager):
        return
    for path in sorted(lines, key=lines.__getitem__):
        at, place = evidence.at(lines[path])
        text = "the host writes it in each step, and a replay copies what it holds by then"
        yield at, Finding(stale_input.KIND, path, text, place)
