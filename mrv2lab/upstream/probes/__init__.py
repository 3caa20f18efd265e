"""One probe for each case, under the case's name. They run only in a process of their own."""

import sys
from importlib import import_module
from typing import cast

from mrv2lab.source import Diff
from mrv2lab.upstream import releases, unfix
from mrv2lab.upstream.probe import Probe


def get(case: str) -> Probe:
    """The probe of this case."""
    return cast(Probe, import_module(f"mrv2lab.upstream.probes.{case}").PROBE)


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
