"""Small programs whose host code stands inside an op, each wrong one beside the same program done right.

An op is registered once, in one of the ways there are; what it works on is the program that was made last.
"""

import functools
import sys

import torch
import triton.language as tl

from mrv2lab.graphs import host
from mrv2lab.kernels.dual import DualKernel

programs = sys.modules["audit_programs"]
Program, varied = programs.Program, programs.varied

library = torch.library.Library("audited_ops", "FRAGMENT")
ops = torch.ops.audited_ops
w = programs.Worker(torch.device("cpu"))


def worker(device):
    """The host state that the ops below look at, anew."""
    global w
    w = programs.Worker(device)
    return w


def as_vllm_does(*writes):
    """`direct_register_custom_op`: for one key, with a shape function beside it."""

    def register(fn):
        library.define(fn.__name__ + torch.library.infer_schema(fn, mutates_args=writes))
        for key in ("CPU", "CUDA"):
            library.impl(fn.__name__, fn, key)
        library._register_fake(fn.__name__, lambda *args, **kwargs: None)
        return fn

    return register


def custom_op(*writes, **options):
    def register(fn):
        return torch.library.custom_op(f"audited_ops::{fn.__name__}", fn, mutates_args=writes, **options)

    return register


@DualKernel
def add_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


# ---- a flag: vLLM's "this batch has no adapter" ----


@as_vllm_does("y")
def add_lora(y: torch.Tensor, delta: torch.Tensor) -> None:
    if w.flag_cpu.item():
        return
    y.add_(delta)


@as_vllm_does("y")
def add_lora_masked(y: torch.Tensor, delta: torch.Tensor, active: torch.Tensor) -> None:
    y.add_(torch.where(active, delta, 0.0))


def no_lora_at_capture(device):
    worker(device).flag_cpu.fill_(True)

    def step():
        y = w.x * 2
        ops.add_lora(y, w.other)
        return y

    return Program(step, lambda: (w.flag_cpu.fill_(False), w.new_inputs()))


def lora_at_capture(device):
    worker(device)

    def step():
        y = w.x * 2
        ops.add_lora(y, w.other)
        return y

    return Program(step, lambda: (w.flag_cpu.fill_(True), w.new_inputs()))


def lora_decided_on_the_device(device):
    worker(device)
    active = torch.zeros(1, dtype=torch.bool, device=device)

    def step():
        y = w.x * 2
        ops.add_lora_masked(y, w.other, active)
        return y

    return Program(step, lambda: (active.fill_(True), w.new_inputs()))


# ---- a number ----


@custom_op()
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * w.n


@custom_op()
def scaled_by(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def number_inside(device):
    worker(device)
    return Program(lambda: scaled(w.x), varied(w, n=5))


def number_passed(device):
    worker(device)
    return Program(lambda: ops.scaled_by(w.x, float(w.n)), varied(w, n=5))


def number_stays(device):
    worker(device)
    return Program(lambda: scaled(w.x), varied(w))


def number_on_the_device(device):
    worker(device)

    @functools.cache
    def factor():
        return torch.full((1,), 2.0, device=device)

    factor()
    return Program(lambda: w.x * factor(), lambda: (factor().fill_(5), w.new_inputs()))


# ---- a grid ----


@functools.cache
def triton_op(fn):
    """Made when it is asked for: torch imports its compiler to look at one."""
    return torch.library.triton_op(f"audited_ops::{fn.__name__}", fn, mutates_args=("x",))


def bump(x: torch.Tensor) -> None:
    add_kernel[w.n,](x, len(x), BLOCK=2)


def bump_all(x: torch.Tensor, n: torch.Tensor) -> None:
    x.add_((torch.arange(len(x), device=x.device) < n).to(x.dtype))


def grid_by_count(device):
    worker(device)
    op = triton_op(bump)
    return Program(lambda: (w.out.copy_(w.x), op(w.out), w.out + 0)[2], varied(w, n=4))


def as_many_as_the_device_says(device):
    worker(device)
    op = triton_op(bump_all)

    def step():
        w.out.copy_(w.x)
        op(w.out, w.length)
        return w.out + 0

    return Program(step, lambda: (w.length.fill_(5), w.new_inputs()))


# ---- something made when it is first met ----


@custom_op("out")
def positions(out: torch.Tensor) -> None:
    if w.n not in w.cache:
        w.cache[w.n] = torch.arange(8.0, device=out.device) / w.n
    out.add_(w.cache[w.n])


def table_by_length(device):
    worker(device)

    def step():
        out = w.x.clone()
        positions(out)
        return out

    return Program(step, varied(w, n=4))


def table_of_one_length(device):
    program = table_by_length(device)
    return Program(program.step, varied(w))


# ---- memory ----


@custom_op(device_types=("cpu", "cuda"))
def padded(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty(2 * len(x), device=x.device)
    y[: len(x)] = x
    return y


@custom_op(device_types=("cpu", "cuda"))
def padded_with_zeros(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(2 * len(x), device=x.device)
    y[: len(x)] = x
    return y


@custom_op()
def with_table(x: torch.Tensor) -> torch.Tensor:
    return x + w.table


def unwritten_inside(device):
    worker(device)
    return Program(lambda: padded(w.x) + 1, varied(w))


def written_inside(device):
    worker(device)
    return Program(lambda: padded_with_zeros(w.x) + 1, varied(w))


def table_rebound(device):
    worker(device).table = torch.ones(8, device=device)
    return Program(lambda: with_table(w.x), lambda: setattr(w, "table", w.table * 3))


def table_written_in_place(device):
    worker(device).table = torch.ones(8, device=device)
    return Program(lambda: with_table(w.x), lambda: w.table.mul_(3))


def hint_rebound(device):
    """An op is given a tensor that it does not look at: where it lies matters to nobody."""
    worker(device).table = torch.ones(8, device=device)
    return Program(lambda: first_of(w.x, w.table), lambda: setattr(w, "table", w.table * 3))


@custom_op()
def first_of(x: torch.Tensor, hint: torch.Tensor) -> torch.Tensor:
    return x * 2


# ---- a device value ----


def _first_tokens(x, length):
    return x[: int(length)].sum()


def _first_tokens_masked(x, length):
    return torch.where(torch.arange(len(x), device=x.device) < length, x, 0.0).sum()


library.define("first_tokens(Tensor x, Tensor length) -> Tensor")
library.impl("first_tokens", _first_tokens)
library.define("first_tokens_masked(Tensor x, Tensor length) -> Tensor")
library.impl("first_tokens_masked", _first_tokens_masked)


def length_read_inside(device):
    worker(device)
    return Program(lambda: ops.first_tokens(w.x, w.length), lambda: w.length.fill_(4))


def length_left_on_the_device(device):
    worker(device)
    return Program(lambda: ops.first_tokens_masked(w.x, w.length), lambda: w.length.fill_(4))


# ---- ops inside ops, loops, lists ----


@custom_op()
def once(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


@custom_op()
def often(x: torch.Tensor) -> torch.Tensor:
    for _ in range(w.n):
        x = once(x)
    return x.clone()


@custom_op()
def chunks(x: torch.Tensor) -> list[torch.Tensor]:
    return [part + 1 for part in x.chunk(w.n)]


def loop_by_count(device):
    worker(device)
    return Program(lambda: often(w.x), varied(w, n=3))


def loop_as_before(device):
    worker(device)
    return Program(lambda: often(w.x), varied(w))


def chunks_by_count(device):
    worker(device)
    return Program(lambda: chunks(w.x)[-1] * 2, varied(w, n=4))


def in_inference_mode(device):
    worker(device)
    return Program(torch.inference_mode()(lambda: ops.scaled_by(once(w.x), w.n)), varied(w, n=5))


# ---- counters and logs of the host ----


@custom_op()
def counted(x: torch.Tensor) -> torch.Tensor:
    w.log.append(len(w.log))
    return x * 2


def counter_for_statistics(device):
    worker(device)
    return Program(lambda: counted(w.x), varied(w))


@custom_op()
def by_parity(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    if w.log and w.log[-1] % 2:
        y = y.neg()
    return y


def parity_of_a_log(device):
    worker(device)
    return Program(lambda: by_parity(w.x), lambda: (w.log.append(1), w.new_inputs()))


def host_flag_that_changes_nothing(device):
    worker(device)
    seen = host(torch.zeros(1))

    def step():
        seen.add_(1)
        return counted(once(w.x))

    return Program(step, varied(w, flag=True))


# What must be found first: kind, subject, and the function in which the line lies.
WRONG = {
    no_lora_at_capture: ("frozen-host-value", "w.flag_cpu", "add_lora"),
    lora_at_capture: ("frozen-host-value", "w.flag_cpu", "add_lora"),
    number_inside: ("frozen-host-value", "w.n", "scaled"),
    number_passed: ("frozen-host-value", "w.n", "<lambda>"),
    grid_by_count: ("frozen-host-value", "w.n", "bump"),
    table_by_length: ("frozen-host-value", "w.n", "positions"),
    unwritten_inside: ("unwritten-read", "y", "padded"),
    table_rebound: ("moved-address", "w.table", "with_table"),
    length_read_inside: ("host-sync", "length", "_first_tokens"),
    loop_by_count: ("frozen-host-value", "w.n", "often"),
    chunks_by_count: ("frozen-host-value", "w.n", "chunks"),
    in_inference_mode: ("frozen-host-value", "w.n", "<lambda>"),
    parity_of_a_log: ("frozen-host-value", "w.log", "by_parity"),
}
RIGHT = [
    lora_decided_on_the_device,
    number_stays,
    number_on_the_device,
    as_many_as_the_device_says,
    table_of_one_length,
    written_inside,
    table_written_in_place,
    hint_rebound,
    length_left_on_the_device,
    loop_as_before,
    counter_for_statistics,
    host_flag_that_changes_nothing,
]
