"""WHERE it goes wrong: one file for each bug, and the registry that lists them."""

from mrv2lab.cases import breakable_graph, lora_short_circuit, pp_eager_fallback
from mrv2lab.cases.base import Case, Variant
from mrv2lab.errors import choose

CASES: dict[str, Case] = {
    case.name: case for case in (lora_short_circuit.CASE, breakable_graph.CASE, pp_eager_fallback.CASE)
}


def get(name: str) -> Case:
    """The case of this name.

    Raises:
        BadInput: there is none; lists those there are.
    """
    return CASES[choose("case", name, list(CASES))]


__all__ = ["CASES", "Case", "Variant", "get"]
