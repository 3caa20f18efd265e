"""An engine with a guard and with audits, timed: turns, verdicts and ratios. No vLLM, no GPU and no clock."""

import threading
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from mrv2lab import bench_server, timed
from mrv2lab.bench_server import WAYS, job, row
from mrv2lab.cli import app
from mrv2lab.live import in_turn, launch
from mrv2lab.timed import RUNS


def document(ms=2.0, answers="a", checks=None, **counts):
    loads = [str(load) for load in in_turn.LOADS]
    return {
        "ms": {load: [ms] * RUNS for load in loads},
        "answers": {load: [answers] * 24 for load in loads},
        "checks": dict.fromkeys(loads, checks) if checks is not None else {},
        "counts": {"start-up s": 30.0} | counts,
        "log": ["guard (warn): 9 values of 6 graphs are watched"],
    }


DOCUMENTS = {"off": document(), "guard": document(2.02, values=9), "every=1000": document(2.05, checks=6)}


# ---- the engines take turns ----


class LLM:
    """Notes that it serves, and who else does."""

    def __init__(self, number, served, checks):
        self.number, self.served, self.start_up_s = number, served, 30.0
        audit = SimpleNamespace(num={"checks": 0}, found={"key": [0]}) if checks else None
        guard = SimpleNamespace(checks=9, _graphs=[1, 2], told=set())
        worker = SimpleNamespace(mrv2lab_audit=audit, mrv2lab_guard=None if checks else guard)
        executor = SimpleNamespace(driver_worker=SimpleNamespace(worker=worker))
        self.llm_engine, self.audit = SimpleNamespace(model_executor=executor), audit


def serve(llm, load, num_tokens):
    llm.served.append((llm.number, load))
    if llm.audit:
        llm.audit.num["checks"] += 1
    stats = SimpleNamespace(first_token_ts=1.0, last_token_ts=1.0 + 0.002 * (num_tokens - 1))
    output = SimpleNamespace(metrics=stats, outputs=[SimpleNamespace(token_ids=[load, 7])])
    return [output] * load


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Engines in a thread each; gives what they served, in order, and what became of each."""
    served, ended, numbers = [], {}, count()
    monkeypatch.setattr(in_turn, "generate", serve)
    monkeypatch.setattr(in_turn, "POLL_S", 0.001)
    monkeypatch.setattr(in_turn, "start", lambda model: LLM(next(numbers), served, checks=False))

    def engine(number, of):
        settings = {"folder": str(tmp_path), "number": number, "of": of}
        try:
            ended[number] = in_turn.measured(settings)
        except RuntimeError as error:
            ended[number] = str(error)

    def all_of_them(of):
        threads = [threading.Thread(target=engine, args=(number, of)) for number in range(of)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return served, ended

    return all_of_them


def test_one_serves_at_a_time_and_each_load_goes_round(run):
    served, ended = run(3)
    turns = served[:: in_turn.CALLS]
    assert served == [turn for turn in turns for _ in range(in_turn.CALLS)]  # nobody in between
    assert [load for _, load in turns] == [load for load in in_turn.LOADS for _ in range(3)] * (RUNS + 1)
    assert all(len({who for who, _ in turns[i : i + 3]}) == 3 for i in range(0, len(turns), 3))
    for found in ended.values():
        assert all(ms == [pytest.approx(2.0)] * RUNS for ms in found["ms"].values())
        assert {len(one) for one in found["answers"].values()} == {in_turn.CALLS * (RUNS + 1)}
        assert found["counts"] == {"start-up s": 30.0, "values": 9, "graphs": 2, "told": 0}


def test_checks_are_counted_by_load(run, monkeypatch):
    monkeypatch.setattr(in_turn, "start", lambda model: LLM(0, [], checks=True))
    _, ended = run(1)
    assert ended[0]["checks"] == dict.fromkeys(("1", "8", "32"), in_turn.CALLS * (RUNS + 1))
    assert ended[0]["counts"] == {"start-up s": 30.0, "audited": 1, "findings": 0}


def test_where_one_fails_the_others_end(run, monkeypatch, tmp_path):
    (tmp_path / in_turn.FAILED).touch()
    _, ended = run(2)
    assert {*ended.values()} == {"another engine has failed"}


# ---- rows ----


def test_a_way_is_held_against_off_round_by_round():
    off, guard = document(), document(values=9, told=0)
    off["ms"]["8"], guard["ms"]["8"] = [1.0, 2.0, 4.0, 1.0, 1.0], [1.0, 2.2, 4.4, 0.9, 1.1]
    made = row({"off": off, "guard": guard}, "guard", 8)
    assert made.labels == {"attached": "guard", "requests": 8} and made.verdict == "correct"
    assert made.counts["of off"] == pytest.approx(1.1)
    assert (made.counts["least"], made.counts["most"]) == (pytest.approx(0.9), pytest.approx(1.1))
    assert made.counts["values"] == 9 and made.ms["token"].median == 1.1


@pytest.mark.parametrize(
    "way, changed",
    [
        ("guard", document(answers="b", values=9)),
        ("guard", document(values=0)),
        ("guard", document()),
        ("every=1000", document(checks=0)),
        ("every=1000", document()),
        ("every=1000", document(answers="b", checks=6)),
    ],
)
def test_other_tokens_or_nothing_done_is_wrong(way, changed):
    assert row(DOCUMENTS, way, 1).verdict == "correct"
    assert row(DOCUMENTS | {way: changed}, way, 1).verdict == "wrong"


def test_nothing_is_right_beside_an_engine_that_failed():
    without_off = {way: found for way, found in DOCUMENTS.items() if way != "off"}
    assert row(without_off, "guard", 1).verdict == row({}, "off", 1).verdict == "failed"


def test_each_engine_is_asked_for_its_own(tmp_path):
    asked = {way: job(str(tmp_path), way) for way in WAYS}
    names = ("MRV2LAB_GUARD", "MRV2LAB_AUDIT")
    assert [tuple(one.env[name] for name in names) for one in asked.values()] == [
        ("", ""),
        ("warn", ""),
        ("", "every=1000"),
    ]
    assert [one.settings["number"] for one in asked.values()] == [0, 1, 2]


def test_the_command_keeps_what_was_timed(monkeypatch, tmp_path):
    def run_all(jobs, at_once, command):
        assert at_once == len(jobs) and command[-1] == "mrv2lab.live.in_turn"
        for one in jobs:
            yield SimpleNamespace(job=one, document=DOCUMENTS[one.variant], crash=None)

    monkeypatch.setattr(bench_server, "installed", lambda: "0.23.0")
    monkeypatch.setattr(bench_server, "missing_gpus", lambda number: [])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(launch, "run_all", run_all)
    file = tmp_path / "timed-server-vllm.json"
    told = CliRunner().invoke(app, ["bench", "server", "--save", str(file)])
    assert told.exit_code == 0 and "guard: guard (warn): 9 values" in told.stderr
    kept = timed.load(file)
    assert kept.what == "server" and len(kept.rows) == 9
    assert {
        "bench_server.py",
        "guard.py",
        "live/in_turn.py",
        "live/plugin.py",
    } <= kept.provenance.sources.keys()


def test_without_vllm_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(bench_server, "installed", lambda: "not installed")
    told = CliRunner().invoke(app, ["bench", "server"])
    assert told.exit_code == 2 and "bench server needs vllm" in told.stderr
