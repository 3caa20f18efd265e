"""Ranks that are inside the same step: two processes, which wait for each other in each pass."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from mrv2lab.audit import AuditReport, Engine, Finding
from mrv2lab.errors import AuditError
from mrv2lab.live import audited
from mrv2lab.live.audit import Steps
from mrv2lab.live.ranks import EXTENSION, OF_CAPTURE, Ranks, Workers, apart

ROOT = Path(__file__).parents[2]
RIGHT = [[5.0, 7.0], [10.0, 12.0], [15.0, 17.0], [8.0, 10.0, 12.0, 14.0], [21.0, 23.0], [26.0, 10.0]]


def ranks(what, folder, timeout_s=120):
    """What both have printed. One that waits for a pass that the other does not make is an error."""
    env = os.environ | {"MRV2LAB_AUDIT_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.live.two_ranks", what]
    started = [
        subprocess.Popen([*command, str(rank), str(folder)], cwd=ROOT, env=env, stdout=subprocess.PIPE)
        for rank in (0, 1)
    ]
    try:
        said = [one.communicate(timeout=timeout_s)[0] for one in started]
    finally:
        for one in started:
            one.send_signal(signal.SIGKILL)
            one.wait()
    return [json.loads(text.splitlines()[-1]) for text in said]


def findings(rank):
    return [[f["kind"] for f in one["report"]["findings"]] for one in rank["told"] if "report" in one]


def notes(rank):
    return [note for one in rank["told"] if "report" in one for note in one["report"]["notes"]]


def test_each_rank_is_audited_and_the_others_go_along(tmp_path):
    both = ranks("right", tmp_path)
    assert [rank["answers"] for rank in both] == [RIGHT, RIGHT]
    assert [findings(rank) for rank in both] == [[[], []]] * 2  # two keys
    assert all("2 checks" in rank["totals"] and "0 apart" in rank["totals"] for rank in both)
    assert [notes(rank) for rank in both] == [[], []]


def test_the_rank_that_froze_something_is_named_to_the_others(tmp_path):
    healthy, wrong = ranks("frozen", tmp_path)
    assert findings(wrong) == [["frozen-host-value"]] * 2
    assert findings(healthy) == [["diverged"]] * 2  # what it adds up with is wrong
    assert {*notes(healthy)} == {
        "rank 1 finds frozen-host-value: self.scale, and what it computes is part of this"
    }


def test_an_audit_that_raises_on_one_rank_leaves_none_waiting(tmp_path):
    sound, raised = ranks("raises", tmp_path)
    assert sound["answers"] == raised["answers"] == RIGHT
    assert findings(sound) == [[], []] and findings(raised) == []
    assert all("2 given up" in rank["totals"] for rank in (sound, raised))  # by both, or one would wait


def test_where_one_rank_cannot_be_audited_none_is(tmp_path):
    other, refuses = ranks("refuses", tmp_path)
    assert refuses.startswith("an audit needs host memory") and other == f"rank 1: {refuses}"


def test_a_check_that_raises_on_one_rank_is_given_up_by_all(tmp_path):
    for rank in ranks("check raises", tmp_path):
        assert rank["answers"] == RIGHT and findings(rank) == [[], []]
        assert "1 given up" in rank["totals"] and "check" not in rank["totals"]
        assert [one["error"] for one in rank["told"] if "error" in one] == ["not on this rank"]


@pytest.mark.parametrize("what", ["put back raises", "making raises"])
def test_whatever_raises_around_a_check_leaves_none_waiting(what, tmp_path):
    for rank in ranks(what, tmp_path):
        assert rank["answers"] == RIGHT and findings(rank) == [[], []]
        assert "1 given up" in rank["totals"]


def test_where_one_rank_cannot_begin_none_audits(tmp_path):
    for rank in ranks("begin raises", tmp_path):
        assert rank["answers"] == RIGHT and findings(rank) == []


def test_all_ranks_check_a_key_or_none(tmp_path):
    for rank in ranks("nothing written", tmp_path):
        assert rank["answers"] == RIGHT and findings(rank) == [[], []] and "check" not in rank["totals"]


def test_ranks_that_pick_different_keys_are_named_and_not_audited(tmp_path):
    both = ranks("apart", tmp_path)
    assert [rank["answers"] for rank in both] == [RIGHT, RIGHT]
    for rank in both:
        assert findings(rank) == [[]]  # the other key, of four tokens
        [told] = [one["apart"] for one in rank["told"] if "report" not in one]
        assert told.startswith("ranks pick different keys: rank 0 Desc(") and ", rank 1 Desc(" in told
        assert "num_reqs=2" in told and "num_reqs=1" in told
        assert "ranks apart in 5 steps" in rank["totals"]


def test_one_rank_waits_for_nobody():
    alone = Ranks()
    assert alone.gather("key") == {0: "key"} and alone.tell("run", 0) == "run" and alone.agree("key")
    assert Ranks.of(SimpleNamespace(parallel_config=SimpleNamespace(tensor_parallel_size=1))).group is None


def llm(*told):
    """An engine whose workers have told this."""
    return SimpleNamespace(collective_rpc=lambda method, args=(): list(told))


def told(picked, **more):
    return {"captured": [(2, 2)], "picked": picked, "reports": [], "why_none": "nothing", "failed": []} | more


@pytest.mark.parametrize(
    ("picked", "words"),
    [
        ((["A", "B"], ["A", "B"]), []),
        ((["A", "B"], ["A", "C"]), ["step 2: ranks pick different keys: rank 0 B, rank 1 C"]),
        ((["A", "B"], ["A"]), ["ranks have made different numbers of steps: [2, 1]"]),
    ],
)
def test_stages_are_compared_by_the_keys_of_their_steps(picked, words):
    workers = Workers(llm(*map(told, picked)))
    assert workers.apart() == words
    assert [size.num_tokens for size in workers.captured()] == [2] and workers.why_none() == "nothing"


def test_a_flag_that_says_that_a_capture_goes_on_is_no_first_cause():
    found = [Finding("frozen-host-value", name, "") for name in (OF_CAPTURE, "max_seqlen_q")]
    audit = SimpleNamespace(step=lambda engine: AuditReport("step", "cuda", tuple(found), 3))
    report = Ranks().audit(audit, None)
    assert [one.subject for one in report.findings] == ["max_seqlen_q", OF_CAPTURE]


def test_words_for_ranks_that_agree_are_none():
    assert apart({0: "A", 1: "A"}) == apart({0: "A"}) == ""


def test_a_step_that_one_rank_cannot_audit_is_an_error_behind_all_steps(monkeypatch):
    """A stage that raised inside a step would leave the others waiting for it."""
    monkeypatch.setattr(audited.scenarios, "run", lambda engine, names, tell: [])
    engine = llm(told(["A"]), told(["A"], failed=["rank 1 of 2: it cannot be repeated"]))
    engine.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=100))
    with pytest.raises(AuditError, match="rank 1 of 2: it cannot be repeated"):
        audited._serve(engine, Workers(engine), [], ["lengths"])


@pytest.mark.parametrize(
    ("rank_name", "kept"), [("rank 1 of 2", ["rank 1 of 2: no graph was replayed"]), ("", [])]
)
def test_an_audit_that_fails_is_kept_where_others_wait_for_the_step(rank_name, kept, monkeypatch):
    steps = Steps(scenario="lengths", rank_name=rank_name)

    def audit(step):
        raise AuditError("no graph was replayed")

    monkeypatch.setattr(steps, "audit", audit)
    with nullcontext() if rank_name else pytest.raises(AuditError):
        steps.meet(lambda *args: None, {"batch_desc": "A"}, None)
    steps.meet(
        lambda *args: None, {"batch_desc": "A"}, None
    )  # not again: others may have a report of it, and go on
    assert steps.failed == kept


@pytest.mark.parametrize(
    ("options", "attaches"), [({}, 1), ({"tensor_parallel_size": 2}, 0), ({"pipeline_parallel_size": 2}, 0)]
)
def test_workers_attach_themselves_and_the_process_that_asks_them_does_not(options, attaches, monkeypatch):
    """A worker is forked: what it inherited would watch its steps a second time."""
    entered, asked, served = [], [], []

    @contextmanager
    def attached():
        entered.append(True)
        yield Steps()

    monkeypatch.setattr(audited, "attached", attached)
    monkeypatch.setattr(audited, "_requests", lambda folders: [])
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=lambda **how: asked.append(how)))
    monkeypatch.setattr(audited, "_serve", lambda llm, steps, *rest: served.append(steps))
    audited.audit_model("folder", [], options, ["lengths"])
    assert len(entered) == attaches and isinstance(served[0], Steps if attaches else Workers)
    assert asked[0].get("worker_extension_cls") == (None if attaches else EXTENSION)


class First(Ranks):
    """The first of two; what the other one tells is given, in order."""

    def __init__(self, *told):
        self.group, self.all, self.here, self.told = object(), [0, 1], 0, list(told)

    def tell(self, what, by):
        return self.told.pop(0) if by else what


def audited_by(ranks, findings=(), run=lambda: None):
    report = AuditReport("step", "cuda", tuple(findings), 3)
    passes = SimpleNamespace(run=run, eager=run, engine=None)
    return ranks.audit(
        SimpleNamespace(step=lambda engine: report, passes=passes),
        Engine("step", lambda: None, run, run),
    )


def test_graphs_of_other_lengths_are_noted_on_each_rank():
    assert audited_by(First(None, [], 3)).notes == ()
    assert audited_by(First("run", None, [], 4)).notes == ("rank 1 has 4 nodes, this one 3",)


def test_what_another_rank_finds_is_noted_where_something_is_wrong_here():
    wrong = [Finding("diverged", "the returned value", "")]
    assert "rank 1 finds x" in audited_by(First(None, ["x"], 3), wrong).notes[0]
    assert audited_by(First(None, ["x"], 3)).notes == audited_by(First(None, [], 3), wrong).notes == ()


def test_a_pass_of_another_rank_that_cannot_be_made_here_is_an_error():
    def run():
        raise RuntimeError("no memory")

    with pytest.raises(AuditError, match="a pass of rank 1 could not be made here: no memory"):
        audited_by(First("eager", "run", None, [], 3), run=run)
