"""One probe for each case, under the case's name. They run only in a process of their own."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import cast

from mrv2lab.errors import BadInput
from mrv2lab.source import Diff
from mrv2lab.upstream import releases, unfix
from mrv2lab.upstream.probe import Probe


def get(case: str) -> Probe:
    """The probe of this case. BadInput where nobody has written it."""
    name = f"{__name__}.{case}"
    probe = getattr(import_module(name), "PROBE", None) if find_spec(name) else None
    if probe is None:
        raise BadInput(f"rung source of {case} needs a PROBE in mrv2lab/upstream/probes/{case}.py")
    return cast(Probe, probe)


def diff(case: str, variant: str) -> Diff:
    """What a variant changes in vLLM's source, made from the reader's own copy. Empty if it is as released.

    Raises:
        ReleaseUnavailable: the copy is neither in the cache nor in reach.
        SourceChanged: the copy is not what the variant was written for.
    """
    wanted = get(case).variants[variant]
    path = str(releases.fetch(wanted.release).path)
    sys.path.insert(0, path)
    try:
        return unfix.diff(*wanted.edits)
    finally:
        sys.path.remove(path)
