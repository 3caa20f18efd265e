"""The stand-in for Triton's native library: each function, then whole verdicts with Triton's Python alone."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.backends import BaseBackend

from mrv2lab import libtriton, triton_python
from mrv2lab.cases import CASES, get

native = pytest.importorskip("triton._C.libtriton", reason="no native library to compare with")
if native is libtriton:
    pytest.skip("no native library to compare with", allow_module_level=True)

DTYPES = ["bool", "i1", "u1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8"]
SHAPES = [(), (1,), (7,), (4, 8), (2, 3, 5), (0,)]


class Problem:
    """Random addresses, aligned or not, repeated, in any order, in two buffers with a third between."""

    def __init__(self, seed: int, dtype: str, shape: tuple[int, ...], *, atomic: bool = False):
        rng = np.random.default_rng(seed)
        self.dtype = np.dtype(dtype)
        self.memory = rng.integers(0, 256, 3 * 256, dtype=np.uint8).view(np.uint64)
        step = self.dtype.itemsize if atomic or rng.random() < 0.5 else 1
        offsets = step * rng.integers(0, (256 - self.dtype.itemsize) // step, shape)
        self.ptr = np.uint64(self.memory.ctypes.data) + (offsets + 512 * rng.integers(0, 2, shape)).astype(
            np.uint64
        )
        self.mask = rng.random(shape) < rng.choice([0, 0.5, 1])
        # Not a number has many bit patterns, and sums of it differ in theirs: floats are taken from numbers.
        size = int(np.prod(shape, dtype=int))
        if self.dtype.kind == "f":
            self.memory.view(self.dtype)[:] = rng.normal(size=self.memory.nbytes // self.dtype.itemsize)
            self.value = np.asarray(rng.normal(size=shape)).astype(self.dtype)
        else:
            self.value = rng.integers(0, 256, self.dtype.itemsize * size, dtype=np.uint8).view(self.dtype)
            self.value = self.value.reshape(shape)
        # Blocks also come broadcast, or turned. The native atomic operations read beyond a broadcast value.
        if size and not atomic and rng.random() < 0.3:
            self.value = np.broadcast_to(self.value.reshape(-1)[0], shape)
            self.ptr, self.mask = np.asfortranarray(self.ptr), np.asfortranarray(self.mask)

    def both(self, call, *, chosen=None):
        """Call with each library on the same memory: what comes back, and the memory, must be the same."""
        before, seen = self.memory.copy(), []
        for library in (native.interpreter, libtriton.interpreter):
            self.memory[:] = before
            result = call(library)
            result = np.empty(0) if result is None else result
            kept = result if chosen is None or result.shape != chosen.shape else result[chosen]
            seen.append((result.shape, result.dtype, kept.tobytes(), self.memory.tobytes()))
        assert seen[0] == seen[1]


problems = given(st.integers(0, 2**32 - 1), st.sampled_from(DTYPES), st.sampled_from(SHAPES))
often = settings(max_examples=300, deadline=None)


@often
@problems
def test_loads_are_the_native_ones(seed, dtype, shape):
    problem = Problem(seed, dtype, shape)
    problem.both(lambda library: library.load(problem.ptr, problem.mask, problem.value, problem.dtype))


@often
@problems
def test_stores_are_the_native_ones(seed, dtype, shape):
    problem = Problem(seed, dtype, shape)
    problem.both(lambda library: library.store(problem.ptr, problem.value, problem.mask))


def test_a_value_that_lies_between_the_addresses_is_read_before_it_is_written_over():
    problem = Problem(0, "i4", (8,))
    cells = problem.memory.view("i4")
    problem.ptr = (problem.memory.ctypes.data + 4 * np.arange(8)[::-1]).astype(np.uint64)
    problem.mask = np.ones(8, bool)
    libtriton.store(problem.ptr, cells[0:8].copy(), problem.mask)
    copied, want = cells.copy(), cells.copy()
    want[0:8] = copied[4:12][::-1]
    libtriton.store(problem.ptr, cells[4:12], problem.mask)
    assert cells.tolist() == want.tolist()


@pytest.mark.parametrize("op", list(native.interpreter.RMW_OP.__members__))
@settings(max_examples=40, deadline=None)
@problems
def test_atomic_operations_are_the_native_ones(op, seed, dtype, shape):
    problem = Problem(seed, dtype, shape, atomic=True)

    def call(library):
        sem = library.MEM_SEMANTIC.RELAXED
        try:
            return library.atomic_rmw(
                getattr(library.RMW_OP, op), problem.ptr, problem.value, problem.mask, sem
            )
        except ValueError as error:
            return np.array([str(error)])

    problem.both(call, chosen=problem.mask)  # what was masked out comes back as anything


@often
@problems
def test_compare_and_swap_is_the_native_one(seed, dtype, shape):
    problem = Problem(seed, dtype, shape, atomic=True)
    there = np.empty(shape, problem.dtype)
    for where in np.ndindex(shape):
        libtriton_cell, _ = libtriton._cells(problem.ptr[where].reshape(1), problem.dtype.itemsize)
        there[where] = libtriton_cell.view(problem.dtype)[0]
    expected = np.where(problem.mask, there, problem.value)  # about half of them are there
    problem.both(
        lambda library: library.atomic_cas(
            problem.ptr, expected.astype(problem.dtype), problem.value, library.MEM_SEMANTIC.ACQUIRE
        )
    )


@pytest.mark.parametrize("text", [None, "", "0", "1", "on", "TRUE", "Yes", "y", "t", "2", " 1", "off", "no"])
@pytest.mark.parametrize("default", [None, True, False])
def test_the_environment_is_read_as_natively(monkeypatch, text, default):
    monkeypatch.delenv("MRV2LAB_ASKED", raising=False)
    if text is not None:
        monkeypatch.setenv("MRV2LAB_ASKED", text)
    for name in ("getenv", "getenv_bool"):
        stand_in, real = getattr(libtriton, name), getattr(native, name)
        assert stand_in("MRV2LAB_ASKED", default) == real("MRV2LAB_ASKED", default)


EDGES = [edge + step for edge in (0, 2**31, -(2**31), 2**32, 2**63, -(2**63), 2**64) for step in (-1, 0, 1)]
KINDS = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
TENSORS = [torch.zeros(1).to(getattr(torch, kind)) for kind in [*KINDS, "float8_e5m2", "float8_e4m3fn"]]


@pytest.mark.parametrize(
    "argument", [True, False, *EDGES, *TENSORS, "text", [1], object()], ids=lambda given: str(given)[:7]
)
@pytest.mark.parametrize("is_const", [False, True])
def test_arguments_have_the_native_types(argument, is_const):
    def told(library):
        try:
            return library.native_specialize_impl(BaseBackend, argument, is_const, False, True)[0]
        except (TypeError, OverflowError) as error:
            return type(error), str(error)

    assert told(libtriton) == told(native)


def test_names_are_the_same_each_time_and_nothing_can_be_made_of_them():
    assert libtriton.ir.MEM_SEMANTIC.ACQUIRE is libtriton.ir.MEM_SEMANTIC.ACQUIRE
    assert libtriton.ir.MEM_SEMANTIC.ACQUIRE is not libtriton.ir.MEM_SEMANTIC.RELEASE
    with pytest.raises(RuntimeError, match="no builder: kernels are interpreted only"):
        libtriton.ir.builder()


# ---- Triton's Python alone ----

RUN = """
import json, sys
import mrv2lab, triton
assert sys.modules["triton._C.libtriton"].__name__ == "mrv2lab.libtriton", triton
from mrv2lab.cases import get
asked, shape = json.loads(sys.argv[1])
runs = [get(case).run(variant, rung="emulated", **shape) for case, variant in asked]
print(json.dumps([[run.case, run.variant, run.verdict, run.errors] for run in runs]))
"""


def shown(case: str, variant: str, **shape: int) -> list:
    """The same, in this process."""
    run = get(case).run(variant, rung="emulated", **shape)
    return [case, variant, run.verdict, list(run.errors)]


@pytest.fixture(scope="module")
def only_python(tmp_path_factory):
    """The installed Triton as `triton_python` would install it: a folder with no native library."""
    folder = tmp_path_factory.mktemp("only_python")
    found = importlib.metadata.distribution("triton")
    with ZipFile(folder / "whole.whl", "w") as whole:
        for file in found.files:
            if file.suffix == ".py" or ".dist-info" in file.parts[0] or "libtriton" in file.name:
                whole.writestr(str(file), file.read_binary() if file.suffix != ".so" else b"")
    with ZipFile(folder / "whole.whl") as whole:
        triton_python.python_only(whole, folder / "pure.whl")
    with ZipFile(folder / "pure.whl") as pure:
        pure.extractall(folder / "site")
    return folder / "site"


def judged(folder: Path, asked: list[tuple[str, str]], **shape: int) -> list:
    """Case, variant, verdict and errors of emulated runs in a process that finds Triton in `folder` first."""
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps([asked, shape])],
        env=os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_triton_is_installed_as_python_alone(only_python):
    names = {path.relative_to(only_python).as_posix() for path in only_python.rglob("*") if path.is_file()}
    assert "triton/runtime/interpreter.py" in names
    assert {Path(name).suffix for name in names if name.startswith("triton/")} == {".py"}
    (record,) = only_python.glob("triton-*.dist-info/RECORD")
    assert {line.split(",")[0] for line in record.read_text().splitlines()} <= names
    assert not [name for name in names if name.endswith("entry_points.txt")]


def test_a_verdict_needs_no_native_library(only_python):
    asked = [("lora_device_assert", variant) for variant in ("unwritten", "zero_mapping")]
    small = {"batch_size": 1}
    assert judged(only_python, asked, **small) == [shown(*each, **small) for each in asked]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_no_verdict_needs_the_native_library(only_python, case):
    asked = [(case, variant.name) for variant in CASES[case].variants]
    assert judged(only_python, asked) == [shown(*each) for each in asked]


# ---- what is fetched ----


def test_the_pin_is_the_one_of_the_cpu_stack(monkeypatch):
    asked = [
        'triton==3.6.0; extra == "gpu"',
        "numpy",
        'triton==3.7.1; sys_platform == "linux" and extra == "cpu"',
    ]
    monkeypatch.setattr(triton_python, "requires", lambda _: asked)
    assert triton_python.pinned() == "triton==3.7.1"
