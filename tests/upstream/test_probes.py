"""Probes and cases know the same variants. Modules of probes import nothing of vLLM, so this needs none."""

import sys
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.cases import CASES
from mrv2lab.errors import BadInput
from mrv2lab.upstream import probe, probes, process
from mrv2lab.upstream.outcome import Outcome
from mrv2lab.upstream.probes.breakable_graph import decorated_functions
from mrv2lab.upstream.probes.lora_model import programmed_mappings, start_up_metrics

AS_RELEASED = {"whole_graph", "kept_pairs", "zeroed_buffers", "own_copies", "one_slot", "keyed_short"}
"""Bugs that the release itself has, and repairs of them that are none."""

BREAKABLE = {"graphs_per_step": 3.0, "decorated": 3.0, "decorated_for_amd": 1.0}
GRIDS = {f"step_{i}_{what}": number for i in range(4) for what, number in (("grid_z", 2.0), ("ids", 3.0))}
METRICS = (
    BREAKABLE | {"graphs_captured": 4.0} | start_up_metrics([[-1]]) | GRIDS | {"speculator_states_built": 0.0}
)
CLAIMING = {name: case for name, case in CASES.items() if "source" in case.rungs}


@pytest.mark.parametrize("case", CLAIMING.values(), ids=CLAIMING)
def test_a_probe_has_the_variants_of_its_case(case):
    probe = probes.get(case.name)
    assert {v.name for v in case.variants} == set(probe.variants)


@pytest.mark.parametrize("case", CLAIMING.values(), ids=CLAIMING)
def test_fixes_run_as_released_and_bugs_are_edits(case):
    variants = probes.get(case.name).variants
    edited = {name for name, variant in variants.items() if variant.edits}
    buggy, fixed = ({v.name for v in case.variants if v.role == role} for role in ("buggy", "fixed"))
    assert fixed & edited <= {"keyed_full"}  # which no release holds
    assert buggy - AS_RELEASED <= edited


@pytest.mark.parametrize("case", CLAIMING)
def test_rows_of_a_bug_have_names_of_their_own(case):
    names = [row.name for row in probes.get(case).rows]
    assert names and len(set(names)) == len(names)
    assert len(names) == 1 or all(names)


@pytest.mark.parametrize("case", CLAIMING.values(), ids=CLAIMING)
def test_a_release_is_buggy_by_the_verdicts_of_the_cases_buggy_variants(case):
    shipped = {v.expected for v in case.variants if v.role == "buggy"}
    for row in probes.get(case.name).rows:
        may_show = shipped | {v.expected for v in case.variants if v.role == "tempting"}
        assert shipped <= set(row.bug) <= may_show, row.name
        outcomes = [Outcome(verdict=v, errors=[0.5], metrics=METRICS) for v in (*row.bug, "correct")]
        told = {outcome.verdict: row.tell(outcome)[0] for outcome in outcomes}
        assert told == dict.fromkeys(row.bug, "buggy") | {"correct": "fixed"}, row.name


def test_a_case_without_a_probe_is_told_what_is_missing():
    with pytest.raises(BadInput, match=r"^rung source of no_case needs a PROBE in .*/probes/no_case\.py$"):
        probes.get("no_case")
    with pytest.raises(BadInput, match="needs a PROBE"):
        probes.get("lora_model")  # which probes share
    with pytest.raises(BadInput, match="unknown variant of stale_view on rung source 'x'; possible: "):
        process.run_variants("stale_view", ["x"])


def test_only_a_library_can_be_installed():
    missing = ("xgrammar", "vllm.v1.gone", "mrv2lab.gone")
    assert [probe.misses_library(ModuleNotFoundError(name=name)) for name in missing] == [True, False, False]


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


def test_ids_without_a_block_in_the_graph_are_counted():
    word, observation = told("lora_frozen_grid", metrics=GRIDS)
    assert word == "fixed" and observation.endswith("by step: 2 of 3, 2 of 3, 2 of 3, 2 of 3")


def test_attentions_in_graphs_are_counted():
    for kernels, number in (({}, 0), ({"aten._softmax": 2}, 2)):
        _, observation = told("breakable_graph", metrics=BREAKABLE, kernels=kernels)
        assert f"3 graphs in the first step, {number} of 2 attentions in them" in observation


def test_functions_that_never_run_on_cuda_are_counted_apart(tmp_path, monkeypatch):
    """A text or a comment that names the decorator is no decorated function."""
    decorated = "@eager_break_during_capture\n@other\ndef attend(): ...\n"
    files = {"attention.py": decorated, "ops/rocm_sparse.py": decorated, "m3/amd/model.py": decorated}
    method = "class Attention:\n    @eager_break_during_capture\n    def attend(self): ...\n"
    files |= {"m3/nvidia/model.py": method, "other.py": "# @eager_break_during_capture\ndef attend(): ...\n"}
    for name, text in files.items():
        (file := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__path__=[str(tmp_path)]))
    assert decorated_functions() == {"decorated": 2, "decorated_for_amd": 2}
    _, observation = told("breakable_graph", metrics=BREAKABLE)
    assert observation.endswith("decorated functions: 3, and 1 for AMD's GPUs")


@pytest.mark.parametrize(
    ("modes", "ran"), [(["eager"] * 4, "4 of 4"), (["graph", "eager", "graph"], "1 of 3")]
)
def test_how_many_steps_ran_without_a_graph_is_counted(modes, ran):
    seen = Outcome(verdict="eager", errors=[0.0], metrics=METRICS, step_modes=modes)
    word, observation = probes.get("pp_eager_fallback").rows[0].tell(seen)
    assert word == "buggy" and observation.endswith(f"; {ran} steps ran without a graph")


def test_a_mapping_is_one_though_it_is_written_for_tokens_and_for_prompts(monkeypatch):
    class PunicaWrapperGPU:
        token_lora_indices = torch.tensor([-1, 2])

        def update_metadata(self, mapping):
            self.written = [mapping, mapping]

    name = "vllm.lora.punica_wrapper.punica_gpu"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(PunicaWrapperGPU=PunicaWrapperGPU))
    wrapper, original = PunicaWrapperGPU(), PunicaWrapperGPU.update_metadata
    with programmed_mappings() as mappings:
        wrapper.update_metadata("mapping")
    assert (mappings, wrapper.written) == ([[-1, 2]], ["mapping", "mapping"])
    assert PunicaWrapperGPU.update_metadata is original


@pytest.mark.parametrize(
    ("mappings", "adapters"),
    [([[-1, -1]], "no adapter in them"), ([[0, 1]], "dummy adapters in them: up to 2")],
)
def test_mappings_of_start_up_are_told(mappings, adapters):
    _, observation = told("lora_device_assert", metrics=start_up_metrics(mappings))
    programmed = "mappings that start-up programs, each for tokens and prompts: 1"
    assert observation == f"{programmed}; {adapters}"
