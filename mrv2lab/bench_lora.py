"""The LoRA kernels, plain and fast, beside vLLM's own on the same inputs in the same run.

Each launch finds weights in memory that the ones before it have not touched lately, as a layer does.
Launches stand in a CUDA graph, and a time is the graph's over their number. For each shape the fast ones are
tried with a few tiles first, and the row says which was the quickest.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import torch

from mrv2lab.graphs import CapturedGraph, capture, device_of, resolve
from mrv2lab.kernels import lora_expand, lora_fast, lora_shrink
from mrv2lab.kernels.lora_fast import Splits, Tile
from mrv2lab.results import Latency
from mrv2lab.runner.lora_kernel_metadata import LoRAKernelMeta
from mrv2lab.timed import Row, in_turn
from mrv2lab.verdict import relative_error

LAYERS = {  # of Qwen3: size of an attention's output, hidden and intermediate size
    "1.7B": (2048, 2048, 6144), "8B": (4096, 4096, 12288), "32B": (8192, 5120, 25600),
}  # fmt: skip
TOKENS, ADAPTERS, RANKS = (1, 8, 64, 512, 4096, 8192), (1, 4, 16), (8, 32, 128)
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
SCALE = 0.5
_LABELS = ("model", "layer", "tokens", "adapters", "rank", "dtype")
_CHECKED = 64  # tokens of a row that are compared with float64

# Tiles that may be quick: tokens, outputs, inner, splits, warps, stages.
# fmt: off
_ONE = [(1, 1, 2048, 1, 4, 2), (1, 1, 4096, 1, 8, 2), (1, 2, 1024, 1, 4, 3), (1, 2, 2048, 1, 8, 2),
        (1, 4, 1024, 1, 4, 2), (1, 4, 1024, 1, 8, 3), (1, 4, 1024, 4, 4, 2), (1, 8, 512, 8, 4, 2),
        (1, 1, 8192, 1, 16, 2), (1, 2, 4096, 2, 8, 2), (1, 1, 4096, 1, 16, 3)]
_FEW = [(16, 16, 256, 4), (16, 16, 256, 8), (16, 16, 128, 16), (16, 32, 128, 16), (16, 16, 256, 32),
        (16, 64, 128, 32), (16, 128, 64, 32), (16, 16, 256, 50), (16, 32, 256, 50), (16, 16, 512, 25),
        (32, 16, 128, 16), (64, 16, 128, 16), (32, 32, 256, 25, 4, 2)]
_MANY = [(16, 128, 128, 2, 4, 4), (32, 128, 128, 1, 4, 4), (32, 128, 64, 4, 4, 4), (64, 128, 64, 1, 4, 4),
         (64, 128, 64, 2, 4, 4), (64, 128, 128, 2, 8, 3), (128, 128, 64, 1, 8, 4), (128, 128, 64, 4, 8, 4),
         (32, 128, 64, 8, 4, 4), (64, 128, 64, 4, 4, 3), (64, 128, 64, 8, 4, 3)]
_EXPAND_FEW = [(16, 32, 128, 1, 1), (16, 64), (16, 128), (16, 256), (16, 128, 32), (16, 64, 128, 1, 2)]
_EXPAND_MANY = [(32, 128), (32, 256), (64, 64), (64, 128), (64, 128, 128, 1, 8), (64, 128, 32, 1, 4, 2),
                (64, 128, 64, 1, 4, 2), (128, 128, 32, 1, 8, 2), (64, 64, 128, 1, 4, 3, 4),
                (64, 128, 128, 1, 8, 3, 4), (64, 64, 128, 1, 4, 3, 8), (128, 128, 64, 1, 8, 3),
                (64, 256, 64, 1, 8, 2)]
# fmt: on


class Shape(NamedTuple):
    """What is asked of one layer: `inner` numbers of each token go in, `outer` for each slice come out."""

    model: str
    layer: str
    inner: int
    outer: int
    slices: int
    tokens: int
    adapters: int  # that the tokens have, and as many as there are
    rank: int
    dtype: str


def shapes() -> list[Shape]:
    """All that are timed on a GPU. In half precision only one rank."""
    found = []
    for model, (attended, hidden, intermediate) in LAYERS.items():
        layers = {
            "o": (attended, hidden, 1),
            "gate_up": (hidden, intermediate, 2),
            "down": (intermediate, hidden, 1),
        }
        for (layer, sizes), tokens, adapters, rank, dtype in product(
            layers.items(), TOKENS, ADAPTERS, RANKS, DTYPES
        ):
            if adapters <= tokens and (dtype == "bfloat16" or rank == RANKS[1]):
                found.append(Shape(model, layer, *sizes, tokens, adapters, rank, dtype))
    return found


_SMALL = [Shape("-", "o", 72, 40, 2, tokens, 3, rank, "float16") for tokens, rank in ((3, 8), (37, 20))]


class Problem:
    """Inputs of both kernels for one shape, with weights for as many launches as cool them down."""

    def __init__(self, shape: Shape, device: torch.device, cold_bytes: int = 1 << 27):
        self.shape, self.device = shape, device
        dtype, loras = DTYPES[shape.dtype], (shape.slices, shape.adapters)
        numbers = torch.Generator(device).manual_seed(0)

        def randn(*size: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return torch.randn(size, generator=numbers, device=device).to(dtype)

        a_bytes = math.prod(loras) * shape.rank * shape.inner * dtype.itemsize
        b_bytes = math.prod(loras) * shape.rank * shape.outer * dtype.itemsize
        of_a, of_b = (max(1, min(16, cold_bytes // each)) for each in (a_bytes, b_bytes))
        self.a = [randn(*loras, shape.rank, shape.inner) for _ in range(of_a)]
        self.b = [randn(*loras, shape.outer, shape.rank) for _ in range(of_b)]
        self.x = randn(shape.tokens, shape.inner)
        self.shrunk = randn(shape.slices, shape.tokens, shape.rank, dtype=torch.float32)
        self.y = randn(shape.tokens, shape.slices * shape.outer)
        self.out = torch.empty_like(self.shrunk)
        self.mapping = torch.arange(shape.tokens) % shape.adapters
        self.meta = LoRAKernelMeta.make(shape.adapters, shape.tokens, device)
        self.meta.prepare_tensors(self.mapping)
        meta = self.meta.meta_args(shape.tokens, False)
        self.args, (self.flag, self.active) = meta[:4], meta[4:]
        self.splits: dict[Tile, Splits] = {}

    def bytes_moved(self, op: str) -> int:
        """Each number that is needed once: of the weights those of the adapters in use."""
        moved = self.shrunk.nbytes
        if op == "shrink":
            return moved + self.x.nbytes + self.a[0].nbytes
        return moved + 2 * self.y.nbytes + self.b[0].nbytes

    def plain(self, op: str, i: int) -> None:
        if op == "shrink":
            lora_shrink(self.x, self.a[i % len(self.a)], self.out, *self.args, self.flag, self.active, SCALE)
        else:
            lora_expand(self.shrunk, self.b[i % len(self.b)], self.y, *self.args, self.flag, self.active)

    def fast(self, tile: Tile, op: str, i: int) -> None:
        if op == "shrink":
            weights, num_groups = self.a[i % len(self.a)], self.shape.adapters + 1
            if tile not in self.splits:
                self.splits[tile] = Splits.make(tile, weights, self.shape.tokens, num_groups)
            lora_fast.lora_shrink(
                self.x, weights, self.out, *self.args, self.flag, SCALE, tile, self.splits[tile]
            )
        else:
            lora_fast.lora_expand(self.shrunk, self.b[i % len(self.b)], self.y, *self.args, self.flag, tile)

    def vllm(self, op: str, i: int) -> None:
        from vllm.lora.ops.triton_ops import lora_expand, lora_shrink

        args = (self.meta.token_lora_mapping[: self.shape.tokens], *self.args, self.flag, self.active)
        if op == "shrink":
            lora_shrink(self.x, list(self.a[i % len(self.a)]), self.out, *args, SCALE)
        else:
            lora_expand(self.shrunk, list(self.b[i % len(self.b)]), self.y, *args, add_inputs=True)

    def error(self, op: str, graph: CapturedGraph) -> float:
        """Of one launch with the first weights, replayed, against float64 on some of the tokens."""
        tokens = torch.linspace(0, self.shape.tokens - 1, min(_CHECKED, self.shape.tokens)).long()
        loras, at = self.mapping[tokens].to(self.device), tokens.to(self.device)
        self.y.normal_()  # launches before have added to it
        before = self.y[at].double()
        graph.replay()
        if op == "shrink":
            x = self.x[at].double()
            right = torch.stack([SCALE * torch.einsum("trk,tk->tr", a[loras].double(), x) for a in self.a[0]])
            return relative_error(self.out[:, at], right)
        shrunk = self.shrunk[:, at].to(self.y.dtype).double()
        added = [
            torch.einsum("tor,tr->to", b[loras].double(), x) for b, x in zip(self.b[0], shrunk, strict=True)
        ]
        return relative_error(self.y[at], before + torch.cat(added, dim=1))


def rows(backend: str = "auto") -> Iterator[Row]:
    """Time both kernels on each shape; without vLLM theirs is left out. BadInput: as `resolve`."""
    backend = resolve(backend)
    bytes_per_us = _bandwidth(backend)
    for shape in shapes() if backend == "cuda" else _SMALL:
        problem = Problem(shape, device_of(backend))
        yield from (timed(backend, problem, op, bytes_per_us) for op in ("shrink", "expand"))


def _bandwidth(backend: str, num_bytes: int = 1 << 30) -> float | None:
    """Bytes that a large copy reads and writes in a microsecond."""
    if backend != "cuda":
        return None
    source = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2e-3 * num_bytes / in_turn(backend, {"copy": (lambda: target.copy_(source), 3)})["copy"].median


def timed(backend: str, problem: Problem, op: str, bytes_per_us: float | None = None) -> Row:
    """Choose a tile, then time all kernels in turn."""
    shape, launches = problem.shape, _launches(backend, problem.shape.tokens)

    def captured(run: Callable[[str, int], None], launches: int = launches) -> CapturedGraph:
        def step() -> None:
            for i in range(launches):
                run(op, i)

        step()  # so that whatever it compiles or keeps is there
        return capture(step, backend=backend)

    tried = {tile: captured(partial(problem.fast, tile)) for tile in candidates(op, shape)}
    quickest = in_turn(backend, {str(tile): (graph.replay, 1) for tile, graph in tried.items()})
    tile = min(tried, key=lambda tile: quickest[str(tile)].median)
    runs: dict[str, Callable[[str, int], None]] = {"fast": partial(problem.fast, tile)}
    runs |= {way: getattr(problem, way) for way in _ways(backend)}
    errors = {way: problem.error(op, captured(run, 1)) for way, run in runs.items()}
    graphs = {way: captured(run) for way, run in runs.items()}
    ms = in_turn(backend, {way: (graph.replay, 3) for way, graph in graphs.items()})
    # What a sum of `inner` numbers in single precision may be off, and one rounding of what expand writes.
    bound = 1e-5 if op == "shrink" else torch.finfo(DTYPES[shape.dtype]).eps / 2
    counts: dict[str, float] = {f"error {way}": error for way, error in errors.items()}
    floor = {"floor us": problem.bytes_moved(op) / bytes_per_us} if bytes_per_us else {}
    return Row(
        labels={"op": op, **{name: getattr(shape, name) for name in _LABELS}, "tile": str(tile)},
        verdict="correct" if errors["fast"] <= bound else "wrong",
        ms={way: _shared(latency, launches) for way, latency in ms.items()},
        counts={name: float(f"{number:.3g}") for name, number in (counts | floor).items()},
    )


def _launches(backend: str, num_tokens: int) -> int:
    """So many that what a replay itself takes is little beside them."""
    return 1 if backend != "cuda" else 64 if num_tokens <= 64 else 16


def candidates(op: str, shape: Shape) -> list[Tile]:
    """Tiles that may be quick on a shape."""
    few, many = (_FEW, _MANY) if op == "shrink" else (_EXPAND_FEW, _EXPAND_MANY)
    per_adapter = shape.tokens / shape.adapters
    tiles = [*few] * (per_adapter <= 128) + [*many] * (per_adapter > 16)
    return [Tile(*tile) for tile in ([*_ONE] * (op == "shrink" and shape.tokens <= 16)) + tiles]


def _ways(backend: str) -> list[str]:
    if backend != "cuda" or find_spec("vllm") is None:
        return ["plain"]
    from vllm.lora.ops.triton_ops import utils

    for kept in (utils._LORA_A_PTR_DICT, utils._LORA_B_PTR_DICT):
        kept.clear()  # by address: what lay there before had other sizes
    return ["plain", "vllm"]


def _shared(whole: Latency, among: int) -> Latency:
    numbers: dict[str, Any] = {name: float(f"{ms / among:.4g}") for name, ms in whole.model_dump().items()}
    return Latency(**numbers)
