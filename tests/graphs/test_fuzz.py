"""Random programs: what is captured replays as it runs eagerly, or is refused while it is captured.

One at a time, and several that share static buffers and a pool, replayed in any order; parts of them on a
stream of their own, which is joined. More of them: `tests.random_programs`.
"""

import operator
import random
from collections import Counter
from functools import partial

import pytest
import torch

from mrv2lab.errors import CaptureError
from mrv2lab.graphs import capture, host, new_pool

DTYPES = [torch.float32] * 3 + [torch.float64, torch.int64, torch.int32, torch.bool, torch.complex64]
SHAPES = [(4,), (3,), (3, 4), (4, 3), (1, 4), (), (2, 3, 4)]


class Draw:
    """Draws what an op of a program works on."""

    def __init__(self, seed, values, index):
        self.choice, self.values, self.index = random.Random(seed).choice, values, index

    x = property(lambda self: self.choice(self.values))
    n = property(lambda self: self.choice([0, 1, 2, -1, 0.5, 1.5, True]))
    dim = property(lambda self: self.choice([0, -1, 1]))
    shape = property(lambda self: self.choice(SHAPES))
    dtype = property(lambda self: self.choice([torch.float32, torch.float64, torch.int32, torch.bool]))
    operand = property(lambda self: self.choice([self.x, self.x, self.n]))
    rows = property(lambda self: self.choice([v for v in self.values if v.dim() and len(v) > 2]))

    device = property(lambda self: self.index.device)

    @property
    def mask(self):
        x = self.x
        return x if x.dtype is torch.bool else (x.real if x.is_complex() else x) > 0

    @property
    def number(self):
        """A tensor that may be divided by: a CPU raises where a whole number is divided by zero."""
        return self.choice([v for v in self.values if v.is_floating_point()] or [2.0])

    def out(self, fn, *args):
        """Into a tensor of the same shape; another one would be resized, which is deprecated."""
        target = self.x
        return fn(*args, out=target) if fn(*args).shape == target.shape else None


OPS = (
    *(lambda d, name=name: getattr(d.x, name)() for name in (
        "neg", "abs", "sin", "exp", "relu", "sigmoid", "square", "sign", "logical_not", "sum", "mean",
        "argmax", "isnan", "tril", "any", "std", "trunc", "conj", "conj_physical", "clone", "t", "squeeze",
        "diagonal", "zero_", "neg_", "exp_", "relu_", "bitwise_not", "nan_to_num", "contiguous",
    )),
    *(lambda d, name=name: getattr(d.x, name)(d.dim) for name in (
        "cumsum", "softmax", "amax", "sort", "flip", "unsqueeze", "prod", "logsumexp", "unbind", "cumsum_",
    )),
    *(lambda d, name=name: getattr(d.x, name)(d.operand) for name in (
        "add", "sub", "mul", "lt", "eq", "logical_and", "maximum", "add_", "sub_", "mul_", "eq_", "copy_",
        "matmul", "mm", "fill_", "logical_or_", "lt_", "pow", "where",
    )),
    *(lambda d, name=name: getattr(d.x, name)(d.number) for name in ("div", "fmod", "div_", "atan2")),
    lambda d: d.x.clamp_(d.choice([-1, 0, 0.5])),
    lambda d: d.x.view(-1),
    lambda d: d.x.expand(2, *d.shape),
    lambda d: d.x.narrow(0, d.choice([0, 1]), d.choice([1, 2])),
    lambda d: d.x.select(d.dim, d.choice([0, 1])),
    lambda d: torch.view_as_real(d.x),
    lambda d: d.x @ d.x,
    lambda d: torch.cat([d.x, d.x]),
    lambda d: torch.stack([d.x, d.x], d.dim),
    lambda d: torch.addmm(d.x, d.x, d.x),
    lambda d: d.x.addcmul_(d.x, d.x),
    lambda d: d.rows[d.index],
    lambda d: d.rows.index_select(0, d.index),
    lambda d: d.rows.gather(0, d.index),
    lambda d: d.rows.take(d.index),
    lambda d: operator.setitem(d.rows, d.index, d.x),
    lambda d: d.rows.index_put_((d.index,), d.x, accumulate=True),
    lambda d: d.rows.index_add_(0, d.index, d.x),
    lambda d: d.rows.index_copy_(0, d.index, d.x),
    lambda d: d.rows.scatter_(0, d.index, d.x),
    lambda d: d.rows.scatter_add_(0, d.index, d.x),
    lambda d: d.rows.index_fill_(0, d.index, d.n),
    lambda d: operator.setitem(d.x, d.mask, d.n),
    lambda d: operator.setitem(d.x, (d.mask, slice(None)), d.n),
    lambda d: operator.setitem(d.x, (slice(None), d.mask), d.n),
    lambda d: d.x.masked_fill(d.mask, d.n),
    lambda d: d.x.masked_fill_(d.mask, d.n),
    lambda d: torch.where(d.mask, d.x, d.operand),
    lambda d: operator.setitem(d.x, slice(0, 2), d.operand),
    lambda d: operator.setitem(d.x, 0, d.x),
    lambda d: operator.setitem(d.x, ..., d.operand),
    lambda d: d.out(torch.add, d.x, d.x),
    lambda d: d.out(torch.mul, d.x, 2),
    lambda d: d.out(torch.sin, d.x),
    lambda d: d.out(torch.sum, d.x, 0),
    lambda d: d.out(torch.matmul, d.x, d.x),
    lambda d: d.x.nan_to_num(0).clamp(-99, 99).to(d.dtype),
    lambda d: torch.zeros(d.shape, dtype=d.dtype, device=d.device),
    lambda d: torch.full(d.shape, d.n, device=d.device),
    lambda d: torch.arange(4.0, device=d.device),
    lambda d: d.x.new_ones(d.shape),
    lambda d: torch.empty_like(d.x).copy_(d.x),
    lambda d: d.x * d.x.new_full((), 2.0),
    lambda d: d.x + host(torch.tensor(3)),
    lambda d: d.x * len(d.x),
    lambda d: d.x[d.x.new_ones(3, dtype=torch.bool)] if d.choice(range(3)) == 0 else None,
    lambda d: d.choice([d.x, d.x.nonzero]) and None,
    lambda d: d.choice([d.x] * 15 + [d.x.sum()]).tolist() and None if d.choice(range(9)) == 0 else None,
    lambda d: d.x[d.mask] if d.choice(range(9)) == 0 else None,
)  # fmt: skip


def on_a_side_stream(op, draw):
    """An op on a stream that waits for the current one, and is waited for."""
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    try:
        with torch.cuda.stream(side):
            return op(draw)
    finally:
        main.wait_stream(side)


DEVICE = {"emulated": "cpu", "cuda": "cuda"}


def buffers(seed, contents, backend="emulated"):
    """Static buffers of a program; the last one holds indices, none twice: who comes last is not defined."""
    draw, numbers = random.Random(seed), torch.Generator().manual_seed(contents)
    made = []
    for _ in range(4):
        whole = torch.randint(-3, 4, draw.choice(SHAPES), generator=numbers)
        dtype = draw.choice(DTYPES)
        made.append(whole.to(dtype) / 2 if dtype.is_floating_point else whole.to(dtype))
    made.append(torch.randperm(3, generator=numbers))
    return [one.to(DEVICE[backend]) for one in made]


def run(seed, static):
    """The program of a seed, the same in every call: what it has made, and which of its ops raised what."""
    values, raised = list(static[:-1]), []
    draw = Draw(seed, values, static[-1])
    for number in range(draw.choice(range(2, 11))):
        op = draw.choice(range(len(OPS)))
        try:
            made = on_a_side_stream(OPS[op], draw) if draw.choice(range(8)) == 0 else OPS[op](draw)
        except CaptureError:
            raise
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raised.append((number, op, type(error).__name__))
            continue
        values += [v for v in (made if isinstance(made, tuple) else [made]) if isinstance(v, torch.Tensor)]
    return values[len(static) - 1 :], raised


def outcome(seed, backend="emulated"):
    """`equal` or `refused`, and what raised eagerly, or why it was refused.

    Raises:
        AssertionError: the replay differs from the eager run, or what raises at capture from what does then.
        Exception: what a replay raises.
    """
    static, eager = buffers(seed, 0, backend), buffers(seed, 1, backend)
    results, raised = run(seed, eager)
    try:
        graph = capture(lambda: run(seed, static), backend=backend)
    except CaptureError as error:
        return "refused", (raised, str(error))
    made, raised_at_capture = graph.outputs
    assert raised_at_capture == raised, f"{raised} eagerly, {raised_at_capture} at capture"
    for ours, theirs in zip(static, buffers(seed, 1, backend), strict=True):
        ours.copy_(theirs)
    graph.replay()
    require_equal([*static, *made], [*eager, *results])
    return "equal", (raised, "")


def require_equal(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def outcome_of_several(seed, backend="emulated"):
    """The same of programs that share their static buffers and a pool, whichever is replayed next."""
    choice, pool = random.Random(seed).choice, new_pool(backend)
    static, eager = buffers(seed, 0, backend), buffers(seed, 0, backend)
    programs = {3 * seed + n: None for n in range(choice((2, 3)))}
    all_raised = [run(program, buffers(seed, 0, backend))[1] for program in programs]
    for program in programs:
        try:
            programs[program] = capture(partial(run, program, static), backend=backend, pool=pool)
        except CaptureError as error:
            return "refused", (all_raised, str(error))
        require_equal(static, eager)  # nothing runs while it is captured
    for contents in range(2, 7):
        program = choice(list(programs))
        for ours, theirs, new in zip(static, eager, buffers(seed, contents, backend), strict=True):
            ours.copy_(new)
            theirs.copy_(new)
        results, raised = run(program, eager)
        programs[program].replay()
        made, raised_at_capture = programs[program].outputs
        assert raised_at_capture == raised, f"{raised} eagerly, {raised_at_capture} at capture"
        require_equal([*static, *made], [*eager, *results])
    return "equal", (all_raised, "")


def difference(asked, seed):
    """How a program ends on a GPU and not under the emulator; `` if as there.

    Where both replay as they run eagerly, results agree as far as those of CPU and GPU do. A program of
    which other ops raise on a GPU is another program: `another`.
    """
    (here, (raised, _)), (there, (raised_there, why)) = (ended(asked, seed, b) for b in DEVICE)
    if here == there:
        return ""
    return "another" if raised != raised_there else f"emulated: {here}; cuda: {there} {why}; {raised}"


def ended(asked, seed, backend):
    try:
        return asked(seed, backend)
    except Exception as error:
        return " ".join([type(error).__name__, *str(error).splitlines()[:3]]), ([], "")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 1800, 100))
def test_programs_replay_as_they_run_eagerly_or_are_refused(first):
    outcomes = Counter(outcome(seed)[0] for seed in range(first, first + 100))
    assert outcomes["equal"] > 80


@pytest.mark.filterwarnings("ignore")
def test_programs_that_share_a_pool_replay_as_they_run_eagerly():
    outcomes = Counter(outcome_of_several(seed)[0] for seed in range(200))
    assert outcomes["equal"] > 120


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("asked", [outcome, outcome_of_several])
def test_programs_end_on_a_gpu_as_under_the_emulator(asked):
    assert [found for seed in range(100) if len(found := difference(asked, seed)) > 7] == []
