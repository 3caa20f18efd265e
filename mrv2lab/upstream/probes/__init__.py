"""One probe for each case, under the case's name. Imported only in a probe's process."""

from importlib import import_module
from typing import cast

from mrv2lab.upstream.probe import Probe


def get(case: str) -> Probe:
    """The probe of this case."""
    return cast(Probe, import_module(f"mrv2lab.upstream.probes.{case}").PROBE)
