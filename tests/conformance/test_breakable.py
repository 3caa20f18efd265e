"""`BreakableCUDAGraphCapture`: segments and their order, and what a replay computes.

Random programs write into a few small tensors, in place or into new ones, and some of their ops are broken
out. Both captures record on the emulator, so what is compared is how they cut a program.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from mrv2lab.graphs import breakable as mini
from mrv2lab.graphs import new_pool

MODULE = "vllm.compilation.breakable_cudagraph"
NUM_TENSORS = 4
NOTHING = st.just(())


def test_exactly_the_releases_before_0_22_have_none(release):
    assert (find_spec(MODULE) is None) == (release < Version("0.22"))


@dataclass(frozen=True)
class Op:
    """One op of a program.

    Attributes:
        kind: `add` and `copy` write into an existing tensor, `new` allocates one.
        broken: whether the capture breaks here. A new tensor is never made in a broken-out op.
        inner: ops inside this one, after its own work; broken ones among them run within the same break.
    """

    kind: str
    target: int
    source: int
    broken: bool = False
    inner: tuple["Op", ...] = ()


def ops(kinds, inner=NOTHING):
    index = st.integers(0, NUM_TENSORS - 1)
    return st.builds(Op, st.sampled_from(kinds), index, index, st.booleans(), inner)


IN_PLACE = ops(["add", "copy"])
NESTED = ops(["add", "copy"], st.lists(IN_PLACE, max_size=2).map(tuple))
PROGRAMS = st.lists(ops(["new"]) | IN_PLACE | NESTED, max_size=8)
VALUES = st.lists(st.integers(-9, 9), min_size=NUM_TENSORS, max_size=NUM_TENSORS)
INPUTS = st.lists(VALUES, min_size=1, max_size=3)


def write(kind, target, source):
    """The work of an op: in place, so that its result has one address."""
    if kind == "add":
        target.add_(source).add_(1)
    else:
        target.copy_(source)


def make_step(program, decorate):
    """The program as a function of its tensors, with `decorate` around what is to be broken out."""

    def work(op, tensors):
        write(op.kind, tensors[op.target], tensors[op.source])
        for inner in op.inner:
            run(inner, tensors)

    broken_out = decorate(lambda op, *tensors: work(op, tensors))

    def run(op, tensors):
        if op.broken:
            broken_out(op, *tensors)
        else:
            work(op, tensors)

    def step(*tensors):
        tensors = list(tensors)
        for op in program:
            if op.kind == "new":
                tensors[op.target] = tensors[op.target] + tensors[op.source]
            else:
                run(op, tensors)
        return tensors

    return step


def make_tensors():
    return [torch.zeros(3, dtype=torch.int64) for _ in range(NUM_TENSORS)]


def load(tensors, values):
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(torch.arange(3) * value)


class Captured:
    """One side's capture of a program over tensors of its own."""

    def __init__(self, program, decorate, capture):
        self.tensors, self.capture = make_tensors(), capture
        with torch.inference_mode(), capture:
            self.outputs = make_step(program, decorate)(*self.tensors)

    def kinds(self, is_graph):
        return ["graph" if is_graph(segment) else "eager" for segment in self.capture.segments]

    def replay(self, values):
        """All tensors and all outputs after a replay on these inputs."""
        load(self.tensors, values)
        with torch.inference_mode():
            self.capture.replay()
        return [tensor.tolist() for tensor in (*self.tensors, *self.outputs)]


def eager(program, values):
    tensors = make_tensors()
    load(tensors, values)
    outputs = make_step(program, lambda fn: fn)(*tensors)
    return [tensor.tolist() for tensor in (*tensors, *outputs)]


def capture_both(program):
    upstream, cuda = import_module(MODULE), torch.cuda
    return (
        Captured(
            program,
            upstream.eager_break_during_capture,
            upstream.BreakableCUDAGraphCapture(pool=cuda.graph_pool_handle()),
        ),
        Captured(
            program,
            mini.eager_break_during_capture,
            mini.BreakableCUDAGraphCapture(backend="emulated", pool=new_pool("emulated")),
        ),
    )


def is_replay(segment):
    """Whether a segment replays a graph: both sides keep the bound method of one."""
    return getattr(segment, "__name__", "") == "replay"


if find_spec(MODULE) is not None:  # which releases these are is asserted above

    @given(program=PROGRAMS, inputs=INPUTS)
    def test_programs_are_cut_the_same_and_replays_equal_eager(program, inputs):
        upstream, ours = capture_both(program)
        assert ours.kinds(is_replay) == upstream.kinds(is_replay)
        assert ours.capture.num_graphs == upstream.capture.num_graphs
        assert ours.capture.num_eager_breaks == upstream.capture.num_eager_breaks
        assert repr(ours.capture) == repr(upstream.capture)
        for values in inputs:
            expected = eager(program, values)
            assert upstream.replay(values) == expected
            assert ours.replay(values) == expected
