"""WHERE it goes wrong: one file for each bug, and the registry that lists them."""

from mrv2lab.cases import (
    breakable_graph,
    flashmla_lazy_init,
    lora_device_assert,
    lora_frozen_grid,
    lora_short_circuit,
    pp_eager_fallback,
    stale_view,
)
from mrv2lab.cases.base import Case, Variant
from mrv2lab.errors import choose

_MODULES = (
    lora_device_assert,
    lora_short_circuit,
    breakable_graph,
    flashmla_lazy_init,
    pp_eager_fallback,
    stale_view,
    lora_frozen_grid,
)
CASES: dict[str, Case] = {module.CASE.name: module.CASE for module in _MODULES}


def get(name: str) -> Case:
    """The case of this name.

    Raises:
        BadInput: there is none; lists those there are.
    """
    return CASES[choose("case", name, list(CASES))]


__all__ = ["CASES", "Case", "Variant", "get"]
