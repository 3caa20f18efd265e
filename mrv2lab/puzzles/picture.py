"""The tape of a puzzle as a picture: its nodes in order, and the memory that they read and write."""

import inspect
import re
from collections.abc import Callable
from math import atan2, degrees
from typing import Any

import torch

from mrv2lab import looks
from mrv2lab.cases.exercises.watch import Trouble, trouble_of
from mrv2lab.errors import choose, counted
from mrv2lab.graphs import Node
from mrv2lab.lifeline import memory_limit
from mrv2lab.limits import by_itself, time_limit
from mrv2lab.puzzles.tape import CPU_S, PUZZLES, graphs_of, make_buffers, steps

_COLUMN, _LINE, _TAPE, _MEMORY, _IDLE = 121, 24, 18, 92, 124


def told(error: BaseException, *fns: Callable[..., Any] | None) -> str:
    """An error in one line, with the reader's own line that it came through."""
    passed = [trouble_of(error, fn) for fn in fns if fn]
    trouble: Trouble = getattr(error, "trouble", next((t for t in passed if t.place), passed[0]))
    place = f"; your {trouble.place}" if trouble.place else ""
    return f"{trouble.error}: {trouble.message}{place}"


@by_itself
def show(puzzle: str, captured: Callable[..., Any], before: Any = None, after: Any = None) -> None:
    """Draw the emulator's tape of an answer, and what its names stand for once `before` has run."""
    choose("puzzle", puzzle, list(PUZZLES))
    buffers = make_buffers("emulated")
    x, held = buffers.x, dict(vars(buffers))
    try:
        with time_limit(CPU_S, puzzle), memory_limit():
            captured(buffers)
            graphs = graphs_of(puzzle, lambda: captured(buffers), x, "emulated")
            if before:
                before(buffers, next(steps(puzzle, x.device))[1])
    except Exception as error:
        print(f"There is no tape to draw. {told(error, captured, before)}")
        return
    text = "".join(inspect.getsource(fn) for fn in (captured, before) if inspect.isfunction(fn))
    said = {*re.findall(r"buffers\.(\w+)", text)} - {"main", "side"}
    held |= {f"now: {n}": v for n, v in vars(buffers).items() if n in said and v is not held.get(n)}
    looks.show(*_drawn(PUZZLES[puzzle].title, [n for graph in graphs for n in graph.nodes], held, said))


def _drawn(title: str, nodes: list[Node], held: dict[str, Any], said: set[str]) -> tuple[str, str]:
    tensors = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
    of_pool: dict[int, str] = {}

    def name(address: int) -> str:
        inside = (n for n, t in tensors.items() if 0 <= address - t.data_ptr() < t.nbytes)
        return next(inside, None) or of_pool.setdefault(address, f"#{len(of_pool) + 1}")

    boxes, told, uses = list[tuple[Any, ...]](), list[str](), list[tuple[int, str, bool]]()
    for i, node in enumerate(nodes):
        label = node.label.removeprefix("aten.")  # what is done in place writes what it is given first
        at = 0 if label.endswith("_") else len(node.addresses) - 1
        own = [(i, name(address), n == at) for n, address in enumerate(node.addresses)]
        read = " and ".join(n for _, n, is_written in own if not is_written)
        told.append(f"{label}{f' reads {read},' if read else ''} writes {own[at][1]}")
        boxes.append((4 + _COLUMN * i, _TAPE, label, looks.PALETTE["grey"], looks.PALETTE["white"], False))
        uses += own
    used = list(dict.fromkeys(n for _, n, _ in uses))
    idle = [n for n in held if n.removeprefix("now: ") in said and n not in used]
    labels = [n if n in {*used, *tensors} else f"{n} = {held[n]}" for n in [*used, *idle]]
    for is_idle, row in enumerate((labels[: len(used)], labels[len(used) :])):
        for i, label in enumerate(row):
            height = _IDLE if is_idle else _MEMORY
            boxes.append((4 + _COLUMN * i, height, label, "none", looks.PALETTE["grey"], bool(is_idle)))
    arrows = [_arrow(i, used.index(n), is_written) for i, n, is_written in uses]
    left = f". Not on it: {', '.join(labels[len(used) :])}" if idle else ""
    words = f"{title}. {counted(len(nodes), 'node')} on the tape: {'; '.join(told)}{left}."
    width, height = _COLUMN * max(len(nodes), len(used), len(idle)) + 8, _IDLE if idle else _MEMORY
    return looks.piece("tape", words, width, height + _LINE + 6, looks.PALETTE, boxes, arrows), words


def _arrow(node: int, memory: int, is_written: bool) -> tuple[Any, ...]:
    """Up from memory to a node that reads it, or down from a node to what it writes."""
    shift = 78 if is_written else 40
    x0, y0, x1, y1 = _COLUMN * node + shift, _TAPE + _LINE, _COLUMN * memory + shift, _MEMORY
    x0, y0, x1, y1 = (x0, y0, x1, y1) if is_written else (x1, y1, x0, y0)
    colour = looks.PALETTE["vermilion" if is_written else "blue"]
    return x0, y0, x1, y1, colour, degrees(atan2(y1 - y0, x1 - x0))
