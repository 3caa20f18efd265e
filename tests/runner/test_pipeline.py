"""Two pipeline stages in two processes: the same model, the same tokens, and nobody left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import mrv2lab
from mrv2lab.errors import BadInput, CutOff
from mrv2lab.runner import (
    CUDAGraphMode,
    Engine,
    InputBatch,
    ModelRunner,
    Request,
    RunnerConfig,
    cudagraph_utils,
    pp_executor,
)
from mrv2lab.runner.attention import uniform_query_len
from mrv2lab.runner.cudagraph_utils import uniform_num_reqs
from mrv2lab.runner.input_batch import InputBuffers
from mrv2lab.runner.pp_executor import StageDied, run_stages
from mrv2lab.runner.pp_utils import PPGroup, get_pp_indices
from mrv2lab.runner.sequence import IntermediateTensors, copy_same_keys
from tests.processes import is_gone, until

SMALL = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 64, "max_loras": 1, "max_num_reqs": 4}

# ---- intermediate tensors ----


def tensors(value, rows=3, names=("hidden_states", "residual")):
    return IntermediateTensors({name: torch.full((rows, 2), float(value)) for name in names})


def test_rows_are_the_same_memory_and_names_give_tensors():
    whole = tensors(0)
    whole[:2]["residual"].fill_(5)
    assert whole["residual"].tolist() == [[5, 5], [5, 5], [0, 0]]
    assert whole["hidden_states"].eq(0).all()


def test_copying_fills_the_first_rows_and_keeps_addresses():
    buffers = tensors(0)
    addresses = [tensor.data_ptr() for _, tensor in buffers.items()]
    copy_same_keys(buffers, tensors(7, rows=2))
    assert buffers["residual"].tolist() == buffers["hidden_states"].tolist() == [[7, 7], [7, 7], [0, 0]]
    assert addresses == [tensor.data_ptr() for _, tensor in buffers.items()]


@pytest.mark.parametrize("names", [("hidden_states",), ("hidden_states", "residual", "more")])
def test_other_keys_are_refused_before_anything_is_copied(names):
    buffers = tensors(0)
    with pytest.raises(ValueError, match=r"sent .* this one reads"):
        copy_same_keys(buffers, tensors(7, names=names))
    assert buffers["hidden_states"].eq(0).all()


# ---- the split ----


@pytest.mark.parametrize(("num_layers", "first", "last"), [(2, 1, 1), (3, 2, 1), (4, 2, 2), (7, 4, 3)])
def test_layers_are_shared_out_as_upstream_shares_them(num_layers, first, last):
    ranges = [get_pp_indices(num_layers, rank, 2) for rank in (0, 1)]
    assert [len(r) for r in ranges] == [first, last]
    assert [i for r in ranges for i in r] == list(range(num_layers))


def test_a_stage_without_a_layer_is_refused():
    with pytest.raises(BadInput, match="num_layers=1 for 2 pipeline stages; possible: at least one"):
        get_pp_indices(1, 0, 2)


def test_a_stage_keeps_only_what_it_computes():
    first, last = (ModelRunner(RunnerConfig(**SMALL), "emulated", pp_group=PPGroup(r, 2)) for r in (0, 1))
    assert [layer.qkv_proj.weight.is_meta for layer in first.model.layers] == [False, True]
    assert [layer.qkv_proj.weight.is_meta for layer in last.model.layers] == [True, False]
    assert (first.model.embed_tokens.weight.is_meta, first.model.lm_head.weight.is_meta) == (False, True)
    assert (last.model.embed_tokens.weight.is_meta, last.model.lm_head.weight.is_meta) == (True, False)


def wanted():
    """Three requests; adapter 1 and none; nothing forced."""
    prompts = [tuple((7 * i + j) % 64 for j in range(3 + i)) for i in range(3)]
    return [Request(f"r{i}", prompt, 4, lora_id=i % 2) for i, prompt in enumerate(prompts)]


def serve_some(pp_group, backend, mode):
    runner = ModelRunner(RunnerConfig(**SMALL, cudagraph_mode=mode), backend, pp_group=pp_group)
    runner.warm_up_and_capture()
    engine = Engine(runner)
    for request in wanted():
        engine.add_request(request)
    steps = list(iter(engine.step, None))
    return [(step.sampled_token_ids, step.num_replays, step.logits.cpu()) for step in steps]


def test_two_processes_serve_what_one_serves_adapters_included(backend):
    whole = serve_some(PPGroup(), backend, CUDAGraphMode.NONE)
    first, last = run_stages(serve_some, backend, CUDAGraphMode.FULL, backend=backend)
    assert [tokens for tokens, *_ in first] == [tokens for tokens, *_ in last] == [t for t, *_ in whole]
    assert [n for _, n, _ in first] == [n for _, n, _ in last] == [0, 1, 1, 1]
    for (*_, logits), (*_, reference) in zip(last, whole, strict=True):
        torch.testing.assert_close(logits, reference, rtol=1e-4, atol=1e-4)
    assert {len(logits) for *_, logits in first} == {0}


# ---- uniform query lengths ----


@pytest.mark.parametrize(
    ("num_reqs", "num_tokens", "uniform"),
    [(8, 8, 8), (8, 4, 8), (8, 16, 8), (8, 12, 6), (8, 10, 5), (8, 13, 1), (3, 7, 1), (3, 8, 2), (1, 5, 1)],
)
def test_requests_are_lowered_until_tokens_divide(num_reqs, num_tokens, uniform):
    assert uniform_num_reqs(num_reqs, num_tokens) == uniform


@pytest.mark.parametrize("num_tokens", range(9, 40))
def test_a_dummy_batch_of_that_many_requests_is_uniform(num_tokens):
    buffers = InputBuffers(8, 64, torch.device("cpu"))
    batch = InputBatch.make_dummy(uniform_num_reqs(8, num_tokens), num_tokens, buffers)
    assert set(batch.num_scheduled_tokens) == {uniform_query_len(batch.num_scheduled_tokens)}


def test_without_the_work_around_capture_stops_at_the_assertion(monkeypatch):
    config = RunnerConfig(**SMALL, uniform_decode=True, cudagraph_capture_sizes=(6,), num_layers=1)
    runner = ModelRunner(config, "emulated")
    runner.capture_model()
    assert [(d.num_tokens, d.num_reqs) for d in runner.cudagraph_manager.graphs] == [(6, 3)]
    monkeypatch.setattr(cudagraph_utils, "uniform_num_reqs", lambda num_reqs, num_tokens: num_reqs)
    with pytest.raises(
        AssertionError, match=r"uniform query lengths per request\. Got num_decode_tokens=6 and"
    ):
        ModelRunner(config, "emulated").capture_model()


# ---- processes ----


def note_pid(pp_group, folder):
    Path(folder, str(pp_group.rank_in_group)).write_text(str(os.getpid()))


def has_noted_pid(folder, rank):
    return Path(folder, str(rank)).is_file() and bool(Path(folder, str(rank)).read_text())


def wait_while_partner(pp_group, folder, end):
    note_pid(pp_group, folder)
    if pp_group.is_last_rank:
        while not has_noted_pid(folder, pp_group.rank_in_group - 1):
            time.sleep(0.001)  # it would be ended before it said who it is
        print("about to end", flush=True)
        end()
    pp_group.receive(1)()


def pids(folder):
    return [int(path.read_text()) for path in sorted(folder.iterdir())]


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def crashes():
    raise KeyError("no such layer\nand more")


def leaves():
    sys.exit()


@pytest.mark.parametrize(
    ("end", "first_line"),
    [
        (killed, "stage 1 of 2 ended with status -9: about to end"),
        (crashes, "stage 1 of 2 ended with status 1: KeyError: 'no such layer\\nand more'"),
        (leaves, "stage 1 of 2 ended with status 1: SystemExit: "),
    ],
)
def test_a_stage_that_dies_takes_its_partner_along(tmp_path, end, first_line):
    start = time.monotonic()
    with pytest.raises(StageDied) as caught:
        run_stages(wait_while_partner, str(tmp_path), end, backend="emulated")
    assert time.monotonic() - start < 30  # and not for as long as the other one would have waited
    lines = str(caught.value).splitlines()
    assert lines[0] == first_line
    assert "--- stage 0, last lines:" in lines and "--- stage 1, last lines:" in lines
    if end is killed:  # a traceback is longer than what is shown
        assert "about to end" in lines
    assert len(pids(tmp_path)) == 2 and all(map(is_gone, pids(tmp_path)))


def sleeps(pp_group, folder):
    note_pid(pp_group, folder)
    time.sleep(600)


def test_stages_that_only_wait_are_ended_and_not_judged(tmp_path, monkeypatch):
    started, fork = [], pp_executor.Fork
    monkeypatch.setattr(pp_executor, "Fork", lambda *a, **k: started.append(fork(*a, **k)) or started[-1])
    monkeypatch.setattr(pp_executor, "PATIENCE", 0.01)
    with pytest.raises(
        CutOff, match=r"stage 0 of 2 had no result after 0.6 s and was ended: .* Run it again"
    ):
        run_stages(sleeps, str(tmp_path), backend="emulated")
    assert [stage.status for stage in started] == [1, 1]


def works_for_ever(pp_group):
    while True:
        pass


def test_a_stage_that_works_for_ever_is_stopped(monkeypatch):
    monkeypatch.setitem(pp_executor.LIMIT_S, "emulated", 0.5)
    monkeypatch.setattr(pp_executor, "PATIENCE", 1000)
    line = r"stage . of 2 ended with status 1: TimeoutError: stage . of 2 ran for 0.5 s without a result"
    with pytest.raises(StageDied, match=line):
        run_stages(works_for_ever, backend="emulated")


PARENT = """
import os, sys, time
from pathlib import Path
from mrv2lab.runner.pp_executor import run_stages

def sleeps(pp_group, folder):
    Path(folder, str(pp_group.rank_in_group)).write_text(str(os.getpid()))
    time.sleep(600)

run_stages(sleeps, sys.argv[1], backend="emulated")
"""


def stays_while_the_last_stage_works(pp_group):
    """The first stage says who it is and has no more to do. Does it run a moment later?"""
    if pp_group.is_first_rank:
        (wait,) = pp_group.isend_tensor_dict(IntermediateTensors({"pid": torch.tensor([os.getpid()])}))
        return wait() and None
    pid = pp_group.recv_tensor_dict()["pid"].item()
    return not until(lambda: is_gone(pid), 0.5)


def test_no_stage_hangs_up_before_all_are_ready():
    assert run_stages(stays_while_the_last_stage_works, backend="emulated") == [None, True]


def test_stages_end_with_a_parent_that_was_killed(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)])
    try:
        assert until(lambda: len(list(tmp_path.iterdir())) == 2, 30)
    finally:
        parent.kill()
        parent.wait()
    assert until(lambda: all(map(is_gone, pids(tmp_path))), 10)


# ---- functions of a reader's own ----

NOTEBOOK = """
import os
from mrv2lab.runner import RunnerConfig

FACTOR = 3

def tripled(rank):
    return FACTOR * rank if rank < 2 else tripled(rank - 1)

def my_stage(pp_group, *, numbers=range(2)):
    assert os.getpid() and RunnerConfig().num_layers == 2
    return [(lambda n: tripled(pp_group.rank_in_group + n))(n) for n in numbers]
"""


def test_functions_of_a_notebook_travel_with_what_they_use():
    cell = {"__name__": "__main__"}
    exec(NOTEBOOK, cell)
    assert run_stages(cell["my_stage"], backend="emulated") == [[0, 3], [3, 3]]


def test_stages_run_the_package_of_whoever_started_them_from_wherever(monkeypatch, tmp_path):
    cell = {"__name__": "__main__", "mrv2lab": mrv2lab}
    exec("def where(pp_group): return mrv2lab.__file__", cell)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert run_stages(cell["where"], backend="emulated") == [mrv2lab.__file__] * 2


def test_what_cannot_be_pickled_is_refused():
    with pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        run_stages(print, (n for n in ()), backend="emulated")
