"""An engine with a guard and audits attached, timed: what is in use when, verdicts and ratios. No vLLM, no
GPU and no clock."""

import logging
from collections import Counter
from itertools import permutations
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from typer.testing import CliRunner

from mrv2lab import bench_server, timed
from mrv2lab.bench_server import ATTACHED
from mrv2lab.cli import app
from mrv2lab.guard import _guarded
from mrv2lab.live import in_turn, launch
from mrv2lab.live.in_turn import (
    AWAKE,
    BESIDE,
    EVERY,
    FEWEST,
    LOADS,
    NUM_TOKENS,
    OURS,
    PARTS,
    REPLAYS,
    ROUNDS,
    STEPS,
    STOCK,
    WAYS,
    Attached,
    Turns,
    measured,
    order,
    row,
)

# ---- an engine that is attached to ----


class Graph:
    """`torch.cuda.CUDAGraph`."""

    def replay(self):
        pass


class Observable(Graph):
    """What an audit makes of it."""


class Key(NamedTuple):
    """`BatchExecutionDescriptor`."""

    num_tokens: int


class Manager:
    """`CudaGraphManager`."""

    def __init__(self):
        self.graphs = {Key(size): Observable() for size in LOADS}
        for graph in self.graphs.values():
            graph.__class__ = _guarded(Observable)
            graph._guards = [("guard", SimpleNamespace(watches=[1, 2, 3]))]
        self.run_fullgraph = self.run_pw_graph = lambda *args: "audited"

    def run_fullgraph(self, *args):
        return "own"

    run_pw_graph = run_fullgraph


class LLM:
    """Serves tokens of 2 ms alone, and checks for 30 ms in some turns that are audited, for 0.6 in each one
    that is guarded."""

    def __init__(self):
        self.manager, self.served, self.checks = Manager(), [], SimpleNamespace(_next_at=5.0)
        self.spoils, self.at_end = set(), lambda: None
        self.guard = SimpleNamespace(_graphs=[self.checks], told=set(), num=Counter())
        self.audit = SimpleNamespace(num=Counter(), found={"key": [0]}, every=1)
        runner = SimpleNamespace(cudagraph_manager=self.manager)
        self.worker = SimpleNamespace(mrv2lab_guard=self.guard, mrv2lab_audit=self.audit, model_runner=runner)
        executor = SimpleNamespace(driver_worker=SimpleNamespace(worker=self.worker))
        self.llm_engine = SimpleNamespace(model_executor=executor)

    @property
    def way(self):
        """What is in use, as the engine sees it."""
        kinds = {Graph: "off", _guarded(Graph): "guard", Observable: "every=1000"}
        [kind] = {type(graph) for graph in self.manager.graphs.values()}
        runs = {self.manager.run_fullgraph(), self.manager.run_pw_graph()}
        assert runs == {"audited" if kinds[kind] == "every=1000" else "own"}
        return kinds[kind]

    def begin(self, load):
        self.load, self.answer = load, [load, 7]

    def steps(self, awake, timed):
        self.served.append((self.load, self.way, self.audit.every, awake, timed))
        ms = timed * {"off": 2.0, "guard": 2.02, "every=1000": 2.01}[self.way]
        if self.way == "every=1000" and (self.served.count(self.served[-1]) % 2 or not timed):
            self.audit.num += Counter(checks=1, us=30_000)
            ms += 30.0
        if self.way == "guard" and timed:
            self.guard.num += Counter(checks=1, us=600)
            ms += 0.6
        if self.way in self.spoils:
            self.answer = [0]
        return ms

    def finish(self):
        return tuple(self.answer)


class Other:
    """The engine of another process."""

    def __init__(self, llm, way, ms):
        self.llm, self.way, self.ms, self.has_ended = llm, way, ms, False

    def ask(self, name, number=0):
        assert not self.has_ended
        if name == "forced":
            return [self.llm.logits[self.way].tolist()]
        if name == "steps":
            self.llm.served.append((self.llm.load, self.way, self.llm.audit.every, AWAKE, STEPS))
            return STEPS * self.ms
        return {"finish": [8], "graph": [1.25]}.get(name)

    def end(self):
        self.has_ended = True
        self.llm.at_end()


@pytest.fixture
def llm(monkeypatch):
    monkeypatch.setattr(in_turn, "DRAWN", 100)
    made = LLM()
    made.others = [Other(made, way, ms) for way, ms in zip(STOCK, (1.8, 2.2), strict=True)]
    others = iter(made.others)
    monkeypatch.setattr(in_turn, "Stock", lambda folder: next(others))
    monkeypatch.setattr(in_turn, "graph_ms", lambda manager, load: [{"off": 1.2}[made.way]])
    monkeypatch.setattr(in_turn.mrv2lab_vllm, "attach", lambda: None)
    logits = {way: torch.ones(2, 3) for way in WAYS}
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(in_turn, "start", lambda model: made)
    for name in ("begin", "steps", "finish"):
        monkeypatch.setattr(in_turn, name, getattr(LLM, name))
    monkeypatch.setattr(
        in_turn, "forced", lambda llm, graphs, load: SimpleNamespace(logits=[logits[llm.way]])
    )
    made.logits = logits
    return made


def rows_of(found):
    rows = map(timed.Row.model_validate, found["rows"])
    return {(one.labels["attached"], one.labels["requests"]): one for one in rows}


# ---- turns ----


def test_each_way_has_as_many_turns_in_each_round_and_nothing_else_is_in_use(llm):
    ended = []
    llm.at_end = lambda: ended.append(sum(way in OURS for _, way, *_, timed in llm.served if timed))
    rows = rows_of(measured({"folder": "model"}))
    # before the ways' own rounds; and once more, whatever has happened
    assert ended == [(1 + BESIDE) * PARTS * len(LOADS)] * 2 + ended[2:] and len(ended) == 4
    timed_turns = [turn for turn in llm.served if turn[-1]]
    each = [timed_turns[i : i + 3] for i in range(0, len(timed_turns), 3)]
    beside, alone = [load for load in LOADS for _ in range(PARTS)], [load for load in LOADS for _ in range(8)]
    loads = beside * (1 + BESIDE) + alone * (1 + ROUNDS)
    assert [{load for load, *_ in turns} for turns in each] == [{load} for load in loads]
    num_beside = len(beside) * (1 + BESIDE)
    assert all({way for _, way, *_ in turns} == {"off", *STOCK} for turns in each[:num_beside])
    assert all({way for _, way, *_ in turns} == {*OURS} for turns in each[num_beside:])
    orders = {tuple(way for _, way, *_ in turns) for turns in each[num_beside:][:8]}
    assert len(orders) == 6  # in a round already
    early = 3 * (num_beside + len(alone))
    assert [every for _, _, every, *_ in timed_turns] == [8] * early + [331] * (len(timed_turns) - early)
    assert [*rows] == [(way, load) for way in WAYS for load in LOADS]
    assert {one.verdict for one in rows.values()} == {"correct"}
    assert rows["off", 8].counts["of off"] == pytest.approx(1.0)
    assert rows["guard", 8].counts["of off"] == pytest.approx((2.02 + 0.6 / 12) / 2)
    assert rows["stock", 8].counts["of off"] == pytest.approx(0.9)
    assert rows["stock, again", 8].counts["of off"] == pytest.approx(1.1)
    assert rows["off", 8].ms["graph"].median == 1.2 and rows["stock", 8].ms["graph"].median == 1.25
    assert rows["guard", 8].ms.keys() == {"token"}  # the graphs of `off`
    assert rows["guard", 8].ms["token"].median == pytest.approx(2.02 + 0.6 / 12)
    assert rows["guard", 8].counts["checks"] == ROUNDS * 8 and "after" not in rows["guard", 8].counts
    assert rows["guard", 8].counts["off ms"] == pytest.approx(2.0)
    assert rows["guard", 8].counts["values"] == 3 and rows["guard", 8].counts["answers"] == 1


def test_all_engines_make_as_many_steps_and_an_answer_lasts_for_all_of_them(llm):
    measured({"folder": "model"})
    made = Counter()
    for _, way, _, untimed, num_timed in llm.served:
        made["ours" if way in OURS else way] += untimed + num_timed
    assert made.keys() == {"ours", *STOCK}
    a_round = (NUM_TOKENS - 8) * len(LOADS)
    assert {made[way] for way in STOCK} == {a_round * (1 + BESIDE)}
    assert made["ours"] == a_round * (2 + BESIDE + ROUNDS)


@pytest.mark.parametrize("way, wrong", [("guard", {"guard", "every=1000"}), ("off", {"guard", "every=1000"})])
def test_a_round_that_answers_otherwise_than_nothing_in_use_is_wrong(llm, way, wrong):
    llm.spoils.add(way)
    rows = rows_of(measured({"folder": "model"}))
    assert {attached for (attached, _), one in rows.items() if one.verdict == "wrong"} == wrong


def test_what_answers_otherwise_in_the_first_round_alone_is_wrong(llm, monkeypatch):
    llm.spoils.add("guard")
    monkeypatch.setattr(in_turn, "tell_progress", lambda part, what: what == "round 1" and llm.spoils.clear())
    rows = rows_of(measured({"folder": "model"}))
    assert {rows[way, 8].verdict for way in ("guard", "every=1000")} == {"wrong"}


def test_a_check_is_taken_out_of_its_turn_and_spread_over_what_it_is_made_for(llm, caplog):
    caplog.set_level(logging.INFO, "vllm.mrv2lab")
    found = measured({"folder": "model"})
    counts = rows_of(found)["every=1000", 1].counts
    told = [line for line in found["log"] if line.startswith("turn with a check of 30.0 ms, 1 requests: ")]
    assert len(told) >= counts["checks"] / 2 and "allocations of the driver" in told[0]
    # Those of the first round do not count; those of steps that awake a turn do, and take no time of it.
    assert counts["checks"] == (4 + 8) * ROUNDS
    assert counts["check ms"] == counts["longest"] == pytest.approx(30.0)
    assert (
        counts["low"] == pytest.approx(counts["high"]) == pytest.approx((2.01 + 30.0 / 24) / 2)
    )  # 24 steps of the engine for each


def test_in_six_turns_each_order_comes_once():
    assert sorted(tuple(order(number, OURS)) for number in range(6)) == sorted(permutations(OURS))


def test_the_time_in_which_a_guard_is_not_used_does_not_count_for_it(llm, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(in_turn.time, "perf_counter", lambda: now[0])
    attached = Attached(llm.worker)
    for now[0], way in (2.0, "off"), (3.0, "every=1000"), (7.0, "guard"), (9.0, "guard"), (10.0, "off"):
        attached.use(way)
    assert llm.checks._next_at == 5.0 + 5.0


@pytest.mark.parametrize("lacks", ["guard", "audit", "wrappers", "guarded graphs"])
def test_an_engine_that_has_not_both_is_an_error_with_the_log(llm, lacks, monkeypatch):
    if lacks == "wrappers":
        del llm.manager.run_fullgraph
    elif lacks == "guarded graphs":
        for graph in llm.manager.graphs.values():
            graph.__class__ = Observable
    else:
        delattr(llm.worker, f"mrv2lab_{lacks}")

    def start(model):
        logging.getLogger("vllm.mrv2lab").warning("nothing is attached: put in")
        return llm

    monkeypatch.setattr(in_turn, "start", start)
    with pytest.raises(RuntimeError, match="not both guarded and audited; nothing is attached: put in"):
        measured({"folder": "model"})


def test_what_awakes_a_turn_takes_no_time_of_it(monkeypatch):
    now, made = [0.0], []

    def step():
        made.append(now[0])
        now[0] += 0.002

    monkeypatch.setattr(in_turn.time, "perf_counter", lambda: now[0])
    llm = SimpleNamespace(llm_engine=SimpleNamespace(step=step))
    assert in_turn.steps(llm, 3, 10) == pytest.approx(20.0) and len(made) == 13


def test_nothing_is_attached_to_the_other_engine(monkeypatch, tmp_path):
    monkeypatch.setenv("MRV2LAB_GUARD", "warn")
    program = tmp_path / "stock.py"
    names = "[name for name in os.environ if name.startswith('MRV2LAB')]"
    told = f"sys.stdin.readline(); print(json.dumps({names}), flush=True)"
    program.write_text(f"import json, os, sys\nprint('{{}}', flush=True)\n{told}")
    started = in_turn.Popen
    monkeypatch.setattr(in_turn, "Popen", lambda command, **how: started([command[0], str(program)], **how))
    other = in_turn.Stock("model")
    assert other.ask("begin", 1) == []
    other.end()


ENDS = "import sys; sys.stdin.readline(); print('[[1.5, 2.5]]', flush=True)"


def test_the_other_engine_is_asked_line_by_line_and_its_end_is_an_error(monkeypatch, tmp_path):
    program = tmp_path / "stock.py"
    program.write_text(f"print('{{}}', flush=True)\n{ENDS}")
    started = in_turn.Popen
    monkeypatch.setattr(in_turn, "Popen", lambda command, **how: started([command[0], str(program)], **how))
    other = in_turn.Stock("model")
    assert other.ask("forced", 1) == [[1.5, 2.5]]  # behind its first line, which says that it stands
    with pytest.raises((RuntimeError, BrokenPipeError)):
        other.ask("steps", 1)
    other.end()


def test_a_graph_alone_is_timed_by_the_device(monkeypatch):
    replayed = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = 3.0 * len(replayed)

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    sizes = reversed(LOADS)  # as vLLM captures them
    graphs = {Key(size): SimpleNamespace(replay=lambda size=size: replayed.append(size)) for size in sizes}
    assert in_turn.graph_ms(SimpleNamespace(graphs=graphs), 8) == [3.0] * timed.RUNS
    assert replayed == [8] * (timed.RUNS + 1) * REPLAYS


# ---- rows ----


NO_COST = ((0.0,),) * 8  # a check in each round


def row_of(llm, way, answers=(1,), off=(1,), error=0.0, ms=None, checks=NO_COST, rounds=8):
    of_off, ours = [2.0, 4.0, 2.0, 2.0] * 2, ms or [2.2, 4.4, 1.8, 2.2] * 2
    turns = {("off", 1): Turns(0.0, of_off[:rounds], {*off}, [[] for _ in of_off[:rounds]])}
    every = EVERY if way == "every=1000" else 0
    turns[way, 1] = Turns(error, ours[:rounds], {*answers}, [*map(list, checks[:rounds])], every)
    return row(turns, way, 1, Attached(llm.worker))


def test_a_way_is_held_against_off_round_by_round(llm, monkeypatch):
    monkeypatch.setattr(in_turn, "DRAWN", 2000)
    monkeypatch.setattr(in_turn, "BLOCK", 1)
    made = row_of(llm, "guard")
    assert made.labels == {"attached": "guard", "requests": 1} and made.ms["token"].median == 2.2
    assert [made.counts[name] for name in ("low", "of off", "high")] == pytest.approx([0.9, 1.1, 1.1])
    off = row_of(llm, "off", ms=[2.0, 4.0, 1.0, 1.0] * 2)  # and that against its own round before
    assert [off.counts[name] for name in ("low", "of off", "high")] == pytest.approx([0.25, 1.0, 2.0])


def test_bounds_hold_the_rounds_and_the_checks(llm, monkeypatch):
    """Of 40 rounds that have nothing to do with each other, nearly all medians of those drawn again lie
    between the same two order statistics as by the binomial distribution: the 14th and the 27th hold 96 %."""
    monkeypatch.setattr(in_turn, "DRAWN", 2000)
    monkeypatch.setattr(in_turn, "BLOCK", 1)
    ratios = [1 + 0.001 * (7 * number % 40) for number in range(40)]
    turns = {("off", 1): Turns(0.0, [2.0] * 40, {1}, [[] for _ in ratios])}
    turns["guard", 1] = Turns(0.0, [2.0 * one for one in ratios], {1}, [[0.0] for _ in ratios])
    counts = row(turns, "guard", 1, Attached(llm.worker)).counts
    assert counts["of off"] == pytest.approx(1.0195)
    assert counts["low"] == pytest.approx(1.013, abs=0.0025)
    assert counts["high"] == pytest.approx(1.026, abs=0.0025)
    checks = [[20.0 + 300 * (number == 4)] for number in range(40)]  # one takes very long
    turns["every=1000", 1] = Turns(0.0, [2.0] * 40, {1}, checks, EVERY)
    counts = row(turns, "every=1000", 1, Attached(llm.worker)).counts
    assert counts["of off"] == pytest.approx(1 + 27.5 / 36 / 2)
    assert 1 + 20 / 36 / 2 <= counts["low"] < 1 + 21 / 36 / 2 and counts["high"] > 1 + 40 / 36 / 2


@pytest.mark.parametrize(
    "way, changed, verdict",
    [
        ("guard", {"answers": (2,)}, "wrong"),
        ("guard", {"answers": (1, 2)}, "wrong"),
        ("guard", {"answers": (2, 3), "off": (1, 2)}, "correct"),  # nor has off the same ones
        ("stock", {"answers": (2,)}, "correct"),
        ("stock", {"answers": (2,), "error": 1.0}, "wrong"),
        ("guard", {"error": 0.1}, "wrong"),
        ("every=1000", {}, "correct"),
        ("every=1000", {"checks": NO_COST[:FEWEST] + ((),) * 2}, "correct"),
        ("every=1000", {"checks": NO_COST[: FEWEST - 1] + ((),) * 3}, "wrong"),
        ("guard", {"checks": NO_COST[: FEWEST - 1] + ((),) * 3}, "wrong"),
        ("guard", {"rounds": FEWEST}, "correct"),
        ("guard", {"rounds": FEWEST - 1}, "wrong"),  # its bounds hold nothing at 95 %
        ("off", {"rounds": FEWEST}, "wrong"),  # one ratio less
    ],
)
def test_what_is_apart_or_has_done_nothing_is_wrong(llm, way, changed, verdict):
    made = row_of(llm, way, **changed)
    assert made.verdict == verdict
    assert made.counts.keys() >= {"of off", "low", "high"} or verdict == "wrong"
    assert not made.counts.keys() & {"of off", "low", "high"} or verdict == "correct"


def test_a_step_has_its_part_of_the_mean_check_and_the_longest_is_told(llm):
    checks = ((10.0, 20.0, 90.0), (40.0,)) * 4
    made = row_of(llm, "every=1000", ms=[2.0, 4.0, 2.0, 2.0] * 2, checks=checks)
    counts = {name: made.counts[name] for name in ("checks", "check ms", "longest")}
    assert counts == {"checks": 16, "check ms": 40.0, "longest": 90.0}
    assert "after" not in made.counts  # each round has one: what it leaves is in their times
    assert made.counts["of off"] == pytest.approx((2 + 40 / 18) / 2)  # 16 of them in 288 steps of the engine
    assert made.ms["token"].median == pytest.approx(2 + 40 / 18, abs=1e-3)


def test_what_a_check_leaves_behind_it_is_a_part_of_its_price(llm):
    """Its turn of ten steps takes 2 ms more than one without, and the median of turns hides that."""
    ms, checks = [2.2, 2.0, 2.0, 2.0] * 2, ((20.0,), (), (), ()) * 2
    turns = Turns(0.0, ms, {1}, [*map(list, checks)], EVERY)
    assert STEPS == 10 and in_turn.after(turns) == pytest.approx(2.0)
    assert in_turn.price(turns) == pytest.approx(22.0 / 144)
    turns = Turns(0.0, [1.8, 2.0, 2.0, 2.0] * 2, {1}, [*map(list, checks)], EVERY)
    assert in_turn.after(turns) == pytest.approx(-2.0)
    assert in_turn.price(turns) == pytest.approx(20.0 / 144)  # none gets faster by it
    two = Turns(0.0, [2.2, 2.0], {1}, [[20.0, 20.0], []])
    assert in_turn.after(two) == pytest.approx(1.0)


def test_checks_are_spread_over_the_steps_between_them(llm):
    """Of the engine, others lie between: 40 turns of 12 steps for two checks are 720 of its steps for one."""
    ms, checks = [2.0] * 40, ((20.0,), *[()] * 19) * 2
    turns = Turns(0.0, ms, {1}, [*map(list, checks)], every=100)
    assert in_turn.price(turns) == pytest.approx(20.0 / 720)


def test_what_a_guard_asks_now_and_then_is_a_part_of_its_price(llm):
    """Two in three rounds have none of it, which the median alone would be."""
    ms, checks = [2.0] * 9, ((4.8,), (), ()) * 3
    turns = Turns(0.0, ms, {1}, [*map(list, checks)])
    assert in_turn.price(turns) == pytest.approx(4.8 / (3 * (AWAKE + STEPS)))
    made = row_of(llm, "guard", ms=[2.0, 4.0, 2.0, 2.0] * 2, checks=((1.2,),) * 8)
    assert made.counts["of off"] == pytest.approx(1.05) and made.counts["check ms"] == pytest.approx(1.2)


def test_a_guard_that_never_asks_is_wrong(llm):
    assert row_of(llm, "guard", checks=((),) * 8).verdict == "wrong"


def test_five_rounds_are_drawn_together():
    assert 5 * PARTS // len(OURS) == in_turn.BLOCK


def test_rounds_that_lie_near_each_other_are_drawn_together(llm, monkeypatch):
    """Of rounds that drift, single ones drawn again would give bounds that are too narrow."""
    monkeypatch.setattr(in_turn, "DRAWN", 500)
    monkeypatch.setattr(in_turn, "BLOCK", 5)
    assert in_turn.drawn([3, 4, 5, 6, 7, 8, 9], in_turn.Random(0)) == [8, 9, 3, 4, 5, 8, 9]

    def width(block):
        monkeypatch.setattr(in_turn, "BLOCK", block)
        turns = {("off", 1): Turns(0.0, [2.0] * 40, {1}, [[] for _ in range(40)])}
        drifting = [2.0 + 0.01 * (0, 5, 2, 7, 3, 6, 1, 4)[number // 5] for number in range(40)]
        turns["guard", 1] = Turns(0.0, drifting, {1}, [[0.0] for _ in range(40)])
        counts = row(turns, "guard", 1, Attached(llm.worker)).counts
        assert 0.5 < counts["lag"] < 0.95
        return counts["high"] - counts["low"]

    assert width(5) > 1.25 * width(1)


def test_a_guard_that_watches_nothing_of_a_loads_graph_is_wrong(llm):
    llm.manager.graphs[Key(1)]._guards = [("guard", SimpleNamespace(watches=[]))]
    made = row_of(llm, "guard")
    assert made.verdict == "wrong" and made.counts["values"] == 0


@pytest.mark.parametrize("name", ["failed", "apart"])
def test_a_key_that_is_checked_no_more_or_was_apart_is_wrong(llm, name):
    llm.audit.num[name] = 1
    assert row_of(llm, "every=1000").verdict == "wrong" and row_of(llm, "guard").verdict == "correct"


@pytest.mark.parametrize("way", ["guard", "every=1000"])
def test_an_engine_of_which_something_was_told_is_wrong(llm, way):
    assert row_of(llm, way).verdict == "correct"
    llm.guard.told.add("model.scale was 1.0 at capture")
    llm.audit.found["graph"] = [3, 4]
    assert row_of(llm, way).verdict == "wrong"


def test_the_first_round_is_a_warm_up(llm, monkeypatch):
    taken = []
    monkeypatch.setattr(in_turn, "latency", lambda ms: taken.append(len(ms)) or timed.latency(ms))
    measured({"folder": "model"})
    graphs = {1: len(LOADS) * (1 + len(STOCK))}
    beside, alone = BESIDE * PARTS, ROUNDS * PARTS // len(OURS)
    assert Counter(taken) == {alone: len(LOADS) * len(OURS), beside: len(LOADS) * len(STOCK)} | graphs


def test_logits_of_one_way_that_are_apart_make_it_wrong(llm):
    llm.logits["guard"] = torch.zeros(2, 3)
    rows = rows_of(measured({"folder": "model"}))
    assert [rows[way, 8].verdict for way in WAYS] == ["correct", "wrong", "correct", "correct", "correct"]


# ---- the command ----


@pytest.fixture
def machine(monkeypatch):
    """What is asked for is here."""
    monkeypatch.setattr(bench_server, "installed", lambda: "0.23.0")
    monkeypatch.setattr(bench_server, "missing_gpus", lambda number: [])
    monkeypatch.setattr(bench_server, "MONITORS", True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")


def test_the_command_keeps_what_was_timed(machine, llm, monkeypatch, tmp_path):
    document = measured({"folder": "model"}) | {"log": ["guard (warn): 9 values of 6 graphs are watched"]}

    def run(job, command):
        assert job.env.items() >= ATTACHED.items() and job.settings["folder"].endswith("0.6B")
        assert command[-1] == "mrv2lab.live.in_turn" and NUM_TOKENS > 1
        return SimpleNamespace(job=job, document=document, crash=None)

    monkeypatch.setattr(launch, "run", run)
    file = tmp_path / "timed-server-vllm.json"
    told = CliRunner().invoke(app, ["bench", "server", "--save", str(file)])
    assert told.exit_code == 0 and "guard (warn): 9 values" in told.stderr
    kept = timed.load(file)
    assert kept.what == "server" and len(kept.rows) == len(WAYS) * len(LOADS)
    names = {"bench_server.py", "guard.py", "live/in_turn.py", "live/plugin.py"}
    assert names <= kept.provenance.sources.keys()


def test_an_engine_that_fails_is_said_and_its_rows_have_no_times(machine, monkeypatch):
    crash = SimpleNamespace(reason="exit status 1", message="RuntimeError: put in")
    ended = SimpleNamespace(document=None, crash=crash)
    monkeypatch.setattr(launch, "run", lambda job, command: ended)
    with pytest.warns(UserWarning, match="exit status 1: RuntimeError: put in"):
        rows = list(bench_server.rows())
    assert len(rows) == len(WAYS) * len(LOADS) and {one.verdict for one in rows} == {"failed"}


def test_without_vllm_or_a_python_that_monitors_it_says_what_is_missing(machine, monkeypatch):
    monkeypatch.setattr(bench_server, "MONITORS", False)
    told = CliRunner().invoke(app, ["bench", "server"])
    assert told.exit_code == 2 and "bench server needs Python 3.12" in told.stderr
    monkeypatch.setattr(bench_server, "installed", lambda: "not installed")
    told = CliRunner().invoke(app, ["bench", "server"])
    assert told.exit_code == 2 and "bench server needs vllm" in told.stderr
