"""Interpreted kernels may only touch the tensors they are given."""

import inspect
import re
import threading

import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder

from mrv2lab.errors import IllegalAccess
from mrv2lab.graphs import capture
from mrv2lab.graphs.protection import ACCESSES
from mrv2lab.kernels.dual import DualKernel


@DualKernel
def shift_kernel(x_ptr, y_ptr, read_at, write_at):
    tl.store(y_ptr + write_at + tl.arange(0, 4), tl.load(x_ptr + read_at + tl.arange(0, 4)))


@DualKernel
def masked_kernel(x_ptr, y_ptr, n):
    at = tl.arange(0, 8)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0.0), mask=at < n)


def test_accesses_inside_pass():
    x, y = torch.arange(8.0), torch.zeros(4)
    shift_kernel[1,](x, y, 4, 0)
    assert y.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("read_at", "write_at", "words"),
    [(5, 0, "reads 1 address outside"), (0, -2, "writes 2 addresses"), (1 << 40, 0, "reads 4")],
)
def test_accesses_outside_are_refused_before_they_happen(read_at, write_at, words):
    x, y = torch.arange(8.0), torch.zeros(4)
    with pytest.raises(IllegalAccess, match=f"illegal memory access was encountered: shift_kernel {words}"):
        shift_kernel[1,](x, y, read_at, write_at)
    assert y.tolist() == [0, 0, 0, 0]


def test_an_access_may_not_begin_inside_and_end_outside():
    x, y = torch.zeros(18, dtype=torch.uint8)[:16].view(torch.int32), torch.zeros(8, dtype=torch.int32)
    with pytest.raises(IllegalAccess, match="shift_kernel reads 1 address outside"):
        shift_kernel[1,](x, y, 1, 0)  # the last of four elements: two of its bytes are nobody's


@DualKernel
def adding_kernel(out_ptr, at):
    offsets = tl.arange(0, 4)
    tl.atomic_add(out_ptr + at + offsets, 1.0, mask=offsets < 3)


@DualKernel
def swapping_kernel(out_ptr, at):
    tl.atomic_cas(out_ptr + at, 0, 1)


@pytest.mark.parametrize("at", [2, 1 << 40])
def test_atomic_accesses_are_looked_at_too(at):
    y, flag = torch.zeros(4), torch.zeros(1, dtype=torch.int32)
    adding_kernel[1,](y, 1)
    swapping_kernel[1,](flag, 0)
    assert (y.tolist(), flag.tolist()) == ([0, 1, 1, 1], [1])
    with pytest.raises(IllegalAccess, match="adding_kernel adds to"):
        adding_kernel[1,](y, at)
    with pytest.raises(IllegalAccess, match="swapping_kernel swaps 1 address"):
        swapping_kernel[1,](flag, at)
    assert (y.tolist(), flag.tolist()) == ([0, 1, 1, 1], [1])


def test_every_way_to_memory_that_the_interpreter_has_is_looked_at():
    """Its others make pointers, or go one of these ways."""
    own = {name for name in vars(InterpreterBuilder) if name.startswith("create_")}
    source = {name: inspect.getsource(getattr(InterpreterBuilder, name)) for name in own}
    to_memory = {name for name, text in source.items() if re.search(r"\b_interpreter\.", text)}
    assert to_memory == set(ACCESSES)


def test_kernels_of_two_threads_do_not_lend_each_other_their_memory():
    x, failed = torch.arange(8.0), []

    def run():
        y = torch.zeros(4)
        try:
            for _ in range(20):
                shift_kernel[1,](x, y, 0, 0)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_masked_lanes_may_point_anywhere():
    x, y = torch.ones(3), torch.zeros(3)
    masked_kernel[1,](x, y, 3)
    assert y.tolist() == [1, 1, 1]


@DualKernel
def partly_there_kernel(x_ptr, is_there_ptr, y_ptr):
    at = tl.arange(0, 4)
    is_there = (tl.load(is_there_ptr) != 0) & (at < 4)  # one condition for all lanes, and one for each
    tl.store(y_ptr + at, tl.load(x_ptr + 100 + at, mask=is_there, other=7.0))


def test_a_mask_of_one_condition_for_all_lanes_is_one_too():
    x, y = torch.ones(4), torch.zeros(4)
    partly_there_kernel[1,](x, torch.zeros(1, dtype=torch.int64), y)
    assert y.tolist() == [7, 7, 7, 7]


def test_a_replay_is_protected_too_and_the_next_one_works():
    x, y, at = torch.arange(8.0), torch.zeros(4), [5]
    graph = capture(lambda: shift_kernel[1,](x, y, at[0], 0), backend="emulated")
    with pytest.raises(IllegalAccess):
        graph.replay()
    shift_kernel[1,](x, y, 0, 0)
    assert y.tolist() == [0, 1, 2, 3]
