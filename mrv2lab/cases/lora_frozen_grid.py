"""LoRA kernels whose grid has no room for an adapter of the batch. vLLM #43314, #35536; wrong up to 0.33.0.

It takes `specialize_active_lora`, which is off by default. With it the third dimension of the kernels' grid
is `num_active_loras`, a number that the HOST reads at capture. It counts ids, and "no adapter" is one of
them, the first: they are sorted, and it is -1.

Three acts, and one before: up to 0.21 nothing is programmed when a graph is captured, so it has no block for
any adapter. 0.22 and 0.23 capture over what the last dummy run left: room for one id. Since 0.24 graphs are
keyed by the number of adapters in use, and captured with so many. But the key does not count requests without
an adapter, and the grid does. Both are rounded up to the counts that are captured, powers of two up to
`max_loras` and `max_loras` + 1. So a batch with such a request is wrong where its number of adapters is
itself a power of two: the last adapter gets no block, silently. The key `max_loras` + 1, meant for that, is
captured one id short as well if `max_loras` is a power of two. With `cudagraph_specialize_lora`, which is the
default, no batch that is served gets there then. Without it every batch that has an adapter does (0.26.0,
`_build_lora_dispatch_map`): there that slip is the bug, by reading, of a batch with all its adapters and a
base request, where `max_loras` is a power of two.
"""

from dataclasses import replace
from typing import Any

from mrv2lab.cases.base import Case, Limit, Variant
from mrv2lab.cases.exercises.lora_frozen_grid import EXERCISE
from mrv2lab.cases.serving import Served, Serving, Shape, config_of
from mrv2lab.cases.workload import decode_graph, workload
from mrv2lab.graphs import CapturedGraph
from mrv2lab.runner import InputBatch, LoRAMapping, LoRAModelManager, ModelRunner, Request


def share_out(adapter_manager: LoRAModelManager, input_batch: InputBatch, lora_ids: list[int]) -> None:
    """Give the requests of a dummy batch these adapters in turn; 0 is none."""
    requests = [lora_ids[i % len(lora_ids)] for i in range(input_batch.num_reqs)]
    lens = input_batch.num_scheduled_tokens.tolist()
    tokens = [lora_id for lora_id, n in zip(requests, lens, strict=True) for _ in range(n)]
    mapping = LoRAMapping(tuple(tokens), tuple(requests))
    adapter_manager.set_active_adapters(set(requests) - {0}, mapping)


def one_slot(adapter_manager: LoRAModelManager, input_batch: InputBatch, num_active_loras: int) -> None:
    """Program nothing: capture finds the 1 that the last dummy run left. 0.22 and 0.23, without keys."""


def keyed_short(adapter_manager: LoRAModelManager, input_batch: InputBatch, num_active_loras: int) -> None:
    """As many adapters as the key says. `maybe_select_dummy_loras` of 0.24 to 0.33."""
    num_loras = min(num_active_loras, len(adapter_manager.lora_index_to_id))
    lora_ids = list(range(1, num_loras + 1)) or [0]
    share_out(adapter_manager, input_batch, lora_ids)


def keyed_last(adapter_manager: LoRAModelManager, input_batch: InputBatch, num_active_loras: int) -> None:
    """The same, and for the key `max_loras` + 1 a request without adapter. What a comment there says."""
    num_loras = min(num_active_loras, len(adapter_manager.lora_index_to_id))
    lora_ids = list(range(1, num_loras + 1)) or [0]
    if num_active_loras > num_loras:
        lora_ids = [*lora_ids, 0]
    share_out(adapter_manager, input_batch, lora_ids)


def keyed_full(adapter_manager: LoRAModelManager, input_batch: InputBatch, num_active_loras: int) -> None:
    """As many adapters as the key says, and a request without: the key does not count it, the grid does."""
    num_loras = min(num_active_loras, len(adapter_manager.lora_index_to_id))
    # Adapters first: a batch of one request cannot hold both, and without an adapter nothing is launched.
    lora_ids = [*range(1, num_loras + 1), 0]
    share_out(adapter_manager, input_batch, lora_ids)


def default_setting(
    adapter_manager: LoRAModelManager, input_batch: InputBatch, num_active_loras: int
) -> None:
    """As `one_slot`, with `specialize_active_lora` off: each grid has room for `max_loras` + 1."""


def eager(adapter_manager: LoRAModelManager, input_batch: InputBatch, num_active_loras: int) -> None:
    """No graphs: the host reads the number afresh in each step."""


NOT_KEYED = (one_slot, default_setting, eager)
"""The runner as it was before 0.24: nobody programs adapters for a capture, and no key counts them."""


def make_runner(variant: Variant, backend: str, shape: Shape, **changes: Any) -> ModelRunner:
    """A runner whose dummy batches get their adapters from the variant, if there were keys at its time."""
    fields: dict[str, Any] = {
        "max_lora_rank": shape["rank"],
        "max_loras": shape["max_loras"],
        "specialize_active_lora": variant.fn is not default_setting,
        "cudagraph_capture_sizes": sizes(shape),
    }
    select_dummy_loras = None if variant.fn in NOT_KEYED else variant.fn
    config = config_of(variant, shape, **fields | changes)
    return ModelRunner(config, backend, select_dummy_loras=select_dummy_loras)


def sizes(shape: Shape) -> tuple[int, ...]:
    """Batches that are captured."""
    return tuple(n for n in (1, 2, 4, 8) if n < 2 * shape["batch_size"])


def batches(shape: Shape) -> list[list[Request]]:
    """Requests with each adapter that there is room for, and with none, in turn. Or, if that is asked for,
    two steps for every graph that a batch can have.
    """
    requests, max_loras = workload(shape), shape["max_loras"]
    if not shape["every_graph"]:
        return [in_turn(requests, max_loras)]
    short = [replace(r, prompt_token_ids=r.prompt_token_ids[:2], max_tokens=2) for r in requests]
    return [in_turn(short[:n], k) for n in sizes(shape) for k in range(min(n, max_loras) + 1)]


def in_turn(requests: list[Request], num_adapters: int) -> list[Request]:
    """The same requests, with the first adapters and with none."""
    kinds = [*range(1, num_adapters + 1), 0]
    return [replace(r, lora_id=kinds[i % len(kinds)]) for i, r in enumerate(requests)]


def keyed_graphs(served: Served) -> list[CapturedGraph]:
    """What a full batch of decodes with every adapter, and a request without, replays."""
    return decode_graph(served.runner, served.shape["batch_size"], served.shape["max_loras"])


def grid(served: Served) -> dict[str, float]:
    """Ids that a batch asks for, and those that a LoRA kernel of its graph has blocks for."""
    nodes = [node for graph in keyed_graphs(served) for node in graph.nodes]
    grids = [node.grid[2] for node in nodes if "_lora_" in node.name and node.grid]
    return {"ids_in_batch": served.shape["max_loras"] + 1, "grid_z": max(grids, default=0)}


BASELINE = Variant(eager, "baseline", "correct", uses_graphs=False)
SERVING = Serving(make_runner, BASELINE, batches, keyed_graphs, grid, adapters=True)

CASE = Case(
    name="lora_frozen_grid",
    title="LoRA kernels whose grid has no room for an adapter of the batch",
    upstream="vllm-project/vllm #43314 (one slot), #32005 and #35536 (keys); wrong up to 0.33.0",
    variants=(
        BASELINE,
        Variant(one_slot, "buggy", "wrong", finding=("frozen-host-value", "num_active_loras")),
        Variant(keyed_short, "buggy", "wrong", finding=("frozen-host-value", "num_active_loras")),
        Variant(keyed_last, "tempting", "wrong", finding=("frozen-host-value", "num_active_loras")),
        Variant(keyed_full, "fixed", "correct"),
        Variant(default_setting, "fixed", "correct"),
    ),
    limits={
        "batch_size": Limit(4, 2, 8),
        "rank": Limit(8, 1, 32),
        "num_steps": Limit(18, 18, 40),
        "num_layers": Limit(1, 1, 8),
        "max_loras": Limit(2, 1, 3),
        "every_graph": Limit(0, 0, 1),
    },
    observe=SERVING.observe,
    audit_step=SERVING.audit,
    exercise=EXERCISE,
)
