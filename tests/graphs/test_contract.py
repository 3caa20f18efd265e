"""The capture contract of `graphs.base`, point by point, on both executors."""

import gc
import threading
from contextlib import contextmanager

import pytest
import torch
import triton.language as tl

from mrv2lab.errors import BadInput, CaptureError, EmulatorLimit, HostSyncError
from mrv2lab.graphs import capture, host, new_pool, poison
from mrv2lab.graphs.base import CaptureObserver, observed
from mrv2lab.graphs.memory import POISON
from mrv2lab.kernels.dual import DualKernel


@DualKernel
def copy_kernel(x_ptr, y_ptr):
    at = tl.arange(0, 4)
    tl.store(y_ptr + at, tl.load(x_ptr + at))


@pytest.fixture
def x(device):
    return torch.arange(4.0, device=device)


def warm(fn):
    """Run once before capture, as the contract asks."""
    fn()
    return fn


# 1. Capture runs the Python once, records the work and executes none of it.


def test_capture_runs_python_once_and_no_device_work(backend, x):
    calls = []
    graph = capture(lambda: calls.append(1) or x.add_(1), backend=backend)
    assert calls == [1]
    assert x.tolist() == [0, 1, 2, 3]
    graph.replay()
    assert x.tolist() == [1, 2, 3, 4]


def test_captured_outputs_hold_nothing_computed_until_replay(backend, x):
    graph = capture(warm(lambda: x * 2 + 1), backend=backend)
    assert graph.outputs.tolist() != [1, 3, 5, 7]
    graph.replay()
    assert graph.outputs.tolist() == [1, 3, 5, 7]


def test_emulator_fills_captured_memory_with_poison():
    graph = capture(lambda: (torch.empty(3), torch.zeros(2, dtype=torch.int32)), backend="emulated")
    assert graph.outputs[0].isnan().all()
    assert graph.outputs[0].view(torch.int32).tolist() == [0x7FFF7FFF] * 3
    assert graph.outputs[1].tolist() == [0x7FFF7FFF] * 2


# 2. Replay runs the recorded work and none of the Python.


def test_replay_runs_no_python(backend, x):
    calls = []
    graph = capture(lambda: calls.append(1) or x.mul_(2), backend=backend)
    graph.replay()
    graph.replay()
    assert calls == [1]
    assert x.tolist() == [0, 4, 8, 12]
    assert graph.num_replays == 2


def test_replay_reads_what_the_captured_buffer_holds_now(backend, x):
    graph = capture(warm(lambda: x.sum()), backend=backend)
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert graph.outputs.item() == 4 * value


def test_views_of_captured_tensors_follow_replay(backend, x):
    graph = capture(warm(lambda: (x + 1).view(2, 2).t()[1]), backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [2, 4]


def test_inference_mode_records_the_same_work(backend, x):
    def step():
        return torch.einsum("i,j->ij", x, x).softmax(-1).to(torch.float64)

    expected = step()
    with torch.inference_mode():
        graph = capture(warm(step), backend=backend)
    graph.replay()
    torch.testing.assert_close(graph.outputs, expected)


def test_ops_with_several_outputs_and_in_place_ops(backend, x):
    buffer = torch.zeros(4, device=x.device)

    def step():
        values, indices = x.sort(descending=True)
        buffer.copy_(values).mul_(10)
        return indices, torch.cumsum(x, 0, out=torch.empty_like(x))

    graph = capture(warm(step), backend=backend)
    buffer.zero_()
    graph.replay()
    assert buffer.tolist() == [30, 20, 10, 0]
    assert graph.outputs[0].tolist() == [3, 2, 1, 0]
    assert graph.outputs[1].tolist() == [0, 1, 3, 6]


def test_emulator_refuses_a_replay_inside_a_capture():
    x = torch.zeros(4)
    graph = capture(lambda: x + 1, backend="emulated")
    with pytest.raises(CaptureError, match="inside a capture"):
        capture(graph.replay, backend="emulated")


def test_emulator_needs_no_shape_function_of_an_op_that_only_writes():
    library, x = torch.library.Library("mrv2lab_contract", "FRAGMENT"), torch.ones(4)
    library.define("negate(Tensor(a!) x) -> ()")
    library.impl("negate", lambda x: [None, x.neg_()][0], "CPU")
    capture(lambda: torch.ops.mrv2lab_contract.negate(x), backend="emulated").replay()
    assert x.tolist() == [-1] * 4


def test_what_an_in_place_op_returns_is_what_it_writes(backend, x):
    values, indices = torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)
    sort = torch.ops.aten.sort.values

    def step():
        return torch.ops.aten.add_(x, 1), *sort(x, values=values, indices=indices)

    graph = capture(warm(step), backend=backend)
    assert [t.data_ptr() for t in graph.outputs] == [t.data_ptr() for t in (x, values, indices)]


# 3. Host values read during capture are frozen; device values cannot be read.


def test_host_values_are_frozen(backend, x):
    flag = host(torch.tensor([3]))
    graph = capture(warm(lambda: x * flag.item()), backend=backend)
    flag[0] = 100
    graph.replay()
    assert graph.outputs.tolist() == [0, 3, 6, 9]


def test_only_cpu_tensors_can_be_marked_as_host_memory():
    with pytest.raises(ValueError, match="marks CPU tensors; got one on meta"):
        host(torch.empty(1, device="meta"))


def test_a_scalar_host_tensor_is_frozen_too(backend, x):
    scale = host(torch.tensor(3.0))
    graph = capture(warm(lambda: x * scale), backend=backend)
    scale.fill_(100)
    graph.replay()
    assert graph.outputs.tolist() == [0, 3, 6, 9]


def test_a_host_branch_taken_at_capture_is_taken_for_ever(backend, x):
    skip = host(torch.tensor([True]))
    graph = capture(lambda: None if skip.item() else x.add_(1), backend=backend)
    assert graph.nodes == ()
    skip[0] = False
    graph.replay()
    assert x.tolist() == [0, 1, 2, 3]


def test_host_memory_may_be_read_and_written_during_capture(backend, x):
    counts = host(torch.tensor([1, 2]))

    def step():
        counts[0] += 10
        assert counts.tolist() == [11, 2]
        return x * int((counts + 1).sum())

    graph = capture(step, backend=backend)
    graph.replay()
    assert counts.tolist() == [11, 2]
    assert graph.outputs.tolist() == [0, 15, 30, 45]


HOST_READS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 1),
    "int": lambda x: int(x[0]),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "numpy": lambda x: x.cpu().numpy(),
    "mask": lambda x: x[x > 1],
    "nonzero": lambda x: x.nonzero(),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "copy to host": lambda x: host(torch.zeros(4)).copy_(x),
    "copy from host": lambda x: x.copy_(host(torch.zeros(4))),
}


@pytest.mark.parametrize("read", HOST_READS.values(), ids=HOST_READS)
def test_reading_a_device_value_is_refused_and_leaves_nothing_behind(backend, x, read):
    warm(lambda: x + 1)
    with pytest.raises(CaptureError, match="during capture"):
        capture(lambda: read(x + 1), backend=backend)
    graph = capture(lambda: x + 1, backend=backend)  # the next capture is not disturbed
    graph.replay()
    assert graph.outputs.tolist() == [1, 2, 3, 4]
    read(x)  # and outside capture the read is allowed again


def test_an_exception_of_the_function_comes_through(backend, x):
    with pytest.raises(ZeroDivisionError):
        capture(lambda: x.add_(1 / 0), backend=backend)
    capture(lambda: x.add_(1), backend=backend).replay()
    assert x.tolist() == [1, 2, 3, 4]


def test_old_graphs_may_become_garbage_while_a_new_one_is_captured(backend, x):
    def make_garbage():
        cycle = [capture(warm(lambda: x + 1), backend=backend)]
        cycle.append(cycle)

    def step():
        for _ in range(3000):  # enough new containers for the collector to want to run
            [[]].append([])
        return x + 1

    gc.collect()
    for _ in range(3):
        make_garbage()
    graph = capture(warm(step), backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [1, 2, 3, 4]
    assert gc.isenabled()


def test_capture_inside_a_capture_is_refused(backend, x):
    with pytest.raises(CaptureError, match="inside a capture"):
        capture(lambda: capture(lambda: x + 1, backend=backend), backend=backend)
    capture(lambda: x + 1, backend=backend)


def test_a_host_tensor_that_is_not_a_scalar_cannot_meet_device_tensors(backend, x):
    with pytest.raises((CaptureError, RuntimeError)):
        capture(lambda: x + host(torch.ones(4)), backend=backend)
    capture(lambda: x + 1, backend=backend)


# 4. Allocations come from a pool, which graphs may share.


def intermediates(graph):
    return {address for node in graph.nodes for address in node.addresses}


def test_graphs_that_share_a_pool_reuse_memory(backend, x):
    pool = new_pool(backend)

    def step():
        return (x * 2 + 1).sum()

    first = capture(warm(step), backend=backend, pool=pool)
    second = capture(step, backend=backend, pool=pool)
    assert (intermediates(first) & intermediates(second)) - {x.data_ptr()}
    for graph in (first, second, first):
        graph.replay()
        assert graph.outputs.item() == 16


def test_a_launch_keeps_no_memory_of_the_pool(backend, x):
    def step():
        for _ in range(4):
            y = torch.empty(1 << 22, device=x.device)
            copy_kernel[1,](x, y)
            del y

    pool = new_pool(backend)
    capture(warm(step), backend=backend, pool=pool)
    assert pool.num_bytes == (1 << 22) * 4  # one buffer of float32, lent four times


def test_outputs_are_not_reused_while_somebody_holds_them(backend, x):
    pool = new_pool(backend)
    first = capture(warm(lambda: x * 2), backend=backend, pool=pool)
    second = capture(lambda: x * 3, backend=backend, pool=pool)
    assert first.outputs.data_ptr() != second.outputs.data_ptr()
    first.replay()
    second.replay()
    assert first.outputs.tolist() == [0, 2, 4, 6]


def test_a_pool_outlives_its_name(backend, x):
    graph = capture(warm(lambda: (x * 2 + 1).sqrt()), backend=backend, pool=new_pool(backend))
    gc.collect()
    torch.full((1 << 16,), 7.0, device=x.device)  # somebody else's memory
    graph.replay()
    torch.testing.assert_close(graph.outputs, (x * 2 + 1).sqrt())


@pytest.mark.parametrize("sizes", [(1 << 10, 16), (16, 1 << 10)])
def test_emulator_lends_the_block_that_fits_best(sizes):
    pool = new_pool("emulated")
    capture(lambda: [torch.empty(size) for size in sizes], backend="emulated", pool=pool)
    taken = pool.num_bytes
    graph = capture(lambda: [torch.empty(16), torch.empty(1 << 10)], backend="emulated", pool=pool)
    assert len(graph.outputs) == 2 and pool.num_bytes == taken


def test_emulator_poisons_what_a_mask_does_not_fill():
    pool = new_pool("emulated")
    graph = capture(lambda: torch.empty(5, dtype=torch.bool), backend="emulated", pool=pool)
    assert graph.outputs.tolist() == [True, False, True, False, True]  # neither answer is the safe one
    rest = graph.outputs.view(torch.uint8).as_strided((3,), (1,), 5)
    assert rest.tolist() == [0x7F, 0xFF, 0x7F]


def test_poison_lies_where_small_results_come_to_lie_and_large_ones(backend, device):
    pool = new_pool(backend)
    kept = poison(pool, backend)
    taken, sizes = pool.num_bytes, (1 << 10, 1 << 22)
    graph = capture(
        lambda: [torch.empty(n, dtype=torch.int16, device=device) for n in sizes], backend=backend, pool=pool
    )
    assert kept.num_replays == 1 and pool.num_bytes == taken  # nothing that the poison has not been in
    assert [memory.unique().tolist() for memory in graph.outputs] == [[POISON]] * 2


# 5. Passing a new tensor later changes nothing.


def test_rebinding_a_name_does_not_move_the_graph(backend, x):
    box = {"x": x}
    graph = capture(warm(lambda: box["x"] + 1), backend=backend)
    box["x"] = torch.full((4,), 50.0, device=x.device)
    graph.replay()
    assert graph.outputs.tolist() == [1, 2, 3, 4]
    x.copy_(box["x"])
    graph.replay()
    assert graph.outputs.tolist() == [51] * 4


def test_giving_a_tensor_new_memory_does_not_move_the_graph(backend, x):
    graph = capture(warm(lambda: x + 1), backend=backend)
    kept = x.detach()  # a graph does not keep memory alive; this does
    x.data = torch.full((4,), 50.0, device=x.device)
    graph.replay()
    assert graph.outputs.tolist() == [1, 2, 3, 4]
    assert kept.tolist() == [0, 1, 2, 3]


# Nodes, backends, threads.


def test_nodes_name_the_work_in_order_with_its_addresses(backend, x):
    graph = capture(warm(lambda: x.add_(1)), backend=backend)
    (node,) = graph.nodes
    assert x.data_ptr() in node.addresses
    assert graph.kernels() == {node.label: 1}
    assert (node.grid is None) == (backend == "emulated")


def test_what_does_nothing_on_the_device_is_no_node(backend, x):
    def step():
        with torch.profiler.record_function("a mark that optimizers make"):
            return x + 1

    graph = capture(warm(step), backend=backend)
    x.fill_(4)
    graph.replay()
    assert len(graph.nodes) == 1 and graph.outputs.tolist() == [5.0] * len(x)


def test_an_empty_grid_launches_nothing(backend, x):
    graph = capture(warm(lambda: copy_kernel[0,](x, x)), backend=backend)
    assert graph.nodes == ()


def test_an_empty_capture_is_an_empty_graph(backend):
    graph = capture(lambda: None, backend=backend)
    graph.replay()
    assert graph.nodes == ()


def test_emulator_captures_in_each_thread_on_its_own():
    inner = []

    def other_thread():
        inner.append(capture(lambda: torch.zeros(2), backend="emulated").nodes)

    def step():
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()

    assert capture(step, backend="emulated").nodes == ()
    assert [node.name for node in inner[0]] == ["aten.zeros"]


def test_unknown_backend_and_foreign_pool_are_refused():
    with pytest.raises(BadInput, match="unknown backend 'tpu'; possible: auto, cuda, emulated"):
        capture(lambda: None, backend="tpu")
    with pytest.raises(BadInput, match="make one with new_pool"):
        capture(lambda: None, backend="emulated", pool=object())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_backend_cuda_without_a_gpu_is_refused():
    with pytest.raises(BadInput, match="needs an NVIDIA GPU"):
        capture(lambda: None, backend="cuda")


# Observers are told of captures, from inside, and of replays.


class Notes(CaptureObserver):
    def __init__(self):
        self.seen = []

    def begin(self):
        self.seen.append("begin")

    def end(self):
        self.seen.append("end")

    def captured(self, graph):
        self.seen.append(graph)

    @contextmanager
    def replaying(self, graph):
        self.seen.append("replay")
        yield
        self.seen.append("replayed")


def test_an_observer_is_told_of_captures_and_replays(backend, x):
    notes = Notes()
    with observed(notes):
        graph = capture(warm(lambda: notes.seen.append("step") or x + 1), backend=backend)
        graph.replay()
    graph.replay()
    assert notes.seen == ["step", "begin", "step", "end", graph, "replay", "replayed"]


def test_an_observer_is_told_of_the_end_of_a_capture_that_fails(backend, x):
    notes = Notes()
    with observed(notes), pytest.raises(HostSyncError):
        capture(lambda: x.sum().item(), backend=backend)
    assert notes.seen == ["begin", "end"]


def test_emulator_replays_an_op_whose_shape_function_promises_more():
    norm, x = torch.nn.BatchNorm1d(4).eval().requires_grad_(False), torch.randn(2, 4)
    graph = capture(lambda: norm(x), backend="emulated")
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close(graph.outputs, norm(x))


def test_an_op_may_write_its_buffers_and_return_new_tensors(backend, device):
    norm, twin = (torch.nn.BatchNorm1d(4).to(device) for _ in range(2))
    x = torch.randn(8, 4, device=device)
    graph = capture(warm(lambda: norm(x).detach()), backend=backend)
    norm.load_state_dict(twin.state_dict())
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close(graph.outputs, twin(x).detach())
    torch.testing.assert_close(norm.running_var, twin.running_var)


def test_an_op_may_write_a_buffer_and_return_one_new_tensor(backend, device):
    @torch.library.custom_op("mrv2lab_tests::count_and_double", mutates_args=("count",))
    def count_and_double(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return x * 2

    count_and_double.register_fake(lambda x, count: torch.empty_like(x))
    x, count = torch.ones(3, device=device), torch.zeros(1, device=device)
    graph = capture(warm(lambda: count_and_double(x, count)), backend=backend)
    x.fill_(4)
    graph.replay()
    assert graph.outputs.tolist() == [8.0] * 3 and count.item() == 2


def test_an_op_may_leave_results_away(backend, device):
    linear, x = torch.nn.Linear(4, 4).to(device), torch.randn(2, 4, device=device)

    def step():  # one of its three gradients is not asked for
        mask = [True, True, False]
        return torch.ops.aten.convolution_backward(
            x[..., None], x[..., None], linear.weight[..., None], None, [1], [0], [1], False, [0], 1, mask
        )[:2]

    graph = capture(warm(torch.no_grad()(step)), backend=backend)
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close(graph.outputs, step())


def test_transforms_of_functions_are_captured(backend, x):
    graph = capture(warm(lambda: torch.func.grad(lambda v: (v**2).sum())(x)), backend=backend)
    x.fill_(3)
    graph.replay()
    assert graph.outputs.tolist() == [6.0] * len(x)


def test_emulator_passes_over_results_that_nobody_reads():
    bag, index, start = torch.nn.EmbeddingBag(4, 2), torch.tensor([0, 1]), torch.tensor([0])
    graph = capture(torch.no_grad()(lambda: bag(index, start)), backend="emulated")
    index.add_(1)
    graph.replay()
    torch.testing.assert_close(graph.outputs, bag(index, start).detach())


def test_emulator_refuses_what_it_would_replay_wrongly():
    pack, y = torch.ops.quantized.embedding_bag_4bit_prepack, torch.ones(2, 4)
    with pytest.raises(EmulatorLimit, match=r"4bit_prepack.* has no shape function"):
        capture(lambda: pack(y), backend="emulated")
    with torch.library._scoped_library("quantized", "IMPL") as library:
        library.impl("embedding_bag_4bit_prepack", lambda weight, *_: weight.new_empty(0), "Meta")
        graph = capture(lambda: pack(y).sum(), backend="emulated")
    with pytest.raises(EmulatorLimit, match=r"of shape \[2, 6\], where its shape function promises \[0\]"):
        graph.replay()
    lstm, x = torch.nn.LSTM(4, 4), torch.randn(1, 1, 4)
    with pytest.raises(EmulatorLimit, match="mkldnn_rnn_layer"):
        capture(lambda: lstm(x)[0], backend="emulated")
    graph = capture(torch.no_grad()(lambda: lstm.eval()(x)[0]), backend="emulated")
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close(graph.outputs, lstm(x)[0])
    sparse = torch.eye(4).to_sparse()
    with pytest.raises(EmulatorLimit, match=r"torch\.sparse_coo: the emulator records dense ones only"):
        capture(lambda: torch.sparse.mm(sparse, x[0].T), backend="emulated")
    quantized = torch.quantize_per_tensor(y, 0.1, 0, torch.qint8)
    with pytest.raises(EmulatorLimit, match=r"dequantize.* quantized: the emulator records dense ones only"):
        capture(lambda: quantized.dequantize(), backend="emulated")
    with pytest.raises(EmulatorLimit, match=r"quantize_per_tensor.* quantized: .* dense ones only"):
        capture(lambda: torch.quantize_per_tensor(y, 0.1, 0, torch.qint8), backend="emulated")
    with pytest.raises(EmulatorLimit, match=r"nested: the emulator records dense ones only"):
        capture(lambda: torch.nested.nested_tensor([y[0], y[1]]), backend="emulated")


def test_emulator_pins_memory_of_the_host_during_a_capture():
    numbers, x = host(torch.tensor([5.0, 6.0])), torch.zeros(2)

    def step():
        staging = numbers.pin_memory()
        return staging.pin_memory(), x.copy_(staging, non_blocking=True)

    graph = capture(step, backend="emulated")
    numbers.fill_(9)
    graph.replay()
    assert x.tolist() == [5, 6]


def test_emulator_says_what_it_cannot_pin_however_it_is_asked():
    x = torch.zeros(2)
    for ask in (x.pin_memory, lambda: x.pin_memory("cuda")):
        with pytest.raises(RuntimeError, match=r"cannot pin 'torch.FloatTensor': it plays device memory"):
            capture(ask, backend="emulated")


def test_memory_that_came_through_dlpack_is_still_its_owners(backend, device):
    x, out = torch.arange(4.0, device=device), torch.zeros(4, device=device)
    graph = capture(lambda: torch.mul(torch.from_dlpack(x), 2, out=out), backend=backend)
    x.add_(1)
    graph.replay()
    assert out.tolist() == [2, 4, 6, 8]


def test_what_is_asked_of_a_tensor_is_no_node(backend, device):
    x = torch.ones(4, device=device)

    def step():
        assert not x.is_pinned() and x.is_same_size(x) and x.is_set_to(x)
        return x + 1

    graph = capture(step, backend=backend)
    assert len(graph.nodes) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_quotient_of_integers_has_the_default_type_of_its_time(backend, device, dtype):
    x = torch.arange(4, device=device)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert capture(lambda: x / 3, backend=backend).outputs.dtype is dtype
    finally:
        torch.set_default_dtype(before)
