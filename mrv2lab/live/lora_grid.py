"""`specialize_active_lora` in the engine: requests with adapter a, with b and with none in one batch."""

from functools import partial
from pathlib import Path

from mrv2lab.graphs.cuda import read_nodes
from mrv2lab.live.engine import Graphs, make_engine, serve
from mrv2lab.live.models import make_adapter, make_qwen3
from mrv2lab.live.run import Seen, Variant

PROMPT_LENGTHS = (5, 9, 17, 33)


def observe(
    folder: Path, graphs: Graphs, cudagraph_mode: str = "FULL", *, specialize_active_lora: bool = True
) -> Seen:
    """Start the engine, then serve four requests at once: adapter a, adapter b, none, adapter a."""
    from vllm.lora.request import LoRARequest

    model = make_qwen3(folder / "model")
    a, b = (
        LoRARequest(f"adapter-{i}", i, str(make_adapter(folder / f"adapter-{i}", model, seed=i)))
        for i in (1, 2)
    )
    llm = make_engine(
        str(model),
        cudagraph_mode,
        (1, 2, 4),
        enable_lora=True,
        max_loras=2,
        max_lora_rank=16,
        specialize_active_lora=specialize_active_lora,
    )
    wanted = [a, b, None, a]
    key = len({request.lora_int_id for request in wanted if request}) if specialize_active_lora else None
    graph = graphs.of_largest_size(llm, key) if graphs.made else None
    kernels = graphs.kernels(graph) if graph else {}
    lora = [node for node in (read_nodes(graph) if graph else ()) if node.label.startswith("_lora_")]
    served = serve(llm, graphs, PROMPT_LENGTHS, lora_request=wanted)
    reference = serve(llm, graphs, PROMPT_LENGTHS, lora_request=wanted, eager=True)
    metrics = {
        "graph_nodes": float(sum(kernels.values())),
        "lora_nodes": float(len(lora)),
        "grid_z": float(max((node.grid[2] for node in lora if node.grid), default=0)),
        "ids_in_batch": float(len({request and request.lora_int_id for request in wanted})),
    }
    return Seen(served, reference, kernels, metrics)


LORA_FROZEN_GRID = {
    "eager": Variant(partial(observe, cudagraph_mode="NONE")),
    "one_slot": Variant(observe),
    "default_setting": Variant(partial(observe, specialize_active_lora=False)),
}
"""What this release can be; graphs keyed by adapters came with 0.24."""
