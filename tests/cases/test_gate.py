"""The admission gate: on every rung each variant shows its stated verdict, and why is in the record."""

import pytest

from mrv2lab.cases import CASES

VARIANTS = [(case.name, variant) for case in CASES.values() for variant in case.variants]


each_variant = pytest.mark.parametrize(("case", "variant"), VARIANTS, ids=lambda v: getattr(v, "name", v))


@each_variant
def test_every_variant_shows_its_stated_verdict(run_once, case, variant, backend):
    judge(run_once(case, variant.name, backend), variant)


@pytest.mark.slow
@each_variant
def test_every_variant_shows_it_at_the_cases_own_shape(case, variant, backend):
    judge(CASES[case].run(variant.name, rung=backend), variant)


def judge(run, variant):
    assert run.verdict == variant.expected, run.message
    if variant.role in ("baseline", "fixed"):
        assert run.verdict == "correct"  # which means: within rounding of the eager reference, in every step
        assert run.max_error < 1e-3 and len(run.errors) >= 10
    else:
        assert run.verdict != "correct"
    assert (run.message is not None) == (run.verdict == "crash")


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_graphs_run_where_they_are_asked_for_and_right(run_once, case, backend):
    for variant in case.variants:
        run = run_once(case.name, variant.name, backend)
        if run.verdict == "correct" and variant.uses_graphs:
            assert "graph" in run.step_modes
        if run.verdict == "eager" or not variant.uses_graphs:
            assert "graph" not in run.step_modes
