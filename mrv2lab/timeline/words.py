"""What a timeline says in words: a sentence for each moment, and the text that stands for the picture."""

from collections.abc import Iterator
from typing import Any

from mrv2lab import prose
from mrv2lab.audit.atoms import MISSING, Described
from mrv2lab.audit.timelines import Frozen, Timeline
from mrv2lab.timeline.columns import Column, Lanes, Moment

_TOLD: dict[str, str] = prose.beside(__file__)


def value_text(value: Any, frozen: Frozen | None, *, short: bool = False) -> str:
    """A host value as Python writes it; an address by its last digits."""
    if frozen is not None and frozen.is_address and isinstance(value, int):
        return f"0x…{value & 0xFFFFFF:06x}" if short else f"0x{value:x}"
    text = str(value) if isinstance(value, Described) else repr(value)
    if not short:
        return text
    text = text.removeprefix("a device ")  # a string begins with its quotes
    return text if len(text) <= 12 else text[:11] + "…"


def alt(found: Lanes) -> str:
    """The picture in words that are the same on every machine: no addresses, no counts."""
    names = " above ".join(timeline.name for timeline in found.timelines)
    return " ".join([f"Timeline of {names}.", *(_of_run(found, i) for i in range(len(found.timelines)))])


def _of_run(found: Lanes, run: int) -> str:
    timeline = found.timelines[run]
    lacking = (column.slot for i, column in enumerate(found.columns) if found.at(run, i).missing)
    missing = [slot.name for slot in lacking if slot and slot.sort == "work"]
    replay = [found.at(run, i) for i in found.of_phase("replay")]
    python = f"{'some' if any(m.python for m in replay) else 'no'} Python runs in the replay"
    if found.frozen and any(moment.python and moment.value is not MISSING for moment in replay):
        python = f"Python runs in the replay and reads {found.frozen.subject} anew"
    if not timeline.phases["capture"]:
        python = "nothing is captured, so Python runs each time"
    if timeline.frozen is None:
        return f"{timeline.name}: {python}, nothing is frozen that has changed."
    lost = f", and the graph lacks {', '.join(dict.fromkeys(missing))}" if missing else ""
    frozen = _TOLD["frozen_address" if timeline.frozen.is_address else "frozen_value"].format(timeline.frozen)
    return f"{timeline.name}: {python}; {frozen}{lost}."


def sentence(found: Lanes, run: int, column: int) -> str:
    moment, where, timeline = found.at(run, column), found.columns[column], found.timelines[run]
    frozen = timeline.frozen or found.frozen  # runs may hold on to different values of it
    values = {"value": moment.value, "old": frozen and frozen.old, "new": frozen and frozen.new}
    said: dict[str, Any] = {name: value_text(value, found.frozen) for name, value in values.items()}
    said |= {"subject": found.frozen and found.frozen.subject, "beside": moment.device - moment.graph}
    count = max(moment.python, moment.graph, moment.device, moment.missing)
    several = (f"{count} other pieces of work", "them")
    said["what"], said["them"] = ("one other piece of work", "it") if count == 1 else several
    if where.slot and where.slot.sort == "work":
        said["what"], said["them"] = where.slot.name, "it"
    told = " ".join(_TOLD[name] for name in _told(found.frozen, moment, where, timeline))
    return told.format(**vars(moment) | said)


def _told(frozen: Frozen | None, moment: Moment, where: Column, timeline: Timeline) -> Iterator[str]:
    """The sentences that hold, by their names."""
    if where.slot is None:
        yield "inputs"
        if frozen and moment.value is not MISSING:
            yield "address_now" if frozen.is_address else "value_now"
    elif where.slot.sort == "read" and moment.python:
        yield from ("read", *["read_is_frozen"] * moment.is_frozen)
    elif where.slot.sort == "read" and where.phase == "replay" and timeline.phases["capture"]:
        yield from ("not_read", *["not_read_and_stale"] * (timeline.frozen is not None))
    elif where.slot.sort == "read":
        yield "no_read"
    elif moment.missing and not moment.device:
        yield "missing"
    elif moment.graph and moment.device and not moment.python:
        yield "replayed"
        if moment.is_stale:
            yield "stale" if not frozen else "stale_address" if frozen.is_address else "stale_value"
        elif moment.missing:
            yield "too_few"
    elif moment.graph and moment.python and not moment.device:
        yield from ("recorded", *["address_is_frozen"] * moment.is_frozen)
    elif moment.graph:
        yield "some_replayed" if where.phase == "replay" else "some_recorded"
    elif moment.python:
        yield from (*["no_capture"] * (where.phase == "capture"), "issued")
    else:
        yield "not_issued" if where.slot.sort == "work" and where.phase != "replay" else "nothing"
