"""Prose for readers: in a TOML file beside the module that tells it, for in Python a formatter cuts it up.

There a sentence is a line, and an empty line ends a paragraph.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mrv2lab.errors import BadInput


def beside(module: str) -> dict[str, Any]:
    """The texts beside a module, given its `__file__`; a paragraph has become one line."""
    found: dict[str, Any] = _joined(tomllib.loads(Path(module).with_suffix(".toml").read_text("utf-8")))
    return found


def require_one_each(texts: Mapping[str, object], names: Iterable[str]) -> None:
    """Raises BadInput: a name has no text, or a text has no name."""
    known = set(names)
    odd = [f"{name} has no text" for name in sorted(known - texts.keys())]
    odd += [f"the text {name} belongs to nothing" for name in sorted(texts.keys() - known)]
    if odd:
        raise BadInput("; ".join(odd))


def _joined(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _joined(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return tuple(map(_joined, value))
    if not isinstance(value, str):
        return value  # a number
    return "\n".join(" ".join(paragraph.split()) for paragraph in value.split("\n\n"))
