"""Probes and cases know the same variants. Modules of probes import nothing of vLLM, so this needs none."""

import pytest

from mrv2lab.cases import CASES
from mrv2lab.upstream import probes
from mrv2lab.upstream.outcome import Outcome
from mrv2lab.upstream.probes.lora_model import start_up_metrics

METRICS = {"graphs_per_step": 3.0, "decorated_ops": 4.0, "graphs_captured": 4.0} | start_up_metrics([[-1]])
ROWS = [
    pytest.param(case, row, id=f"{case.name}{row.name and '-'}{row.name}")
    for case in CASES.values()
    for row in probes.get(case.name).rows
]


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


@pytest.mark.parametrize(("case", "row"), ROWS)
def test_a_release_is_buggy_by_the_verdicts_of_the_cases_buggy_variants(case, row):
    assert set(row.bug) == {v.expected for v in case.variants if v.role == "buggy"}
    told = {v: row.tell(Outcome(verdict=v, errors=[0.5], metrics=METRICS))[0] for v in (*row.bug, "correct")}
    assert told == dict.fromkeys(row.bug, "buggy") | {"correct": "fixed"}


def told(case, **seen):
    return probes.get(case).rows[0].tell(Outcome(verdict="correct", errors=[0.0], **seen))


@pytest.mark.parametrize(
    ("mappings", "assert_", "short_circuit"),
    [
        ([], "replaced", "not there"),
        ([[-1, -1]], "fixed", "fixed"),
        ([[-1, -1], [0, 2, 2, -1]], "replaced", "replaced"),
    ],
)
def test_how_a_release_is_right_follows_from_the_mappings_of_its_start_up(mappings, assert_, short_circuit):
    metrics = start_up_metrics(mappings)
    assert told("lora_device_assert", metrics=metrics)[0] == assert_
    assert told("lora_short_circuit", metrics=metrics)[0] == short_circuit


def test_adapters_of_start_up_are_counted():
    counted = start_up_metrics([[-1, -1], [0, 2, 2, -1], [1]])
    assert counted == {"start_up_mappings": 3, "start_up_adapters": 2}


def test_attentions_in_graphs_are_counted():
    metrics = {"graphs_per_step": 1.0, "decorated_ops": 0.0}
    for kernels, number in (({}, 0), ({"aten._softmax": 2}, 2)):
        _, observation = told("breakable_graph", metrics=metrics, kernels=kernels)
        assert f"{number} of 2 attentions in them" in observation
