"""What a timeline says in words: a sentence for each moment, and the text that stands for the picture."""

from typing import Any

from mrv2lab.audit.timelines import Frozen, Timeline
from mrv2lab.timeline.columns import Column, Lanes, Moment, Slot


def value_text(value: Any, frozen: Frozen | None, *, short: bool = False) -> str:
    """A host value as Python writes it; an address by its last digits."""
    if frozen is not None and frozen.is_address and isinstance(value, int):
        return f"0x…{value & 0xFFFFFF:06x}" if short else f"0x{value:x}"
    text = repr(value)
    return text if not short or len(text) <= 12 else text[:11] + "…"


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
    if found.frozen and any(moment.python and moment.value is not None for moment in replay):
        python = f"Python runs in the replay and reads {found.frozen.subject} anew"
    if not timeline.phases["capture"]:
        python = "nothing is captured, so Python runs each time"
    if timeline.frozen is None:
        return f"{timeline.name}: {python}, nothing is frozen that has changed."
    lost = f", and the graph lacks {', '.join(dict.fromkeys(missing))}" if missing else ""
    return f"{timeline.name}: {python}; {_frozen(timeline.frozen)}{lost}."


def _frozen(frozen: Frozen) -> str:
    if frozen.is_address:
        held = f"the graph holds the address at which {frozen.subject} lay at capture"
        return f"{held}, and it lies elsewhere now"
    return f"{frozen.subject} was {frozen.old!r} at capture and is {frozen.new!r} now"


def sentence(found: Lanes, run: int, column: int) -> str:
    """What a run does in a column."""
    moment, where = found.at(run, column), found.columns[column]
    if where.slot is None:
        return _new_inputs(found, moment)
    if where.slot.sort == "read":
        return _read(found, moment, where, found.timelines[run])
    return _work(found, moment, where, where.slot)


def _new_inputs(found: Lanes, moment: Moment) -> str:
    text = "The inputs of the next step are written."
    if found.frozen is None or moment.value is None:
        return text
    now = value_text(moment.value, found.frozen)
    verb = "lies at" if found.frozen.is_address else "is"
    return f"{text} {found.frozen.subject} {verb} {now} now."


def _read(found: Lanes, moment: Moment, where: Column, timeline: Timeline) -> str:
    frozen = found.frozen
    assert frozen is not None
    if moment.python:
        text = f"Python reads {frozen.subject}: {value_text(moment.value, frozen)}."
        return f"{text} What it decides by that is frozen into the graph." if moment.is_frozen else text
    if where.phase == "replay" and timeline.phases["capture"]:
        text = f"No Python runs here, so nobody reads {frozen.subject}."
        if timeline.frozen is not None:
            old, new = (value_text(v, frozen) for v in (frozen.old, frozen.new))
            text += f" It is {new}, and the graph goes on as if it were {old}."
        return text
    return "Python reads no host value here."


def _work(found: Lanes, moment: Moment, where: Column, slot: Slot) -> str:
    what, them = slot.name, "it"
    if slot.sort != "work":
        count = max(moment.python, moment.graph, moment.device, moment.missing)
        one, several = ("one other piece of work", "it"), (f"{count} other pieces of work", "them")
        what, them = one if count == 1 else several
    if moment.missing and not moment.device:
        return f"An eager step would run {what} here. The graph does not hold {them}, so nothing runs."
    if moment.graph and moment.device and not moment.python:
        more = f" An eager step would run {moment.missing} more." if moment.missing else ""
        return f"The graph runs {what}, and no Python does.{_stale(found) if moment.is_stale else more}"
    if moment.graph and moment.python and not moment.device:
        text = f"Python issues {what}: written into the graph, not run."
        return f"{text} The address is frozen with {them}." if moment.is_frozen else text
    if moment.graph:
        verb = "are written into graphs" if where.phase == "capture" else "are run by graphs"
        beside = moment.device - (moment.graph if where.phase == "replay" else 0)
        return f"{moment.graph} other pieces of work {verb}; {beside} issued by Python and run at once."
    if moment.python:
        text = f"Python issues {what}, and the device runs {them} at once."
        return f"No capture is under way here: {text}" if where.phase == "capture" else text
    is_left_out = slot.sort == "work" and where.phase != "replay"
    return f"Python does not issue {what}." if is_left_out else "Nothing happens here."


def _stale(found: Lanes) -> str:
    if (frozen := found.frozen) is None:
        return " An eager step would do it differently."
    if frozen.is_address:
        return f" It reads {value_text(frozen.old, frozen)}; {frozen.subject} lies elsewhere now."
    return f" It was recorded for {frozen.subject} = {value_text(frozen.old, frozen)}."
