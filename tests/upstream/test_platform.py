"""What stands in for CUDA and for vLLM's compiled ops does what a probe relies on.

`apply` itself replaces things for a whole process, so nothing here calls it where it would succeed.
"""

import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from mrv2lab.graphs import CaptureError, is_host, replayed
from mrv2lab.kernels.flash_mla import NUM_SM_PARTS, flash_mla_reference
from mrv2lab.upstream import platform
from mrv2lab.upstream.environment import ENVIRONMENT
from mrv2lab.upstream.platform import (
    REPLACEMENTS,
    EmulatedCUDAGraph,
    Group,
    Replacement,
    async_tensor_h2d,
    dense_decode_fwd,
    graph,
    graph_pool_handle,
    pipeline_rank,
    unwritten_memory,
    weak_ref_tensor,
    weak_ref_tensors,
)

PLANNER = "get_mla_metadata_kernel"

# ---- graphs ----


def test_a_capture_records_and_a_replay_runs():
    x, y, cuda_graph = torch.ones(4), torch.zeros(4), EmulatedCUDAGraph()
    cuda_graph.capture_begin()
    y.copy_(x * 2)
    cuda_graph.capture_end()
    assert y.tolist() == [0] * 4
    x.fill_(3)
    with replayed() as graphs:
        cuda_graph.replay()
    assert y.tolist() == [6] * 4
    assert graphs == [cuda_graph.captured]


def test_the_context_is_a_capture_and_what_follows_it_is_none():
    y, cuda_graph = torch.zeros(4), EmulatedCUDAGraph(keep_graph=True)
    with graph(cuda_graph, graph_pool_handle(), stream=None, capture_error_mode="relaxed"):
        y.add_(1)
    assert y.tolist() == [0] * 4
    y.add_(10)
    assert y.tolist() == [10] * 4
    cuda_graph.replay()
    assert y.tolist() == [11] * 4


def test_a_body_that_raises_leaves_no_capture_open():
    y = torch.zeros(4)
    with pytest.raises(CaptureError, match="host"), graph(EmulatedCUDAGraph()):
        y.sum().item()
    assert y.add_(1).tolist() == [1] * 4
    again = EmulatedCUDAGraph()
    with graph(again):
        y.add_(1)
    again.replay()
    assert y.tolist() == [2] * 4


def test_a_graph_that_was_not_captured_cannot_be_replayed():
    with pytest.raises(AssertionError):
        EmulatedCUDAGraph().replay()
    with pytest.raises(AssertionError):
        EmulatedCUDAGraph().capture_end()


ONES = torch.ones(1000)


def captured_in(pool):
    """A tensor of 1000 floats that a capture in this pool has made."""
    with graph(EmulatedCUDAGraph(), pool):
        return ONES + 1


def lends_again(pool, address):
    """Whether captures are given this block before the pool has to grow."""
    num_bytes, taken = pool.num_bytes, []
    while pool.num_bytes == num_bytes and len(taken) < 20:
        taken.append(captured_in(pool))
    return address in [tensor.data_ptr() for tensor in taken]


def test_captures_share_a_pool_when_they_are_given_one():
    pool = graph_pool_handle()
    first = captured_in(pool)
    address = first.data_ptr()
    assert not lends_again(pool, address)  # lent already
    del first
    assert not lends_again(graph_pool_handle(), address)
    assert lends_again(pool, address)


# ---- references that keep nothing alive ----


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("num_pools", [1, 3])
def test_a_weak_reference_has_the_address_and_does_not_keep_the_block(num_pools, inference):
    for pool in [graph_pool_handle() for _ in range(num_pools)]:  # whichever is asked first
        with torch.inference_mode(inference):
            strong = captured_in(pool)
            weak, part = weak_ref_tensor(strong), weak_ref_tensor(strong[10:].view(-1, 3))
        address = strong.data_ptr()
        assert (weak.data_ptr(), weak.shape, weak.dtype) == (address, strong.shape, strong.dtype)
        assert (part.data_ptr(), part.shape) == (address + 40, (330, 3))
        assert not lends_again(pool, address)
        del strong
        assert lends_again(pool, address)


def test_memory_of_no_pool_has_its_address_and_is_not_kept_either():
    tensor = torch.ones(3)
    for part in (tensor, tensor[1:], tensor.view(3, 1)):
        weak = weak_ref_tensor(part)
        assert (weak.data_ptr(), weak.tolist()) == (part.data_ptr(), part.tolist())
    del tensor, part
    assert weak.isnan().all()  # what was there is gone
    assert weak_ref_tensor("no tensor") == "no tensor"


class IntermediateTensors:
    """As vLLM's: tensors by name, made from a dict."""

    def __init__(self, tensors):
        self.tensors = tensors


@pytest.mark.parametrize(
    ("wrap", "unwrap"),
    [
        (lambda t: t, lambda given: given),
        (lambda t: (t, 1), lambda given: given[0]),
        (lambda t: [[t], None], lambda given: given[0][0]),
        (lambda t: {"a": (t,)}, lambda given: given["a"][0]),
        (lambda t: IntermediateTensors({"a": t}), lambda given: given.tensors["a"]),
    ],
    ids=["tensor", "tuple", "list", "dict", "IntermediateTensors"],
)
def test_weak_references_are_found_in_whatever_holds_them(wrap, unwrap):
    pool = graph_pool_handle()
    held = wrap(captured_in(pool))
    weak = weak_ref_tensors(held)
    assert type(weak) is type(held)
    address = unwrap(held).data_ptr()
    assert unwrap(weak).data_ptr() == address
    assert not lends_again(pool, address)
    del held
    assert lends_again(pool, address)


# ---- memory nobody wrote ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (), (0,)], ids=str)
@pytest.mark.parametrize("byte", [0, 0x7F])
def test_unwritten_memory_holds_the_byte_everywhere(byte, shape, dtype):
    with unwritten_memory(byte):
        made, zeros = torch.empty(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
    assert (made.shape, made.dtype) == (shape, dtype)
    assert bytes(made.untyped_storage()) == bytes([byte]) * (made.numel() * dtype.itemsize)
    assert zeros.eq(0).all()


def test_unwritten_memory_of_another_layout():
    with unwritten_memory(1):
        made = torch.empty(2, 3, 4, 5, memory_format=torch.channels_last, dtype=torch.int32)
    assert made.eq(0x01010101).all()


def test_memory_outside_is_left_alone():
    with unwritten_memory(1):
        pass
    assert torch.empty(3).fill_(2).tolist() == [2] * 3
    assert not torch.overrides._get_current_function_mode_stack()


# ---- compiled ops ----

HEADS, LATENT, ROPE, PAGE, MAX_PAGES = 4, 16, 16, 4, 8
SCALE = 0.2


def decode_problem(seq_lens=(1, 30, 2, 17)):
    """The first seven arguments of `dense_decode_fwd`."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(len(seq_lens), 1, HEADS, LATENT + ROPE, generator=generator)
    k_cache = torch.randn(len(seq_lens) * MAX_PAGES, PAGE, 1, LATENT + ROPE, generator=generator)
    pages = torch.randperm(len(seq_lens) * MAX_PAGES, generator=generator)
    block_table = pages.view(-1, MAX_PAGES).int()
    return q, k_cache, LATENT, torch.tensor(seq_lens, dtype=torch.int32), block_table, SCALE, True


def error(out, problem):
    q, k_cache, _, seq_lens, block_table, _, _ = problem
    wanted = flash_mla_reference(q.squeeze(1), k_cache.squeeze(2), block_table, seq_lens, LATENT, SCALE)
    assert out.shape == (len(seq_lens), 1, HEADS, LATENT)
    return ((out.squeeze(1) - wanted).norm() / wanted.norm()).item()


def launched(fn):
    """What `fn` would launch, by name."""
    recording = EmulatedCUDAGraph()
    with graph(recording):
        fn()
    return recording.captured.kernels()


@pytest.mark.parametrize("out", [(), (None,)], ids=["9 arguments", "10 arguments"])
def test_dense_decode_makes_the_plan_it_is_not_given(out):
    problem = decode_problem()
    result, lse, parts, num_splits = dense_decode_fwd(*problem, None, None, *out)
    assert error(result, problem) < 1e-5
    assert lse is None and parts.shape == (NUM_SM_PARTS, 5) and num_splits.shape == (5,)
    assert launched(lambda: dense_decode_fwd(*problem, None, None, *out))[PLANNER] == 1


@pytest.mark.parametrize("out", [(), (None,)], ids=["9 arguments", "10 arguments"])
def test_dense_decode_trusts_the_plan_it_is_given(out):
    problem = decode_problem()
    plan = dense_decode_fwd(*problem, None, None)[2:]
    result, _, *same = dense_decode_fwd(*problem, *plan, *out)
    assert error(result, problem) < 1e-5
    assert same[0] is plan[0] and same[1] is plan[1]
    assert launched(lambda: dense_decode_fwd(*problem, *plan, *out))[PLANNER] == 0
    stale = dense_decode_fwd(*decode_problem((1, 1, 1, 1)), None, None)[2:]
    assert error(dense_decode_fwd(*problem, *stale)[0], problem) > 0.1


@pytest.mark.parametrize(
    ("args", "kwargs", "dtype"),
    [
        ((torch.int32, "cpu", False), {}, torch.int32),  # up to 0.24
        ((torch.int32, torch.device("cpu")), {"pin_memory": False}, torch.int32),
        (("cpu", torch.int32), {}, torch.int32),  # since 0.25
        (("cpu",), {"dtype": torch.int16}, torch.int16),
        (("cpu",), {}, torch.int64),
    ],
)
def test_a_copy_to_the_device_in_every_order_of_arguments(args, kwargs, dtype):
    made = async_tensor_h2d([3, 1, 2], *args, **kwargs)
    assert (made.tolist(), made.dtype) == ([3, 1, 2], dtype)


def test_a_copy_to_the_device_is_a_copy():
    data = torch.tensor([1, 2])
    made = async_tensor_h2d(data, "cpu")
    data.fill_(0)
    assert made.tolist() == [1, 2]


def test_a_copy_to_the_device_may_be_given_its_place():
    place = torch.zeros(3, dtype=torch.int32)
    assert async_tensor_h2d([3, 1, 2], out=place) is place
    assert place.tolist() == [3, 1, 2]


def test_a_group_of_one():
    group, tensor = Group(), torch.ones(2)
    assert (group.world_size, group.rank, group.rank_in_group) == (1, 0, 0)
    assert group.is_first_rank and group.is_last_rank
    assert group.all_reduce(tensor) is tensor
    behind = Group(is_first_rank=False)
    assert not behind.is_first_rank and behind.is_last_rank


# ---- putting them in place ----


@pytest.fixture
def no_vllm(monkeypatch):
    """No module of vLLM is loaded, and nothing would be replaced if `apply` went on."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(platform, "REPLACEMENTS", ())
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", ["vllm", "vllm.config"])
def test_apply_refuses_a_process_that_has_imported_vllm(name, no_vllm, monkeypatch):
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(RuntimeError, match=r"vLLM is imported already; .* in a process of its own"):
        platform.apply()


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_apply_refuses_a_process_without_its_environment(name, no_vllm, monkeypatch):
    for change in (lambda: monkeypatch.setenv(name, "other"), lambda: monkeypatch.delenv(name)):
        change()
        with pytest.raises(RuntimeError, match=re.escape(f"environment that vLLM needs here: ['{name}']")):
            platform.apply()


def test_every_replacement_names_its_target_and_its_reason():
    targets = [replacement.target for replacement in REPLACEMENTS]
    assert len(set(targets)) == len(targets)
    for replacement in REPLACEMENTS:
        assert re.fullmatch(r"(torch|vllm)(\.\w+)*:\w+(\.\w+)*", replacement.target), replacement
        assert len(replacement.reason.split()) >= 2, replacement


def load(monkeypatch, name, **contents):
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_replacement_reaches_whoever_imported_the_original_by_name(monkeypatch):
    def original(): ...

    def other(): ...

    home = load(monkeypatch, "vllm.made_up", op=original)
    user = load(monkeypatch, "vllm.user", op=original)
    namesake = load(monkeypatch, "vllm.namesake", op=other)
    outside = load(monkeypatch, "outside", op=original)
    platform.put_in_place(Replacement("vllm.made_up:op", "stand-in", "for this test"))
    assert (home.op, user.op) == ("stand-in", "stand-in")
    assert (namesake.op, outside.op) == (other, original)


def test_what_a_release_has_not_is_not_put_there(monkeypatch):
    home = load(monkeypatch, "vllm.made_up")
    platform.put_in_place(Replacement("vllm.made_up:op", "stand-in", "for this test"))
    assert not hasattr(home, "op")


def test_a_replacement_may_be_made_from_the_original(monkeypatch):
    home = load(monkeypatch, "vllm.made_up", op=2)
    platform.put_in_place(
        Replacement("vllm.made_up:op", lambda original: original + 1, "for this test", made=True)
    )
    assert home.op == 3


def test_a_module_stands_in_for_one_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm._made_up_C", None)
    module = ModuleType("vllm._made_up_C")
    platform.put_in_place(Replacement("vllm:_made_up_C", module, "for this test"))
    assert sys.modules["vllm._made_up_C"] is module


def test_metadata_that_is_named_cpu_is_the_hosts(monkeypatch):
    class LoRAKernelMeta:
        @staticmethod
        def make(n):
            return SimpleNamespace(no_lora_flag_cpu=torch.zeros(n), active_lora_ids=torch.zeros(n))

    name = "vllm.lora.ops.triton_ops.lora_kernel_metadata"
    load(monkeypatch, name, LoRAKernelMeta=LoRAKernelMeta)
    platform.put_in_place(next(r for r in REPLACEMENTS if r.target.startswith(name)))
    made = LoRAKernelMeta.make(2)
    assert is_host(made.no_lora_flag_cpu) and not is_host(made.active_lora_ids)


def test_a_place_in_the_pipeline_is_given_back(monkeypatch):
    before = Group()
    state = load(monkeypatch, "vllm.distributed.parallel_state", _PP=before)
    with pytest.raises(ZeroDivisionError), pipeline_rank(is_first=False, is_last=True):
        assert not state._PP.is_first_rank and state._PP.is_last_rank
        raise ZeroDivisionError
    assert state._PP is before
