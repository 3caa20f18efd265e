"""Probes and cases know the same variants. Modules of probes import nothing of vLLM, so this needs none."""

import pytest

from mrv2lab.cases import CASES
from mrv2lab.upstream import probes


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_probe_has_the_variants_of_its_case(case):
    probe = probes.get(case.name)
    assert {v.name for v in case.variants} == set(probe.variants)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fixes_run_as_released_and_bugs_are_edits(case):
    variants = probes.get(case.name).variants
    edited = {name for name, variant in variants.items() if variant.edits}
    buggy, fixed = ({v.name for v in case.variants if v.role == role} for role in ("buggy", "fixed"))
    assert not fixed & edited
    assert buggy - {"whole_graph"} <= edited  # that one is a model of the reader's without a decorator


@pytest.mark.parametrize("case", CASES)
def test_rows_of_a_bug_have_names_of_their_own(case):
    names = [row.name for row in probes.get(case).rows]
    assert names and len(set(names)) == len(names)
    assert len(names) == 1 or all(names)
