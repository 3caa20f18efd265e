"""How a probe is judged: a crash is the one that is stated, and nothing else is told as one."""

import sys

import pytest
import torch

from mrv2lab.crash import Crash
from mrv2lab.errors import CaptureError, EmulatorLimit, IllegalAccess
from mrv2lab.graphs import capture
from mrv2lab.graphs.work import Amount
from mrv2lab.upstream import probe
from mrv2lab.upstream.model_runner import Step
from mrv2lab.upstream.outcome import Cell
from mrv2lab.upstream.probe import Row, Seen, Variant, outcome, raised_in_vllm, run, tell
from mrv2lab.upstream.releases import TARGET
from mrv2lab.upstream.rewrite import SourceChanged
from mrv2lab.upstream.unfix import Edit

GRAPH = capture(lambda: torch.ones(2).add(1), backend="emulated")


def step(*values, graphs=(), fits=True):
    nodes = sum(len(graph.nodes) for graph in graphs)
    return Step(torch.tensor(values), graphs, {"target": Amount(nodes, 0 if graphs else 2)}, fits)


RIGHT = step(3.0, 4.0)


def seen(*steps, reference=(RIGHT,), **metrics):
    return lambda: Seen(steps, lambda: reference, metrics)


def raises(error):
    def observe():
        raise error

    return observe


def no_embedding():
    torch.nn.functional.embedding(torch.tensor([9]), torch.zeros(2, 2))


def not_dense():
    sparse = torch.eye(2).to_sparse()
    capture(lambda: sparse + sparse, backend="emulated")


LOOK_UP = Crash(("IndexError: index out of range in self",), within="nn/functional.py in embedding")
CRASHES = {
    "an index that is not there": (no_embedding, LOOK_UP),
    "an illegal access": (raises(IllegalAccess("k reads\nmore")), Crash(("IllegalAccess: k",))),
}
UNFIT = {
    "another index": (raises(IndexError("index out of range in self")), IndexError),
    "another access": (raises(IllegalAccess("j writes")), IllegalAccess),
    "a refused capture": (raises(CaptureError("no host reads")), CaptureError),
    "a limit of the emulator": (not_dense, EmulatorLimit),
    "host memory": (raises(MemoryError()), MemoryError),
    "a time-out": (raises(TimeoutError()), TimeoutError),
    "a list's index": (lambda: [][0], IndexError),
    "an attribute": (lambda: torch.no_such_thing, AttributeError),
    "an argument": (lambda: outcome(too=1), TypeError),
    "a part of vLLM": (raises(ModuleNotFoundError("gone", name="vllm.v1.gone")), ModuleNotFoundError),
    "a key": (lambda: {}["layer"], KeyError),
    "an assertion": (raises(AssertionError()), AssertionError),
}
LIBRARY = ModuleNotFoundError("No module named 'msgspec'", name="msgspec")


# ---- judging ----


def test_steps_are_judged_against_the_reference():
    right = outcome(seen(step(3.0, 4.0, graphs=(GRAPH, GRAPH)), graphs_captured=2.0))
    assert (right.verdict, right.errors, right.step_modes) == ("correct", [0.0], ["graph"])
    assert right.kernels == {"aten.ones": 2, "aten.add": 2} and right.metrics == {"graphs_captured": 2.0}
    off = outcome(seen(step(3.0, 4.4, graphs=(GRAPH,))))
    assert (off.verdict, off.errors) == ("wrong", [pytest.approx(0.08)])
    assert outcome(seen(step(3.0, float("nan")))).errors == [float("inf")]


def test_steps_without_graphs_are_eager_where_graphs_were_asked_for():
    observe = seen(RIGHT, RIGHT, reference=[RIGHT] * 2)
    assert (outcome(observe).verdict, outcome(observe).step_modes) == ("eager", ["eager"] * 2)
    assert outcome(observe).eager_share == 1.0
    assert outcome(seen(step(3.0, 4.4))).verdict == "wrong"


def test_one_eager_step_that_fits_a_graph_is_an_eager_run():
    graph = step(3.0, 4.0, graphs=(GRAPH,))
    observe = seen(RIGHT, graph, reference=[RIGHT] * 2)
    assert (outcome(observe).verdict, outcome(observe).step_modes) == ("eager", ["eager", "graph"])
    observe = seen(step(3.0, 4.0, fits=False), graph, reference=[RIGHT] * 2)
    assert (outcome(observe).verdict, outcome(observe).eager_share) == ("correct", 0.0)


def test_a_reference_of_another_length_is_not_compared():
    failed = outcome(seen(RIGHT, reference=[RIGHT] * 2))
    assert failed.verdict == "failed" and "longer" in failed.message


@pytest.mark.parametrize(("observe", "stated"), CRASHES.values(), ids=CRASHES)
def test_what_is_stated_is_a_crash_and_where_nothing_is_stated_it_failed(observe, stated):
    crash = outcome(observe, crash=stated)
    assert crash.verdict == "crash" and crash.message.startswith(stated.said)
    assert (crash.errors, crash.step_modes, crash.where) == ([], [], None)  # no file of vLLM's in it
    assert outcome(observe).verdict == "failed"


@pytest.mark.parametrize(("observe", "error"), UNFIT.values(), ids=UNFIT)
def test_anything_else_is_a_run_that_failed_with_its_traceback(observe, error):
    for stated in (None, LOOK_UP, Crash(("IllegalAccess: k",))):
        failed = outcome(observe, crash=stated)
        assert (failed.verdict, failed.errors) == ("failed", [])
        assert failed.message.startswith(f"{error.__name__}: ")
        assert failed.log_tail[0] == "Traceback (most recent call last):"


def test_a_reference_that_fails_is_no_crash_of_the_variant():
    def refuse():
        raise IllegalAccess("k reads")

    stated = Crash(("IllegalAccess: k reads",))
    assert outcome(refuse, crash=stated).verdict == "crash"
    assert outcome(lambda: Seen([RIGHT], refuse), crash=stated).verdict == "failed"


# ---- one row of a history ----


def row(observe, **more):
    return Row(observe, lambda outcome: ("buggy", f"verdict {outcome.verdict}"), ("wrong", "crash"), **more)


def test_a_row_tells_a_word_and_what_it_stands_for():
    assert tell(row(seen(step(3.0, 4.4)), name="draft")) == Cell(
        row="draft", word="buggy", observation="verdict wrong"
    )
    assert tell(row(no_embedding, crash=LOOK_UP)).observation == "verdict crash"


@pytest.mark.parametrize(("observe", "error"), UNFIT.values(), ids=UNFIT)
def test_a_row_that_does_not_fit_is_unreachable(observe, error):
    cell = tell(row(observe, name="target", crash=LOOK_UP))
    assert (cell.row, cell.word) == ("target", "unreachable")
    assert cell.observation.startswith(f"the probe does not fit: {error.__name__}: ")


def test_a_row_whose_words_do_not_fit_is_unreachable():
    words = lambda outcome: ("fixed", outcome.metrics["graphs"])  # noqa: E731
    cell = tell(Row(seen(step(3.0, 4.4)), words, bug=("wrong",)))
    assert cell.word == "unreachable" and "KeyError: 'graphs'" in cell.observation


def test_a_failure_that_is_not_this_bug_is_none_of_its_words():
    cell = tell(row(seen(RIGHT)))
    assert (cell.word, cell.observation) == ("unreachable", "verdict eager, which is not this bug")
    crash = tell(Row(no_embedding, lambda outcome: ("buggy", "seen"), bug=("wrong",), crash=LOOK_UP))
    assert crash.observation.endswith("not this bug: IndexError: index out of range in self")
    assert tell(row(seen(step(3.0, 4.0, fits=False)))).word == "buggy"  # right: its words are asked for


def test_a_library_that_is_not_installed_says_nothing_of_the_release():
    with pytest.raises(ModuleNotFoundError, match="msgspec"):
        tell(row(raises(LIBRARY)))
    assert probe.misses_library(LIBRARY)
    assert not probe.misses_library(ImportError("cannot import name", name="msgspec"))


def test_a_release_without_the_thing_is_not_probed():
    cell = tell(row(raises(AssertionError("probed")), needs=lambda: "no such class"))
    assert (cell.word, cell.observation) == ("not there", "no such class")
    assert tell(row(seen(step(3.0, 4.4)), needs=lambda: None)).word == "buggy"


# ---- variants run on the target release only ----


@pytest.fixture
def release(tmp_path, monkeypatch):
    """Write a package vllm of some version, which holds one function, and have it on the path."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)

    def write(version=TARGET):
        (tmp_path / "vllm").mkdir()
        (tmp_path / "vllm" / "__init__.py").write_text(
            f"__version__ = {version!r}\ndef width():\n    found = 4.0\n    return found\n"
        )
        info = tmp_path / f"vllm-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def observe_width():
    import vllm

    return Seen([step(3.0, vllm.width())], lambda: [RIGHT])


WIDER = Edit("vllm:width", find="found = _", put="found = 5.0")


def test_a_variant_runs_with_its_edits_and_without_them(release):
    release()
    assert run(Variant(observe_width, (WIDER,))).verdict == "wrong"
    assert run(Variant(observe_width)).verdict == "eager"


@pytest.mark.parametrize(("observe", "error"), UNFIT.values(), ids=UNFIT)
def test_a_variant_that_does_not_fit_has_failed(observe, error, release):
    release()
    assert run(Variant(observe, crash=LOOK_UP)).message.startswith(f"{error.__name__}: ")
    assert run(Variant(observe, crash=LOOK_UP)).verdict == "failed"


def test_a_variant_shows_the_crash_that_it_states(release):
    release()
    assert run(Variant(no_embedding, crash=LOOK_UP)).verdict == "crash"
    assert run(Variant(no_embedding)).verdict == "failed"


def test_a_variant_that_misses_a_library_has_no_outcome(release):
    release()
    with pytest.raises(ModuleNotFoundError, match="msgspec"):
        run(Variant(raises(LIBRARY), crash=LOOK_UP))


def test_a_variant_is_refused_on_another_release(release):
    release("0.21.0")
    message = f"vllm 0.21.0 is installed; the edit of vllm:width is for =={TARGET}"
    with pytest.raises(SourceChanged, match=message):
        run(Variant(observe_width, (WIDER,)))


# ---- places ----


def caught_in(*files):
    """An exception that came through functions of these files, the last one innermost."""
    fn = raises(IllegalAccess("x"))
    for file in reversed(files):
        namespace = {"inner": fn}
        exec(compile(f"def outer_{files.index(file)}():\n    inner()", file, "exec"), namespace)
        fn = namespace[f"outer_{files.index(file)}"]
    with pytest.raises(IllegalAccess) as info:
        fn()
    return info.value


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (["a/vllm/x.py", "b/vllm/lora/base.py", "c/torch/y.py"], "vllm/lora/base.py:2 in outer_1"),
        (["<vllm/v1/worker/model_runner.py, edited 2>"], "vllm/v1/worker/model_runner.py:2 in outer_0"),
        (["cache/vllm/0.23.0/vllm/config.py"], "vllm/config.py:2 in outer_0"),
        (["mrv2lab/vllm.py", "my_vllm/z.py"], None),
    ],
)
def test_an_exception_is_placed_at_the_innermost_line_of_vllm(files, place):
    error = caught_in(*files)
    assert raised_in_vllm(error) == place
    assert outcome(raises(error)).where == place
