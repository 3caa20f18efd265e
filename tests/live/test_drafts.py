"""Audits of drafts, without vLLM and without a GPU: a speculator of its shape on the emulator."""

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from mrv2lab.graphs import capture
from mrv2lab.live import drafts
from mrv2lab.live.audit import FIRST, Steps
from mrv2lab.live.drafts import Key
from mrv2lab.live.plugin import Served
from tests.live.test_plugin import Desc, Manager, Mode, Runner, config

NONE, FULL, PIECEWISE = Mode("NONE"), Mode("FULL"), Mode("PIECEWISE")


@dataclass
class Plan:
    """What a first use fills."""

    lengths: torch.Tensor
    last: int | None = None
    used: int = 0


@dataclass
class Metadata:
    plan: Plan
    block_table: torch.Tensor


class Draft:
    """Its plan is made by the first layer that needs it, and used by all; after several passes it is used up.
    It counts its passes."""

    def __init__(self):
        self.scale, self.asked, self.passes = 2.0, 0, 0

    def forward(self, input_ids, hidden_states, metadata):
        if metadata.plan.last is None:
            metadata.plan.last = self.asked
            self.asked += 1
        metadata.plan.used += 1
        self.passes += 1
        drafted = input_ids + hidden_states * self.scale + 100 * (metadata.plan.used > 3)
        return drafted, drafted + 1  # for the sampler, and for the pass that follows

    __call__ = forward


class Described(NamedTuple):
    """`BatchDescriptor`."""

    num_tokens: int


@dataclass
class Context:
    attn_metadata: object
    cudagraph_runtime_mode: Mode
    batch_descriptor: object
    additional_kwargs: dict


CONTEXTS = []


@contextmanager
def context(made):
    CONTEXTS.append(made)
    try:
        yield
    finally:
        CONTEXTS.pop()


class Graphs(Manager):
    """`CudaGraphManager` of one pass, which is captured whole or in pieces."""

    def __init__(self, sizes, mode, make):
        super().__init__(sizes)
        self.mode, self.make, self.pieces = mode, make, {}

    def capture(self):
        for desc in self._capture_descs["FULL"]:
            self.graphs[desc] = capture(lambda desc=desc: self.make(desc.num_tokens), backend="emulated")

    def run_pw_graph(self, model, model_inputs):
        size = len(model_inputs["input_ids"])
        if CONTEXTS[-1].cudagraph_runtime_mode != PIECEWISE:
            return model(**model_inputs)
        if size not in self.pieces:
            self.pieces[size] = capture(lambda: model(**model_inputs), backend="emulated")
        self.pieces[size].replay()
        return self.pieces[size].outputs


class Speculator:
    """`AutoRegressiveSpeculator`, as far as an audit looks at it."""

    num_tokens = 3  # of a draft

    def __init__(self, sizes=(2, 4), mode=FULL):
        self.model, self.num_made = Draft(), 0
        self.hidden_states, self.draft_tokens = torch.ones(8), torch.zeros(8, 3)
        ints = {name: torch.zeros(8) for name in ("input_ids", "positions", "seq_lens")}
        self.input_buffers = SimpleNamespace(**ints)
        self.prefill_cudagraph_manager = Graphs(sizes, mode, self._first_of)
        self.decode_cudagraph_manager = Graphs(sizes, FULL, self._later_of)
        self.step = torch.zeros(1, dtype=torch.long)

    def metadata(self, size):
        return Metadata(Plan(self.input_buffers.seq_lens[:size]), torch.zeros(1))

    def _first_of(self, size):
        self._prefill(size, size, self.metadata(size), None, num_tokens_across_dp=None)

    def _later_of(self, size):
        self._generate_draft(size, size, self.metadata(size), None, num_tokens_across_dp=None)

    def capture(self):
        if self.prefill_cudagraph_manager.mode == FULL:
            self.prefill_cudagraph_manager.capture()
        self.decode_cudagraph_manager.capture()

    def propose(self, input_batch, attn_metadata, slot_mappings, mm_inputs=None, dummy_run=False):
        num_reqs = len(input_batch.values)
        size = next(size for size in (2, 4) if size >= num_reqs)
        self.input_buffers.input_ids[:num_reqs] = torch.tensor(input_batch.values)
        num_tokens_across_dp = None
        manager = self.prefill_cudagraph_manager
        if manager.mode == FULL:
            manager.run_fullgraph(Desc(FULL, size, size))
        else:
            how = {"cudagraph_runtime_mode": manager.mode, "mm_inputs": mm_inputs}
            self._prefill(num_reqs, size, attn_metadata, slot_mappings, **how)
        self._multi_step_decode(num_reqs, Desc(FULL, size, size), num_tokens_across_dp)
        return self.draft_tokens[:num_reqs].clone()

    def _multi_step_decode(self, num_reqs, batch_desc, num_tokens_across_dp):
        slot_mappings_by_layer = None
        for step in range(1, self.num_tokens):
            attn_metadata = self.metadata(batch_desc.num_tokens)
            self.step.fill_(step)
            self.decode_cudagraph_manager.run_fullgraph(batch_desc)
        assert attn_metadata is not slot_mappings_by_layer is num_tokens_across_dp

    def _run_model(self, num_tokens, attn_metadata, mode):
        buffers, told = self.input_buffers, Described(num_tokens)
        inputs = {"input_ids": buffers.input_ids[:num_tokens], "metadata": attn_metadata}
        inputs["hidden_states"] = self.hidden_states[:num_tokens]
        with context(Context(attn_metadata, mode, told, {})):
            if mode == PIECEWISE:
                return self.prefill_cudagraph_manager.run_pw_graph(self.model, inputs)
            return self.model(**inputs)

    def _prefill(
        self, num_reqs, num_tokens, attn_metadata, slots, num_tokens_across_dp=None,
        cudagraph_runtime_mode=NONE, mm_inputs=None,
    ):  # fmt: skip
        made = self._run_model(num_tokens, attn_metadata, cudagraph_runtime_mode)
        drafted, handed_on = (rows[:num_reqs] for rows in made)
        self.draft_tokens[:num_reqs, 0] = drafted
        self.hidden_states[:num_reqs] = handed_on

    def _generate_draft(self, num_reqs, num_tokens, attn_metadata, slots, num_tokens_across_dp):
        drafted, handed_on = (rows[:num_reqs] for rows in self._run_model(num_tokens, attn_metadata, NONE))
        self.draft_tokens[:num_reqs].index_copy_(1, self.step, drafted[:, None])
        self.hidden_states[:num_reqs] = handed_on
        self.input_buffers.positions[:num_reqs] += 1


class Drafting(Runner):
    def __init__(self, mode=FULL):
        super().__init__()
        self.speculator = Speculator(mode=mode)

    def capture_model(self):
        made = super().capture_model()
        self.speculator.capture()
        return made

    def serve(self, values, dummy_run=False):
        self.execute_model(values, dummy_run)
        batch = SimpleNamespace(values=values, num_tokens=len(values))
        return self.speculator.propose(batch, self.speculator.metadata(4), None, dummy_run=dummy_run)


@pytest.fixture(autouse=True)
def vllm(monkeypatch):
    asked = {"get_forward_context": lambda: CONTEXTS[-1], "override_forward_context": context}
    monkeypatch.setitem(sys.modules, "vllm.config", SimpleNamespace(CUDAGraphMode=SimpleNamespace(NONE=NONE)))
    monkeypatch.setitem(sys.modules, "vllm.forward_context", SimpleNamespace(**asked))
    monkeypatch.setattr("mrv2lab.live.v2.Step._context", lambda self, mode: context(None))


def audited(runner, requests=((1.0, 2.0), (3.0, 4.0))):
    steps = Steps(backend="emulated")
    assert steps.watch_capture(runner, runner.capture_model) == 123
    steps.scenario = FIRST
    return steps, [runner.serve(list(values)).tolist() for values in requests]


def drafted(steps):
    return {key.token: report for (_, key), report in steps.reports.items() if isinstance(key, Key)}


REQUESTS = [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0]]


@pytest.mark.parametrize("mode", [FULL, PIECEWISE])
def test_both_passes_of_a_draft_are_audited_and_drafts_stay(mode):
    alone = Drafting(mode)
    alone.capture_model()
    right = [alone.serve(values).tolist() for values in REQUESTS[:3]]
    runner = Drafting(mode)
    steps, made = audited(runner, REQUESTS[:3])
    assert made == right and not steps.left_out()
    names = [report.step for report in steps.reports.values()]
    assert names == [
        f"{model}, {size} tokens{drafts_}"
        for size in (2, 4)
        for model, drafts_ in (
            ("Model", ""),
            ("Draft", ", drafted token 1"),
            ("Draft", ", drafted token 2"),
            ("Draft", ", drafted token 3"),
        )
    ]
    assert [report.findings for report in steps.reports.values()] == [()] * 8
    if mode == FULL:  # pieces are captured as they are served
        assert runner.speculator.model.passes == alone.speculator.model.passes  # put back behind each audit


@pytest.mark.parametrize(("mode", "tokens"), [(FULL, [1, 2, 3]), (PIECEWISE, [2, 3])])
def test_a_number_that_froze_in_a_draft_is_named_in_each_pass(mode, tokens):
    runner = Drafting(mode)
    steps = Steps(backend="emulated")
    steps.watch_capture(runner, runner.capture_model)
    steps.scenario = FIRST
    runner.speculator.model.scale = 3.0
    runner.serve([1.0, 2.0])
    found = {token: report.findings for token, report in drafted(steps).items() if report.findings}
    assert list(found) == tokens
    for findings in found.values():
        assert findings[0].kind == "frozen-host-value" and findings[0].subject.endswith(".scale")


def test_rows_of_padding_are_as_in_the_graph():
    """Three requests in a graph of four: nothing has frozen, as an eager pass has four rows as well."""
    runner = Drafting()
    runner.cudagraph_manager.dispatch = lambda size: Desc(FULL, size + size % 2, size + size % 2)
    steps = Steps(backend="emulated")
    steps.watch_capture(runner, runner.capture_model)
    steps.scenario = FIRST
    one = runner.speculator
    one.propose(SimpleNamespace(values=[1.0, 2.0, 3.0], num_tokens=3), one.metadata(4), None)
    assert [(report.findings, report.notes) for report in drafted(steps).values()] == [((), ())] * 3


def test_each_pass_has_a_plan_that_nobody_has_used():
    """Layers share one plan, which the first of them fills."""
    plan = Plan(torch.zeros(2))
    before = {"one": Metadata(plan, torch.zeros(1)), "two": Metadata(plan, torch.zeros(1)), "many": [plan]}
    made = drafts._apart(before, {})
    made["one"].plan.last = 7
    assert made["two"].plan.last == made["many"][0].last == 7 and plan.last is None
    assert made["one"].plan.lengths is plan.lengths


def test_a_speculator_of_another_kind_is_told_and_its_target_is_audited():
    class Block(Speculator):
        _multi_step_decode = None

        def propose(
            self, input_batch, attn_metadata, slot_mappings, num_tokens_across_dp=None, mm_inputs=None
        ):
            num_reqs = num_tokens_across_dp = 1
            return num_reqs * num_tokens_across_dp * torch.zeros(1)

    runner = Drafting()
    runner.speculator = Block()
    steps = Steps(backend="emulated")
    steps.watch_capture(runner, runner.capture_model)
    steps.scenario = FIRST
    runner.execute_model([1.0, 2.0])
    assert [report.step for report in steps.reports.values()] == ["Model, 2 tokens"]
    assert steps.left_out() == ["drafts of Block are not audited: it has no dummy_run in propose"]


def test_drafts_of_the_other_runner_are_told():
    drafter = SimpleNamespace(cudagraph_dispatcher=None)
    assert "the V1 runner makes them" in drafts.left_out(SimpleNamespace(drafter=drafter))
    assert drafts.left_out(SimpleNamespace(drafter=SimpleNamespace())) == ""
    assert drafts.left_out(SimpleNamespace()) == drafts.left_out(SimpleNamespace(speculator=None)) == ""


@pytest.fixture
def serving(monkeypatch, tmp_path):
    """A runner that serves, and checks of every second replay."""
    monkeypatch.setenv("MRV2LAB_AUDIT_DIR", str(tmp_path))
    runner = Drafting()
    served = Served(every=2, runner=runner)
    served.backend = "emulated"
    served.watch_capture(runner, runner.capture_model)
    served.begin()
    return runner, served


def test_a_server_audits_and_checks_drafts_and_no_dummy_runs(serving):
    runner, served = serving
    runner.serve([1.0, 2.0], dummy_run=True)
    assert not [key for key in served.found if isinstance(key, Key)]
    for number in range(6):
        runner.serve([1.0 + number, 2.0])
    keys = [key for key in served.found if isinstance(key, Key)]
    assert [key.token for key in keys] == [1, 2, 3]
    assert served.num["checks"] == 4 * 3 and not served.num["apart"] and not served.num["failed"]


def test_a_check_sees_a_draft_that_goes_wrong_while_it_serves(serving):
    """What a pass leaves lies in the speculator's buffers, which the eager pass writes as well."""
    runner, served = serving
    runner.serve([1.0, 2.0])
    runner.speculator.model.scale = 3.0
    runner.serve([3.0, 4.0])
    found = [served.found[key] for key in served.found if isinstance(key, Key)]
    assert served.num["apart"] == 3 and [numbers[0] for numbers in found] == [0] * 3
    assert all(numbers[1] for numbers in found)


def test_a_speculator_that_makes_all_others_in_one_graph_is_told():
    runner = Drafting()
    runner.speculator.use_fused_multi_step_decode = True
    assert drafts.left_out(runner) == "of drafts the first token alone is audited: one graph makes all others"
    runner.speculator.decode_cudagraph_manager._capture_descs = {"FULL": []}  # they are made eagerly
    assert drafts.left_out(runner) == ""
    assert drafts.anchors(runner)


def test_on_several_ranks_drafts_are_told_and_left_alone():
    runner = Drafting()
    runner.vllm_config = config(tensor_parallel_size=2)
    assert "not audited on tensor parallel ranks" in drafts.left_out(runner) and drafts.anchors(runner) == []


def test_a_speculator_that_has_no_graphs_has_no_anchors():
    """A draft model that stands alone has one of the two passes, and nothing captured."""
    runner = SimpleNamespace(speculator=SimpleNamespace(_prefill=None), vllm_config=config())
    assert drafts.left_out(runner) == "" and drafts.anchors(runner) == []


def test_a_pass_that_asks_for_more_is_told():
    class Asks(Speculator):
        def _generate_draft(self, num_reqs, num_tokens, attn_metadata, slots, num_tokens_across_dp, seed):
            pass

    class Knows(Speculator):
        def _generate_draft(self, num_reqs, num_tokens, attn_metadata, slots, num_tokens_across_dp,
                            cudagraph_runtime_mode, num_speculative_steps):  # fmt: skip
            pass

    assert drafts._lacks(Knows) == ""
    assert (
        drafts._lacks(Asks) == "_generate_draft that can be called so (missing a required argument: 'seed')"
    )


def test_what_a_pass_leaves_is_of_its_requests():
    """Two of four rows; each of what the next pass reads."""
    runner = Drafting()
    speculator = runner.speculator

    def propose(num_reqs=2, attn_metadata=None):
        return drafts.Draft(runner, {"batch_desc": None, "frame": sys._getframe()}, None)

    left = propose()._left()
    assert {name: len(rows) for name, rows in left.items()} == dict.fromkeys(
        ("draft_tokens", "hidden_states", "positions", "seq_lens", "input_ids"), 2
    )
    assert left["hidden_states"].data_ptr() == speculator.hidden_states.data_ptr()


def test_the_eager_pass_is_given_what_the_speculator_has_prepared():
    runner, told = Drafting(), []
    speculator = runner.speculator
    speculator.max_num_reqs, speculator.num_speculative_steps = 3, 4
    speculator._prefill = lambda *args, num_tokens_across_dp, cudagraph_runtime_mode, mm_inputs: told.append(
        (args, num_tokens_across_dp, cudagraph_runtime_mode, mm_inputs)
    )
    speculator._generate_draft = lambda *args, num_tokens_across_dp, num_speculative_steps: told.append(
        (args, num_tokens_across_dp, num_speculative_steps)
    )

    def propose(attn_metadata="a", slot_mappings="s", num_tokens_across_dp="d", mm_inputs="m", num_reqs=1):
        return sys._getframe()

    def later(attn_metadata="b", slot_mappings_by_layer="l", num_tokens_across_dp="e", num_reqs=1):
        num_speculative_steps = 2  # this step wants fewer than the graph was captured for
        return sys._getframe() if num_speculative_steps else None

    for token, frame, num_reqs in (1, propose(), 2), (2, later(), None):
        desc = Desc(FULL, 8, num_reqs)
        one = drafts.Draft(runner, {"batch_desc": Key(token, FULL, desc), "frame": frame}, None)
        one.prepare()
        one.eager()
    assert told == [((2, 8, "a", "s"), "d", NONE, "m"), ((3, 8, "b", "l"), "e", 4)]
