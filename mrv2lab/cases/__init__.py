"""WHERE it goes wrong: one file for each bug, and the registry that lists them."""

from mrv2lab import catalogue
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

_MODULES = (
    lora_device_assert,
    lora_short_circuit,
    breakable_graph,
    flashmla_lazy_init,
    pp_eager_fallback,
    stale_view,
    lora_frozen_grid,
)
CASES: dict[str, Case] = {case.name: case for case in (getattr(m, "CASE", None) for m in _MODULES) if case}
"""Without those that are not finished: a module may stand in the list before it has its `CASE`."""


def get(name: str) -> Case:
    """The case of this name. BadInput: there is none, and lists those there are; or it is not finished."""
    catalogue.check(name)
    return CASES[name]


__all__ = ["CASES", "Case", "Variant", "get"]
