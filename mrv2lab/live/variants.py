"""Which variants the engine can run, under the names that the cases give them: those of the release it is."""

from functools import partial

from mrv2lab.live import lora, lora_grid, mla, pp, stale_view
from mrv2lab.live.run import Variant

VARIANTS: dict[str, dict[str, Variant]] = {
    "lora_device_assert": lora.LORA_DEVICE_ASSERT,
    "lora_short_circuit": lora.LORA_SHORT_CIRCUIT,
    "breakable_graph": mla.BREAKABLE_GRAPH,
    "flashmla_lazy_init": mla.FLASHMLA_LAZY_INIT,
    "pp_eager_fallback": pp.PP_EAGER_FALLBACK,
    "stale_view": stale_view.STALE_VIEW,
    "lora_frozen_grid": lora_grid.LORA_FROZEN_GRID,
}

V1 = "v1"
_ENV = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
V1_RUNNER: dict[str, Variant] = {
    "lora_device_assert": Variant(lora.observe_eager, env=_ENV),
    "lora_short_circuit": Variant(lora.observe_eager, env=_ENV),
    "breakable_graph": Variant(partial(mla.observe, cudagraph_mode="NONE"), env=_ENV),
    "flashmla_lazy_init": Variant(partial(mla.observe_speculation, cudagraph_mode="NONE"), env=_ENV),
    "lora_frozen_grid": Variant(partial(lora_grid.observe, cudagraph_mode="NONE"), env=_ENV),
}
"""By case, vLLM's older model runner on the same requests: unedited, eager, other code in everything that
is not the model. What it answers stands beside the verdicts and decides none."""

NOT_ASKED_OF_V1 = {("breakable_graph", "whole_graph")}
"""Their model is another one."""

NUM_GPUS = {case: 2 if case == "pp_eager_fallback" else 1 for case in VARIANTS}
