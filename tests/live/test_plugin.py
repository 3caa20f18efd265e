"""The audit as a plugin of vLLM, without vLLM and without a GPU: a runner of its shape on the emulator."""

import json
import logging
import os
import subprocess
import sys
import tomllib
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

import mrv2lab_vllm
from mrv2lab.errors import AuditError
from mrv2lab.graphs import capture
from mrv2lab.live import plugin, v2
from mrv2lab.live.plugin import Served

ROOT = Path(__file__).parents[2]


# ---- a runner ----


class Mode(NamedTuple):
    name: str


class Desc(NamedTuple):
    """`BatchExecutionDescriptor`."""

    cg_mode: Mode
    num_tokens: int
    num_reqs: int


class Model:
    """Multiplies by a number that Python holds, and counts its steps on the device, in place."""

    def __init__(self):
        self.scale, self.count = 2.0, torch.zeros(1)

    def forward(self, input_ids):
        self.count.add_(1)
        return input_ids * self.scale + self.count

    __call__ = forward


class Platform:
    """`Platform`, and the pool of graphs that all managers of a process share."""

    _global_graph_pool = None

    def get_global_graph_pool(self):
        if self._global_graph_pool is None:
            type(self)._global_graph_pool = object()
        return self._global_graph_pool


class Manager:
    """`CudaGraphManager`."""

    def __init__(self, sizes):
        self.pool = Platform().get_global_graph_pool()
        self.graphs, self._graphs_captured, self.cudagraph_mode = {}, False, Mode("FULL")
        self._capture_descs = {"FULL": [Desc(Mode("FULL"), size, size) for size in sizes]}

    def dispatch(self, num_tokens):
        return next(desc for desc in self._capture_descs["FULL"] if desc.num_tokens == num_tokens)

    def run_fullgraph(self, desc):
        self.graphs[desc].replay()
        return self.graphs[desc].outputs

    def run_pw_graph(self, model, model_inputs):
        raise NotImplementedError


class AttentionSpec:
    pass


class Runner:
    """`GPUModelRunner`, as far as an audit looks at it."""

    def __init__(self, sizes=(2, 4)):
        self.model, self.cudagraph_manager, self.kv_caches = Model(), Manager(sizes), [torch.empty(1 << 18)]
        self.buffer, self.lora_config, self.attn_groups, self.speculator = torch.ones(8), None, [], None
        groups = [SimpleNamespace(kv_cache_spec=AttentionSpec())]
        self.kv_cache_config = SimpleNamespace(kv_cache_groups=groups)
        self.model_state = SimpleNamespace(prepare_attn=lambda *args: None)
        self.vllm_config = config()

    def capture_model(self):
        for desc in self.cudagraph_manager._capture_descs["FULL"]:
            inputs = self.buffer[: desc.num_tokens]
            self.model(inputs)
            assert desc not in self.cudagraph_manager.graphs
            graph = capture(lambda inputs=inputs: self.model(inputs), backend="emulated")
            self.cudagraph_manager.graphs[desc] = graph
        self.cudagraph_manager._graphs_captured = True
        return 123

    def execute_model(self, values, dummy_run=False):
        size = len(values)
        self.buffer[:size] = torch.tensor(values)
        batch_desc = self.cudagraph_manager.dispatch(size)
        input_batch = SimpleNamespace(num_tokens=size, num_tokens_after_padding=size)
        model_inputs = {"input_ids": self.buffer[:size]}
        block_tables = slot_mappings = slot_mappings_by_layer = num_tokens_across_dp = None
        assert (input_batch, model_inputs, dummy_run) and block_tables is slot_mappings is None
        assert slot_mappings_by_layer is num_tokens_across_dp is None
        return self.cudagraph_manager.run_fullgraph(batch_desc).clone()


def config(mode=0, kv_transfer_config=None, **parallel):
    made = {"compilation_config": SimpleNamespace(mode=mode), "parallel_config": SimpleNamespace(**parallel)}
    return SimpleNamespace(**made, kv_transfer_config=kv_transfer_config)


def worker(**changed):
    model_config = SimpleNamespace(enforce_eager=False)
    runner = Runner()
    made = {"use_v2_model_runner": True, "model_config": model_config, "rank": 3, "model_runner": runner}
    return SimpleNamespace(**made | {"vllm_config": runner.vllm_config} | changed)


@pytest.fixture(autouse=True)
def vllm(monkeypatch, tmp_path, caplog):
    """What of vLLM a step asks for, and a folder for reports."""
    context = {"set_forward_context": lambda **told: nullcontext(), "BatchDescriptor": SimpleNamespace}
    mode = SimpleNamespace(NONE="NONE")
    monkeypatch.setitem(sys.modules, "vllm.config", SimpleNamespace(CUDAGraphMode=mode))
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=Platform()))
    monkeypatch.setattr(Platform, "_global_graph_pool", None)
    monkeypatch.setitem(sys.modules, "vllm.forward_context", SimpleNamespace(**context))
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=None))
    monkeypatch.setattr(v2.Step, "_context", lambda self, mode: nullcontext())
    monkeypatch.setenv("MRV2LAB_AUDIT_DIR", str(tmp_path / "reports"))
    monkeypatch.setattr(plugin.atexit, "register", lambda *args: None)
    monkeypatch.setattr(plugin.gc, "freeze", lambda: None)
    caplog.set_level(logging.INFO, "vllm.mrv2lab")


def serving(every=0):
    """A worker that has captured and serves."""
    made = worker()
    served = Served.of(made, every)
    served.backend = "emulated"
    with served.capturing():
        assert made.model_runner.capture_model() == 123
    served.begin()
    return made.model_runner, served


def reports(served):
    return [json.loads(line) for line in served.file.read_text().splitlines()]


def answers(runner, steps):
    return [runner.execute_model(values).tolist() for values in steps]


STEPS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [1.0, 2.0, 3.0, 4.0], [7.0, 8.0], [9.0, 1.0]]


def as_without_audits():
    runner = Runner()
    runner.capture_model()
    return answers(runner, STEPS)


# ---- a server that is audited ----


def test_the_first_step_of_each_key_is_audited_and_answers_stay(caplog):
    runner, served = serving()
    assert answers(runner, STEPS) == as_without_audits()
    assert [line["report"]["step"] for line in reports(served)] == ["Model, 2 tokens", "Model, 4 tokens"]
    assert served.totals() == "2 steps audited, 0 findings"
    assert [r.levelname for r in caplog.records] == ["INFO"] * 3
    assert "audit of Model, 4 tokens: nothing found (2 steps audited, 0 findings)" in caplog.text


def test_graphs_give_patterns_while_an_audit_looks_on_and_else_not(monkeypatch):
    told = []

    @contextmanager
    def given(session):
        told.append(True)
        yield
        told.append(False)

    monkeypatch.setattr("mrv2lab.live.patterns.withhold", lambda captures, session: told.append(False))
    monkeypatch.setattr("mrv2lab.live.patterns.given", given)
    runner, _ = serving(every=2)
    assert told == [False]
    answers(runner, STEPS)
    assert told == [False, *(True, False) * 2]  # two keys; checks are made without


def test_where_patterns_cannot_be_withheld_audits_go_on(monkeypatch, caplog):
    def withhold(captures, session):
        raise RuntimeError("no such function")

    monkeypatch.setattr("mrv2lab.live.patterns.withhold", withhold)
    runner, served = serving()
    assert answers(runner, STEPS) == as_without_audits()
    assert served.totals() == "2 steps audited, 0 findings"
    assert caplog.text.count("graphs stay as slow as audits make them: no such function") == 1


def test_what_a_graph_froze_is_a_warning_and_in_the_report(caplog):
    runner, served = serving()
    runner.model.scale = 3.0
    runner.execute_model([1.0, 2.0])
    [line] = reports(served)
    assert [f["kind"] for f in line["report"]["findings"]] == ["frozen-host-value"]
    [said] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "audit of Model, 2 tokens: frozen-host-value: self.scale was 2.0 at capture" in said.getMessage()
    assert line["replay"] == 1 and "num_tokens=2" in line["key"]


def test_replays_are_checked_and_the_one_that_is_apart_is_audited(caplog):
    """What the step counts in place moves once for each request all the same."""
    runner, served = serving(every=2)
    assert answers(runner, STEPS) == as_without_audits()
    runner.execute_model([1.0, 2.0])
    assert served.num["checks"] == 3 and served.num["apart"] == 0
    runner.model.scale = 3.0
    runner.execute_model([1.0, 2.0])
    assert "frozen" not in caplog.text  # it is not its turn
    before = runner.model.count.item()
    runner.execute_model([1.0, 2.0])
    assert runner.model.count.item() == before + 1
    assert "Model, 2 tokens, replay 8: 0." in caplog.text and "frozen-host-value" in caplog.text
    assert [line["apart"] is None for line in reports(served)] == [True, True, False]


def test_a_result_in_a_buffer_that_the_eager_pass_writes_too_is_not_held_against_itself(monkeypatch):
    out = torch.zeros(8)

    def forward(self, input_ids):
        return out[: len(input_ids)].copy_(input_ids * self.scale)

    monkeypatch.setattr(Model, "__call__", forward)
    monkeypatch.setattr(Model, "forward", forward)
    runner, served = serving(every=2)
    answers(runner, STEPS[:2])
    assert (served.num["checks"], served.num["apart"]) == (1, 0)
    runner.model.scale = 3.0
    answers(runner, STEPS[:2])
    assert (served.num["checks"], served.num["apart"]) == (2, 1)


class UniformTypeKVCacheSpecs:
    """Of layers whose caches differ in size."""

    def __init__(self):
        self.kv_cache_specs = {"layers.0": AttentionSpec(), "layers.1": AttentionSpec()}


@pytest.mark.parametrize(
    "spec, copied", [(AttentionSpec, 0), (UniformTypeKVCacheSpecs, 0), (SimpleNamespace, 1)]
)
def test_attentions_cache_is_not_copied_for_a_check(spec, copied):
    """The same keys and values go to the same slots; the state of another kind of layer moves on."""
    runner, served = serving(every=2)
    runner.kv_caches = [runner.model.count]
    runner.kv_cache_config.kv_cache_groups.append(SimpleNamespace(kv_cache_spec=spec()))
    runner.execute_model([1.0, 2.0])
    assert [len(tensors) for tensors in served.changed.values()] == [copied]


@pytest.mark.parametrize("scale, audits", [(3.0, 1), (2.0, 2)])
def test_a_key_of_which_something_was_found_is_only_counted(scale, audits, monkeypatch, caplog):
    """In its first step, or in a check where its first step was sound."""
    monkeypatch.setattr(plugin, "TELL_EACH", 9)
    runner, served = serving(every=1)
    runner.model.scale = scale
    runner.execute_model([1.0, 2.0])
    runner.model.scale = 3.0
    answers(runner, [[1.0, 2.0]] * 9)
    assert len(reports(served)) == audits and served.num["apart"] == 9
    assert caplog.text.count("frozen-host-value") == 1 and caplog.text.count(", replay ") == audits - 1
    assert "audits go on: " in caplog.text and ", 9 apart" in caplog.text


def test_a_key_of_which_nothing_is_found_is_not_audited_without_end(monkeypatch):
    runner, served = serving(every=1)
    monkeypatch.setattr(plugin, "is_off", lambda served, right: 1.0)
    answers(runner, [[1.0, 2.0]] * 2 * plugin.MOST_AUDITS)
    assert len(reports(served)) == plugin.MOST_AUDITS < served.num["apart"]


@pytest.mark.parametrize("num_audited, num_failed", [(0, 2), (1, 2), (2, 1)])
def test_an_audit_that_raises_is_a_line_and_no_more(num_audited, num_failed, monkeypatch, caplog):
    """In an audit or in a check, behind work that has changed what the step counts in place."""

    def eager(self):
        made = original(self)
        if len(served.found) >= num_audited:
            raise ZeroDivisionError("put in")
        return made

    runner, served = serving(every=2)
    original = v2.Step.eager
    monkeypatch.setattr(v2.Step, "eager", eager)
    assert answers(runner, STEPS) == as_without_audits()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == served.num["failed"] == num_failed
    assert all("is not audited any more: " in line and "put in" in line for line in lines)
    assert [line["error"] for line in reports(served) if "error" in line] == [
        line.split("any more: ")[1] for line in lines
    ]


def test_a_capture_that_fails_while_it_is_watched_is_made_again(monkeypatch, caplog):
    """In another pool, and who asks for the pool from now on is given that one."""
    captured, plain = Runner.capture_model, torch.cuda.CUDAGraph

    def capture_model(self):
        captured(self)
        classes.append(torch.cuda.CUDAGraph)
        pools.append([one.pool for one in (self.cudagraph_manager, self.speculator.manager)])
        if len(classes) == 1:
            raise ZeroDivisionError("put in")
        return 123

    def with_speculator(self):
        made(self)
        self.speculator = SimpleNamespace(manager=Manager([]))

    classes, pools, made = [], [], Runner.__init__
    piece = SimpleNamespace(
        graphs=["a graph"], graph_pool="of the first", clear_graphs=lambda: piece.graphs.clear()
    )
    wrapper = SimpleNamespace(CUDAGraphWrapper=SimpleNamespace(_all_instances=[piece]))
    monkeypatch.setitem(sys.modules, "vllm.compilation.cuda_graph", wrapper)
    monkeypatch.setattr(Runner, "__init__", with_speculator)
    monkeypatch.setattr(Runner, "capture_model", capture_model)
    runner, served = serving()
    assert classes[0] is not plain and classes[1] is plain
    assert pools[0][0] is pools[0][1] is not pools[1][0]
    assert pools[1] == [Platform().get_global_graph_pool()] * 2
    assert not piece.graphs and piece.graph_pool == Platform().get_global_graph_pool()
    runner.model.count.zero_()
    assert answers(runner, STEPS[:1]) == [[3.0, 5.0]]
    assert served.scenario is None and not served.num
    [record] = caplog.records
    assert "nothing is audited: the capture failed while it was watched" in record.getMessage()


def test_the_keys_of_one_rank_are_not_watched():
    """It would cost each step of a server, and nobody is there to compare them with."""
    runner, _ = serving()
    assert "run_fullgraph" in vars(runner.cudagraph_manager)
    assert "dispatch" not in vars(runner.cudagraph_manager)


def test_only_the_runner_asks_for_the_key_of_a_step():
    """`FastPrefillHelper` asks the same manager in the same step, and not on all ranks."""
    picked = []
    runner = Runner()
    steps = SimpleNamespace(runner=runner, rank_name="rank 0", scenario="first", pick=picked.append)
    v2.watch(steps)

    class FastPrefillHelper:
        def prepare(self):
            return runner.cudagraph_manager.dispatch(2)

    def dispatch_and_sync(manager, size):
        return manager.dispatch(size)

    asked = dispatch_and_sync(runner.cudagraph_manager, 4)
    FastPrefillHelper().prepare()
    assert picked == [asked]


def test_where_ranks_are_apart_nothing_is_looked_at_until_they_agree_again():
    _, served = serving()
    agreed = iter([False, True])
    gather = {0: "4 tokens", 1: "8 tokens"}
    served.ranks = SimpleNamespace(agree=lambda desc: next(agreed), gather=lambda told: gather)
    served.pick("4 tokens")
    assert served.differ and served.skips("4 tokens")
    served.pick("4 tokens")
    assert not served.differ and not served.skips("4 tokens")


def test_what_checks_take_is_told(monkeypatch):
    now = iter([1.0, 1.03] * 9)
    monkeypatch.setattr(plugin.time, "perf_counter", lambda: next(now))
    runner, served = serving(every=2)
    answers(runner, [[1.0, 2.0]] * 3)
    assert served.num["checks"] == 1 and served.totals().endswith("1 check of 30.0 ms, 0 apart")


def test_what_a_draft_reads_beside_hidden_states_is_compared_too():
    step = object.__new__(v2.Step)
    step.batch = SimpleNamespace(num_tokens=2)
    assert step._rows(torch.arange(4)).tolist() == [0, 1]
    rows = step._rows((torch.arange(4), [torch.arange(4) + 4]))
    assert [each.tolist() for each in rows] == [[0, 1], [4, 5]]


def test_what_an_audit_keeps_is_not_looked_through_again(monkeypatch):
    frozen = []
    monkeypatch.setattr(plugin.gc, "freeze", lambda: frozen.append("all"))
    runner, _ = serving(every=2)
    answers(runner, [[1.0, 2.0]] * 5)
    assert frozen == ["all"]  # behind the audit of its key, and behind no check


class Noted:
    """A step that notes what is done with it."""

    desc = "a key"

    def __init__(self, right):
        self.done, self.right = [], right

    def prepare(self):
        self.done.append("prepare")

    def run(self):
        self.done.append("run")
        return [torch.ones(2), torch.ones(2)]

    def eager(self):
        self.done.append("eager")
        return [torch.ones(2), torch.full((2,), self.right)]

    def put_back(self):
        self.done.append("put back")


def test_a_check_prepares_for_each_pass_and_asks_for_each_result(monkeypatch):
    _, served = serving(every=2)
    now = iter([1.0, 1.03, 2.0, 2.01])
    monkeypatch.setattr(plugin.time, "perf_counter", lambda: next(now))
    served.changed[Noted.desc], served.found[Noted.desc] = [], [1]  # which is not audited once more
    for right, apart in ((1.0, 0), (3.0, 1)):
        served._check(step := Noted(right))
        assert step.done == ["prepare", "run", "prepare", "eager", "put back"]
        assert served.num["apart"] == apart
    assert served.num["checks"] == 2 and served.num["us"] == pytest.approx(40_000, abs=2)


def test_dummy_steps_are_not_audited():
    runner, served = serving()
    runner.execute_model([1.0, 2.0], dummy_run=True)
    assert not (served.found or served.num or any(turn.replays for turn in served.turns.values()))


def test_ranks_and_processes_write_files_of_their_own():
    _, served = serving()
    assert served.file.name.endswith(f"-{os.getpid()}-rank3.jsonl")


def test_a_folder_that_cannot_be_written_is_a_line(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MRV2LAB_AUDIT_DIR", str(tmp_path / "file"))
    runner, _ = serving()
    assert answers(runner, STEPS) == as_without_audits()
    assert "no report of" in caplog.text and "(2 steps audited, 0 findings)" in caplog.text


# ---- what cannot be audited ----


@pytest.mark.parametrize(
    "changed, why",
    [
        ({"model_config": SimpleNamespace(enforce_eager=True)}, "captures nothing"),
        ({"vllm_config": config(kv_transfer_config=object())}, "a KV connector writes the cache"),
        ({"vllm_config": config(data_parallel_size=2)}, "2 ranks wait for each other"),
    ],
)
def test_it_is_said_what_cannot_be_audited(changed, why):
    with pytest.raises(AuditError, match=why):
        Served.of(worker(**changed), 0)


@pytest.mark.parametrize("copies, num_ranks", [(11, 1), (12, 1), (23, 2), (24, 2)])
def test_a_cache_of_which_twelve_copies_do_not_fit_is_not_copied(copies, num_ranks, monkeypatch):
    """Twelve for each worker of this host."""
    monkeypatch.setattr(plugin.lifeline, "free", lambda: copies << 30)
    made = worker()
    made.vllm_config.parallel_config.local_world_size = num_ranks
    cache = torch.empty(1 << 30, dtype=torch.uint8)
    made.model_runner.kv_caches = [cache, cache[1:]]  # of two groups of layers, which share it
    refused = pytest.raises(AuditError, match=f"and {copies} are there")
    with refused if copies % 12 else nullcontext():
        Served.of(made, 0)


def test_an_engine_that_has_no_graphs_is_said(caplog):
    made = worker()
    made.model_runner.cudagraph_manager._capture_descs.clear()
    served = Served.of(made, 0)
    with served.capturing():
        pass
    served.begin()
    assert "captured: nothing" in caplog.text and served.scenario is None


# ---- the plugin ----


@pytest.fixture
def package(tmp_path):
    """A vLLM whose worker says that it is warm, as an executor asks it."""
    folder = tmp_path / "vllm/v1/worker"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent, folder.parent.parent):
        (place / "__init__.py").write_text("__version__ = '0.23.0'")
    (folder / "worker_base.py").write_text(WORKER_BASE)
    return tmp_path


WORKER_BASE = """
class Worker:
    def compile_or_warm_up_model(self):
        return "warm"

class WorkerWrapperBase:
    worker = Worker()

    def __getattr__(self, attr):
        return getattr(self.worker, attr)
"""


def run(package, program, asked, guard=""):
    """Run a program in a process of its own, with the plugin and that vLLM to import."""
    path = os.pathsep.join(map(str, (package, ROOT)))
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": path, "MRV2LAB_AUDIT": asked, "MRV2LAB_GUARD": guard}
    command = [sys.executable, "-c", f"import sys, os, mrv2lab_vllm; mrv2lab_vllm.attach(); {program}"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=package)


TELL = (
    "print([name in sys.modules for name in ('mrv2lab', 'vllm', 'torch')], 'TRITON_INTERPRET' in os.environ)"
)
WARM_UP = (
    "from vllm.v1.worker.worker_base import WorkerWrapperBase as W; print(W().compile_or_warm_up_model())"
)


@pytest.mark.parametrize("asked", ["", "0"])
def test_nothing_is_imported_unless_it_is_asked_for(package, asked):
    told = run(package, f"{TELL}; {WARM_UP}", asked)
    assert told.stdout == "[False, False, False] False\nwarm\n" and not told.stderr


@pytest.mark.parametrize("asked", ["1", "every=10"])
def test_a_process_without_a_worker_imports_nothing_of_ours(package, asked):
    told = run(package, TELL, asked)
    assert told.stdout == "[False, True, False] False\n" and not told.stderr


def test_where_it_cannot_audit_a_worker_warms_up_as_ever(package):
    told = run(package, f"mrv2lab_vllm.attach(); import torch; {WARM_UP}", "1")
    assert told.stdout == "warm\n"
    assert told.stderr.startswith("nothing is audited: ") and len(told.stderr.splitlines()) == 1


def test_a_release_that_nobody_has_tried_is_said(package):
    (package / "vllm/__init__.py").write_text("__version__ = '0.99.0'")
    told = run(package, TELL, "1")
    assert told.stderr == f"audits were tried with vllm {', '.join(mrv2lab_vllm.TRIED)}; this is 0.99.0\n"


def test_a_vllm_without_such_workers_starts_all_the_same(package):
    (package / "vllm/v1/worker/worker_base.py").unlink()
    told = run(package, TELL, "1")
    assert told.stderr == "nothing is audited: No module named 'vllm.v1.worker.worker_base'\n"


def test_a_worker_is_audited_from_its_warm_up_on(monkeypatch, caplog):
    made = worker()
    made.compile_or_warm_up_model = lambda: made.model_runner.capture_model()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    original = Served.of
    emulated = lambda *args: replace(original(*args), backend="emulated")  # noqa: E731
    monkeypatch.setattr(Served, "of", emulated)
    assert mrv2lab_vllm._warm_up(made, 0) == 123
    assert answers(made.model_runner, STEPS) == as_without_audits()
    assert "2 keys can be audited" in caplog.text and "(2 steps audited, 0 findings)" in caplog.text


@pytest.mark.parametrize("asked", ["yes", "every", "every=", "every=0", "every=-1", "1=2"])
def test_a_value_that_is_not_understood_is_one_line(asked, monkeypatch, caplog):
    monkeypatch.setenv("MRV2LAB_AUDIT", asked)
    mrv2lab_vllm.attach()
    [record] = caplog.records
    assert record.getMessage() == f"MRV2LAB_AUDIT={asked}: nothing is audited; possible: 1, every=N"


@pytest.mark.parametrize("asked", ["yes", "WARN", "warn=1"])
def test_a_guard_that_is_not_understood_is_one_line(asked, monkeypatch, caplog):
    monkeypatch.setenv("MRV2LAB_GUARD", asked)
    mrv2lab_vllm.attach()
    [record] = caplog.records
    assert record.getMessage() == f"MRV2LAB_GUARD={asked}: nothing is guarded; possible: warn, refuse"


def test_where_it_cannot_guard_a_worker_warms_up_as_ever(package):
    told = run(package, f"import torch; {WARM_UP}", "", "warn")
    assert told.stdout == "warm\n"
    assert told.stderr == "nothing is guarded: graphs are read through NVIDIA's driver\n"


def test_the_entry_point_leads_to_the_plugin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [(name, value)] = project["project"]["entry-points"]["vllm.general_plugins"].items()
    assert EntryPoint(name, value, "vllm.general_plugins").load() is mrv2lab_vllm.attach
    assert "mrv2lab_vllm.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]


def test_a_release_whose_steps_cannot_be_read_is_not_audited(caplog):
    class Other(Runner):
        @torch.inference_mode()
        def execute_model(self, values, dummy_run=False):
            batch_desc = input_batch = model_inputs = agreed = values
            block_tables = slot_mappings = slot_mappings_by_layer = batch_desc, input_batch, model_inputs
            return block_tables, slot_mappings, slot_mappings_by_layer, agreed

    made = worker()
    made.model_runner = Other()
    with pytest.raises(AuditError, match="this Other has no num_tokens_across_dp or dp_sync"):
        plugin.Served.of(made, 0)


@pytest.mark.parametrize("name", ["dp_sync", "dp_sync_state"])
def test_from_0_29_0_on_what_ranks_have_agreed_upon_is_one_object(name):
    prepared = dict.fromkeys((*v2.READ, *v2.ACROSS))
    assert v2.Step(SimpleNamespace(model=Model()), prepared, None).across_dp is None
    prepared[name] = SimpleNamespace(num_tokens_across_dp=[4, 4])
    assert v2.Step(SimpleNamespace(model=Model()), prepared, None).across_dp == [4, 4]


def test_what_is_captured_to_measure_memory_is_not_watched():
    seen, runner = [], Runner()
    runner.capture_model = lambda **how: seen.append(how) or 7
    served = plugin.Served(runner=runner)
    with served.capturing():
        assert runner.capture_model(profile_only=True) == 7
    assert seen == [{"profile_only": True}] and not hasattr(served, "_audit")
