"""Shrink and expand against float64, in the interpreter and compiled."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mrv2lab.graphs import CaptureError, capture, host
from mrv2lab.kernels import lora_expand, lora_fast, lora_shrink
from mrv2lab.kernels.lora_fast import Splits, Tile, num_blocks

# num_tokens, hidden_size, rank, slice_size, num_slices, max_loras
SHAPES = [(8, 64, 8, 64, 3, 3), (37, 72, 6, 100, 1, 2), (3, 130, 20, 48, 2, 4), (1, 16, 1, 16, 1, 1)]
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3}


def lora_shrink_reference(x, lora_a_stacked, token_lora_mapping, scale):
    """[num_slices, num_tokens, rank] float64, token by token; -1 for no adapter."""
    y = x.new_zeros(lora_a_stacked.shape[0], x.shape[0], lora_a_stacked.shape[2], dtype=torch.float64)
    for token, lora_id in enumerate(token_lora_mapping.tolist()):
        if lora_id >= 0:
            y[:, token] = scale * (lora_a_stacked[:, lora_id].double() @ x[token].double())
    return y


def lora_expand_reference(x, lora_b_stacked, y, token_lora_mapping):
    """[num_tokens, num_slices * slice_size] float64, token by token: what is added to `y`, and `y`."""
    total = y.double()
    for token, lora_id in enumerate(token_lora_mapping.tolist()):
        if lora_id >= 0:
            per_slice = torch.einsum("sor,sr->so", lora_b_stacked[:, lora_id].double(), x[:, token].double())
            total[token] += per_slice.reshape(-1)
    return total


class Problem:
    """Random tensors and metadata; every adapter, rows without one, or none at all may occur."""

    def __init__(self, shape, dtype, device, mapping=None):
        num_tokens, hidden_size, rank, slice_size, num_slices, max_loras = shape

        def randn(*size):
            return torch.randn(*size).to(device, dtype)

        self.x, self.y = randn(num_tokens, hidden_size), randn(num_tokens, num_slices * slice_size)
        self.a = randn(num_slices, max_loras, rank, hidden_size)
        self.b = randn(num_slices, max_loras, slice_size, rank)
        self.buffer = torch.full((num_slices, num_tokens, rank), torch.nan, device=device)
        self.mapping = torch.randint(-1, max_loras, (num_tokens,)) if mapping is None else mapping
        self.no_lora_flag = host(torch.tensor([False]))
        self.meta = [
            *self.metadata(max_loras, device),
            self.no_lora_flag,
            host(torch.tensor([max_loras + 1])),
        ]

    def metadata(self, max_loras, device):
        ids, counts = self.mapping.unique(return_counts=True)
        lora_ids, per_lora = torch.full((max_loras + 1,), -1), torch.zeros(max_loras + 1)
        start = torch.zeros(max_loras + 2)
        lora_ids[: len(ids)], per_lora[: len(ids)] = ids, counts.float()
        start[1 : len(ids) + 1] = counts.cumsum(0)
        by_lora = self.mapping.argsort(stable=True)
        return [t.to(device, torch.int32) for t in (by_lora, per_lora, start, lora_ids)]


def relative_error(value, reference):
    return ((value.double() - reference).norm() / reference.norm().clamp_min(1e-30)).item()


@pytest.fixture(params=TOLERANCE, ids=str)
def dtype(request):
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shrink_matches_float64(shape, dtype, device):
    p = Problem(shape, dtype, device)
    lora_shrink(p.x, p.a, p.buffer, *p.meta, 0.5)
    expected = lora_shrink_reference(p.x, p.a, p.mapping, 0.5)
    assert relative_error(p.buffer, expected) < TOLERANCE[dtype]
    assert (p.buffer[:, (p.mapping == -1).to(device)] == 0).all()  # rows without an adapter are written too


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_expand_matches_float64(shape, dtype, device):
    p = Problem(shape, dtype, device)
    p.buffer.normal_()
    expected = lora_expand_reference(p.buffer.to(dtype), p.b, p.y, p.mapping)
    untouched = p.y[(p.mapping == -1).to(device)].clone()
    lora_expand(p.buffer, p.b, p.y, *p.meta)
    assert relative_error(p.y, expected) < TOLERANCE[dtype]
    assert p.y[(p.mapping == -1).to(device)].equal(untouched)


@pytest.mark.parametrize("mapping", [[-1, -1, -1], [2, 2, 2], [2, -1, 0]], ids=str)
def test_mappings_at_the_edges(mapping, device):
    p = Problem((3, 64, 8, 32, 2, 3), torch.float32, device, torch.tensor(mapping))
    lora_shrink(p.x, p.a, p.buffer, *p.meta, 1.0)
    assert relative_error(p.buffer, lora_shrink_reference(p.x, p.a, p.mapping, 1.0)) < 1e-6


def test_the_host_flag_stops_both_before_anything_is_launched(device):
    p = Problem(SHAPES[0], torch.float32, device)
    before = p.y.clone()
    p.no_lora_flag[0] = True
    lora_shrink(p.x, p.a, p.buffer, *p.meta, 1.0)
    lora_expand(p.buffer, p.b, p.y, *p.meta)
    assert p.buffer.isnan().all()
    assert p.y.equal(before)


def test_captured_kernels_are_nodes_with_grids_and_read_the_mapping_of_the_day(backend, device):
    p = Problem((8, 64, 8, 64, 3, 3), torch.float32, device)

    def step():
        lora_shrink(p.x, p.a, p.buffer, *p.meta, 0.5)
        lora_expand(p.buffer, p.b, p.y, *p.meta)

    step()
    graph = capture(step, backend=backend)
    grids = {node.name: node.grid for node in graph.nodes if node.name.startswith("_lora")}
    assert grids == {"_lora_shrink_kernel": (1, 3, 4), "_lora_expand_kernel": (1, 3, 4)}
    shrink = next(node for node in graph.nodes if node.name == "_lora_shrink_kernel")
    assert {p.x.data_ptr(), p.a.data_ptr(), p.buffer.data_ptr()} <= set(shrink.addresses)

    p.mapping = torch.tensor([1, 1, -1, 0, 2, 2, 0, -1])
    for old, new in zip(p.meta, p.metadata(3, device), strict=False):
        old.copy_(new)
    graph.replay()
    assert relative_error(p.buffer, lora_shrink_reference(p.x, p.a, p.mapping, 0.5)) < 1e-6


def test_an_empty_grid_launches_nothing(backend, device):
    p = Problem(SHAPES[0], torch.float32, device)
    p.meta[-1][0] = 0
    lora_shrink(p.x, p.a, p.buffer, *p.meta, 1.0)
    graph = capture(lambda: lora_shrink(p.x, p.a, p.buffer, *p.meta, 1.0), backend=backend)
    assert not [node for node in graph.nodes if node.name.startswith("_lora")]


def test_a_kernel_cannot_be_given_host_memory():
    p = Problem(SHAPES[0], torch.float32, torch.device("cpu"))
    host(p.x)
    with pytest.raises(CaptureError, match="_lora_shrink_kernel got a host tensor"):
        capture(lambda: lora_shrink(p.x, p.a, p.buffer, *p.meta, 1.0), backend="emulated")


# ---- the fast ones ----

TILES = [Tile(16, 16, 16), Tile(16, 32, 32, splits=3), Tile(32, 16, 16, splits=2, repeats=3)]
ONE = [Tile(1, 2, 32), Tile(1, 4, 16, splits=3)]  # tokens at a time, without tensor cores


def fast_shrink(p, tile, splits=None):
    splits = splits or Splits.make(tile, p.a, len(p.x), len(p.meta[3]))
    lora_fast.lora_shrink(p.x, p.a, p.buffer, *p.meta[:-1], 0.5, tile, splits)
    return splits


@pytest.mark.parametrize("tile", TILES + ONE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_fast_shrink_matches_float64_and_sets_its_counters_back(shape, tile, dtype, device):
    p = Problem(shape, dtype, device)
    splits = fast_shrink(p, tile)
    expected = lora_shrink_reference(p.x, p.a, p.mapping, 0.5)
    assert relative_error(p.buffer, expected) < TOLERANCE[dtype]
    assert (p.buffer[:, (p.mapping == -1).to(device)] == 0).all()
    assert not splits.done.any()
    p.buffer.fill_(torch.nan)
    fast_shrink(p, tile, splits)
    assert relative_error(p.buffer, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_fast_expand_matches_float64(shape, tile, dtype, device):
    p = Problem(shape, dtype, device)
    p.buffer.normal_()
    expected = lora_expand_reference(p.buffer.to(dtype), p.b, p.y, p.mapping)
    untouched = p.y[(p.mapping == -1).to(device)].clone()
    lora_fast.lora_expand(p.buffer, p.b, p.y, *p.meta[:-1], tile)
    assert relative_error(p.y, expected) < TOLERANCE[dtype]
    assert p.y[(p.mapping == -1).to(device)].equal(untouched)


def test_the_host_flag_stops_the_fast_ones(device):
    p = Problem(SHAPES[0], torch.float32, device)
    before = p.y.clone()
    p.no_lora_flag[0] = True
    fast_shrink(p, TILES[0])
    lora_fast.lora_expand(p.buffer, p.b, p.y, *p.meta[:-1], TILES[0])
    assert p.buffer.isnan().all()
    assert p.y.equal(before)


@pytest.mark.parametrize("tile", [TILES[1], ONE[1]], ids=str)
def test_no_number_of_adapters_freezes_in_the_grid_of_the_fast_ones(tile, backend, device):
    p = Problem((37, 64, 8, 64, 2, 3), torch.float32, device, torch.tensor([1] * 37))
    splits = fast_shrink(p, tile)
    graph = capture(lambda: fast_shrink(p, tile, splits), backend=backend)
    p.mapping = torch.arange(37) % 4 - 1
    for old, new in zip(p.meta, p.metadata(3, device), strict=False):
        old.copy_(new)
    for _ in range(2):
        p.buffer.fill_(torch.nan)
        graph.replay()
        assert relative_error(p.buffer, lora_shrink_reference(p.x, p.a, p.mapping, 0.5)) < 1e-6


def test_counters_of_a_smaller_launch_are_refused(device):
    p = Problem((37, 64, 8, 64, 2, 3), torch.float32, device)
    with pytest.raises(ValueError, match="counters"):
        fast_shrink(p, TILES[0], Splits.make(TILES[0], p.a[:1], 1, 1))
    few = Splits.make(TILES[1], p.a, 37, 4)
    with pytest.raises(ValueError, match="the launch needs"):
        fast_shrink(p, TILES[1]._replace(splits=16), few)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.sampled_from([1, 16, 32]))
def test_there_are_blocks_for_all_tokens_however_they_fall(counts, per_block):
    filled = sum(-(-count // per_block) for count in counts)
    assert filled <= num_blocks(sum(counts), len(counts), per_block) if sum(counts) else filled == 0
