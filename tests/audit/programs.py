"""Small programs, each with one thing wrong, and beside each the same program done right.

A program is made anew for each audit by a function of the device; it returns step, vary and reset.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import triton
import triton.language as tl
from torch import nn

from mrv2lab.graphs import host
from mrv2lab.kernels.dual import DualKernel

SETTINGS = {"scale": 2.0}


@DualKernel
def scale_kernel(x_ptr, y_ptr, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0.0) * factor, mask=at < n)


@DualKernel
def gather_kernel(index_ptr, table_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    rows = tl.load(index_ptr + at, mask=at < n, other=0)
    tl.store(y_ptr + at, tl.load(table_ptr + rows, mask=at < n, other=0.0), mask=at < n)


@DualKernel
def affine_kernel(x_ptr, bias_ptr, y_ptr, n, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    y = tl.load(x_ptr + at, mask=at < n, other=0.0) * 2
    if HAS_BIAS:
        y += tl.load(bias_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, y, mask=at < n)


@dataclass
class Program:
    """What an audit is given."""

    step: Callable[[], Any]
    vary: Callable[[], Any] | None = None
    reset: Callable[[], Any] | None = None


@dataclass
class Worker:
    """Buffers and host state that the programs share."""

    device: torch.device
    n: int = 2
    flag: bool = False
    table: torch.Tensor | None = None
    cache: dict[int, torch.Tensor] = field(default_factory=dict)
    log: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.x = torch.arange(8.0, device=self.device) + 1
        self.other = torch.ones(8, device=self.device) * 7
        self.out = torch.zeros(8, device=self.device)
        self.flag_cpu = host(torch.tensor([False]))
        self.count_cpu = host(torch.tensor([2], dtype=torch.int32))
        self.length = torch.tensor([2], device=self.device)

    def new_inputs(self) -> None:
        self.x.copy_(self.x.flip(0) * 3)

    def add_one(self, y: torch.Tensor) -> None:
        if not self.flag:
            return
        y.add_(1)


def varied(worker: Worker, **changes: Any) -> Callable[[], None]:
    """A `vary` that sets attributes and writes new inputs."""

    def vary() -> None:
        for name, value in changes.items():
            setattr(worker, name, value)
        worker.x.mul_(2)

    return vary


# ---- a host value decides what is launched ----


def skipped_branch(device):
    w = Worker(device)

    def step():
        y = w.x * 2
        if w.flag:
            y = y.sqrt()
        return y

    return Program(step, varied(w, flag=True))


def written_by_the_graph_alone(device):
    """What goes wrong is nothing that the step returns, nor anything that it writes today."""
    w = Worker(device, flag=True)

    def step():
        if w.flag:
            w.other.add_(1)
        w.out.copy_(w.x * 2)

    return Program(step, varied(w, flag=False))


def left_in_a_rebound_name(device):
    w, result = Worker(device), None

    def step():
        nonlocal result
        result = w.x * w.n

    return Program(step, varied(w, n=3))


def left_in_a_gradient(device):
    w = Worker(device)
    weight = torch.ones(8, device=device, requires_grad=True)

    def step():
        weight.grad = None
        (weight * w.x * w.n).sum().backward()

    return Program(step, varied(w, n=3))


def written_with_what_was_there(device):
    """What the eager pass writes is what the memory holds; the replay writes something else."""
    w = Worker(device)

    def step():
        w.out.copy_(w.x * w.n)

    def vary():
        w.n = 0
        w.out.zero_()

    return Program(step, vary)


def one_of_many_results(device):
    w = Worker(device)
    same = w.x * 1

    def step():
        return [same] * 2000 + [w.x * w.n]

    return Program(step, varied(w, n=3))


def none_where_a_tensor_was(device):
    w = Worker(device, flag=True)

    def step():
        y = w.x * 2
        if not w.flag:
            return y, None
        return y, y

    return Program(step, varied(w, flag=False))


def a_number_beside_the_result(device):
    w = Worker(device)

    def step():
        return w.x * 2, w.n

    return Program(step, varied(w, n=3))


def branch_on_device(device):
    w = Worker(device)
    w.flag_gpu = torch.zeros(1, device=device, dtype=torch.bool)

    def step():
        y = w.x * 2
        return torch.where(w.flag_gpu, y.sqrt(), y)

    return Program(step, lambda: (w.flag_gpu.fill_(True), w.new_inputs()))


def nested_branches(device):
    """The inner branch is met only now; what has changed is the outer one."""
    w = Worker(device)

    def step():
        y = w.x * 2
        if w.flag:
            count = w.n
            if count:
                y = y.sqrt()
        return y

    return Program(step, varied(w, flag=True))


def early_return(device):
    w = Worker(device)

    def step():
        y = w.x * 2
        w.add_one(y)
        return y

    return Program(step, varied(w, flag=True))


def early_return_not_varied(device):
    return Program(early_return(device).step, None)


def host_tensor_flag(device):
    w = Worker(device)

    def step():
        if w.flag_cpu.item():
            scale_kernel[(1,)](w.x, w.out, 3.0, 8, BLOCK=8)
        return w.out

    def vary():
        w.flag_cpu[0] = True
        w.new_inputs()

    return Program(step, vary)


def host_tensor_flag_forced(device):
    w = Worker(device)
    w.on = torch.zeros(8, device=device)

    def step():
        scale_kernel[(1,)](w.x, w.out, 3.0, 8, BLOCK=8)
        return w.out * w.on

    return Program(step, lambda: (w.on.fill_(1.0), w.new_inputs()))


def unwanted_branch(device):
    program = skipped_branch(device)
    worker = program.step.__closure__[0].cell_contents
    worker.flag = True
    return Program(program.step, varied(worker, flag=False))


def loop_count(device):
    w = Worker(device)

    def step():
        y = w.x
        for _ in range(w.n):
            y = y + w.other
        return y

    return Program(step, varied(w, n=5))


def loop_over_batch(device):
    w = Worker(device)

    def step():
        y = w.x
        for _ in range(w.x.shape[0]):
            y = y + w.other
        return y

    return Program(step, w.new_inputs)


# ---- a host value is passed ----


def python_scalar(device):
    w = Worker(device)
    return Program(lambda: w.x * w.n, varied(w, n=5))


def device_scalar(device):
    w = Worker(device)
    return Program(lambda: w.x * w.length, lambda: (w.length.fill_(5), w.new_inputs()))


def global_dict(device):
    w = Worker(device)
    SETTINGS["scale"] = 2.0
    return Program(lambda: w.x * SETTINGS["scale"], lambda: SETTINGS.update(scale=5.0))


def slice_by_length(device):
    w = Worker(device)

    def step():
        n = w.n
        return w.x[:n].sum()

    return Program(step, varied(w, n=6))


def slice_of_equal_numbers(device):
    """Whatever is left out is as what is not: only the shape tells."""
    w = Worker(device)
    w.x.fill_(1.0)
    return Program(lambda: (w.x + 1)[: w.n], lambda: (setattr(w, "n", 6), w.x.add_(1)))


def numbered_into_pinned_memory(device):
    """By numpy, numbers that a pattern may hold too; the graph copies what is there by then."""
    w = Worker(device)
    w.rows, w.order = host(torch.zeros(3, dtype=torch.int64), pinned=True), [0, 1, 2]
    w.staged = torch.zeros(3, dtype=torch.int64, device=device)

    def step():
        w.rows.numpy()[:] = w.order
        w.staged.copy_(w.rows, non_blocking=True)
        return w.x[w.staged]

    def vary():
        w.order[0] = 1
        w.new_inputs()

    return Program(step, vary)


def made_without_its_function(device):
    """Another function's code does other work, at another line."""
    w = Worker(device)

    def double(x):
        return x * 2

    def triple(x):
        return x * 3

    return Program(lambda: double(w.x), lambda: setattr(double, "__code__", triple.__code__))


def exchanged_layer(device):
    """A layer of a container gives way to another one; both are kept."""
    w, linear = Worker(device), nn.Linear(8, 8, device=device)
    layers = nn.Sequential(nn.Linear(8, 8, device=device), linear, nn.ReLU())

    def step():
        with torch.no_grad():
            return layers(w.x)

    def vary():
        layers[1] = nn.Identity()
        w.x.add_(1)

    return Program(step, vary)


def exchanged_function(device):
    """One of C++ for another, where no value of a line shows it."""
    w = Worker(device)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.activation = torch.relu

        def forward(self, x):
            return vars(self)["activation"](x)

    block = Block()

    def vary():
        block.activation = torch.sigmoid
        w.x.add_(1)

    return Program(lambda: block(w.x), vary)


def fewer_layers(device):
    w = Worker(device)
    layers = [nn.Linear(8, 8, device=device) for _ in range(3)]
    state = {"layers": nn.ModuleList(layers)}

    def step():
        h = w.x
        with torch.no_grad():
            for layer in state["layers"]:
                h = layer(h)
        return h

    def vary():
        state["layers"] = nn.ModuleList(layers[:2])
        w.x.add_(1)

    return Program(step, vary)


def removed_hook(device):
    w, linear = Worker(device), nn.Linear(8, 8, device=device)

    def steer(module, given, output):
        return output + torch.ones_like(output)

    handle = linear.register_forward_hook(steer)

    def step():
        with torch.no_grad():
            return linear(w.x).relu()

    def vary():
        handle.remove()
        w.x.add_(1)

    return Program(step, vary)


def other_order(device):
    """Nothing has moved: the order in which a table is gone through is another one."""
    w = Worker(device)
    tables = {"en": torch.ones(8, device=device), "fr": torch.full((8,), 2.0, device=device)}

    def step():
        h = w.x
        for table in tables.values():
            h = h * 0.5 + table
        return h

    def vary():
        tables["en"] = tables.pop("en")
        w.x.add_(1)

    return Program(step, vary)


def other_number(device):
    """What is removed leaves its place, and nothing that is computed: as `fewer_layers`, done right."""
    w, layers = Worker(device), nn.Sequential(nn.Linear(8, 8, device=device), nn.Identity())

    def step():
        with torch.no_grad():
            return layers(w.x)

    def vary():
        del layers[1]
        w.x.add_(1)

    return Program(step, vary)


def grown_view(device):
    """It begins where it did, and has one row more."""
    rows = torch.arange(32.0, device=device).view(8, 4)
    state = {"x": rows[:2]}

    def vary():
        state["x"] = rows[: len(state["x"]) + 1]

    return Program(lambda: (state["x"] * 2).sum(0), vary)


@dataclass
class Carried:
    h: torch.Tensor


CARRIED = Carried(torch.zeros(4))


def carried_in_an_object(device):
    """Each step puts a new object, with the next state in it, where the last one was."""
    global CARRIED
    CARRIED, x = Carried(torch.zeros(4, device=device)), torch.ones(4, device=device)

    def step():
        global CARRIED
        CARRIED = Carried(CARRIED.h * 0.5 + x)
        return CARRIED.h * 1

    return Program(step, lambda: x.add_(1))


def swapped_tensors(device):
    w = Worker(device)
    weight, other = torch.ones(8, device=device), torch.full((8,), 2.0, device=device)

    def vary():
        torch.utils.swap_tensors(weight, other)
        w.x.add_(1)

    return Program(lambda: w.x * weight, vary)


def swapped_twice(device):
    """Two tensors change places, and change them back: nothing has moved."""
    w = Worker(device)
    weight, other = torch.ones(8, device=device), torch.full((8,), 2.0, device=device)

    def vary():
        for _ in range(2):
            torch.utils.swap_tensors(weight, other)
        w.x.add_(1)

    return Program(lambda: w.x * weight, vary)


def slice_by_constant(device):
    w = Worker(device)
    return Program(lambda: w.x[:4].sum(), varied(w, n=6))


def host_count(device):
    w = Worker(device)

    def step():
        return w.x / int(w.count_cpu.item())

    def vary():
        w.count_cpu[0] = 5

    return Program(step, vary)


def kernel_scalar(device):
    w = Worker(device)

    def step():
        scale_kernel[(1,)](w.x, w.out, float(w.n), 8, BLOCK=8)

    return Program(step, varied(w, n=5))


def number_in_a_tensor(device):
    w = Worker(device)

    def step():
        number = torch.tensor(w.n)
        return w.x * number

    return Program(step, varied(w, n=5))


def counter(device):
    w = Worker(device)

    def step():
        w.n += 1
        return w.x * w.n

    return Program(step, w.new_inputs)


def counter_for_statistics(device):
    w = Worker(device)

    def step():
        w.n += 1
        w.log.append(w.n)
        return w.x * 2

    return Program(step, w.new_inputs)


def partial_argument(device):
    w = Worker(device)

    def scaled(buffer, settings):
        return buffer * settings["scale"]

    settings = {"scale": 2.0}
    return Program(functools.partial(scaled, w.x, settings), lambda: settings.update(scale=4.0))


def value_of_a_property(device):
    class Doubling(Worker):
        @property
        def doubled(self):
            return self.n * 2

    w = Doubling(device)
    return Program(lambda: w.x * w.doubled, varied(w, n=5))


def chosen_buffer(device):
    w = Worker(device, n=0)
    w.buffers = [w.x, w.other]
    return Program(lambda: w.buffers[w.n] * 2, varied(w, n=1))


# ---- what a step leaves behind ----


def left_in_an_attribute(device):
    w = Worker(device)

    def step():
        w.result = w.x * w.n

    return Program(step, varied(w, n=5))


def left_under_another_name(device):
    """What the captured step leaves under one name the eager one leaves under another: nothing has a twin."""
    w = Worker(device, n=0)
    w.low = w.high = None

    def step():
        if w.n:
            w.high = w.x * 2
        else:
            w.low = w.x * 2

    return Program(step, varied(w, n=1))


def left_under_another_name_beside_a_count(device):
    w = Worker(device, n="low")
    w.found, w.count = {}, torch.zeros(1, device=device)

    def step():
        w.count += 1
        w.found[w.n] = w.x * 2

    return Program(step, varied(w, n="high"), lambda: w.found.clear())


def left_beside_another(device):
    """The other one is no result: the step does not make it."""
    w = Worker(device)
    w.spare = torch.zeros(8, device=device)

    def step():
        w.result = w.x * 2

    return Program(step, varied(w, spare=torch.ones(8, device=device)))


# ---- grids ----


def grid_by_length(device):
    w = Worker(device)

    def step():
        grid = (triton.cdiv(w.n, 2),)
        scale_kernel[grid](w.x, w.out, 3.0, 8, BLOCK=2)

    return Program(step, varied(w, n=8))


def grid_for_largest(device):
    w = Worker(device)

    def step():
        scale_kernel[(4,)](w.x, w.out, 3.0, 8, BLOCK=2)

    return Program(step, varied(w, n=8))


# ---- addresses ----


def rebound_input(device):
    w = Worker(device)

    class Runner:
        def __init__(self, x):
            self.x = x

        def step(self):
            return self.x * 2

    runner = Runner(w.x)

    def vary():
        runner.x = w.x * 3

    return Program(runner.step, vary)


def copied_input(device):
    w = Worker(device)
    return Program(lambda: w.x * 2, lambda: w.x.copy_(w.x * 3))


def rebound_to_the_same_values(device):
    """Right as long as nobody else is given the old memory."""
    program = rebound_input(device)
    runner = program.step.__self__

    def vary():
        runner.x = runner.x.clone()

    return Program(runner.step, vary)


def rebound_and_the_old_one_kept(device):
    w = Worker(device)
    w.old = []

    def vary():
        w.old.append(w.x)
        w.x = w.x.clone()

    return Program(lambda: w.x * 2, vary)


def rebound_and_the_old_one_in_other_hands(device):
    """Right: a function that the step does not reach keeps what was captured."""
    w = Worker(device)

    def vary(at_first=w.x):
        w.x = at_first.clone()

    return Program(lambda: w.x * 2, vary)


def rebound_and_a_part_of_the_old_one_in_other_hands(device):
    w = Worker(device)
    w.x = torch.arange(16.0, device=device)[4:12]

    def vary(_end=w.x[6:]):
        w.x = w.x.clone()

    return Program(lambda: w.x * 2, vary)


def rebound_and_the_old_one_in_a_cycle(device):
    """Only the collector has not yet come by."""
    program = rebound_to_the_same_values(device)
    runner = program.step.__self__

    def vary():
        cycle = [runner.x]
        cycle.append(cycle)
        runner.x = runner.x.clone()

    return Program(runner.step, vary)


def rebound_in_dict(device):
    buffers = {"tokens": torch.ones(4, device=device)}

    def vary():
        buffers["tokens"] = torch.full((4,), 5.0, device=buffers["tokens"].device)

    return Program(lambda: buffers["tokens"] + 1, vary)


def rebound_weight(device):
    layer = nn.Linear(4, 4, bias=False).to(device).requires_grad_(False)
    x = torch.ones(2, 4, device=device)

    def step():
        return layer(x)

    def vary():
        layer.weight = nn.Parameter(layer.weight * 2, requires_grad=False)

    return Program(step, vary)


def loaded_weight(device):
    program = rebound_weight(device)
    layer = next(c.cell_contents for c in program.step.__closure__ if isinstance(c.cell_contents, nn.Module))
    return Program(program.step, lambda: layer.weight.mul_(2))


def swapped_buffers(device):
    w = Worker(device)

    def vary():
        w.x, w.other = w.other, w.x

    return Program(lambda: w.x * 2, vary)


def functional_state(device):
    w = Worker(device)
    w.state = torch.ones(8, device=device)

    def step():
        w.state = w.state * 0.5 + w.x
        return w.state

    return Program(step, w.new_inputs)


def picked_by_a_loop_of_its_caller(device):
    """A number of the host's goes through a loop and a call before work is given it."""
    w = Worker(device)
    w.rows, w.order = torch.randn(4, 8, device=device), [0, 1, 2, 3]

    def scaled(at):
        return w.rows[at] * w.x

    def step():
        total = torch.zeros(8, device=device)
        for weight, at in enumerate(w.order):
            total += scaled(at) * (weight + 1)
        return total

    def vary():
        w.order = [1, 0, 2, 3]
        w.new_inputs()

    return Program(step, vary)


def picked_for_a_callee(device):
    """A property picks buffers, a variable holds them, and a callee gets one of them."""

    class Ring:
        def __init__(self):
            self.sets, self.head = [Worker(device), Worker(device)], 0

        @property
        def current(self):
            return self.sets[self.head]

    ring, weight = Ring(), torch.randn(8, device=device)

    def scaled(x):
        return x * weight

    def step():
        now = ring.current
        return scaled(now.x)

    def vary():
        ring.head = 1 - ring.head
        ring.current.new_inputs()

    return Program(step, vary)


def counted_into_a_list(device):
    """What is passed is an element of a list that the function makes of it."""
    w = Worker(device)
    w.seen = 1

    def step():
        bias = [1 - beta**w.seen for beta in (0.9, 0.5)]
        return w.x / bias[0] + bias[1]

    def vary():
        w.seen += 1
        w.new_inputs()

    return Program(step, vary)


def grown_by_binding(device):
    """A cache that grows by one row in each step."""
    cache, x = {"keys": torch.ones(1, 4, device=device)}, torch.ones(1, 4, device=device)

    def step():
        cache["keys"] = torch.cat([cache["keys"], x])
        return cache["keys"].sum(0)

    return Program(step, lambda: x.add_(1))


def rolled_by_binding(device):
    """A window that each step binds anew, one row on."""
    w = Worker(device)
    w.window = torch.zeros(4, 8, device=device)

    def step():
        w.window = torch.cat([w.window[1:], w.x[None]])
        return w.window.sum(0)

    return Program(step, w.new_inputs)


def rolled_by_the_host(device):
    """The step binds its result, and the host copies that to where the next one reads it."""
    w = Worker(device)
    w.window, w.last = torch.zeros(4, 8, device=device), torch.zeros(4, 8, device=device)

    def step():
        w.last = torch.cat([w.window[1:], w.x[None]])
        return w.last.sum(0)

    def vary():
        w.window.copy_(w.last)
        w.new_inputs()

    return Program(step, vary)


def two_halves_in_turn(device):
    """Both buffers change places twice in each step."""
    w = Worker(device)
    w.now, w.next = torch.zeros(8, device=device), torch.zeros(8, device=device)

    def step():
        for _ in range(2):
            torch.add(w.now, w.x, out=w.next)
            w.now, w.next = w.next, w.now
        return w.now * 1

    return Program(step, w.new_inputs)


def two_halves_out_of_turn(device):
    """Both buffers change places once in each step: the next one is to read what this one has written."""
    w = Worker(device)
    w.now, w.next = torch.zeros(8, device=device), torch.zeros(8, device=device)

    def step():
        torch.add(w.now, w.x, out=w.next)
        w.now, w.next = w.next, w.now
        return w.now * 1

    return Program(step, w.new_inputs)


class Pages:
    """Read the one, write the other, and change places."""

    def __init__(self, device):
        self.a, self.b, self.i = torch.zeros(8, device=device), torch.zeros(8, device=device), 0

    def __call__(self, x):
        source, target = (self.a, self.b) if self.i else (self.b, self.a)
        self.i ^= 1
        torch.add(source, x, out=target)
        return target * 2


def pages_chosen_by_a_conditional(device):
    """No page ever moves: which of them is meant does."""
    w, pages = Worker(device), Pages(device)
    return Program(lambda: pages(w.x), w.new_inputs)


page = 0


def pages_of_a_module(device):
    """The number of the page is a global, which is worked out from itself."""
    global page
    w, page = Worker(device), 0
    w.pages = [torch.zeros(8, device=device) for _ in range(3)]

    def step():
        global page
        page = (page + 1) % 3
        mine = w.pages[page]
        mine.add_(w.x)
        return mine * 1

    return Program(step, w.new_inputs)


def pages_of_a_coroutine(device):
    """Nothing leads to them but its frame."""
    w = Worker(device)
    w.n = 0

    def running():
        pages, out = [torch.zeros(8, device=device) for _ in range(2)], None
        while True:
            k = yield out
            pages[k].copy_(w.x)
            out = pages[0] * 2 + pages[1]

    one = running()
    next(one)

    def vary():
        w.new_inputs()
        w.n ^= 1

    return Program(lambda: one.send(w.n), vary)


def scratch_pages_in_turn(device):
    """Three of them: what a step has written in its own it reads, and no other step does."""
    w = Worker(device)
    w.pages, w.n = [torch.zeros(8, device=device) for _ in range(3)], 0

    def step():
        w.n = (w.n + 1) % 3
        mine = w.pages[w.n]
        torch.mul(w.x, 2, out=mine)
        return mine + 1

    return Program(step, w.new_inputs)


def state_in_place(device):
    w = Worker(device)
    w.state = torch.ones(8, device=device)

    def step():
        w.state.mul_(0.5).add_(w.x)
        return w.state

    return Program(step, w.new_inputs)


def regrown_workspace(device):
    w = Worker(device)

    def work(n):
        if w.table is None or w.table.numel() < n:
            w.table = torch.zeros(n, device=device)
        w.table[:n].copy_(w.x[:n])
        return w.table[:n] * 2

    def vary():
        work(8)  # another, larger batch comes first
        w.new_inputs()

    return Program(lambda: work(4), vary)


def workspace_for_largest(device):
    w = Worker(device)

    def work(n):
        if w.table is None:
            w.table = torch.zeros(8, device=device)
        w.table[:n].copy_(w.x[:n])
        return w.table[:n] * 2

    def vary():
        work(8)
        w.new_inputs()

    return Program(lambda: work(4), vary)


# ---- memory that nobody wrote ----


def partly_written(device):
    w = Worker(device)

    def step():
        y = torch.empty_like(w.x)
        y[: w.n] = w.x[: w.n]
        return y * 2

    return Program(step, w.new_inputs)


def wholly_written(device):
    w = Worker(device)

    def step():
        y = torch.empty_like(w.x)
        y[:4] = w.x[:4]
        y[4:] = w.x[:4] * 3
        return y * 2

    return Program(step, w.new_inputs)


def masked_garbage(device):
    w = Worker(device)
    mask = torch.arange(8, device=device) < 4

    def step():
        y = torch.empty_like(w.x)
        y[:4] = w.x[:4]
        return torch.where(mask, y, 0.0)

    return Program(step, w.new_inputs)


def lazy_workspace_never_zeroed(device):
    w = Worker(device)

    def step():
        if w.table is None:
            w.table = torch.empty(8, device=device)
        w.table[:4] += w.x[:4]
        return w.table[:4] + 0

    return Program(step, w.new_inputs)


def lazy_table(device):
    w = Worker(device)

    def step():
        if w.table is None:
            w.table = torch.empty(8, device=device)
            w.table.copy_(torch.arange(8, device=device))
        return w.table * w.x

    return Program(step, w.new_inputs)


def unwritten_index(device):
    w = Worker(device)

    def step():
        index = torch.empty(8, dtype=torch.int64, device=device)
        gather_kernel[(1,)](index, w.x, w.out, 8, BLOCK=8)

    return Program(step, w.new_inputs)


def index_written_as_far_as_it_is_read(device):
    w = Worker(device)

    def step():
        index = torch.empty(8, dtype=torch.int64, device=device)
        index[:4] = torch.arange(4, device=device)
        gather_kernel[(1,)](index, w.x, w.out, 4, BLOCK=8)

    return Program(step, w.new_inputs)


def index_computed_from_unwritten_memory(device):
    w = Worker(device)

    def step():
        index = torch.empty(8, dtype=torch.int64, device=device)
        rows = index + 1
        return w.x[rows]

    return Program(step, w.new_inputs)


def index_where_nobody_wrote_before(device):
    """Two indexes in the memory of tensors that are gone: one that nobody wrote, one computed from it."""
    w = Worker(device)

    def step():
        torch.empty(8, dtype=torch.int64, device=device) + 1
        rows, columns = torch.arange(8, device=device), torch.arange(8, device=device)
        gather_kernel[(1,)](rows, w.x, w.out, 8, BLOCK=8)
        return w.x[rows] + w.x[columns]

    return Program(step, w.new_inputs)


# ---- waiting ----


def reads_device_value(device):
    w = Worker(device)
    return Program(lambda: w.x * w.length.item(), w.new_inputs)


def branches_on_device_value(device):
    w = Worker(device)

    def step():
        if w.length > 1:
            return w.x * 2
        return w.x

    return Program(step, w.new_inputs)


def waits_for_device(device):
    w = Worker(device)

    def step():
        y = w.x * 2
        torch.cuda.synchronize()
        return y

    return Program(step, w.new_inputs)


# ---- first use ----


def planned_once(device):
    """The plan depends on what varies, and the warm-up uses up the flag."""
    w = Worker(device)
    plan = torch.zeros(8, device=device)

    def step():
        if not w.flag:
            w.flag = True
            plan.copy_(w.x * 2)
        return plan + 1

    def reset():
        w.flag = False

    return Program(step, w.new_inputs, reset)


def planned_always(device):
    w = Worker(device)
    plan = torch.zeros(8, device=device)

    def step():
        plan.copy_(w.x * 2)
        return plan + 1

    return Program(step, w.new_inputs)


def cached_constant(device):
    @functools.lru_cache
    def table(n):
        return torch.arange(n, device=device) * 2.0

    w = Worker(device)
    return Program(lambda: w.x * table(8), w.new_inputs)


def cached_by_length(device):
    w = Worker(device)

    def step():
        if w.n not in w.cache:
            w.cache[w.n] = torch.full((8,), float(w.n), device=device)
        return w.x * w.cache[w.n]

    return Program(step, varied(w, n=5))


class Buffers:
    """A namespace: nobody makes an object of it."""

    mask: torch.Tensor


def rebound_in_namespace(device):
    w = Worker(device)
    Buffers.mask = w.other > 0

    def vary():
        Buffers.mask = w.x > 4

    return Program(lambda: w.x.masked_fill(Buffers.mask, 0), vary)


def written_in_namespace(device):
    w = Worker(device)
    Buffers.mask = w.other > 0
    return Program(lambda: w.x.masked_fill(Buffers.mask, 0), lambda: Buffers.mask.copy_(w.x > 4))


def appended_to_warm_up(device):
    """What a fresh step begins with nothing, the captured one appends to what the warm-up left."""
    w = Worker(device)

    def step():
        if w.table is None:
            w.table = torch.tensor([], device=device)
        w.table = torch.cat([w.table, w.x])
        return w.table.sum()

    return Program(step, w.new_inputs, lambda: setattr(w, "table", None))


def _training(device):
    torch.manual_seed(0)
    w, layer = Worker(device), nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=False)

    def step():
        optimizer.zero_grad()
        loss = (layer(w.x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return w, step, optimizer


def learning_rate(device):
    w, step, optimizer = _training(device)

    def vary():
        w.x.mul_(0.5)
        optimizer.param_groups[0]["lr"] = 0.01

    return Program(step, vary)


def same_learning_rate(device):
    w, step, _ = _training(device)
    return Program(step, lambda: w.x.mul_(0.5))


def gradient_of_function(device):
    """Inside, lines see tensors that torch.func has wrapped, which have no memory of their own."""
    w = Worker(device)

    def energy(v):
        twice = v * 2
        return twice.square().sum()

    return Program(lambda: torch.func.grad(energy)(w.x), w.new_inputs)


def entered_by_flag(device):
    w = Worker(device, flag=True)
    layer = nn.Linear(8, 8, device=device).requires_grad_(False)

    def step():
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=w.flag):
            y = layer(w.x)
            return y.float()

    return Program(step, varied(w, flag=False))


def unless_skipped(method):
    def wrapper(self, y):
        if method.__name__ in self.skipped:
            return y
        return method(self, y)

    return wrapper


class Layers:
    wide = False

    def __init__(self, device):
        self.w, self.skipped = Worker(device), {"second"}
        self.version, self.memo = 0, (-1, None)

    @unless_skipped
    def first(self, y):
        return y + 1

    @unless_skipped
    def second(self, y):
        return y * 3

    def both(self):
        return self.second(self.first(self.w.x))

    def masked(self):
        if type(self).wide:
            return self.w.x
        return self.w.x.clamp_max(4)

    def table(self):
        version, table = self.memo
        if version != self.version:
            table = self.w.other.exp()
            self.memo = (self.version, table)
        return table

    def looked_up(self):
        return torch.add(self.w.x, self.table())


def skipped_second_call(device):
    """Two calls of one wrapper on one line, told apart though the first is the same in both passes."""
    layers = Layers(device)

    def vary():
        layers.w.x.mul_(2)
        layers.skipped = set()

    return Program(layers.both, vary)


def flag_of_class(device):
    Layers.wide = False
    layers = Layers(device)
    return Program(layers.masked, lambda: setattr(Layers, "wide", True))


def memo_by_version(device):
    layers = Layers(device)

    def vary():
        layers.w.other.mul_(0.5)
        layers.version += 1

    return Program(layers.looked_up, vary)


def memo_of_same_version(device):
    layers = Layers(device)
    return Program(layers.looked_up, layers.w.new_inputs)


def vector_by_matrix(device):
    """Its result is squeezed in place on the way."""
    w = Worker(device)
    matrix = torch.eye(8, device=device)
    return Program(lambda: (w.x @ matrix) @ matrix @ w.other, w.new_inputs)


def results_of_any_size(device):
    w = Worker(device)

    def step():
        y = torch.empty(0, device=device)
        torch.add(w.x, 1, out=y)
        return y.unsqueeze_(0) * 2

    return Program(step, w.new_inputs)


def finds_unique_values(device):
    w = Worker(device)
    return Program(lambda: torch.unique(w.length))


def flag_by_its_default(device):
    """What equals its default the dispatcher is not given."""
    w = Worker(device, flag=False)
    return Program(lambda: torch.sort(w.x, descending=w.flag).values, varied(w, flag=True))


def affine(w):
    has_bias = w.table is not None
    affine_kernel[1,](w.x, w.table if has_bias else w.other, w.out, 8, HAS_BIAS=has_bias, BLOCK=8)
    return w.out


def bias_taken_away(device):
    w = Worker(device)
    w.table = w.other
    return Program(lambda: affine(w), varied(w, table=None))


def unused_pointer(device):
    """Without a bias the kernel is given something for form's sake."""
    w = Worker(device)

    def vary():
        w.other = torch.ones(8, device=device)
        w.new_inputs()

    return Program(lambda: affine(w), vary)


def used_pointer(device):
    w = Worker(device)
    w.table = torch.ones(8, device=device)

    def vary():
        w.table = torch.full((8,), 3.0, device=device)

    return Program(lambda: affine(w), vary)


def left_early(device):
    w = Worker(device, n=2)

    def step():
        y = w.x
        for i, row in enumerate(w.other.view(4, 2).unbind()):
            if i == w.n:
                break
            y = y + row[0]
        return y

    return Program(step, varied(w, n=3))


class Stages:
    def __init__(self, device):
        self.w, self.enabled = Worker(device), {"double": True, "square": False}
        self.stages = {"double": lambda y: y * 2, "square": lambda y: y * y}

    def named(self):
        for name in ("double", "square"):
            if self.enabled[name]:
                yield self.stages[name]

    def all(self):
        yield from self.named()
        yield lambda y: y + 1

    def run(self):
        y = self.w.x
        for stage in self.all():
            y = stage(y)
        return y


def generated_stages(device):
    stages = Stages(device)
    return Program(stages.run, lambda: stages.enabled.update(square=True))


def statistics_in_training(device):
    """The op's schema does not say that it writes them."""
    w, mean, var = Worker(device), torch.zeros(2, device=device), torch.ones(2, device=device)

    def step():
        nn.functional.batch_norm(w.x.view(4, 2), mean, var, training=True)
        return mean * 1

    return Program(step, w.new_inputs)


def indices_as_a_result(device):
    w = Worker(device)

    def step():
        values, indices = torch.empty(2, device=device), torch.empty(2, dtype=torch.long, device=device)
        torch.topk(w.x, 2, out=(values, indices))
        return values * 1

    return Program(step, w.new_inputs)


def small_learning_rate(device):
    """Weights move by a ten-thousandth of themselves; what is wrong is by how much."""
    w = Worker(device, n=1)
    weights, gradient = torch.ones(64, device=device), torch.full((64,), 1e-3, device=device)

    def step():
        weights.sub_(gradient * (0.1 / w.n))

    return Program(step, lambda: setattr(w, "n", 2))


def beside_the_result(device):
    w = Worker(device)

    def step():
        w.table = w.x * w.n
        return w.x + 1

    return Program(step, lambda: setattr(w, "n", 3))


def gradient_beside_the_result(device):
    w = Worker(device)
    weight = nn.Parameter(torch.ones_like(w.x))

    def step():
        weight.grad = None
        (weight * w.x * w.n).sum().backward()
        return w.x + 1

    return Program(step, lambda: setattr(w, "n", 3))


def rows_too_many(device):
    """The rows of the captured batch are written, though fewer are asked for."""
    w = Worker(device, n=4)
    cache = torch.zeros(8, w.x.shape[-1], device=device)
    x = torch.ones(8, w.x.shape[-1], device=device)

    def step():
        cache[: w.n] = x[: w.n]

    def vary():
        w.n = 2
        x.add_(1)

    return Program(step, vary)


def returned_rows_too_many(device):
    w = Worker(device, n=4)
    x = torch.ones(8, 2, device=device)

    def step():
        return x[: w.n] * 2

    return Program(step, lambda: setattr(w, "n", 2))


class Shared:
    """Buffers of a class, for all of its objects."""

    kept: ClassVar[dict[str, torch.Tensor]] = {}

    def __init__(self, device):
        self.x, self.n = torch.ones(4, device=device), 1

    def step(self):
        self.kept["scaled"] = self.x * self.n


def left_in_a_class(device):
    worker = Shared(device)
    return Program(worker.step, lambda: setattr(worker, "n", 2))


def text_beside_the_result(device):
    w = Worker(device)

    def step():
        return w.x * 2, "length" if w.n > 2 else "stop"

    return Program(step, lambda: setattr(w, "n", 3))


def half_precision_temperature(device):
    """A tenth is more than a few units in the last place of bfloat16 can be."""
    w = Worker(device)
    x = torch.linspace(-1, 1, 32, dtype=torch.bfloat16, device=device).reshape(4, 8)

    def step():
        return x / (1 + w.n)

    return Program(step, lambda: setattr(w, "n", 3))


def masked_logits(device):
    """One forbidden token is so far away that a row's norm says nothing of the others."""
    w = Worker(device)
    forbidden = torch.arange(len(w.x), device=device) == 0

    def step():
        return (w.x * w.n).masked_fill(forbidden, torch.finfo(torch.float32).min)

    return Program(step, lambda: setattr(w, "n", 3))


def large_integers(device):
    """The hash of a prefix: in double precision both are the same number."""
    w = Worker(device)
    keys = torch.full((2,), 1 << 60, device=device)

    def step():
        keys.add_(w.n)
        return keys.clone()

    return Program(step, lambda: setattr(w, "n", 7))


def newest_of_a_list(device):
    w, seen = Worker(device), []

    def step():
        seen.append(w.x * w.n)
        return w.x + 1

    return Program(step, lambda: setattr(w, "n", 3))


def gradient_beside_the_parameter(device):
    """As Megatron keeps its gradients: an attribute of the parameter."""
    w = Worker(device)
    weight = nn.Parameter(torch.ones_like(w.x))

    def step():
        (gradient,) = torch.autograd.grad((weight * w.x).sum(), weight)
        weight.main_grad = gradient * w.n
        return w.x + 1

    return Program(step, lambda: setattr(w, "n", 3))


def state_by_parameter(device):
    """As an optimizer keeps its state: by parameter, whose numbers change."""
    w, state = Worker(device), {}
    weight = nn.Parameter(torch.ones_like(w.x))

    def step():
        with torch.no_grad():
            weight.sub_(w.x)
            state[weight] = w.x * w.n
        return w.x + 1

    return Program(step, lambda: setattr(w, "n", 3))


def losses_kept(device):
    """Right: the most ordinary training loop returns nothing and keeps its losses."""
    w, losses = Worker(device), []
    net = nn.Linear(w.x.shape[-1], 1, bias=False).to(device)

    def step():
        net.zero_grad()
        loss = net(w.x).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.sub_(parameter.grad * 0.1)
        losses.append(loss.detach())

    return Program(step, w.new_inputs)


def losses_cleared(device):
    program = losses_kept(device)
    (losses,) = (c.cell_contents for c in program.step.__closure__ if isinstance(c.cell_contents, list))
    return Program(program.step, program.vary, losses.clear)


def tail_of_scratch_memory(device):
    """Right: nobody reads the tail, though it lies in an attribute."""
    w = Worker(device)
    result = torch.zeros_like(w.x)

    def step():
        w.table = torch.empty(2 * len(w.x), *w.x.shape[1:], device=device)
        w.table[: len(w.x)] = w.x * 2
        result.copy_(w.table[: len(w.x)])

    return Program(step, w.new_inputs)


def noise_for_the_next_step(device):
    """Right: what is random is not returned."""
    w = Worker(device)
    noise = torch.ones_like(w.x)

    def step():
        y = w.x + noise
        noise.uniform_()
        return y

    return Program(step, w.new_inputs)


def ring_of_activations(device):
    """Right: what was captured lies in other places of the ring, and is what it should be."""
    w, ring = Worker(device), [None] * 4

    def step():
        y = w.x
        for _ in range(3):
            y = torch.tanh(y) + 1
            ring[w.n % 4] = y
            w.n += 1
        return y

    return Program(step, w.new_inputs)


def complex_sums_in_another_order(device):
    w = Worker(device, n=1)
    x = torch.randn(8, 512, dtype=torch.complex64, device=device)
    y = torch.randn(512, 8, dtype=torch.complex64, device=device)

    def step():
        return sum(a @ b for a, b in zip(x.chunk(w.n, 1), y.chunk(w.n, 0), strict=True))

    return Program(step, lambda: setattr(w, "n", 4))


def kept_for_later(device):
    """Right: what is left beside the result is right as well, however long the list grows."""
    w, seen = Worker(device), []

    def step():
        w.table = w.x * 2
        seen.append(w.table.clone())
        return w.table + 1

    return Program(step, w.new_inputs)


def left_when_needed(device):
    """Right: what the warm-up has left already, an eager pass from nothing leaves anew. Nothing is freed."""
    w, made = Worker(device), []

    def step():
        if w.table is None:
            w.table = torch.ones(8, device=device)
            made.append(w.table)
        w.result = w.x * w.table

    return Program(step, w.new_inputs, lambda: setattr(w, "table", None))


WRONG: dict[Callable[..., Program], tuple[str, ...]] = {
    skipped_branch: ("frozen-host-value", "w.flag"),
    nested_branches: ("frozen-host-value", "w.flag"),
    early_return: ("frozen-host-value", "self.flag"),
    host_tensor_flag: ("frozen-host-value", "w.flag_cpu"),
    unwanted_branch: ("frozen-host-value", "w.flag"),
    loop_count: ("frozen-host-value", "w.n"),
    python_scalar: ("frozen-host-value", "w.n"),
    global_dict: ("frozen-host-value", "SETTINGS['scale']"),
    slice_by_length: ("frozen-host-value", "w.n"),
    slice_of_equal_numbers: ("frozen-host-value", "w.n"),
    numbered_into_pinned_memory: ("stale-input", "w.rows"),
    made_without_its_function: ("frozen-host-value", "double"),
    exchanged_layer: ("frozen-host-value", "layers"),
    exchanged_function: ("frozen-host-value", "block.activation"),
    fewer_layers: ("frozen-host-value", "state['layers']"),
    removed_hook: ("frozen-host-value", "linear._forward_hooks"),
    other_order: ("frozen-host-value", "tables"),
    grown_view: ("frozen-host-value", "state['x'].shape"),
    carried_in_an_object: ("moved-address", "CARRIED", "CARRIED.h"),
    swapped_tensors: ("moved-address", "weight"),
    host_count: ("frozen-host-value", "w.count_cpu"),
    kernel_scalar: ("frozen-host-value", "w.n"),
    number_in_a_tensor: ("frozen-host-value", "w.n"),
    counter: ("frozen-host-value", "w.n"),
    partial_argument: ("frozen-host-value", "settings['scale']"),
    value_of_a_property: ("frozen-host-value", "self.n"),
    chosen_buffer: ("frozen-host-value", "w.n"),
    left_in_an_attribute: ("frozen-host-value", "w.n"),
    left_under_another_name: ("frozen-host-value", "w.n"),
    grid_by_length: ("frozen-host-value", "w.n"),
    rebound_input: ("moved-address", "self.x"),
    rebound_to_the_same_values: ("moved-address", "self.x"),
    rebound_and_the_old_one_in_a_cycle: ("moved-address", "self.x"),
    rebound_in_dict: ("moved-address", "buffers['tokens']"),
    rebound_weight: ("moved-address", "layer.weight"),
    swapped_buffers: ("moved-address", "w.x"),
    functional_state: ("moved-address", "w.state"),
    picked_by_a_loop_of_its_caller: ("frozen-host-value", "w.order"),
    picked_for_a_callee: ("frozen-host-value", "self.head"),
    counted_into_a_list: ("frozen-host-value", "w.seen"),
    grown_by_binding: ("moved-address", "cache['keys']"),
    rolled_by_binding: ("moved-address", "w.window"),
    pages_chosen_by_a_conditional: ("frozen-host-value", "self.i"),
    pages_of_a_module: ("frozen-host-value", "page"),
    pages_of_a_coroutine: ("frozen-host-value", "w.n"),
    two_halves_out_of_turn: ("moved-address", "w.next", "w.now"),  # which is which now, passes decide
    regrown_workspace: ("moved-address", "w.table"),
    partly_written: ("unwritten-read", "y"),
    lazy_workspace_never_zeroed: ("unwritten-read", "w.table"),
    index_computed_from_unwritten_memory: ("unwritten-read", "index"),
    unwritten_index: ("unwritten-read", "index"),
    reads_device_value: ("host-sync", "w.length"),
    branches_on_device_value: ("host-sync", "w.length > 1"),
    waits_for_device: ("host-sync", "torch.cuda.synchronize()"),
    planned_once: ("frozen-host-value", "w.flag"),
    cached_by_length: ("frozen-host-value", "w.n"),
    rebound_in_namespace: ("moved-address", "Buffers.mask"),
    appended_to_warm_up: ("frozen-host-value", "w.table"),
    flag_by_its_default: ("frozen-host-value", "w.flag"),
    bias_taken_away: ("frozen-host-value", "w.table"),
    used_pointer: ("moved-address", "w.table"),
    left_early: ("frozen-host-value", "w.n"),
    generated_stages: ("frozen-host-value", "self.enabled[name]"),
    entered_by_flag: ("frozen-host-value", "w.flag"),
    skipped_second_call: ("frozen-host-value", "self.skipped"),
    flag_of_class: ("frozen-host-value", "type(self).wide"),
    memo_by_version: ("frozen-host-value", "self.version"),
    finds_unique_values: ("host-sync", "torch.unique(w.length)"),
    learning_rate: ("frozen-host-value", "alpha of aten.add_"),
    written_by_the_graph_alone: ("frozen-host-value", "w.flag"),
    left_in_a_rebound_name: ("frozen-host-value", "w.n"),
    left_in_a_gradient: ("frozen-host-value", "w.n"),
    written_with_what_was_there: ("frozen-host-value", "w.n"),
    one_of_many_results: ("frozen-host-value", "w.n"),
    small_learning_rate: ("frozen-host-value", "w.n"),
    beside_the_result: ("frozen-host-value", "w.n"),
    gradient_beside_the_result: ("frozen-host-value", "w.n"),
    rows_too_many: ("frozen-host-value", "w.n"),
    returned_rows_too_many: ("frozen-host-value", "w.n"),
    left_in_a_class: ("frozen-host-value", "self.n"),
    half_precision_temperature: ("frozen-host-value", "w.n"),
    large_integers: ("frozen-host-value", "w.n"),
    newest_of_a_list: ("frozen-host-value", "w.n"),
    gradient_beside_the_parameter: ("frozen-host-value", "w.n"),
    state_by_parameter: ("frozen-host-value", "w.n"),
}


def adam_that_can_be_captured(device):
    """Its steps are counted on the device, and its rate lies there."""
    w, rate = torch.ones(4, device=device, requires_grad=True), torch.full((), 0.125, device=device)
    x = torch.ones(4, device=device)
    optimizer = torch.optim.Adam([w], lr=rate, capturable=True)
    w.grad = torch.zeros_like(w)

    def step():
        w.grad.copy_(x)
        optimizer.step()
        return w.detach() * 1

    def vary():
        rate.mul_(0.5)
        x.add_(1)

    return Program(step, vary)


def halves_one_of_which_is_empty(device):
    """A sum in two parts, one of which was empty at capture: it lies nowhere, and so has not moved."""
    w = Worker(device)
    w.n = 0

    def step():
        return w.x[: w.n].sum() + w.x[w.n :].sum()

    def vary():
        w.n = 4
        w.x.fill_(2.0)

    return Program(step, vary)


RIGHT: list[Callable[..., Program]] = [
    other_number,
    swapped_twice,
    scratch_pages_in_turn,
    branch_on_device,
    early_return_not_varied,
    host_tensor_flag_forced,
    loop_over_batch,
    device_scalar,
    slice_by_constant,
    adam_that_can_be_captured,
    halves_one_of_which_is_empty,
    counter_for_statistics,
    left_beside_another,
    left_when_needed,
    grid_for_largest,
    copied_input,
    rebound_and_the_old_one_kept,
    rebound_and_the_old_one_in_other_hands,
    rebound_and_a_part_of_the_old_one_in_other_hands,
    loaded_weight,
    state_in_place,
    rolled_by_the_host,
    two_halves_in_turn,
    workspace_for_largest,
    wholly_written,
    masked_garbage,
    index_written_as_far_as_it_is_read,
    index_where_nobody_wrote_before,
    lazy_table,
    planned_always,
    cached_constant,
    written_in_namespace,
    same_learning_rate,
    gradient_of_function,
    memo_of_same_version,
    vector_by_matrix,
    unused_pointer,
    statistics_in_training,
    indices_as_a_result,
    results_of_any_size,
    kept_for_later,
    losses_kept,
    losses_cleared,
    tail_of_scratch_memory,
    noise_for_the_next_step,
    ring_of_activations,
    complex_sums_in_another_order,
]
