"""What captures hold and a step does, as counted when it was last meant to change: no clock decides."""

import json
import os
from pathlib import Path

import pytest

from mrv2lab.cases import CASES

FILE = Path(__file__).with_name("costs.json")
APART = ("pp_eager_fallback",)  # its stages are processes of their own, where nobody counts
VARIANTS = [(case, v.name) for case in CASES if case not in APART for v in CASES[case].variants]


@pytest.fixture(scope="module")
def kept():
    """What was counted before; for `make costs`, which counts anew, without what is gone."""
    is_made_anew = os.environ.get("MRV2LAB_COSTS")
    counts = json.loads(FILE.read_text())
    if is_made_anew:
        there = [(case, name) for case, name in VARIANTS if name in counts.get(case, {})]
        counts = {case: {name: counts[c][name] for c, name in there if c == case} for case, _ in there}
    yield counts
    if is_made_anew:
        FILE.write_text(json.dumps(counts, indent=1) + "\n")


@pytest.mark.parametrize(("case", "variant"), VARIANTS)
def test_a_change_of_what_a_step_does_is_meant(run_and_costs, kept, case, variant):
    _, seen = run_and_costs(case, variant, "emulated")
    if os.environ.get("MRV2LAB_COSTS"):
        kept.setdefault(case, {})[variant] = seen
    assert kept[case][variant] == seen, "if this is meant: make costs, and say so in the commit"


def test_nothing_is_kept_of_what_is_gone(kept):
    assert sorted((case, name) for case, variants in kept.items() for name in variants) == sorted(VARIANTS)
