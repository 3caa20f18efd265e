"""Which variants the engine can run, under the names that the cases give them: those of the release it is."""

from mrv2lab.live import lora, lora_grid, mla, pp
from mrv2lab.live.run import Variant

VARIANTS: dict[str, dict[str, Variant]] = {
    "lora_device_assert": lora.LORA_DEVICE_ASSERT,
    "lora_short_circuit": lora.LORA_SHORT_CIRCUIT,
    "breakable_graph": mla.BREAKABLE_GRAPH,
    "flashmla_lazy_init": mla.FLASHMLA_LAZY_INIT,
    "pp_eager_fallback": pp.PP_EAGER_FALLBACK,
    "lora_frozen_grid": lora_grid.LORA_FROZEN_GRID,
}

NUM_GPUS = {case: 2 if case == "pp_eager_fallback" else 1 for case in VARIANTS}
