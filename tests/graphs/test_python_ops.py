"""Python inside an op is host code: it runs once, at capture, and what it does is in the graph."""

import itertools
import subprocess
import sys
import textwrap

import pytest
import torch
import triton
import triton.language as tl
from torch._library.triton import is_wrap_triton_enabled
from torch._ops import OpOverload
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes
from triton.runtime.interpreter import InterpretedFunction

from mrv2lab.audit import audit
from mrv2lab.errors import CaptureError, HostSyncError
from mrv2lab.graphs import capture, host
from mrv2lab.graphs.breakable import BreakableCUDAGraphCapture, eager_break_during_capture
from mrv2lab.graphs.work import counted, measured

numbers = itertools.count()


@pytest.fixture(autouse=True)
def no_mode_stays_behind():
    yield
    assert not dispatch_modes() and not function_modes() and is_wrap_triton_enabled()


@pytest.fixture
def x(device):
    return torch.ones(4, device=device)


@pytest.fixture
def library():
    made = torch.library.Library("mrv2lab_ops", "FRAGMENT")
    yield made
    made._destroy()


def key_of(device):
    return "CUDA" if device.type == "cuda" else "CPU"


# ---- the ways to register an op: (library, device, fn, names of what it writes) -> the op ----


def custom_op(library, device, fn, writes):
    return torch.library.custom_op(f"mrv2lab_custom::op{next(numbers)}", fn, mutates_args=writes)


def custom_op_of_a_device(library, device, fn, writes):
    name = f"mrv2lab_custom::op{next(numbers)}"
    return torch.library.custom_op(name, fn, mutates_args=writes, device_types=device.type)


def register_kernel(library, device, fn, writes):
    op = custom_op(library, device, fn, writes)
    op._backend_fns[None] = None  # the one for all devices is not to be called
    op.register_kernel(device.type)(fn)
    return op


def triton_op(library, device, fn, writes):
    return torch.library.triton_op(f"mrv2lab_custom::op{next(numbers)}", fn, mutates_args=writes)


def _defined(library, fn, writes):
    name = f"op{next(numbers)}"
    library.define(name + torch.library.infer_schema(fn, mutates_args=writes))
    return name


def impl(library, device, fn, writes):
    name = _defined(library, fn, writes)
    library.impl(name, fn, key_of(device))
    return getattr(torch.ops.mrv2lab_ops, name)


def impl_of_all_devices(library, device, fn, writes):
    name = _defined(library, fn, writes)
    library.impl(name, fn, "CompositeExplicitAutograd")
    return getattr(torch.ops.mrv2lab_ops, name)


def impl_of_a_composite(library, device, fn, writes):
    name = _defined(library, fn, writes)
    library.impl(name, fn)
    return getattr(torch.ops.mrv2lab_ops, name)


def impl_by_name(library, device, fn, writes):
    name = _defined(library, fn, writes)
    torch.library.impl(f"mrv2lab_ops::{name}", device.type, fn, lib=library)
    return getattr(torch.ops.mrv2lab_ops, name)


def as_vllm_does(library, device, fn, writes):
    """`direct_register_custom_op`; the shape function is not to be asked."""

    def fake(*args, **kwargs):
        raise AssertionError

    name = _defined(library, fn, writes)
    library.impl(name, fn, dispatch_key=key_of(device))
    library._register_fake(name, fake)
    return getattr(torch.ops.mrv2lab_ops, name)


WAYS = [
    custom_op, custom_op_of_a_device, register_kernel, triton_op, impl, impl_of_all_devices,
    impl_of_a_composite, impl_by_name, as_vllm_does,
]  # fmt: skip


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def register(request, library, device):
    return lambda fn, writes=(): request.param(library, device, fn, writes)


# ---- the contract ----


def test_the_python_of_an_op_runs_once_at_capture(register, backend, x):
    calls = []

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2

    op = register(double)
    graph = capture(lambda: op(x) + 1, backend=backend)
    assert calls == [1] and len(graph.nodes) == 2
    x.fill_(4)
    graph.replay()
    assert calls == [1] and graph.outputs.tolist() == [9] * 4


def test_what_an_op_decided_is_frozen(register, backend, x):
    flag = {"no_lora": True}

    def add_lora(x: torch.Tensor) -> None:
        if flag["no_lora"]:
            return
        x.add_(1)

    op = register(add_lora, ("x",))
    skipped = capture(lambda: op(x), backend=backend)
    flag["no_lora"] = False
    launched = capture(lambda: op(x), backend=backend)
    skipped.replay()
    assert skipped.nodes == () and x.tolist() == [1] * 4
    flag["no_lora"] = True
    launched.replay()
    assert x.tolist() == [2] * 4


HOST_READS = {
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "bool": lambda x: bool(x.sum() > 1),
    "mask": lambda x: x[x > 1],
}


@pytest.mark.parametrize("read", HOST_READS.values(), ids=HOST_READS)
def test_an_op_that_reads_a_device_value_is_refused(register, backend, x, read):
    def reads(x: torch.Tensor) -> torch.Tensor:
        read(x)
        return x + 1

    op = register(reads)
    with pytest.raises(HostSyncError, match="during capture"):
        capture(lambda: op(x), backend=backend)
    graph = capture(lambda: x + 1, backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [2] * 4 and op(x).tolist() == [2] * 4


def test_an_op_may_read_host_memory(register, backend, x):
    scale = host(torch.tensor([3.0]))

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * scale.tolist()[0]

    op = register(scaled)
    graph = capture(lambda: op(x), backend=backend)
    scale.fill_(5)
    graph.replay()
    assert graph.outputs.tolist() == [3] * 4


def test_an_exception_inside_an_op_comes_through(register, backend, x):
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("no such batch")

    op = register(fails)
    with pytest.raises(ZeroDivisionError, match="no such batch"):
        capture(lambda: op(x), backend=backend)
    graph = capture(lambda: x + 1, backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [2] * 4


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_an_op_in_each_mode_of_autograd(register, backend, x, mode):
    calls = []

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(torch.is_inference_mode_enabled())
        return x * 2

    op = register(double)
    with mode():
        graph = capture(lambda: op(x), backend=backend)
    x.fill_(4)
    graph.replay()
    assert graph.outputs.tolist() == [8] * 4 and calls == [mode is torch.inference_mode]


def test_ops_inside_ops(register, backend, x):
    calls = []

    def inner(x: torch.Tensor, by: float) -> torch.Tensor:
        calls.append("inner")
        return x * by

    def outer(x: torch.Tensor) -> torch.Tensor:
        calls.append("outer")
        return op_inside(op_inside(x, 2.0), 3.0) + 1

    op_inside = register(inner)
    op = register(outer)
    graph = capture(lambda: op(x), backend=backend)
    x.fill_(2)
    graph.replay()
    assert calls == ["outer", "inner", "inner"]
    assert len(graph.nodes) == 3 and graph.outputs.tolist() == [13] * 4


def test_several_results_and_what_is_written(register, backend, x):
    count = torch.zeros(1, device=x.device)

    def split(
        x: torch.Tensor, count: torch.Tensor, parts: list[torch.Tensor], dim: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count.add_(1)
        for part in parts:
            part.neg_()
        return x.cumsum(dim), torch.stack([x, x])[1]

    parts = [torch.zeros(2, device=x.device), torch.zeros(3, device=x.device)]
    op = register(split, ("count", "parts"))
    op(x, count, parts)
    for tensor in (count, *parts):
        tensor.fill_(1)
    graph = capture(lambda: op(x, count, parts=parts), backend=backend)
    x.fill_(2)
    graph.replay()
    assert [t.tolist() for t in graph.outputs] == [[2, 4, 6, 8], [2] * 4]
    assert count.item() == 2 and [p.tolist() for p in parts] == [[-1] * 2, [-1] * 3]


def test_a_list_of_results_as_long_as_python_says(register, backend, x):
    pieces = {"n": 2}

    def cut(x: torch.Tensor) -> list[torch.Tensor]:
        return [part + 1 for part in x.chunk(pieces["n"])]

    op = register(cut)
    graph = capture(lambda: op(x), backend=backend)
    pieces["n"] = 4
    x.fill_(2)
    graph.replay()
    assert [t.tolist() for t in graph.outputs] == [[3, 3]] * 2


@pytest.mark.parametrize("way", [custom_op, triton_op, impl_of_all_devices, impl_of_a_composite])
def test_an_op_without_tensors(library, device, backend, x, way):
    def step(name: str) -> None:
        x.add_(len(name))

    op = way(library, device, step, ())
    graph = capture(lambda: op("layer"), backend=backend)
    assert x.tolist() == [1] * 4
    graph.replay()
    assert x.tolist() == [6] * 4


# ---- what only some of them can ----


@pytest.mark.parametrize(
    "key",
    [
        None,
        "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional",
        "CompositeImplicitAutograd",
    ],
)
def test_an_op_registered_for_each_key_of_a_kernel(library, device, backend, x, key):
    calls = []
    library.define("keyed(Tensor x) -> Tensor")
    library.impl("keyed", lambda x: calls.append(1) or x * 2, key or key_of(device))
    with torch.inference_mode():
        graph = capture(lambda: torch.ops.mrv2lab_ops.keyed(x), backend=backend)
    graph.replay()
    assert calls == [1] and len(graph.nodes) == 1 and graph.outputs.tolist() == [2] * 4


def test_a_kernel_in_cpp_goes_before_a_default_one_in_python():
    x = torch.zeros(1, 12, dtype=torch.uint8)
    with torch.library._scoped_library("quantized", "IMPL") as library:
        library.impl("embedding_bag_byte_unpack", lambda weight: 1 / 0, "CompositeExplicitAutograd")
        graph = capture(lambda: torch.ops.quantized.embedding_bag_byte_unpack(x), backend="emulated")
    assert graph.kernels() == {"quantized.embedding_bag_byte_unpack": 1}


def test_the_device_of_an_op_is_that_of_its_tensors(backend, x):
    @torch.library.custom_op("mrv2lab_custom::beside", mutates_args=())
    def beside(x: torch.Tensor, device: torch.device) -> torch.Tensor:
        return x * 2

    beside.register_fake(lambda x, device: 1 / 0)
    graph = capture(lambda: beside(x, torch.device("meta")), backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [2] * 4


def test_an_op_that_makes_a_tensor_where_it_is_told(backend, device):
    @torch.library.custom_op("mrv2lab_custom::filled", mutates_args=(), device_types=device.type)
    def filled(n: int, device: torch.device) -> torch.Tensor:
        return torch.full((n,), state["value"], device=device)

    state = {"value": 3.0}
    graph = capture(lambda: filled(2, device), backend=backend)
    state["value"] = 5.0
    graph.replay()
    assert graph.outputs.tolist() == [3, 3]


def test_what_an_op_returns_may_be_what_it_was_given(library, backend, device, x):
    library.define("bump(Tensor(a!) x) -> Tensor(a!)")
    library.impl("bump", lambda x: x.add_(1), key_of(device))
    library.define("last(Tensor(a) x) -> Tensor(a)")
    library.impl("last", lambda x: x[-1:], key_of(device))
    ops = torch.ops.mrv2lab_ops
    graph = capture(lambda: (ops.bump(x), ops.last(x)), backend=backend)
    assert [t.data_ptr() for t in graph.outputs] == [x.data_ptr(), x[3:].data_ptr()]
    graph.replay()
    assert graph.outputs[1].tolist() == [2]


def test_a_training_step_through_an_op(backend, x):
    calls = []

    @torch.library.custom_op("mrv2lab_custom::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        calls.append("forward")
        return x**3

    def backward(ctx, grad):
        calls.append("backward")
        return grad * 3 * ctx.saved_tensors[0] ** 2

    cube.register_autograd(backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
    x.requires_grad_()

    def step():
        return torch.autograd.grad(cube(x).sum(), x)[0]

    step()
    calls.clear()
    graph = capture(step, backend=backend)
    x.detach().fill_(2)
    graph.replay()
    assert graph.outputs.tolist() == [12] * 4 and calls == ["forward", "backward"]


def slope(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        return torch.autograd.grad((y**2).sum(), y)[0]


def test_an_op_that_calls_autograd(library, device, backend, x):
    op = impl(library, device, slope, ())
    assert op(x).tolist() == [2] * 4
    graph = capture(lambda: op(x), backend=backend)
    x.fill_(3)
    graph.replay()
    assert graph.outputs.tolist() == [6] * 4


def below_autograd(library, device, fn, writes):
    """With a kernel for autograd on this device alone."""
    op = impl(library, device, fn, writes)

    def redispatch(x):
        with torch._C._AutoDispatchBelowAutograd():
            return op(x)

    library.impl(op.default.name().split("::")[1], redispatch, f"Autograd{key_of(device)}")
    return op


@pytest.mark.parametrize("way", [custom_op, below_autograd])
def test_an_op_with_a_kernel_for_autograd_cannot_call_autograd(library, device, backend, x, way):
    op = way(library, device, slope, ())
    for call in (lambda: op(x), lambda: capture(lambda: op(x), backend=backend)):
        with pytest.raises(RuntimeError, match="does not require grad"):
            call()


@pytest.mark.parametrize("way", [custom_op, impl, impl_of_a_composite])
def test_autocast_holds_inside_an_op(library, device, backend, way):
    def square(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    op, x = way(library, device, square, ()), torch.eye(2, device=device)

    def step():
        with torch.autocast(device.type, torch.bfloat16):
            return op(x)

    step()
    graph = capture(step, backend=backend)
    graph.replay()
    assert graph.outputs.dtype is torch.bfloat16 and graph.outputs.tolist() == [[1, 0], [0, 1]]


def test_autograd_that_passes_over_an_op_goes_on_inside(library, device, backend):
    library.define("square(Tensor x) -> Tensor")
    library.impl("square", lambda x: x * x, key_of(device))
    library.impl("square", torch.library.fallthrough_kernel, "Autograd")
    x = torch.full((2,), 3.0, device=device, requires_grad=True)

    def step():
        return torch.autograd.grad(torch.ops.mrv2lab_ops.square(x).sum(), x)[0]

    step()
    graph = capture(step, backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [6, 6]


def test_a_vectorised_op(backend, device):
    @torch.library.custom_op("mrv2lab_custom::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_vmap(lambda info, in_dims, x: (doubled(x), in_dims[0]))
    x = torch.ones(2, 3, device=device)
    graph = capture(lambda: torch.vmap(doubled)(x), backend=backend)
    x.fill_(2)
    graph.replay()
    assert len(graph.nodes) == 1 and graph.outputs.tolist() == [[4] * 3] * 2


def test_a_mode_of_somebody_elses_sees_the_op_as_it_is_called(register, backend, x):
    seen = []

    class Through(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    op = register(double)

    def step():
        with Through():
            return op(x)

    graph = capture(step, backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [2] * 4 and len(seen) == 1 and len(graph.nodes) == 1


def test_a_composite_op_of_two_overloads(library, device, backend, x):
    for overload, schema in (("", "Tensor x"), (".by", "Tensor x, float by")):
        library.define(f"reads{overload}({schema}) -> Tensor")
        library.impl(f"reads{overload}", lambda x, by=2.0: x * by * len(x.tolist()))
    for arguments in ((x,), (x, 3.0)):
        with pytest.raises(HostSyncError, match="tolist"):
            capture(lambda arguments=arguments: torch.ops.mrv2lab_ops.reads(*arguments), backend=backend)
    assert torch.ops.mrv2lab_ops.reads(x, 3.0).tolist() == [12] * 4


def test_an_op_of_torch_that_python_implements_anew(backend, device, x):
    seen = []

    def silu(x):
        seen.append(1)
        return x * 7

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("silu", silu, key_of(device))
        graph = capture(lambda: torch.nn.functional.silu(x), backend=backend)
        graph.replay()
    assert seen == [1] and graph.outputs.tolist() == [7] * 4


def test_a_kernel_that_is_registered_later_counts(backend, device, x):
    @torch.library.custom_op("mrv2lab_custom::later", mutates_args=())
    def later(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    capture(lambda: later(x), backend=backend)
    later.register_kernel(device.type)(lambda x: x + 2)
    graph = capture(lambda: later(x), backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [3] * 4
    with later.set_kernel_enabled(device.type, enabled=False):
        graph = capture(lambda: later(x), backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [2] * 4


def test_a_callable_without_python_code_of_its_own(library, backend, device, x):
    library.define("wave(Tensor x) -> Tensor")
    library.impl("wave", torch.sin, key_of(device))
    graph = capture(lambda: torch.ops.mrv2lab_ops.wave(x), backend=backend)
    x.fill_(0)
    graph.replay()
    assert len(graph.nodes) == 1 and graph.outputs.tolist() == [0] * 4


def test_an_op_without_an_implementation_for_the_device_is_named(library, backend, x):
    library.define("elsewhere(Tensor x) -> Tensor")
    library.impl("elsewhere", lambda x: x + 1, "XLA")
    library._register_fake("elsewhere", torch.empty_like)
    with pytest.raises(CaptureError, match=r"elsewhere.* has no implementation for"):
        capture(lambda: torch.ops.mrv2lab_ops.elsewhere(x), backend=backend)


def test_ops_that_were_there_before_are_opened_too():
    program = """
        import torch
        calls = []
        library = torch.library.Library("before", "FRAGMENT")
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: calls.append(1) or x * 2, "CPU")
        @torch.library.custom_op("before::triple", mutates_args=())
        def triple(x: torch.Tensor) -> torch.Tensor:
            calls.append(2)
            return x * 3
        from mrv2lab.graphs import capture
        x = torch.ones(2)
        graph = capture(lambda: triple(torch.ops.before.double(x)), backend="emulated")
        graph.replay()
        assert calls == [1, 2] and graph.outputs.tolist() == [6, 6], calls
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


# ---- Triton inside ----


def add_one(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, at < n) + 1, at < n)


@pytest.fixture
def kernel(backend):
    if backend == "cuda":
        return triton.jit(add_one)
    if not hasattr(torch._library.triton, "_is_interpreted_triton_kernel"):
        pytest.skip("wrap_triton of this torch takes compiled kernels only")
    return InterpretedFunction(add_one)


@pytest.mark.parametrize("way", [custom_op, triton_op, impl])
def test_a_kernel_launched_inside_an_op(library, device, backend, kernel, x, way):
    grids = {"blocks": 2}

    def bump(x: torch.Tensor) -> None:
        launch = torch.library.wrap_triton(kernel) if way is triton_op else kernel
        launch[(grids["blocks"],)](x, 4, BLOCK=2)

    op = way(library, device, bump, ("x",))
    op(x)
    graph = capture(lambda: op(x), backend=backend)
    grids["blocks"] = 1
    graph.replay()
    assert [(n.label, n.grid) for n in graph.nodes] == [("add_one", (2, 1, 1))]
    assert x.tolist() == [3] * 4


def test_a_wrapped_kernel_launched_outside_of_ops(backend, kernel, x):
    wrapped = torch.library.wrap_triton(kernel)

    def step():
        wrapped[(2,)](x, 4, BLOCK=2)

    step()
    graph = capture(step, backend=backend)
    graph.replay()
    assert graph.kernels() == {"add_one": 1} and x.tolist() == [3] * 4


# ---- captures that end and begin inside an op, as vLLM's do ----


def test_a_capture_that_breaks_inside_an_op(register, backend, x):
    seen = []

    @eager_break_during_capture
    def attention(x: torch.Tensor, out: torch.Tensor) -> None:
        seen.append(x.tolist())  # the host may wait here: nothing is captured
        out.copy_(x * 10)

    op, out = register(attention, ("out",)), torch.zeros(4, device=x.device)

    def step():
        op(x + 1, out)
        op(out + 1, out)
        return out * 2

    def read():
        return (out + 1).tolist()

    with BreakableCUDAGraphCapture(backend=backend) as graphs:
        result = step()
        with pytest.raises(HostSyncError):
            read()
    assert (graphs.num_graphs, graphs.num_eager_breaks) == (3, 2)
    seen.clear()
    x.fill_(2)
    graphs.replay()
    assert seen == [[3] * 4, [31] * 4] and result.tolist() == [620] * 4
    assert read() == [311] * 4


def test_a_broken_out_op_that_raises_leaves_nothing_behind(register, backend, x):
    @eager_break_during_capture
    def fails(x: torch.Tensor) -> None:
        raise ZeroDivisionError

    op, broken = register(fails), BreakableCUDAGraphCapture(backend=backend)

    def step():
        with broken:
            op(x + 1)

    with pytest.raises(ZeroDivisionError):
        step()
    assert x.tolist() == [1] * 4 and not broken.graphs  # though somebody still holds it
    capture(lambda: x.add_(1), backend=backend).replay()
    assert x.tolist() == [2] * 4


# ---- ops that leave tensors of a list undefined, as FlashAttention-3 does ----


def test_a_list_with_undefined_tensors_passes_every_mode(backend, x, monkeypatch):
    run = OpOverload.__call__

    def leaves_one_undefined(self, /, *args, **kwargs):  # what a mode calls; a step calls the packet
        result = run(self, *args, **kwargs)
        return [result[0], None] if self.name() == "aten::_foreach_add.Scalar" else result

    monkeypatch.setattr(OpOverload, "__call__", leaves_one_undefined)

    def step():
        out, splits = torch.ops.aten._foreach_add([x], 1)
        return out if splits.numel() else out * 2

    with counted(), measured() as work:
        assert step().tolist() == [4] * 4
    graph = capture(step, backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [4] * 4 and work.ops
    assert not audit(step, backend=backend, vary=lambda: x.add_(1)).findings
