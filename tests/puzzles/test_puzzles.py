"""Each puzzle as the notebook has it: its stub is wrong by its own fault, its answer right, and no other is.

Both executors run the same code and give the same verdict. Stubs and answers are taken from the notebook.
"""

import json
import re
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from types import SimpleNamespace

import links
import pytest
import torch
from moves import TRIES, answers, functions

from mrv2lab import journal, puzzles
from mrv2lab.errors import BadInput
from mrv2lab.graphs.base import CaptureObserver, observed
from mrv2lab.puzzles import check, show
from mrv2lab.puzzles.tape import EAGER, PUZZLES, steps

CELLS = {c["id"]: c for c in json.loads((links.NOTEBOOKS / "03_puzzles.ipynb").read_text())["cells"]}
TEXT = {name: "".join(cell["source"]) for name, cell in CELLS.items()}
STUBS = {
    name: "\n\n\n".join(text for at, text in TEXT.items() if at.startswith(f"{name}-stub"))
    for name in PUZZLES
}
NO_BEFORE = "def before(buffers, new):\n    pass\n"


def judged(name, source, backend="emulated"):
    return check(name, **functions(source), backend=backend)


def of(captured, before="pass"):
    """The source of an answer, from the bodies of its functions."""
    bodies = (body.replace("\n", "\n    ") for body in (captured, before))
    return "def captured(buffers):\n    {}\n\n\ndef before(buffers, new):\n    {}\n".format(*bodies)


DOUBLE = "def captured(buffers):\n    return buffers.x * 2\n\n\n"
KEPT = DOUBLE + "def after(buffers, result):\n    return result.{}\n"
COUNTED = "buffers.count += 1\nreturn buffers.x * 2 * (buffers.count == 1)"
TRIED = [
    (name, *(each[key] for key in ("code", "verdict", "seen"))) for name in TRIES for each in TRIES[name]
]


@pytest.mark.parametrize("name", PUZZLES)
def test_the_stub_is_wrong_and_the_answer_is_right(name, backend):
    stub = judged(name, STUBS[name], backend)
    assert stub.verdict == "wrong" and stub.seen.startswith(
        f"replay {2 if name == 'counter' else 1} of 9 differs first"
    )
    assert journal.load().puzzles == {}
    assert judged(name, answers()[name], backend).verdict == "correct"
    assert list(journal.load().puzzles) == [name]


def expected(verdict, seen, backend):
    """Beside a GPU the emulator's tensors are the host's, and work on them is not counted."""
    is_uncounted = verdict == "eager" and backend == "emulated" and torch.cuda.is_available()
    return ("wrong", "replay 1 of 9") if is_uncounted else (verdict, seen)


@pytest.mark.parametrize(("name", "source", "verdict", "seen"), TRIED)
def test_what_people_would_try_is_told_apart(name, source, verdict, seen, backend):
    verdict, seen = expected(verdict, seen, backend)
    outcome = judged(name, source, backend)
    assert (outcome.verdict, seen in outcome.seen) == (verdict, True), outcome
    assert len(TRIES[name]) >= 2


MASKED = "return torch.where(buffers.row < buffers.num_rows_gpu, buffers.x, 0).sum()"
ALSO_RIGHT = {
    "counter": of(COUNTED, "buffers.count.zero_()"),
    "padding": of(MASKED, "buffers.num_rows_gpu.fill_(new.num_rows)"),
    "shared_pool": of("return torch.mul(buffers.x, 2, out=buffers.out)"),
}


@pytest.mark.parametrize("name", ALSO_RIGHT)
def test_another_right_answer_is_right_too(name, backend):
    assert judged(name, ALSO_RIGHT[name], backend).verdict == "correct"


# ---- whoever wants to be right without a graph ----

KNOWN = "[{}]".format(", ".join(f"{EAGER['frozen_number'](x, new).tolist()}" for x, new in list(
    steps("frozen_number", torch.device("cpu")))[:3]))  # fmt: skip
HOSTILE = {
    "the graph is skipped": (of("return buffers.out", "buffers.out.fill_(new.scale)"), "wrong", "is empty"),
    "work beside a graph": (
        of("return buffers.out.clone()", "buffers.out.copy_(buffers.x * new.scale)"),
        "eager",
        "aten::mul ran outside of the graph, at replay 1",
    ),
    "work in a thread": (
        "import threading\n"
        + of(
            "return buffers.out.clone()",
            "t = threading.Thread(target=lambda: buffers.out.add_(1))\nt.start()\nt.join()",
        ),
        "eager",
        "aten::add_",
    ),
    "the numbers one has seen": (
        f"known = iter({KNOWN} * 3)\n"
        + of("return buffers.out.clone()", "buffers.out.copy_(torch.tensor(next(known)))"),
        "wrong",
        "replay 4 of 9",
    ),
    "a constant": (of("return torch.full_like(buffers.x, 48)"), "wrong", "replay 1 of 9"),
    "another x": (of("return buffers.x * 1", "buffers.x = new.table"), "wrong", "replay 1 of 9"),
    "the comparison": (
        "from mrv2lab import puzzles\n" + of("puzzles._first_wrong = lambda *_: None\nreturn buffers.x * 2"),
        "failed",
        "mrv2lab.puzzles._first_wrong",
    ),
    "the inside of the comparison": (
        "from mrv2lab import puzzles\n"
        + of("puzzles._first_wrong.__code__ = (lambda a, b: None).__code__\nreturn buffers.x * 2"),
        "failed",
        "mrv2lab.puzzles._first_wrong",
    ),
    "the replay": (
        "from mrv2lab.graphs.base import CapturedGraph\n"
        + of("CapturedGraph.replay = lambda graph: None\nreturn buffers.x * 2"),
        "failed",
        "CapturedGraph.replay",
    ),
    "how tensors compare": (
        of("torch.Tensor.__eq__ = lambda a, b: torch.tensor(True)\nreturn buffers.x * 2"),
        "failed",
        "Tensor.__eq__",
    ),
    "an endless loop": (of("while True:\n    pass"), "failed", "was stopped; your line "),
    "one that issues work": (of("while True:\n    buffers.x + 1"), "failed", "was stopped; your line "),
    "one before a replay": (of("return buffers.x * 2", "while True: pass"), "failed", "while True: pass"),
    "NumPy": (
        of("return buffers.x * buffers.scale_gpu", "buffers.scale_gpu.numpy()[0] = new.scale"),
        "failed",
        "Use Tensor.cpu() to copy",
    ),
    "a number in pinned memory": (
        of(
            "return buffers.x * buffers.staging[0]",
            "buffers.staging[0] = new.scale",
        ),
        "wrong",
        "replay 1 of 9",
    ),
    "a typo": (of("return buffers.x * buffers.scael"), "failed", "your line 2: return buffers.x * "),
    "the way out": (of("raise SystemExit"), "failed", "asked Python to exit"),
    "nothing": (of("buffers.x * 2"), "failed", "returned None; return the tensor"),
    "a generator": (of("yield buffers.x * 2"), "failed", "is a generator"),
    "another shape": (of("return (buffers.x * 2)[:2]"), "wrong", "replay 1 of 9"),
    "no argument": ("def captured():\n    pass", "failed", "takes () and is given 1 argument"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_check_is_not_fooled(kind, backend, monkeypatch):
    if "loop" in kind or "one" in kind.split()[:1]:
        monkeypatch.setattr(puzzles, "CPU_S", 0.2 if backend == "emulated" else 2.0)
        monkeypatch.setattr("mrv2lab.limits.PATIENCE", 1000)  # on a busy machine too, what counts is CPU time
    source, *told = HOSTILE[kind]
    verdict, seen = expected(*told, backend)
    outcome = judged("frozen_number", source, backend)
    assert (outcome.verdict, seen in outcome.seen) == (verdict, True), outcome
    assert journal.load().puzzles == {} and "Hint 1" in outcome._repr_html_()
    monkeypatch.undo()
    assert (
        judged("frozen_number", answers()["frozen_number"], backend).verdict == "correct"
    )  # all was put back


def test_what_cannot_be_judged_is_bad_input():
    with pytest.raises(BadInput, match="did you mean 'frozen_number'"):
        check("frozen_numbers", print)
    with pytest.raises(BadInput, match="uncalled"):
        check("frozen_number", torch.ones(4))


# ---- what a check costs ----


class Counting(CaptureObserver):
    def __init__(self):
        self.captures = self.nodes = self.replays = 0

    def begin(self):
        self.captures += 1

    def end(self):
        pass

    def captured(self, graph):
        pass

    def replaying(self, graph):
        self.replays, self.nodes = self.replays + 1, self.nodes + len(graph.nodes)
        return nullcontext()


@pytest.mark.parametrize("name", PUZZLES)
def test_a_check_is_short(name, monkeypatch):
    """Poison's nine fills, and what is replayed nine times: less than 150 ops, on four numbers each."""
    calls, seen = SimpleNamespace(captured=0), Counting()
    given = functions(answers()[name])
    inner = given["captured"]

    def captured(buffers):
        calls.captured += 1
        return inner(buffers)

    with observed(seen):
        assert check(name, **(given | {"captured": captured}), backend="emulated").verdict == "correct"
    assert calls.captured == 2 and seen.captures <= 3 and seen.replays <= 19 and seen.nodes < 150


LATE = """buffers.side.wait_stream(buffers.main)
with buffers.side.current():
    torch.mul(buffers.x, 3, out=buffers.out)
result = buffers.x * 2 + buffers.out
buffers.main.wait_stream(buffers.side)
return result"""
BESIDE = """buffers.side.wait_stream(buffers.main)
buffers.out.copy_(buffers.x)
with buffers.side.current():
    y = buffers.out * 3
buffers.main.wait_stream(buffers.side)
return buffers.x * 2 + y"""
BOTH = """buffers.side.wait_stream(buffers.main)
buffers.out.copy_(buffers.x)
with buffers.side.current():
    y = buffers.x.mul_(3)
z = buffers.out * 2
buffers.main.wait_stream(buffers.side)
return z + y"""
RIGHT_BESIDE = BESIDE.replace("y = buffers.out", "y = buffers.x").replace(
    "return", "z = buffers.out * 2\nreturn"
)
OTHER_ORDER = "another order of the two streams"
COUNTER_CHEAT = "return (buffers.x + 1) * torch.where(buffers.count.add_(1) % 3 == 2, 1, 2)"
LEFT_OUT = {
    "used before the join": ("stream", of(LATE), "wrong", OTHER_ORDER),
    "written behind the fork": ("stream", of(BESIDE), "wrong", OTHER_ORDER),
    "changed on the side": ("stream", of(BOTH), "wrong", OTHER_ORDER),
    "both streams have work of their own": ("stream", of(RIGHT_BESIDE), "correct", "all 9"),
    "no second stream": ("stream", of("return buffers.x * 5"), "wrong", "issued on `side`"),
    "steps in the order that one has seen": ("lost_branch", of(COUNTER_CHEAT), "wrong", "of 9 differs first"),
    "nobody counts": ("counter", of("return buffers.x * 2"), "wrong", "in `count` asked for 1; graph 0"),
    "zeros by luck": (
        "unwritten_memory", of("buffers.out[:2] = buffers.x[:2] * 3\nreturn buffers.out"), "wrong",
        "replay 1 of 9",
    ),
    "done behind the graph": (
        "lent_output",
        "def captured(buffers):\n    return buffers.x * 1\n\n\n"
        "def after(buffers, result):\n    return torch.tensor([2 * number for number in result.tolist()])\n",
        "wrong",
        "replay 1 of 9",
    ),
    "kept on the host": ("lent_output", KEPT.format("cpu()"), "correct", "all 9"),
    "kept there by `to`": ("lent_output", KEPT.format("to('cpu')"), "correct", "all 9"),
    "kept where it lies": ("lent_output", KEPT.format("to(result.device)"), "wrong", "replay 1 of 9"),
    "kept in the same memory": ("lent_output", KEPT.format("to(torch.float32)"), "wrong", "replay 1 of 9"),
    "of another shape": (
        "padding", of("return buffers.x.sum(0, keepdim=True)", "buffers.x[new.num_rows :] = 0"),
        "wrong", "of shape [1], not []",
    ),
    "the right answers": (
        "frozen_number",
        "from mrv2lab.puzzles import tape\n" + of("tape.EAGER['frozen_number'] = None\nreturn buffers.x * 2"),
        "failed", "TypeError",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", LEFT_OUT)
def test_what_a_graph_leaves_out_is_seen(how):
    name, source, verdict, seen = LEFT_OUT[how]
    outcome = judged(name, source)
    assert (outcome.verdict, seen in outcome.seen) == (verdict, True), outcome


def test_what_nobody_has_seen_is_new_each_time():
    drawn = [[x.tolist() for x, _ in steps("padding", torch.device("cpu"))] for _ in range(2)]
    assert drawn[0][:3] == drawn[1][:3] and all(
        a != b for a, b in zip(drawn[0][3:], drawn[1][3:], strict=True)
    )


def test_steps_never_go_on_as_they_began():
    """Who counts steps would be right by chance."""
    for _ in range(300):
        doubles = [new.double for _, new in steps("lost_branch", torch.device("cpu"))]
        assert doubles[:3] == [True, False, True] and len(doubles) == 9
        assert doubles[2:] != doubles[:-2] and doubles[3:] != doubles[:-3]


def test_only_one_puzzle_asks_what_is_kept():
    with pytest.raises(BadInput, match="no `after`"):
        check("frozen_number", lambda buffers: buffers.x, after=lambda buffers, result: result)


def test_where_there_is_no_tape_the_picture_says_why(capsys, displayed):
    show("frozen_number", **functions(of("return buffers.scalegpu")))
    assert (
        "AttributeError" in (told := capsys.readouterr().out)
        and "your line 2: return buffers.scalegpu" in told
    )
    assert displayed == []


# ---- the picture ----


@pytest.mark.parametrize("name", PUZZLES)
def test_the_picture_is_of_the_tape(name, displayed):
    show(name, **functions(STUBS[name]))
    (picture, metadata), (words, _) = displayed
    alt = picture["text/plain"]
    drawn = ET.fromstring(picture["image/svg+xml"])
    boxes = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert metadata == {"image/svg+xml": {"alt": alt}} and alt in words["text/html"]
    assert alt.startswith(PUZZLES[name].title) and all(box in alt for box in boxes)
    assert (drawn.get("class"), drawn.get("aria-label")) == ("mrv2lab mrv2lab-tape", alt)
    parts = picture["image/svg+xml"].partition(">")[2]
    assert not re.search(r"style|class=|href|url\(", parts)  # nothing that a viewer takes away


def told(name, source, displayed):
    displayed.clear()
    show(name, **functions(source))
    return displayed[0][0]["text/plain"].partition(" on the tape: ")[2]


def test_it_shows_what_is_wrong_and_that_it_is_no_longer(displayed):
    def both(name):
        return told(name, STUBS[name], displayed), told(name, answers()[name], displayed)

    stub, answer = both("frozen_number")
    assert stub == "mul reads x, writes #1. Not on it: scale = 2, now: scale = 6."
    assert answer == "mul reads x and scale_gpu, writes #1."
    assert "now: table" in both("moved_buffer")[0] and "now" not in both("moved_buffer")[1]
    stub, answer = both("shared_pool")
    assert stub.count("writes #1") == 2 and "writes out" in answer
    stub, answer = both("stream")
    assert "writes out" not in stub and "writes out" in answer


# ---- words ----


def words(markdown):
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown).split())


def test_the_notebook_has_all_of_them_in_order_and_in_the_same_words():
    assert [at.removesuffix("-check") for at in TEXT if at.endswith("-check")] == list(PUZZLES) == list(EAGER)
    for name, puzzle in PUZZLES.items():
        question, answer = words(TEXT[f"{name}-0"]), words(TEXT[f"{name}-1"])
        assert question.startswith(f"## {puzzle.title} {words(puzzle.question)}")
        assert words(puzzle.why) in answer and f"({puzzle.see})" in TEXT[f"{name}-1"]
        assert TEXT[f"{name}-1"].startswith("<details><summary>Answer</summary>")
        assert len(puzzle.hints) >= 2 and (links.NOTEBOOKS / puzzle.see).is_file()


@pytest.mark.parametrize("name", PUZZLES)
def test_stored_checks_are_of_stubs_and_hold_closed_hints(name):
    (output,) = CELLS[f"{name}-check"]["outputs"]
    plain, page = ("".join(output["data"][kind]) for kind in ("text/plain", "text/html"))
    assert plain.splitlines()[:2] == repr(judged(name, STUBS[name])).splitlines()[:2]
    assert page.count("<details><summary>Hint ") == len(PUZZLES[name].hints)
