"""What a capture refuses, freezes and forgets: small programs, each with one answer for both executors.

Steps get the buffers of `Buffers`. `refused` ones end the capture with a `CaptureError`, `right` ones replay
on other inputs as they run eagerly, `raised` ones fail at capture as they fail eagerly. What takes more than
one step is a `scene`, which returns what it saw.
"""

import copy
import io
import pickle
import re
import threading
import weakref
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from mrv2lab.audit import AuditError, audit
from mrv2lab.errors import CaptureError
from mrv2lab.graphs import capture, cuda, host, new_pool, poison, streams


@dataclass
class Buffers:
    """What a step may use: static buffers on the device, and memory of the host."""

    device: torch.device
    x: torch.Tensor
    y: torch.Tensor
    table: torch.Tensor  # [4, 3]
    matrix: torch.Tensor  # [3, 3], symmetric and positive definite
    index: torch.Tensor  # [4]
    mask: torch.Tensor  # [4]
    three: torch.Tensor  # []
    unpinned: torch.Tensor  # [4], the host's
    pinned: torch.Tensor  # [4], the host's
    number: torch.Tensor  # [], the host's
    array: np.ndarray  # [4]

    def vary(self):
        """Other inputs, in place."""
        self.x.mul_(-2)
        self.table.add_(5)
        self.index.copy_((self.index + 1) % 4)
        self.mask.logical_not_()
        self.pinned.add_(10)

    def tensors(self):
        return [value for value in vars(self).values() if isinstance(value, torch.Tensor)]


def buffers(device):
    return Buffers(
        device=device,
        x=torch.arange(4.0, device=device) + 1,
        y=torch.tensor([5.0, -6.0, 7.0, -8.0], device=device),
        table=torch.arange(12.0, device=device).view(4, 3) - 4,
        matrix=torch.tensor([[4.0, 1, 0], [1, 5, 2], [0, 2, 6]], device=device),
        index=torch.tensor([2, 0, 1, 1], device=device),
        mask=torch.tensor([True, False, True, False], device=device),
        three=torch.tensor(3.0, device=device),
        unpinned=host(torch.arange(4.0)),
        pinned=host(torch.arange(4.0), pinned=True),
        number=host(torch.tensor(3.0)),
        array=np.arange(4, dtype=np.float32),
    )


@pytest.fixture
def b(device):
    return buffers(device)


def wait():
    """A copy to the host has arrived only then."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


REFUSED, RIGHT, RAISED, SCENES = {}, {}, {}, {}


def into(table):
    """Enter a program under its name."""
    return lambda fn: table.setdefault(fn.__name__, fn)


def steps(table, **lambdas):
    table.update(lambdas)


def parts_doubled(*tensors):
    """Doubled by way of parts, which lie in their memory though torch's schema does not say so."""
    copies = [tensor.clone() for tensor in tensors]
    for copied in copies:
        copied.unsafe_chunk(2)[0].mul_(2)
        copied.unsafe_split_with_sizes([1, 3])[1].mul_(2)
    return copies


# ---- refused: the host would wait for a value of the device ----

steps(
    REFUSED,
    item=lambda b: b.x.sum().item(),
    as_bool=lambda b: b.x if b.x.sum() > 1 else b.y,
    as_int=lambda b: int(b.x[0]),
    as_float=lambda b: float(b.x[0]),
    as_index=lambda b: list(range(b.index[0])),
    as_slice=lambda b: b.x[: b.index[0]],
    tolist=lambda b: b.x.tolist(),
    to_cpu_method=lambda b: b.x.cpu(),
    to_cpu=lambda b: b.x.to("cpu"),
    to_cpu_and_dtype=lambda b: b.x.to("cpu", torch.float64),
    to_cpu_as_a_copy=lambda b: b.x.to("cpu", copy=True),
    to_numpy=lambda b: b.x.numpy(),
    np_asarray=lambda b: np.asarray(b.x),
    np_ufunc=lambda b: np.sin(b.x),
    plus_ndarray=lambda b: b.x + b.array,
    printed=lambda b: print(b.x),
    as_repr=lambda b: repr(b.x),
    as_str=lambda b: str(b.x),
    f_string=lambda b: f"{b.x}",
    f_string_of_a_number=lambda b: f"{b.x.sum():.2f}",
    a_parameter_printed=lambda b: repr(torch.nn.Parameter(b.x)),
    contains=lambda b: 2.0 in b.x,
    maximum_of_python=lambda b: max(b.x[0], b.x[1]),
    all_of_torch_in_an_assert=lambda b: b.x.mul(0).eq(0).all().__bool__(),
    equal=lambda b: torch.equal(b.x, b.y),
    allclose=lambda b: torch.allclose(b.x, b.y),
    assert_close=lambda b: torch.testing.assert_close(b.x, b.x.clone()),
    is_nonzero=lambda b: b.three.is_nonzero(),
    size_from_a_value=lambda b: torch.zeros(int(b.index.max()), device=b.device),
    full_of_a_device_value=lambda b: torch.full((2,), b.three, device=b.device),
    arange_to_a_device_value=lambda b: torch.arange(b.three, device=b.device),
    pickled=lambda b: pickle.dumps(b.x),
    a_parameter_pickled=lambda b: pickle.dumps(torch.nn.Parameter(b.x)),
    saved=lambda b: torch.save({"x": b.x}, io.BytesIO()),
    byte_of_a_storage=lambda b: b.x.untyped_storage()[0],
    bytes_of_a_storage=lambda b: bytes(b.x.untyped_storage()),
    storage_tolist=lambda b: b.x.untyped_storage().tolist(),
    to_a_type_of_the_hosts=lambda b: b.x.type(torch.DoubleTensor),
    to_a_type_of_the_hosts_by_name=lambda b: b.x.type("torch.FloatTensor"),
    item_in_a_script=lambda b: script_that_reads(b.x),
)

script_that_reads = torch.jit.CompilationUnit("def reads(x):\n    return x.sum().item()\n").reads

# ---- refused: a shape depends on values ----

steps(
    REFUSED,
    nonzero=lambda b: b.x.nonzero(),
    argwhere=lambda b: torch.argwhere(b.x),
    where_of_one=lambda b: torch.where(b.mask),
    unique=lambda b: b.x.unique(),
    unique_consecutive=lambda b: b.index.unique_consecutive(),
    masked_select=lambda b: b.x.masked_select(b.mask),
    read_by_mask=lambda b: b.x[b.mask],
    read_rows_by_mask=lambda b: b.table[b.mask, :],
    read_by_byte_mask=lambda b: b.x[b.mask.to(torch.uint8)],
    read_by_mask_and_index=lambda b: b.table[b.mask, 0],
    write_a_tensor_by_mask=lambda b: b.x.__setitem__(b.mask, b.y[:2]),
    write_a_device_number_by_mask=lambda b: b.x.__setitem__(b.mask, b.three),
    add_by_mask=lambda b: b.x.index_put_((b.mask,), b.three, accumulate=True),
    repeat_interleave=lambda b: b.x.repeat_interleave(b.index),
    bincount=lambda b: torch.bincount(b.index),
    one_hot_of_unknown_classes=lambda b: F.one_hot(b.index),
    to_sparse=lambda b: b.table.to_sparse(),
    to_sparse_rows=lambda b: b.table.to_sparse_csr(),
)

# ---- refused: memory of the host that is not pinned ----

steps(
    REFUSED,
    from_numpy_to_device=lambda b: torch.from_numpy(b.array).to(b.device),
    from_numpy_to_device_at_once=lambda b: torch.from_numpy(b.array).to(b.device, non_blocking=True),
    tensor_on_device=lambda b: torch.tensor([1.0, 2.0], device=b.device),
    number_on_device=lambda b: torch.tensor(3.0, device=b.device),
    as_tensor_on_device=lambda b: torch.as_tensor(b.array, device=b.device),
    new_tensor=lambda b: b.x.new_tensor([1.0, 2.0]),
    host_to_device=lambda b: b.unpinned.to(b.device),
    host_to_device_like=lambda b: b.unpinned.to(b.x),
    copy_from_host=lambda b: b.x.copy_(b.unpinned),
    copy_from_host_at_once=lambda b: b.x.copy_(b.unpinned, non_blocking=True),
    copy_of_a_number=lambda b: b.x.copy_(5.0),
    copy_from_numpy=lambda b: b.x.copy_(torch.from_numpy(b.array)),
    copy_to_host=lambda b: b.unpinned.copy_(b.x),
    copy_to_host_at_once=lambda b: b.unpinned.copy_(b.x, non_blocking=True),
    blocking_copy_from_pinned=lambda b: b.x.copy_(b.pinned),
    blocking_copy_to_pinned=lambda b: b.pinned.copy_(b.x),
    strided_copy_from_pinned=lambda b: b.x[:2].copy_(b.pinned[::2], non_blocking=True),
    copy_of_pinned_to_every_row=lambda b: b.table.copy_(b.pinned[:3], non_blocking=True),
    read_by_list=lambda b: b.x[[0, 2]],
    read_by_ndarray=lambda b: b.x[np.array([0, 2])],
    write_by_list=lambda b: b.x.__setitem__([0, 2], b.y[:2]),
    write_a_number_to_one_element=lambda b: b.x.__setitem__(0, 5.0),
    write_a_host_number_to_one_element=lambda b: b.x.__setitem__(0, b.number),
    write_a_number_by_index=lambda b: b.x.__setitem__(b.index, 5.0),
    read_by_host_index=lambda b: b.x[host(torch.tensor([0, 2]))],
    write_host_numbers_by_mask=lambda b: b.x.__setitem__(b.mask, host(torch.tensor([5.0, 6.0]))),
    applied_by_python=lambda b: b.x.apply_(lambda number: 2 * number),
    mapped_by_python=lambda b: b.x.map_(b.y, lambda number, other: number + other),
    split_where_the_device_says=lambda b: torch.tensor_split(b.x, b.index),
    split_by_a_method=lambda b: b.x.tensor_split(tensor_indices_or_sections=b.three.long()),
)

# ---- refused: ops that look at values on the way ----

steps(
    REFUSED,
    masked_fill_of_a_device_number=lambda b: b.x.masked_fill_(b.mask, b.three),
    index_fill_of_a_device_number=lambda b: b.x.index_fill_(0, b.index, b.three),
    inverse=lambda b: torch.linalg.inv(b.matrix),
    solve=lambda b: torch.linalg.solve(b.matrix, b.matrix),
    cholesky=lambda b: torch.linalg.cholesky(b.matrix),
    eigh=lambda b: torch.linalg.eigh(b.matrix)[0],
    eigvalsh=lambda b: torch.linalg.eigvalsh(b.matrix),
    eig=lambda b: torch.linalg.eig(b.matrix)[0],
    svdvals=lambda b: torch.linalg.svdvals(b.matrix),
    svd=lambda b: torch.linalg.svd(b.matrix)[1],
    matrix_rank=lambda b: torch.linalg.matrix_rank(b.matrix),
    pinv=lambda b: torch.linalg.pinv(b.matrix),
    two_norm_of_a_matrix=lambda b: torch.linalg.matrix_norm(b.matrix, 2),
    matrix_exp=lambda b: torch.linalg.matrix_exp(b.matrix),
    histogram_of_an_unknown_range=lambda b: torch.histc(b.x, 4),
    normal_of_device_widths=lambda b: torch.normal(0.0, b.x),
    normal_of_device_centres_and_widths=lambda b: torch.distributions.Normal(b.y, b.x).sample(),
)


@into(REFUSED)
def cond(b):
    return torch.cond(b.three > 2, lambda x: x + 1, lambda x: x - 1, (b.x,))


# Torch raises an error of its own here where the numbers lie on a GPU, captured or not.
RAISED_ON_A_GPU = {
    REFUSED[name]
    for name in ("split_where_the_device_says", "split_by_a_method", "write_host_numbers_by_mask", "cond")
}

# ---- right: nothing of this waits ----

steps(
    RIGHT,
    arithmetic=lambda b: (b.x * 2 + b.y).relu(),
    one_hot=lambda b: F.one_hot(b.index, num_classes=4),
    one_hot_of_a_matrix=lambda b: F.one_hot(b.index.view(2, 2), 5),
    write_a_number_by_mask=lambda b: b.x.__setitem__(b.mask, 0),
    write_a_number_by_a_condition=lambda b: b.x.__setitem__(b.x > 2, -1.0),
    write_a_number_to_rows=lambda b: b.table.__setitem__((b.mask, slice(None)), 0),
    write_a_number_to_columns=lambda b: b.table.T.__setitem__((slice(None), b.mask), 7.0),
    write_a_number_by_mask_of_rows=lambda b: b.table.__setitem__(b.mask, 0.5),
    write_a_number_by_whole_mask=lambda b: b.table.__setitem__(b.table > 0, 0),
    write_a_host_number_by_mask=lambda b: b.x.__setitem__(b.mask, torch.tensor(4.0)),
    write_one_element_by_mask=lambda b: b.x.__setitem__(b.mask, torch.tensor([4.0])),
    write_a_number_to_a_slice=lambda b: b.x.__setitem__(slice(1, 3), 5.0),
    write_a_host_number_to_a_slice=lambda b: b.x.__setitem__(slice(1, 3), b.number),
    write_a_number_everywhere=lambda b: b.x.__setitem__(..., 5.0),
    write_a_tensor_to_one_element=lambda b: b.x.__setitem__(0, b.x[1]),
    write_a_tensor_by_index=lambda b: b.x.__setitem__(b.index[:3], b.table[0]),
    read_by_index=lambda b: b.x[b.index],
    read_rows_by_index=lambda b: b.table[b.index, :2],
    read_by_host_mask=lambda b: b.x[torch.tensor([True, False, True, False])],
    read_by_host_mask_of_both_sizes=lambda b: b.table[torch.from_numpy(np.arange(12).reshape(4, 3) % 5 == 0)],
    write_by_host_mask=lambda b: b.x.__setitem__(torch.tensor([True, False, True, False]), b.y[:2]),
    index_fill=lambda b: b.x.index_fill_(0, b.index, 3.0),
    masked_fill=lambda b: b.x.masked_fill_(b.mask, 3.0),
    masked_fill_of_a_host_number=lambda b: b.x.masked_fill_(b.mask, b.number),
    fill_with_a_device_number=lambda b: b.x.fill_(b.table[0, 0]),
    where=lambda b: torch.where(b.mask, b.x, 0.0),
    nonzero_static=lambda b: torch.nonzero_static(b.mask, size=3, fill_value=-1),
    repeat_interleave_to_a_size=lambda b: b.x.repeat_interleave(b.mask.long() * 3, output_size=6),
    repeats_by_a_number=lambda b: b.x.repeat_interleave(2),
    quantile=lambda b: torch.quantile(b.x, 0.5),
    times_a_host_number=lambda b: b.x * b.number,
    times_a_new_host_number=lambda b: b.x * torch.tensor(2.0),
    times_a_numpy_number=lambda b: np.float64(2) * b.x,
    host_work_beside=lambda b: b.x * float((b.unpinned + torch.from_numpy(b.array)).sum()),
    to_where_it_is=lambda b: b.x.to(b.device).to(b.y.device) + 1,
    to_another_dtype=lambda b: b.x.to(torch.float64),
    to_another_type=lambda b: b.x.type(torch.float64) + b.index.type(b.x.type()),
    host_to_a_type_of_the_hosts=lambda b: b.x * float(b.unpinned.type(torch.DoubleTensor).sum()),
    host_pickled=lambda b: b.x * pickle.loads(pickle.dumps(b.unpinned)).numel(),
    copied_by_python=lambda b: copy.copy(b.x) + copy.copy(torch.nn.Parameter(b.y)).detach(),
    numbers_made_on_the_device=lambda b: b.x + torch.full((), 2.0, device=b.device),
    histogram_of_a_range=lambda b: torch.histc(b.x, 4, min=-9, max=9),
    masked_scatter=lambda b: b.x.masked_scatter(b.mask, b.y),
    loop_over_elements=lambda b: sum(element for element in b.x),
    length=lambda b: b.x * len(b.x),
    complex_conjugate=lambda b: torch.complex(b.x, b.y).conj() @ torch.complex(b.y, b.x),
    in_place_of_lower_dtype=lambda b: b.x.add_(b.index),
    expanded=lambda b: b.x.add_(b.three),
    copy_of_another_dtype=lambda b: b.x.copy_(b.index),
    sorted_and_summed=lambda b: b.table.sort(0).values.cumsum(1),
    zero_times=lambda b: b.x * 0,
    split_where_the_host_says=lambda b: torch.tensor_split(b.x, torch.tensor([1, 3]))[1] + 1,
    shared_with_other_processes=lambda b: b.x.share_memory_() + 1,
    parts_that_claim_no_memory=lambda b: (b.x.clone(), b.table.clone(), *parts_doubled(b.x, b.table)),
    copy_from_pinned=lambda b: b.x.copy_(b.pinned, non_blocking=True),
    pinned_to_device=lambda b: b.pinned.to(b.device, non_blocking=True) + 1,
    copy_of_another_dtype_from_pinned=lambda b: b.index.copy_(b.pinned, non_blocking=True),
    part_of_pinned=lambda b: b.x[1:3].copy_(b.pinned[:2], non_blocking=True),
    copy_to_pinned=lambda b: b.pinned.copy_(b.x, non_blocking=True),
    to_cpu_at_once=lambda b: b.x.to("cpu", non_blocking=True),
)

# ---- raised: wrong eagerly, and at capture ----

steps(
    RAISED,
    copy_that_does_not_fit=lambda b: b.x.copy_(b.table[0]),
    slice_that_does_not_fit=lambda b: b.x.__setitem__(slice(0, 2), b.table[0]),
    sum_that_does_not_fit=lambda b: b.x.add_(b.table[0]),
    sum_larger_than_its_target=lambda b: b.x.add_(b.table.T),
    sum_of_a_higher_dtype=lambda b: b.index.add_(b.x),
    number_of_a_higher_dtype=lambda b: b.index.mul_(1.5),
    product_that_does_not_fit=lambda b: b.matrix.addmm_(b.table, b.table),
    mask_that_does_not_fit=lambda b: b.table[:3].masked_fill_(b.mask, 0.0),
    mask_of_another_length=lambda b: b.table[:3].__setitem__(b.mask, 0.0),
    scatter_of_another_dtype=lambda b: b.x.scatter_(0, b.index, b.index),
    index_add_that_does_not_fit=lambda b: b.x.index_add_(0, b.index, b.table[0]),
    out_of_another_dtype=lambda b: torch.add(b.x, b.y, out=b.index),
    product_of_wrong_shapes=lambda b: b.table @ b.table,
    view_of_another_size=lambda b: b.x.view(3),
    result_of_wrong_dtypes=lambda b: torch.dot(b.x, b.index),
    index_that_is_too_long=lambda b: b.x[b.index, b.index],
    logical_result_in_a_mask=lambda b: b.mask.mul_(b.index),
    mixed_product_of_a_higher_dtype=lambda b: b.index.addcmul_(b.x, b.y),
    sum_into_memory_written_twice=lambda b: b.three.expand(4).add_(b.x),
    foreach_that_does_not_fit=lambda b: torch._foreach_add_([b.x], [b.table[0]]),
)


@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_refused(backend, b, step):
    warm(step, buffers(b.device))
    others = (RuntimeError,) if backend == "cuda" and step in RAISED_ON_A_GPU else ()
    with pytest.raises((CaptureError, *others)):
        capture(lambda: step(b), backend=backend)
    graph = capture(lambda: b.y + 1, backend=backend)  # the next capture is not disturbed
    graph.replay()
    assert graph.outputs.tolist() == [6, -5, 8, -7]


def warm(step, b):
    """Run eagerly, as before every capture. Some of it is an error on a GPU even then."""
    try:
        step(b)
    except (TypeError, RuntimeError, ValueError):
        wait()


@pytest.mark.gpu
@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_cuda_itself_refuses(step, monkeypatch):
    """Without our guard in front of it: the guard invents nothing."""
    monkeypatch.setattr(cuda, "no_host_reads", lambda memory: nullcontext())
    b = buffers(torch.device("cuda"))
    warm(step, buffers(b.device))
    with pytest.raises((CaptureError, RuntimeError, TypeError)):
        capture(lambda: step(b), backend="cuda")
    assert b.y.tolist() == [5, -6, 7, -8]
    # A capture that CUDA has ended leaves torch's generator waiting for its end.
    torch.cuda.default_generators[0].graphsafe_set_state(torch.Generator("cuda").graphsafe_get_state())


@pytest.mark.parametrize("step", RIGHT.values(), ids=RIGHT)
def test_right(backend, b, step):
    eager = buffers(b.device)
    step(buffers(b.device))
    graph = capture(lambda: step(b), backend=backend)
    b.vary()
    eager.vary()
    graph.replay()
    result = step(eager)
    wait()
    seen, wanted = [*tensors(graph.outputs), *b.tensors()], [*tensors(result), *eager.tensors()]
    assert len(seen) == len(wanted)
    for ours, theirs in zip(seen, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def tensors(result):
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("step", RAISED.values(), ids=RAISED)
def test_raised(backend, b, step):
    with pytest.raises((RuntimeError, IndexError)) as eager:
        step(buffers(b.device))
    with pytest.raises(eager.type):
        capture(lambda: step(b), backend=backend)
    assert b.x.tolist() == [1, 2, 3, 4]
    graph = capture(lambda: b.y + 1, backend=backend)
    graph.replay()
    assert graph.outputs.tolist() == [6, -5, 8, -7]


@pytest.mark.parametrize("step", RIGHT.values(), ids=RIGHT)
def test_an_audit_finds_nothing_wrong(backend, b, step):
    report = audit(lambda: step(b), vary=b.vary, backend=backend)
    assert not report.findings, str(report)


@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_an_audit_says_what_is_refused(backend, b, step):
    try:
        report = audit(lambda: step(b), vary=b.vary, backend=backend)
    except AuditError as error:
        # NumPy's part of torch raises a TypeError of its own on a GPU, captured or not; of `torch.cond` it
        # is the compiler that refuses, unless something has told it before that it cannot go in here.
        own = r"\w+" if backend == "cuda" and step in RAISED_ON_A_GPU else "(TypeError|Unsupported)"
        assert re.search(f"cannot be captured|raised {own} while it was captured", str(error))
        assert "test_fidelity.py" in str(error)
    else:
        assert {finding.kind for finding in report.findings} == {"host-sync"}, str(report)


# ---- scenes ----


def scene(answer, **others):
    """Enter a scene with its answer; where one executor cannot have it, that executor's own."""
    return lambda fn: SCENES.setdefault(fn.__name__, (fn, {"emulated": answer, "cuda": answer} | others))


@scene("old or lost", emulated="lost")
def grown_by_resize(backend, device):
    x = torch.arange(4.0, device=device)
    graph = capture(lambda: x + 1, backend=backend)
    x.resize_(1 << 16).fill_(9)
    graph.replay()
    return follows(graph, 10)


def follows(graph, value):
    """Whether the replay has seen the new memory; what the emulator takes away it poisons."""
    if graph.outputs.isnan().all():
        return "lost"
    return "new" if graph.outputs.tolist() == [value] * 4 else "old or lost"


@scene([10, 10, 10, 10])
def captured_again_after_a_move(backend, device):
    x = torch.arange(4.0, device=device)
    graphs = [capture(lambda: x[:4] + 1, backend=backend)]
    x.resize_(1 << 16).fill_(9)
    graphs.append(capture(lambda: x[:4] + 1, backend=backend))
    for graph in graphs:
        graph.replay()
    assert follows(graphs[0], 10) != "new"
    return graphs[1].outputs.tolist()


@scene("old or lost", emulated="lost")
def set_to_other_memory(backend, device):
    x = torch.arange(4.0, device=device)
    graph = capture(lambda: x + 1, backend=backend)
    x.set_(torch.full((4,), 9.0, device=device))
    graph.replay()
    return follows(graph, 10)


@scene("old or lost", emulated="lost")
def data_replaced(backend, device):
    x = torch.arange(4.0, device=device)
    graph = capture(lambda: x + 1, backend=backend)
    x.data = torch.full((4,), 9.0, device=device)
    graph.replay()
    return follows(graph, 10)


@scene("old or lost")
def out_of_another_size(backend, device):
    x, y = torch.arange(4.0, device=device), torch.full((1 << 10,), 8.0, device=device)
    graph = capture(lambda: x + 1, backend=backend)
    torch.add(y, 1, out=x.resize_(0))
    x.resize_(4)
    graph.replay()
    return "new" if graph.outputs.tolist() == [10] * 4 else "old or lost"


@scene("lost", cuda="new")
def moved_to_shared_memory(backend, device):
    """On a GPU `share_memory_` moves nothing."""
    x = torch.arange(4.0, device=device)
    graph = capture(lambda: x + 1, backend=backend)
    x.share_memory_().fill_(9)
    graph.replay()
    return follows(graph, 10)


@scene([1, 2, 3, 4])
def old_memory_that_somebody_holds(backend, device):
    x = torch.arange(4.0, device=device)
    graph = capture(lambda: x + 1, backend=backend)
    kept = x.detach()
    x.set_(torch.full((4,), 9.0, device=device))
    graph.replay()
    assert kept.tolist() == [0, 1, 2, 3]
    return graph.outputs.tolist()


def captured_and_dropped(fn, tensors, backend):
    """A graph of `fn` of a tensor that only `tensors` holds, and lets go of."""
    graph = capture(lambda: fn(tensors[0]), backend=backend)
    tensors.clear()
    return graph


@scene([1, 2, 3, 4])
def a_view_keeps_memory(backend, device):
    whole = torch.arange(8.0, device=device)
    graph = captured_and_dropped(lambda x: x + 1, [whole[:4]], backend)
    graph.replay()
    assert len(whole) == 8
    return graph.outputs.tolist()


@scene([1, 2, 3, 4])
def a_storage_keeps_memory(backend, device):
    tensors = [torch.arange(4.0, device=device)]
    kept = tensors[0].untyped_storage()
    graph = captured_and_dropped(lambda x: x + 1, tensors, backend)
    graph.replay()
    assert kept.nbytes() == 16
    return graph.outputs.tolist()


def take(size, address, device):
    """Allocate until somebody is given the memory at an address, as on a GPU somebody soon is."""
    owners = []
    for _ in range(256):
        owners.append(torch.full((size,), 7.0, device=device))
        if owners[-1].data_ptr() == address:
            break
    return owners


@scene("lost")
def freed_input(backend, device):
    tensors = [torch.full((1 << 20,), 3.0, device=device)]
    address = tensors[0].data_ptr()
    graph = captured_and_dropped(lambda x: x + 1, tensors, backend)
    owners = take(1 << 20, address, device)
    graph.replay()
    assert owners
    return "kept" if graph.outputs[0].item() == 4 else "lost"


@scene("lost")
def freed_weight_of_two_graphs(backend, device):
    tensors = [torch.full((1 << 20,), 3.0, device=device)]
    address = tensors[0].data_ptr()
    first = capture(lambda: tensors[0] * 2, backend=backend)
    graphs = [first, captured_and_dropped(lambda w: w * 2, tensors, backend)]
    owners = take(1 << 20, address, device)
    for graph in graphs:
        graph.replay()
    assert owners
    return "kept" if any(graph.outputs[0].item() == 6 for graph in graphs) else "lost"


@scene("one owner")
def freed_output_writes_into_nobody(backend, device):
    """What a graph writes to freed memory lands in its new owner's; the emulator spares the owner."""
    tensors, one = [torch.zeros(1 << 20, device=device)], torch.ones(1 << 20, device=device)
    address = tensors[0].data_ptr()
    graph = captured_and_dropped(lambda out: out.copy_(one), tensors, backend)
    graph.outputs = None
    owners = take(1 << 20, address, device)
    graph.replay()
    hit = [owner for owner in owners if owner[0].item() == 1]
    assert len(hit) <= 1
    return "one owner"


@scene([11, 12, 13, 14])
def pinned_memory_is_read_at_replay(backend, device):
    staging, x = host(torch.arange(4.0), pinned=True), torch.zeros(4, device=device)
    graph = capture(lambda: x.copy_(staging, non_blocking=True).add(1), backend=backend)
    staging.add_(10)
    graph.replay()
    return graph.outputs.tolist()


@scene([9, 9, 9, 9])
def pinned_memory_is_written_at_replay(backend, device):
    staging, x = host(torch.zeros(4), pinned=True), torch.zeros(4, device=device)
    graph = capture(lambda: staging.copy_(x, non_blocking=True), backend=backend)
    x.fill_(9)
    graph.replay()
    wait()
    return staging.tolist()


@scene([3, 3])
def a_host_number_is_frozen(backend, device):
    number, x = host(torch.tensor(3.0)), torch.ones(2, device=device)
    graph = capture(lambda: x * number, backend=backend)
    number.fill_(100)
    graph.replay()
    return graph.outputs.tolist()


@scene([3, 3])
def a_number_in_pinned_memory_is_frozen(backend, device):
    numbers, x = host(torch.tensor([3.0, 4.0]), pinned=True), torch.ones(2, device=device)
    graph = capture(lambda: x * numbers[0], backend=backend)
    numbers.fill_(100)
    graph.replay()
    return graph.outputs.tolist()


@scene([3, 1])
def a_number_written_by_mask_is_frozen(backend, device):
    number, x = host(torch.tensor(3.0)), torch.ones(2, device=device)
    mask = torch.tensor([True, False], device=device)
    graph = capture(lambda: x.__setitem__(mask, number), backend=backend)
    number.fill_(100)
    graph.replay()
    return x.tolist()


@scene("refused")
def a_generator_of_its_own(backend, device):
    numbers, x = torch.Generator(device).manual_seed(1), torch.zeros(4, device=device)
    draws = (
        lambda: torch.rand(4, device=device, generator=numbers),
        lambda: x.normal_(generator=numbers),
        lambda: x.exponential_(generator=numbers),
        lambda: torch.randint(9, (4,), device=device, generator=numbers),
        lambda: torch.randperm(4, device=device, generator=numbers),
        lambda: torch.bernoulli(x, generator=numbers),
    )
    for draw in draws:
        with pytest.raises(CaptureError):
            capture(draw, backend=backend)
    return "refused"


@scene("new numbers each time, the same from the same seed")
def the_default_generator(backend, device):
    graph = capture(lambda: torch.rand(64, device=device), backend=backend)
    seen = []
    for seed in (1, None, 1, None):
        if seed:
            torch.manual_seed(seed)
        graph.replay()
        seen.append(graph.outputs.tolist())
    assert seen[:2] == seen[2:] and seen[0] != seen[1]
    return "new numbers each time, the same from the same seed"


@scene("new numbers each time")
def the_default_generator_by_name(backend, device):
    numbers = torch.cuda.default_generators[0] if backend == "cuda" else torch.default_generator
    graph = capture(lambda: torch.rand(64, device=device, generator=numbers), backend=backend)
    graph.replay()
    first = graph.outputs.tolist()
    graph.replay()
    assert graph.outputs.tolist() != first
    return "new numbers each time"


@scene("refused")
def another_seed(backend, device):
    seeds = torch.manual_seed, torch.cuda.manual_seed, torch.cuda.manual_seed_all, lambda _: torch.seed()
    for seed in seeds:
        torch.manual_seed(1)
        with pytest.raises(CaptureError):
            capture(lambda seed=seed: (seed(2), torch.rand(4, device=device)), backend=backend)
    return "refused"


@scene("draws on")
def the_same_seed(backend, device):
    def step():
        for seed in (torch.manual_seed, torch.random.manual_seed, torch.cuda.manual_seed_all):
            seed(-1)
        return torch.rand(64, device=device)

    seen = [step().tolist()]
    graph = capture(step, backend=backend)
    for _ in range(2):
        graph.replay()
        seen.append(graph.outputs.tolist())
    assert step().tolist() == seen[0]
    return "draws on" if len({*map(tuple, seen)}) == 3 else "starts again"


@scene("found")
def an_audit_of_a_step_that_seeds(backend, device):
    x = torch.arange(4.0, device=device)

    def step():
        torch.manual_seed(0)
        return x + torch.rand(4, device=device)

    try:
        report = audit(step, vary=lambda: x.mul_(2), backend=backend)
    except AuditError as error:
        return "found" if "cannot be captured" in str(error) else str(error)
    return "found" if report.findings else "missed"


@scene("cannot pin")
def memory_of_the_device_is_not_pinned(backend, device):
    x = torch.arange(4.0, device=device)
    with pytest.raises(RuntimeError, match="cannot pin"):
        capture(lambda: x.pin_memory(), backend=backend)
    return "cannot pin"


@scene([{1, 2}] * 3)
def multinomial(backend, device):
    x, y = torch.tensor([0.0, 1.0, 1.0], device=device), torch.tensor([[0, 1.0, 0], [0, 0, 1]], device=device)
    draws = (
        lambda: torch.multinomial(x, 64, replacement=True),
        lambda: torch.multinomial(x, 2),
        lambda: torch.multinomial(y, 1),
    )
    graphs = [capture(draw, backend=backend) for draw in draws]
    for graph in graphs:
        graph.replay()
    return [set(graph.outputs.flatten().tolist()) for graph in graphs]


@scene([True] * 5)
def unwritten_floats_are_not_numbers(backend, device):
    pool = new_pool(backend)
    kept = poison(pool, backend)
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64)
    graph = capture(
        lambda: [torch.empty(8, dtype=d, device=device) * 0 for d in dtypes], backend=backend, pool=pool
    )
    graph.replay()
    assert kept.num_replays == 1
    return [output.isnan().all().item() for output in graph.outputs]


@scene([0x7FFF7FFF] * 5)
def unwritten_integers_are_loud(backend, device):
    pool = new_pool(backend)
    kept = poison(pool, backend)
    graph = capture(lambda: torch.empty(5, dtype=torch.int32, device=device), backend=backend, pool=pool)
    assert kept.num_replays == 1
    return graph.outputs.tolist()


@scene([0x7FFF7FFF] * 4)
def unwritten_floats_viewed_as_integers_are_loud(backend, device):
    pool = new_pool(backend)
    kept = poison(pool, backend)
    graph = capture(lambda: torch.empty(4, device=device).view(torch.int32), backend=backend, pool=pool)
    assert kept.num_replays == 1
    return graph.outputs.tolist()


@scene("overwritten")
def memory_of_a_dead_result_is_lent_again(backend, device):
    pool, x = new_pool(backend), torch.arange(4.0, device=device)
    first = capture(lambda: x * 2, backend=backend, pool=pool)
    alias = pool.alias(first.outputs)
    first.outputs = None
    second = capture(lambda: x * 3, backend=backend, pool=pool)
    first.replay()
    second.replay()
    return "overwritten" if alias.tolist() == [0, 3, 6, 9] else "kept"


@scene([2, 3, 4, 5])
def a_refused_capture_leaves_buffers_alone(backend, device):
    x = torch.arange(4.0, device=device)
    with pytest.raises(CaptureError):
        capture(lambda: x.add_(1).sum().item(), backend=backend)
    capture(lambda: x.add_(2), backend=backend).replay()
    return x.tolist()


@scene([0, 1, 2, 3])
def a_copy_of_a_module_keeps_its_own_memory(backend, device):
    layer = torch.nn.Linear(4, 1, bias=False).to(device).requires_grad_(False)
    layer.weight.copy_(torch.eye(4)[1:2])
    x = torch.arange(4.0, device=device).diag()
    graph = capture(lambda: layer(x)[:, 0] * 0 + x.diag(), backend=backend)
    copy.deepcopy(layer).weight.fill_(9)
    graph.replay()
    return graph.outputs.tolist()


@scene("freed")
def a_graph_keeps_no_input_alive(backend, device):
    tensors, freed = [torch.ones(1 << 20, device=device)], []
    weakref.finalize(tensors[0].untyped_storage(), freed.append, True)
    graph = captured_and_dropped(lambda x: x.sum(), tensors, backend)
    graph.replay()
    return "freed" if freed else "kept"


# Streams: without a GPU torch.cuda's names stand for the emulator's own; beside one they are the GPU's.


def named(backend):
    return torch.cuda if backend == "cuda" or not torch.cuda.is_available() else streams


@scene("refused")
def work_on_a_stream_that_is_not_joined(backend, device):
    cuda, x = named(backend), torch.ones(4, device=device)
    side = cuda.Stream()

    def step():
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            x.add_(1)

    with pytest.raises(CaptureError):
        capture(step, backend=backend)
    return "refused"


@scene([2, 2, 2, 2])
def work_on_a_stream_that_is_joined(backend, device):
    cuda, x = named(backend), torch.ones(4, device=device)
    side = cuda.Stream()

    def step():
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            x.add_(1)
        cuda.current_stream().wait_stream(side)

    capture(step, backend=backend).replay()
    return x.tolist()


@scene([3, 3, 3, 3])
def work_that_is_joined_by_way_of_another_stream(backend, device):
    cuda, x, y = named(backend), torch.ones(4, device=device), torch.ones(4, device=device)
    first, second = cuda.Stream(), cuda.Stream()

    def step():
        first.wait_stream(cuda.current_stream())
        with cuda.stream(first):
            x.add_(1)
        second.wait_event(first.record_event())
        with cuda.stream(second):
            torch.add(x, 1, out=y)
        cuda.current_stream().wait_stream(second)

    capture(step, backend=backend).replay()
    return y.tolist()


@scene("done at once, and in no graph")
def work_on_a_stream_that_nothing_ties(backend, device):
    cuda, x, y = named(backend), torch.ones(4, device=device), torch.ones(4, device=device)
    side, asked = cuda.Stream(), []

    def step():
        with cuda.stream(side):
            asked.append(torch.cuda.is_current_stream_capturing() if cuda is torch.cuda else False)
            x.add_(1)
        return y.add_(1)

    graph = capture(step, backend=backend)
    wait()
    assert asked == [False] and x.tolist() == [2] * 4 and y.tolist() == [1] * 4
    graph.replay()
    wait()
    return "done at once, and in no graph" if (x[0], y[0]) == (2, 2) else "replayed"


@scene("refused")
def an_event_recorded_outside(backend, device):
    cuda, x = named(backend), torch.ones(4, device=device)
    event = cuda.Event()
    event.record()

    def step():
        cuda.current_stream().wait_event(event)
        x.add_(1)

    with pytest.raises(CaptureError):
        capture(step, backend=backend)
    return "refused"


@scene([2, 2, 2, 2])
def an_event_that_was_never_recorded(backend, device):
    cuda, x = named(backend), torch.ones(4, device=device)
    event = cuda.Event()

    def step():
        cuda.current_stream().wait_event(event)
        x.add_(1)

    capture(step, backend=backend).replay()
    return x.tolist()


@scene("done at once, and in no graph")
def work_of_another_thread(backend, device):
    x = torch.zeros(4, device=device)

    def step():
        thread = threading.Thread(target=lambda: x.add_(1))
        thread.start()
        thread.join()
        return x * 2

    graph = capture(step, backend=backend)
    wait()
    assert x.tolist() == [1] * 4
    graph.replay()
    wait()
    return "done at once, and in no graph" if x.tolist() == [1] * 4 else "replayed"


@scene([False, True, False])
def asked_whether_it_is_captured(backend, device):
    ask = torch.cuda.is_current_stream_capturing
    seen = [ask()]
    capture(lambda: seen.append(ask()), backend=backend)
    return [*seen, ask()]


@pytest.mark.parametrize("name", SCENES)
def test_scene(backend, device, name):
    fn, answers = SCENES[name]
    assert fn(backend, device) == answers[backend]


def test_there_are_enough_programs():
    assert len({*REFUSED, *RIGHT, *RAISED, *SCENES}) == sum(map(len, (REFUSED, RIGHT, RAISED, SCENES))) >= 60
