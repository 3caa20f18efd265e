"""What is kept between the operations of an interpreted kernel changes none of its results."""

import itertools
import operator
import random
import warnings

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, interpreter_builder

from mrv2lab.kernels import interpreter as ours
from mrv2lab.kernels.dual import DualKernel

REPLACED = [(interpreter, "_get_np_dtype"), (tl, "load"), (tl.tensor, "__add__"), (tl.math, "exp")]


@DualKernel
def _mixed(x_ptr, y_ptr, n, fails, BLOCK: tl.constexpr):
    """Blocks of several types and shapes, which differ in one of both or in none."""
    tl.static_assert(BLOCK == 8)
    rows = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + rows, mask=rows < n, other=1.0)
    grid = x[:, None] * x[None, :] + rows[:, None].to(tl.float16) - (rows[None, :] % 3)
    dots = tl.dot(tl.where(grid > 2, grid, -grid), tl.trans(grid), input_precision="ieee")
    if fails:
        tl.store(x_ptr + rows, rows[:, None] + tl.arange(0, 4)[None, :])
    columns = rows[None, :]
    y_ptrs = y_ptr + rows[:, None] * BLOCK + columns
    tl.store(y_ptrs, dots.to(tl.float64) * grid.shape[0] + x.numel, mask=columns < n)


def launched(fails=0, first=-1.0):
    x, y = torch.linspace(-1, 1, 8), torch.zeros(8, 8, dtype=torch.float64)
    x[0] = first
    _mixed[(2,)](x, y, 7, fails, BLOCK=8)
    return y


def without_ours(monkeypatch):
    """Triton's own interpreter, but for the overflow checks."""
    for name in ("_patch_lang", "_patch_builtin"):
        monkeypatch.setattr(interpreter, name, getattr(ours, f"_original{name}"))
    for name in ("_init_args_hst", "_restore_args_dev"):
        monkeypatch.setattr(interpreter.GridExecutor, name, getattr(ours, f"_original{name}"))


def test_the_same_comes_out_as_without_it(monkeypatch):
    made = launched()
    assert made[:, :7].all() and not made[:, 7].any()
    without_ours(monkeypatch)
    assert torch.equal(launched(), made)


def test_the_front_end_is_asked_once(monkeypatch):
    made = launched()
    monkeypatch.setattr(TritonSemantic, "binary_op_type_checking_impl", None)
    monkeypatch.setattr(TritonSemantic, "load", None)
    assert torch.equal(launched(), made)


def test_tensors_of_the_host_are_not_copied(monkeypatch):
    monkeypatch.setattr(ours, "_original_init_args_hst", None)
    assert launched()[:, :7].all()


def test_a_kernel_on_memory_that_holds_anything_warns_nobody():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for first in (float("inf"), float("nan"), 3e38):
            assert not launched(first=first).isfinite().all()


def test_between_launches_triton_is_as_it_was():
    before = [getattr(owner, name) for owner, name in REPLACED]
    launched()
    with pytest.raises(triton.runtime.errors.InterpreterError):
        launched(fails=1)
    assert [getattr(owner, name) for owner, name in REPLACED] == before
    assert all(tl.core.is_builtin(member) for member in before[1:])


def test_a_kernel_met_first_inside_of_another_is_patched_whole_later():
    """A device function of a module that has another name for the language, and then a kernel of it."""
    outer, inner = (eval("lambda: None", {name: tl}) for name in ("tl", "language"))
    scopes = [interpreter._patch_lang(fn) for fn in (outer, inner)]
    for scope in reversed(scopes):
        scope.restore()
    scope = interpreter._patch_lang(inner)
    try:
        assert not any(tl.core.is_builtin(getattr(owner, name)) for owner, name in REPLACED[1:])
    finally:
        scope.restore()


# ---- each operation, on its own ----

NUMBERS = [0, 1, -1, 7, 200, 2**31 - 1, 2**31, -(2**40), 2**63, 2**64, True, False]
NUMBERS += [0.0, -0.0, 1.5, -3e38, 1e300, float("inf"), float("nan"), None, "text"]
NUMBERS += [tl.constexpr(3), tl.constexpr(2.5), tl.float32]
DTYPES = [tl.int1, tl.int8, tl.uint8, tl.int16, tl.int32, tl.uint32, tl.int64, tl.uint64]
DTYPES += [tl.float16, tl.bfloat16, tl.float32, tl.float64, tl.float8e5]
POINTERS = [tl.pointer_type(tl.float32), tl.pointer_type(tl.int32)]
SHAPES = [(), (), (1,), (8,), (8,), (1, 8), (8, 1), (8, 8), (4,), (2, 1, 8)]


def block(rng, dtype, shape):
    """A tensor of random bits; of one element if it has no shape."""
    kind = ours._original_get_np_dtype(dtype)
    data = np.frombuffer(rng.randbytes(kind.itemsize * int(np.prod(shape))), kind).reshape(shape or 1)
    if rng.random() < 0.5:  # small ones too: whole numbers that types share, equal ones, zeros
        data = np.frombuffer(rng.randbytes(data.size), np.uint8).reshape(data.shape) % 3
    data = (data % 2).astype(bool) if kind.kind == "b" else data.astype(kind)
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(shape)) if shape else dtype)


def described(value):
    if isinstance(value, tl.tensor):
        data = getattr(value.handle, "data", None)
        held = data is not None and (value.handle.dtype, data.dtype, data.shape, data.strides, data.tobytes())
        return str(value.type), str(value.dtype), str(value.shape), str(value.numel), str(held)
    return [described(each) for each in value] if isinstance(value, list | tuple) else repr(value)


def outcomes(patch_lang, patch_builtin, operation, seeds, make):
    """What comes back, or is raised, and what the arguments are afterwards."""
    interpreter._patch_builtin = patch_builtin
    scope, found = patch_lang(outcomes), []
    try:
        for index, seed in enumerate(seeds):
            interpreter_builder.set_grid_dim(9, 9, 9)
            interpreter_builder.set_grid_idx(index, 1, 2)
            args = make(random.Random(seed))
            try:
                result = described(operation(*args))
            except Exception as error:
                result = type(error), str(error)
            found.append((result, described(args)))
    finally:
        scope.restore()
        interpreter._patch_builtin = ours._patch_builtin
    return found


def compare(operation, make):
    """Twice with other data: the first makes the plan, the other follows it."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        theirs = outcomes(ours._original_patch_lang, ours._original_patch_builtin, operation, range(2), make)
        assert outcomes(ours._patch_lang, ours._patch_builtin, operation, range(2), make) == theirs
    return theirs


OPERATORS = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "and_",
    "or_",
    "xor",
    "lshift",
    "rshift",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
]
OF_TWO = [getattr(operator, name) for name in OPERATORS] + ["minimum", "maximum", "add", "mul", "broadcast"]


@pytest.mark.parametrize("operation", OF_TWO, ids=str)
def test_operations_on_two_are_the_same(operation):
    rng, failed = random.Random(str(operation)), 0
    for _ in range(100):
        kinds = [(rng.choice([*DTYPES, *POINTERS]), rng.choice(SHAPES)) for _ in range(2)]
        if rng.random() < 0.3:
            kinds[1] = kinds[0][0], kinds[1][1]
        number, place = rng.choice(NUMBERS), rng.choice([0, 1, None, None])

        def make(rng, kinds=kinds, number=number, place=place):
            return [number if i == place else block(rng, *kind) for i, kind in enumerate(kinds)]

        def run(a, b):
            return operation(a, b) if callable(operation) else getattr(tl, operation)(a, b)

        failed += isinstance(compare(run, make)[0][0][0], type)
    assert 0 < failed < 100


@pytest.mark.parametrize("dtype", [tl.int1, tl.uint8, tl.int32, tl.float16], ids=str)
def test_equal_numbers_of_other_types_are_told_apart(dtype):
    for number in [1, True, 1.0, tl.constexpr(1), 0, False, 0.0, 1.5]:
        for operation in (operator.add, operator.truediv, operator.lt, operator.sub):
            compare(lambda x, y=number, run=operation: run(x, y), lambda rng: [block(rng, dtype, (8,))])


SUM, MAX = tl.standard._sum_combine, tl.standard._elementwise_max
OF_ONE = {
    "neg": lambda x: -x,
    "invert": lambda x: ~x,
    "to the left": lambda x: x[None, :],
    "to the right": lambda x: x[:, None],
    "no such index": lambda x: x[0],
    "where": lambda x: tl.where(x > 1, x, 0),
    "where of it": lambda x: tl.where(x, 1.5, x),
    "clamp": lambda x: tl.clamp(x, 0.0, 1.0),
    "shape": lambda x: tl.full(x.shape, 3, x.dtype) + x,
    "full": lambda x: [tl.full((4, 2), value, x.dtype) for value in (0, -1, 2.5, -0.0)],
    "arange": lambda x: tl.arange(0, 8) + x,
    "no arange": lambda x: tl.arange(0, 7) + x,
    "shifted constant": lambda x: [x >> tl.full((), 1, tl.uint32), tl.full((), 1, tl.uint32)],
    "program": lambda x: x + tl.program_id(0) * tl.num_programs(1),
    "trans": lambda x: tl.trans(x),
    "permute": lambda x: tl.permute(x, (1, 0)),
    "reshape": lambda x: tl.reshape(x, (2, 4)),
    "broadcast to": lambda x: tl.broadcast_to(x, (8, 8)),
    "expand": lambda x: tl.expand_dims(x, -1),
    "dot": lambda x: tl.dot(x, tl.trans(x), input_precision="ieee"),
    "sum": lambda x: tl.reduce(x, 0, SUM),
    "max": lambda x: tl.reduce(x, 1, MAX),
    "join": lambda x: tl.join(x, x),
    "bitcast": lambda x: x.to(tl.int32, bitcast=True),
    "same": lambda x: x.to(x.dtype),
    "truth": lambda x: [bool(x), 1 if x else 2],
}
OF_ONE |= {
    name: lambda x, name=name: getattr(tl, name)(x) for name in ["exp", "log", "sqrt", "abs", "floor", "cos"]
}
OF_ONE |= {f"to {dtype}": lambda x, dtype=dtype: x.to(dtype) for dtype in DTYPES}


@pytest.mark.parametrize("name", OF_ONE)
def test_operations_on_one_are_the_same(name):
    for dtype, shape in itertools.product([*DTYPES, *POINTERS[:1]], dict.fromkeys(SHAPES)):
        compare(OF_ONE[name], lambda rng, dtype=dtype, shape=shape: [block(rng, dtype, shape)])


MEMORY = {
    "load": lambda p, m, v: tl.load(p),
    "masked": lambda p, m, v: tl.load(p, mask=m),
    "zero": lambda p, m, v: tl.load(p, mask=m, other=0),
    "minus zero": lambda p, m, v: tl.load(p, m, other=-0.0),
    "other": lambda p, m, v: tl.load(p, mask=m, other=v),
    "minus zero of it": lambda p, m, v: tl.load(p, mask=m, other=v * 0.0 * -1.0),
    "no mask": lambda p, m, v: tl.load(p, other=v),
    "store": lambda p, m, v: tl.store(p, v),
    "masked store": lambda p, m, v: tl.store(p, v, mask=m),
    "a number": lambda p, m, v: tl.store(p, 3, mask=m),
    "compare and swap": lambda p, m, v: tl.atomic_cas(p, v, v + v),
}
ATOMIC = ["add", "max", "min", "and", "or", "xor", "xchg"]
MEMORY |= {  # what is masked out comes back as anything
    name: lambda p, m, v, name=name: tl.where(m, getattr(tl, f"atomic_{name}")(p, v, mask=m), 0)
    for name in ATOMIC
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_left_the_same(name):
    memory = np.zeros(64, np.int64)
    is_atomic = name in [*ATOMIC, "compare and swap"]  # these read beyond a value that was broadcast
    dtypes = [tl.int1, tl.int8, tl.int32, tl.uint64, tl.float16, tl.bfloat16, tl.float32]
    for dtype, shape, other in itertools.product(dtypes, dict.fromkeys(SHAPES), [(), (8,)]):

        def make(rng, dtype=dtype, shape=shape, other=shape if is_atomic else other):
            memory[:] = np.frombuffer(rng.randbytes(memory.nbytes), np.int64) % 5
            places = np.asarray(rng.sample(range(64), int(np.prod(shape))), np.uint64).reshape(shape or 1)
            kind = tl.pointer_type(dtype)
            handle = TensorHandle(places * np.uint64(8) + np.uint64(memory.ctypes.data), kind)
            pointers = tl.tensor(handle, tl.block_type(kind, list(shape)) if shape else kind)
            return [pointers, block(rng, tl.int1, shape), block(rng, dtype, other)]

        def run(*args):
            return [MEMORY[name](*args), repr(memory.tolist())]

        compare(run, make)
