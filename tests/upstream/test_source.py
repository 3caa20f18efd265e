"""Real releases of vLLM on a CPU: the verdicts of the rung `source`, and what its history says.

    pytest -m source

fetches 0.21.0, 0.23.0 and the newest where the cache has them not, and takes a minute and a half.
"""

import ast
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from mrv2lab.cases import CASES, get
from mrv2lab.errors import BadInput
from mrv2lab.live import v1, v2
from mrv2lab.testing import assert_nodes
from mrv2lab.upstream import history, probes, releases
from mrv2lab.upstream.process import ProbeFailed, environment, releases_of, run_variants
from mrv2lab.upstream.releases import RELEASES, TARGET
from mrv2lab.upstream.rewrite import SourceChanged, rewrite
from mrv2lab.upstream.unfix import Edit

pytestmark = pytest.mark.source
ROOT = Path(__file__).parents[2]

BEFORE = "0.21.0"  # holds the bugs of which it is the last release, and #35162
NEWEST = RELEASES[-1]  # where a probe stops fitting first

WORDS = {  # line of the history: what 0.21.0 and the newest show; what the target shows are the verdicts
    "lora_device_assert": ("buggy", "replaced"),
    "lora_short_circuit": ("not there", "replaced"),
    "breakable_graph, decorated": ("not there", "fixed"),
    "breakable_graph, plain attention": ("not there", "fixed"),
    "flashmla_lazy_init, target": ("buggy", "fixed"),
    "flashmla_lazy_init, speculator": ("buggy", "replaced"),
    "pp_eager_fallback": ("fixed", "fixed"),
    "stale_view": ("buggy", "fixed"),
    "lora_frozen_grid": ("buggy", "buggy"),
}

CLAIMING = {name: case for name, case in CASES.items() if "source" in case.rungs}
VARIANTS = [(name, variant.name) for name, case in CLAIMING.items() for variant in case.variants]


@pytest.fixture(scope="module", autouse=True)
def in_release(warm_releases):
    """`in_release(version, code)`: what a script prints as JSON where this release is the vLLM to import."""

    def run(version, code):
        done = warm_releases.run([sys.executable, "-P", "-c", code], env=environment(version))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mrv2lab.upstream.process.forks", warm_releases)
        patch.setattr(releases, "fetch", cache(releases.fetch))  # which reads the whole release
        yield run


# ---- verdicts ----


@pytest.fixture(scope="module")
def runs():
    """`runs(case)`: its variants by name, run in one process; two of the processes at a time."""
    for version in (BEFORE, TARGET, NEWEST):
        releases.fetch(version)
    pool = ThreadPoolExecutor(2)
    started = {
        name: pool.submit(lambda c=case: list(c.run_all(rung="source"))) for name, case in CLAIMING.items()
    }
    yield lambda name: {run.variant: run for run in started[name].result()}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("case", "variant"), VARIANTS)
def test_every_variant_shows_its_stated_verdict_on_vllms_own_classes(runs, case, variant):
    run, stated = runs(case)[variant], get(case).variant(variant)
    assert run.verdict == stated.expected, run.message
    assert (run.rung, run.role) == ("source", stated.role)
    assert run.provenance.vllm == ", ".join(releases_of(case, [v.name for v in get(case).variants]))
    assert run.latency_ms is None and run.shape == {}
    assert (run.message is not None) == (run.verdict == "crash")
    if run.verdict == "correct":
        assert len(run.errors) >= 4 and run.max_error < 1e-3
        assert ("graph" in run.step_modes) == stated.uses_graphs == (run.eager_share is not None)
    if run.verdict == "wrong":
        assert run.max_error > 0.1 and "graph" in run.step_modes


def test_the_graph_holds_lora_kernels_only_if_they_were_launched_at_capture(runs):
    run = runs("lora_short_circuit")
    kernels = {name: {k for k in run[name].kernels if k.startswith("_lora_")} for name in run}
    assert kernels["zero_mapping"] == set()
    assert kernels["forced_launch"] == {"_lora_shrink_kernel", "_lora_expand_kernel"}
    assert run["zero_mapping"].kernels["aten.mm"] == run["forced_launch"].kernels["aten.mm"] == 1


def test_an_assertion_about_its_nodes_would_have_failed_43139(runs):
    """`zero_mapping` is the release with #43314 taken out: the dummy run as #43139 left it."""
    run = runs("lora_short_circuit")
    assert_nodes(run["forced_launch"].kernels, contains="_lora_shrink_kernel")
    with pytest.raises(AssertionError, match="holds no _lora_shrink_kernel"):
        assert_nodes(run["zero_mapping"].kernels, contains="_lora_shrink_kernel")


def test_a_test_of_three_lines_notices_that_43314_is_taken_out():
    done = subprocess.run([sys.executable, ROOT / "docs/unfix/try_it.py"], text=True, capture_output=True)
    *_, who, number = done.stdout.splitlines()
    assert (done.returncode, number) == (0, "noticed by 1 of 1 test"), done.stderr
    assert "test_decodes_have_lora_kernels: AssertionError: the graph holds no _lora_shrink_kernel" in who
    assert who in (ROOT / "docs/unfix.md").read_text()


def test_metadata_nobody_wrote_is_read_by_the_embedding(runs):
    run = runs("lora_device_assert")["unwritten"]
    assert run.message == "IndexError: index out of range in self"
    assert run.where.startswith("vllm/lora/layers/vocal_parallel_embedding.py:")
    right = {name: run for name, run in runs("lora_device_assert").items() if run.verdict == "correct"}
    adapters = {name: run.metrics["start_up_adapters"] for name, run in right.items()}
    assert adapters == {"dummy_adapters": 2, "zero_mapping": 0}


def test_the_planner_is_in_the_graph_only_if_capture_saw_a_fresh_plan(runs):
    run = runs("flashmla_lazy_init")
    planners = {name: run[name].kernels.get("get_mla_metadata_kernel", 0) for name in run}
    assert (planners["shared_state"], planners["state_pair"], planners["fresh_always"]) == (0, 1, 2)
    mains = {
        name: run[name].kernels["flash_fwd_splitkv_mla_kernel"] for name in ("shared_state", "state_pair")
    }
    assert mains == {"shared_state": 2, "state_pair": 2}  # the target's and the draft's


def test_a_plan_that_was_captured_and_never_computed_leads_out_of_memory(runs):
    run = runs("flashmla_lazy_init")["captured_reused"]
    assert run.message.startswith(
        "IllegalAccess: an illegal memory access was encountered: flash_fwd_splitkv"
    )
    assert run.where.startswith("vllm/third_party/flashmla/flash_mla_interface.py:")


def test_pieces_are_graphs_and_what_lies_between_is_not(runs):
    run = runs("breakable_graph")
    graphs = {name: run[name].metrics["graphs_per_step"] for name in run}
    assert graphs == {
        "eager": 0, "unrouted": 0, "whole_graph": 1, "downgraded": 0, "piecewise": 3, "breakable": 3,
        "full_graph": 1,
    }  # fmt: skip
    assert run["full_graph"].kernels["aten._softmax"] == 2
    assert "aten._softmax" not in run["breakable"].kernels


def test_plain_attention_as_released_is_captured_and_holds_the_zeros_of_a_capture_without_metadata(runs):
    run = runs("breakable_graph")["whole_graph"]
    assert run.kernels["aten.fill_"] == 2 and "aten._softmax" not in run.kernels


def test_ranks_of_a_pipeline_capture_or_do_not(runs):
    run = runs("pp_eager_fallback")
    graphs = {name: run[name].metrics["graphs_captured"] for name in run}
    assert (graphs["eager_fallback"], graphs["moving_buffers"], graphs["full_graphs"]) == (0, 4, 4)
    assert set(run["eager_fallback"].step_modes) == {"eager"}


# ---- history ----


@pytest.fixture(scope="module")
def cells(runs):
    """What both releases show, by line."""
    for name in CLAIMING:  # these end first: the history starts two processes of its own
        with suppress(BadInput):
            runs(name)
    found = history.observe(list(CLAIMING), [BEFORE, NEWEST])
    return {
        line: {c.release: c for c in found if c.line == line} for line in dict.fromkeys(c.line for c in found)
    }


def test_the_history_has_these_lines(cells):
    assert list(cells) == list(WORDS)


@pytest.mark.parametrize("line", WORDS)
def test_a_release_shows_what_it_holds(cells, line):
    told = {release: cell.word for release, cell in cells[line].items()}
    observations = {release: cell.observation for release, cell in cells[line].items()}
    assert told == dict(zip((BEFORE, NEWEST), WORDS[line], strict=True)), observations


def test_observations_say_what_was_seen(cells):
    assert "vocal_parallel_embedding.py" in cells["lora_device_assert"][BEFORE].observation
    assert "no planner in the graph" in cells["flashmla_lazy_init, target"][BEFORE].observation
    assert "its own planner in the graph" in cells["flashmla_lazy_init, target"][NEWEST].observation
    assert "3 LoRA kernels" in cells["lora_short_circuit"][NEWEST].observation


NOT_ALLOCATED = """
import json
from mrv2lab.upstream import platform, probe, probes
from mrv2lab.upstream.unfix import Edit, unfix

platform.apply()
edit = Edit("vllm.v1.worker.gpu.model_runner:GPUModelRunner.load_model", find="self.intermediate_tensors = _")
with unfix(edit, versions="==0.23.0"):
    cell = probe.tell(probes.get("pp_eager_fallback").rows[0])
print(json.dumps([cell.word, cell.observation]))
"""


def test_a_release_that_does_not_allocate_what_graphs_read_is_not_fixed(in_release):
    word, observation = in_release(TARGET, NOT_ALLOCATED)
    assert word == "unreachable" and "AssertionError" in observation, observation


BROUGHT_BACK = """
import json
from importlib import import_module
from unittest.mock import patch
from mrv2lab.upstream import platform

platform.apply()
from mrv2lab.upstream import probe, probes
from mrv2lab.upstream.probes.flashmla_lazy_init import speculator_manager

cudagraph_utils, kept = import_module("vllm.v1.worker.gpu.cudagraph_utils"), {}
prepare = cudagraph_utils.prepare_inputs_to_capture

def keep(num_reqs, *args, **options):
    kept[num_reqs] = prepare(num_reqs, *args, **options)
    return kept[num_reqs]

def left(num_reqs, *args, **options):
    return kept[num_reqs]

module, name = import_module(speculator_manager().__module__), "prepare_inputs_to_capture"
with patch.object(cudagraph_utils, name, keep), patch.object(module, name, left):
    cell = probe.tell(probes.get("stale_view").rows[0])
print(json.dumps([cell.word, cell.observation]))
"""


def test_the_newest_release_would_be_buggy_if_its_speculator_captured_with_what_the_target_left(in_release):
    word, observation = in_release(NEWEST, BROUGHT_BACK)
    assert word == "buggy" and "flash_fwd_combine_kernel" in observation, observation


LEFT_OVER = """
import json
from mrv2lab.upstream import platform

platform.apply()
from mrv2lab.upstream.model_runner import execute
from mrv2lab.upstream.probes import breakable_graph

setup = breakable_graph.replace(breakable_graph.SETUP, mode="FULL")
runner = breakable_graph.make_runner(setup, breakable=False)
runner.capture_model()
for requests in (breakable_graph.STEPS[0], breakable_graph.STEPS[3]):  # four requests, then three
    assert execute(runner, requests).num_replays == 1
names = ("input_ids", "positions", "seq_lens", "query_start_loc")
print(json.dumps({name: getattr(runner.input_buffers, name)[:5].tolist() for name in names}))
"""


@pytest.mark.parametrize("release", [BEFORE, TARGET])
def test_a_padded_batch_computes_with_what_the_one_before_left(in_release, release):
    """As in vLLM's `prepare_inputs`, which zeroes only the lengths behind a batch: bugs may read the rest."""
    buffers = in_release(release, LEFT_OVER)
    assert buffers["input_ids"] == [7, 7, 42, 7]  # the fourth is the first step's
    assert buffers["positions"] == [0, 0, 5, 0]
    assert (buffers["seq_lens"], buffers["query_start_loc"]) == ([1, 1, 6, 0], [0, 1, 2, 3, 3])


# ---- what says nothing about the bug ----

# Every fault in turn where the runner is made, then an op that the emulator cannot record in the model.
PLANTED = """
import json
from mrv2lab.upstream import platform

platform.apply()
import torch
from mrv2lab.upstream import probe, probes
from mrv2lab.upstream.probes import flashmla_lazy_init, lora_model

make_runner = flashmla_lazy_init.make_runner

def typo(*args, **kwargs):
    return RunnerConfg()

def raises(error):
    def make(*args, **kwargs):
        raise error
    return make

FAULTS = [typo, *map(raises, [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("No CUDA GPUs are available"),
    RuntimeError("CUDA driver version is insufficient for CUDA runtime version"),
    AssertionError("CUDA_HOME not set"),
    TimeoutError("no answer"),
    IndexError("index out of range in self"),
])]
sparse = torch.eye(2).to_sparse()
said = []

def note(case, variant):
    found = probes.get(case)
    seen = probe.run(found.variants[variant])
    said.append([seen.verdict, seen.message, len(seen.log_tail)])
    said.extend([cell.word, cell.observation, 1] for cell in map(probe.tell, found.rows))

for fault in FAULTS:
    lora_model.make_lora_runner = flashmla_lazy_init.make_runner = fault
    note("lora_device_assert", "unwritten")
    note("flashmla_lazy_init", "captured_reused")
forward, flashmla_lazy_init.make_runner = flashmla_lazy_init.Attention.forward, make_runner
flashmla_lazy_init.Attention.forward = lambda *args, **kwargs: (forward(*args, **kwargs), sparse + sparse)[0]
note("flashmla_lazy_init", "captured_reused")
print(json.dumps(said))
"""


def test_what_says_nothing_about_a_bug_is_neither_its_verdict_nor_a_word(in_release):
    said = in_release(TARGET, PLANTED)
    assert len(said) == 8 * 5 + 3
    assert {(verdict, lines > 0) for verdict, _, lines in said} == {("failed", True), ("unreachable", True)}
    assert said[0][1].startswith("NameError: name 'RunnerConfg' is not defined")
    limit = "EmulatorLimit: aten.add.Tensor has a tensor that is torch.sparse_coo"
    assert all(limit in message for _, message, _ in said[-3:])


# ---- edits ----


def source(version: str, edit: Edit) -> str:
    return (releases.fetch(version).path / f"{edit.module.replace('.', '/')}.py").read_text()


@pytest.mark.parametrize("case", CLAIMING)
def test_an_edit_matches_once_in_the_target(case):
    for edit in (edit for variant in probes.get(case).variants.values() for edit in variant.edits):
        assert edit.matches == 1, edit
        before = source(TARGET, edit)
        assert rewrite(before, [edit]) != before, edit
        with pytest.raises(SourceChanged):
            rewrite(before, [Edit(edit.where, edit.find, edit.put, matches=2)])


REFUSALS = """
import json
from mrv2lab.cases import CASES
from mrv2lab.upstream import probes
from mrv2lab.upstream.unfix import SourceChanged, unfix

claiming = [name for name, case in CASES.items() if "source" in case.rungs]
edits = [edit for case in claiming for v in probes.get(case).variants.values() for edit in v.edits]
said = []
for edit in edits:
    try:
        with unfix(edit, versions="==0.23.0"):
            said.append([edit.where, "not refused"])
    except SourceChanged as error:
        said.append([edit.where, str(error)])
print(json.dumps(said))
"""


def test_every_edit_is_refused_on_another_release(in_release):
    said = in_release(BEFORE, REFUSALS)
    variants = [variant for case in CLAIMING for variant in probes.get(case).variants.values()]
    assert len(said) == sum(len(variant.edits) for variant in variants)
    for where, message in said:
        assert message == f"vllm {BEFORE} is installed; the edit of {where} is for =={TARGET}"


def test_a_variant_is_refused_on_another_release_in_one_line():
    with pytest.raises(ProbeFailed) as caught:
        run_variants("flashmla_lazy_init", ["shared_state"], BEFORE)
    assert str(caught.value).startswith(f"flashmla_lazy_init on vllm {BEFORE}: ")
    assert str(caught.value).endswith(f"CudaGraphManager.capture is for =={TARGET}")


# ---- vLLM's layers compute what they should ----

# Every replacement that the release has not, and for every request: the relative error of the layers with
# adapters against plain products in float64, and how far the same products without adapters are from it.
LAYERS = """
import json
from importlib import import_module
from operator import attrgetter
from mrv2lab.upstream import platform

platform.apply()
import torch
from types import SimpleNamespace
from mrv2lab.upstream.model_runner import Setup, execute
from mrv2lab.upstream.probes.lora_model import STEPS, load_adapter, make_lora_runner



def there(target):
    module, _, attribute = target.partition(":")
    try:
        attrgetter(attribute)(import_module(module))
    except AttributeError:
        return False
    return True


targets = [r.target for r in platform.REPLACEMENTS if r.target.startswith("vllm.")]
absent = [target for target in targets if not there(target)]
runner = make_lora_runner(Setup("NONE", (2, 4), max_num_reqs=4), memory=0)
layers = runner.model.embed_tokens.base_layer.weight, runner.model.proj.base_layer.weight
embedding, weight = (w.detach().double() for w in layers)
zeros = SimpleNamespace(lora_a=torch.zeros(1), lora_b=torch.zeros(1))


def plain(request, adapted):
    loras = {} if not request.lora_id or not adapted else load_adapter(
        SimpleNamespace(lora_int_id=request.lora_id)).loras
    [token] = request.tokens
    hidden = embedding[token]
    if loras:
        lora = loras["embed_tokens"]
        hidden = hidden + lora.lora_b.double() @ lora.lora_a.double()[:, token]
    projected = weight @ hidden
    if loras:
        projected = projected + loras["proj"].lora_b.double() @ (loras["proj"].lora_a.double() @ hidden)
    return hidden + projected


def error(value, wanted):
    return ((value - wanted).norm(dim=1) / wanted.norm(dim=1)).tolist()


rows = []
for requests in STEPS:
    output = execute(runner, requests).output.double()
    with_adapters, without = (torch.stack([plain(r, adapted) for r in requests]) for adapted in (True, False))
    ids = [r.lora_id for r in requests]
    rows += zip(ids, error(output, with_adapters), error(without, with_adapters))
print(json.dumps({"absent": absent, "rows": rows}))
"""


@pytest.fixture(scope="module")
def layers(in_release):
    return in_release(TARGET, LAYERS)


def test_layers_with_adapters_compute_what_plain_products_do(layers):
    assert {lora_id for lora_id, _, _ in layers["rows"]} == {0, 1, 2, 3}
    for lora_id, error, without in layers["rows"]:
        assert error < 5e-3  # float16
        assert without == 0 if lora_id == 0 else without > 0.1


def test_every_replacement_has_its_target_in_the_release(layers):
    assert layers["absent"] == []


@pytest.mark.parametrize("release", [TARGET, NEWEST])
def test_what_an_audit_reads_of_a_step_is_there(release):
    runner = releases.fetch(release).path / "vllm/v1/worker/gpu/model_runner.py"
    known = [node for node in ast.walk(ast.parse(runner.read_text())) if isinstance(node, ast.FunctionDef)]
    execute_model = next(node for node in known if node.name == "execute_model")
    names = {node.id for node in ast.walk(execute_model) if isinstance(node, ast.Name)}
    assert names >= v2.READ - {"dummy_run"} and names & {*v2.ACROSS}


@pytest.mark.parametrize("release", [TARGET, NEWEST])
def test_what_an_audit_reads_of_a_step_of_v1_is_there(release):
    """And that nobody but `execute_model` runs the model that way: dummy runs capture, and are no steps."""
    package = releases.fetch(release).path / "vllm"

    def functions(file):
        known = ast.walk(ast.parse((package / file).read_text()))
        return {node.name: node for node in known if isinstance(node, ast.FunctionDef)}

    runner = functions("v1/worker/gpu_model_runner.py")
    callers = [name for name, node in runner.items() if f"self.{v1.FORWARD}(" in ast.unparse(node)]
    assert {v1.FORWARD, v1.BUILD} <= runner.keys() and callers == ["execute_model"]
    stored = [
        n for n in ast.walk(runner["execute_model"]) if isinstance(n, ast.Name) and n.id == v1.NUM_TOKENS
    ]
    assert any(isinstance(node.ctx, ast.Store) for node in stored)
    assert {"get_forward_context", "override_forward_context"} <= functions("forward_context.py").keys()
    assert "get_capture_descs" in functions("v1/cudagraph_dispatcher.py")
