"""What is kept between the operations of an interpreted kernel changes none of its results."""

import pytest
import torch
import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from mrv2lab.kernels import interpreter as ours
from mrv2lab.kernels.dual import DualKernel

REPLACED = [
    (interpreter, "_get_np_dtype"),
    (tl.core, "_unwrap_if_constexpr"),
    (tl.core.block_type, "__init__"),
    (tl.core.tensor, "__init__"),
    (TritonSemantic, "broadcast_impl_value"),
]


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


def launched(fails=0):
    x, y = torch.linspace(-1, 1, 8), torch.zeros(8, 8, dtype=torch.float64)
    _mixed[(2,)](x, y, 7, fails, BLOCK=8)
    return y


def test_the_same_comes_out_as_without_it(monkeypatch):
    made = launched()
    assert made[:, :7].all() and not made[:, 7].any()
    monkeypatch.setattr(interpreter, "_patch_lang", ours._original.patch_lang)
    assert torch.equal(launched(), made)


def test_between_launches_triton_is_as_it_was():
    before = [getattr(owner, name) for owner, name in REPLACED]
    launched()
    with pytest.raises(triton.runtime.errors.InterpreterError):
        launched(fails=1)
    assert [getattr(owner, name) for owner, name in REPLACED] == before
    assert not {getattr(ours, name) for name in vars(ours) if name.startswith("_make")} & set(before)
