"""Timelines are made from runs: what they show is what was captured, replayed, read and found."""

import functools
from collections import Counter

import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrowPatch, Rectangle

from mrv2lab import looks
from mrv2lab.audit import AuditError, audit, timeline
from mrv2lab.audit.atoms import Described
from mrv2lab.audit.evidence import kept
from mrv2lab.audit.timelines import PHASES, Happening, Timeline
from mrv2lab.cases import CASES, get
from mrv2lab.cases.base import Case
from mrv2lab.graphs import host
from mrv2lab.plots import COLOURS
from mrv2lab.timeline import lanes, plot, sentence
from mrv2lab.timeline.draw import INK, Picture
from mrv2lab.timeline.words import value_text

SMALL = {name: {"num_layers": case.limits["num_layers"].least} for name, case in CASES.items()}
SMALL["lora_short_circuit"]["batch_size"] = 2
SMALL["lora_frozen_grid"]["batch_size"] = 3  # with two adapters and none
FROZEN = [
    (case.name, variant.name)
    for case in CASES.values()
    for variant in case.variants
    if variant.finding and variant.finding[0] in ("frozen-host-value", "moved-address")
]
FIXED = {name: CASES[name].exercise.solution for name, _ in FROZEN if CASES[name].exercise}
FIRST = {name: variant for name, variant in reversed(FROZEN)}  # of each case
each_frozen = pytest.mark.parametrize(
    ("name", "variant"),
    [pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in FIRST.items())) for pair in FROZEN],
)
AUDIT = Case.audit


@pytest.fixture(scope="module")
def made():
    """The timeline of a variant, its evidence and its report; each made once."""

    @functools.cache
    def make(name, variant, backend):
        def audit(case, *args, **kwargs):
            reports.append(AUDIT(case, *args, **kwargs))
            return reports[-1]

        reports = []
        with kept() as seen, pytest.MonkeyPatch.context() as patched:
            patched.setattr(Case, "audit", audit)
            (found,) = get(name).timelines(variant, rung=backend, **SMALL[name])
        return found, seen[-1], reports[-1]

    return make


def work(happenings):
    return [happening for happening in happenings if happening.is_work]


def flag_programs(device):
    """A step that asks the host, the same asking the device, and what the next step does to both."""
    x, on_host = torch.ones(3, device=device), host(torch.tensor([False]))
    on_device = torch.zeros(1, dtype=torch.bool, device=device)

    def asks_host():
        y = x + 1
        return y * 2 if on_host.item() else y

    def asks_device():
        y = x + 1
        return torch.where(on_device, y * 2, y)

    def raise_flags():
        on_host[0] = True
        on_device.fill_(True)

    def lower_flags():
        on_host[0] = False
        on_device.fill_(False)

    return asks_host, asks_device, raise_flags, lower_flags


@pytest.fixture
def flags(device, backend):
    asks_host, asks_device, raise_flags, lower_flags = flag_programs(device)
    buggy = timeline(asks_host, vary=raise_flags, backend=backend, role="buggy")
    lower_flags()
    return [buggy, timeline(asks_device, vary=raise_flags, backend=backend, role="fixed")]


# ---- what a timeline holds ----


@each_frozen
def test_python_captures_and_only_the_graph_replays(made, name, variant, backend):
    found, evidence, _ = made(name, variant, backend)
    warm_up, captured, replayed = (work(found.phases[phase]) for phase in PHASES)
    assert warm_up and all(h.in_python and h.on_device and not h.in_graph for h in warm_up)
    assert captured and all(h.in_python and h.in_graph and not h.on_device for h in captured)
    by_graph = [h for h in replayed if h.in_graph]
    assert by_graph and all(h.on_device and not h.in_python for h in by_graph)
    assert [h.name for h in by_graph] == [h.name for h in captured]
    if name != "breakable_graph":  # there the runner copies the result behind the graph
        assert by_graph == replayed
    assert not any(h.values for h in found.phases["replay"] if not h.is_work and h.in_graph)
    if backend == "emulated":
        (graph,) = {id(capture.graph): capture.graph for capture in evidence.replayed}.values()
        nodes = [n for n in graph.nodes if not any(map(evidence.session.cells.holds, n.addresses))]
        assert [h.name for h in by_graph] == [node.name for node in nodes]


@each_frozen
def test_what_is_frozen_is_what_the_audit_finds_first(made, name, variant, backend):
    found, _, report = made(name, variant, backend)
    first = report.findings[0]
    assert (found.frozen.kind, found.frozen.subject) == (first.kind, first.subject)
    assert found.frozen.place == first.where
    if found.frozen.is_address:
        assert found.frozen.old != found.frozen.new
    else:
        assert f"was {found.frozen.old!r} at capture, is {found.frozen.new!r} now" in first.evidence


@each_frozen
def test_the_frozen_value_was_read_at_capture_and_the_new_one_is_what_eager_reads(
    made, name, variant, backend
):
    found, *_ = made(name, variant, backend)
    frozen = found.frozen

    def read(happenings):
        here = [h for h in happenings if h.place == frozen.place and h.is_work == frozen.is_address]
        return {dict(h.values).get(frozen.label) for h in here}

    assert frozen.old in read(found.phases["capture"]) and frozen.new not in read(found.phases["capture"])
    assert frozen.new in read(found.eager)


@pytest.mark.parametrize(("name", "variant"), FIXED.items())
def test_a_repair_freezes_nothing_that_changes(made, name, variant, backend):
    found, *_ = made(name, variant, backend)
    assert found.frozen is None and found.affected == ()


def test_a_broken_capture_lets_python_run_in_the_replay(made, backend):
    found, *_ = made("breakable_graph", "breakable", backend)
    captured, replayed = (work(found.phases[phase]) for phase in ("capture", "replay"))
    assert any(h.on_device and not h.in_graph for h in captured)
    assert any(h.in_graph for h in captured)
    eagerly = {h.place.function for h in replayed if h.in_python}
    assert {"attend", "_context"} <= eagerly
    reads = [dict(h.values) for h in found.phases["replay"] if h.in_python and not h.is_work]
    longest = made("breakable_graph", "whole_graph", backend)[0].frozen.new
    assert longest in [values.get("meta.max_seq_len") for values in reads]


def test_the_warm_up_is_the_pass_before_the_capture_and_no_other(made, backend):
    found, *_ = made("flashmla_lazy_init", "shared_state", backend)
    names = [h.name for h in work(found.phases["warm-up"])]
    assert names.count("get_mla_metadata_kernel") == 1  # the first dummy run has a plan of its own
    once = Counter((h.name, h.place) for h in work(found.phases["warm-up"]))
    assert once <= Counter((h.name, h.place) for h in work(found.eager))
    asked = [dict(h.values) for h in found.phases["warm-up"] if h.place.line == found.frozen.place.line]
    assert asked and all(values[found.frozen.label] is None for values in asked)
    functions = {h.place.function for h in found.phases["warm-up"]}
    assert "_decode" in functions and "_prefill" not in functions


def test_silent_eager_has_no_capture(made, backend):
    found, *_ = made("pp_eager_fallback", "eager_fallback", backend)
    assert found.phases["capture"] == () and found.frozen is None
    assert all(h.in_python and h.on_device for h in work(found.phases["replay"]))
    assert "nothing is captured" in plot([found]).alt


@pytest.mark.parametrize(
    ("name", "variant"), [("flashmla_lazy_init", "captured_reused"), ("lora_device_assert", "unwritten")]
)
def test_an_audit_that_stops_before_a_replay_has_nothing_to_draw(name, variant, backend):
    with pytest.raises(AuditError, match="no replay to draw: unwritten-read"):
        get(name).timelines(variant, rung=backend)


def test_keeping_evidence_ends_with_the_context(device, backend):
    step = flag_programs(device)[0]
    with kept() as seen:
        audit(step, backend=backend)
    audit(step, backend=backend)
    assert len(seen) == 1


# ---- any step ----


def test_a_step_of_ones_own(flags):
    buggy, fixed = flags
    assert (buggy.frozen.subject, buggy.frozen.old, buggy.frozen.new) == ("on_host", False, True)
    assert [h.name for h in work(buggy.phases["replay"])] == ["aten.add"]
    assert [h.name for h in buggy.affected] == ["aten.mul"]
    assert fixed.frozen is None
    assert [h.name for h in work(fixed.phases["replay"])] == ["aten.add", "aten.mul", "aten.where"]


def test_two_functions_share_the_columns_of_what_both_do(flags):
    found = lanes(flags)
    assert [slot.name for slot in found.work()] == ["aten.add", "aten.mul", "aten.where"]
    replay = {found.columns[i].slot.name: i for i in found.of_phase("replay")}
    assert found.at(0, replay["aten.mul"]).missing == 1
    assert found.at(1, replay["aten.mul"]).graph == 1
    assert found.at(1, replay["aten.mul"]).missing == found.at(0, replay["aten.where"]).missing == 0
    lines = [found.at(run, replay["aten.mul"]).place.function for run in (0, 1)]
    assert lines == ["asks_host", "asks_device"]


def test_what_only_the_graph_does_is_marked(device, backend):
    state = {"twice": True}
    x = torch.ones(3, device=device)

    def step():
        y = x + 1
        if state["twice"]:
            y = y * 2
        return y

    found = lanes([timeline(step, vary=lambda: state.update(twice=False), backend=backend)])
    at = next(i for i in found.of_phase("replay") if found.columns[i].slot.name == "aten.mul")
    assert found.at(0, at).is_stale and not found.at(0, at).missing
    assert "recorded for state['twice'] = True" in sentence(found, 0, at)


def test_what_runs_beside_the_graph_is_not_missing():
    """A replay that Python helps out, and a node that is gone: only the node is missing."""

    def done(name, line, in_graph):
        return Happening(name, None, (line, name, 0), not in_graph, in_graph, True)

    eager = (done("aten.add", 1, False), done("aten.mul", 2, False), done("aten.sub", 3, False))
    replay = (done("aten.add", 1, True), eager[1])
    phases = {"warm-up": eager, "capture": (), "replay": replay}
    found = lanes([Timeline("step", "emulated", phases, eager, None, eager[2:])])
    missing = {found.columns[i].slot.name: found.at(0, i).missing for i in found.of_phase("replay")}
    assert missing == {"aten.add": 0, "aten.mul": 0, "aten.sub": 1}


# ---- the picture ----


def columns_of(name, made, backend):
    return lanes([made(name, variant, backend)[0] for variant in (FIRST[name], FIXED[name])])


@pytest.mark.parametrize("name", FIXED)
def test_a_picture_stays_small_and_loses_nothing(made, name, backend):
    found = columns_of(name, made, backend)
    assert len(found.work()) <= 4 and len(found.columns) <= 30
    for run, each in enumerate(found.timelines):
        for phase in PHASES:
            moments = [found.at(run, i) for i in found.of_phase(phase)]
            happened = work(each.phases[phase])
            assert sum(moment.graph for moment in moments) == sum(h.in_graph for h in happened)
            assert sum(moment.device for moment in moments) == sum(h.on_device for h in happened)


def test_the_columns_are_chosen_by_what_is_missing(made, backend):
    found = columns_of("lora_short_circuit", made, backend)
    assert {"_lora_shrink_kernel", "_lora_expand_kernel"} <= {slot.name for slot in found.work()}
    slots = [found.columns[i].slot for i in found.of_phase("replay")]
    assert [slot.sort for slot in slots] == ["rest", "read", "work", "work", "work", "rest"]
    missing = [s.name for s, i in zip(slots, found.of_phase("replay"), strict=True) if found.at(0, i).missing]
    _, _, report = made("lora_short_circuit", "zero_mapping", backend)
    assert {name for name in missing if name} == {
        f.subject for f in report.findings if f.kind == "lost-kernel"
    }
    assert not any(found.at(1, i).missing for i in range(len(found.columns)))


def dashed(figure):
    boxes = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    return [box for box in boxes if box.get_linestyle() not in ("-", "solid")]


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize("name", FIXED)
def test_what_is_missing_is_dashed_and_what_is_frozen_is_said(made, name, backend):
    found = columns_of(name, made, backend)
    figure = Picture(found).figure
    missing = [moment for moment in found.moments.values() if moment.missing]
    assert len(dashed(figure)) == 2 * len(missing)  # in the graph, and on the device
    assert sum(text.startswith("frozen: ") for text in texts(figure)) == 1
    alone = Picture(lanes(found.timelines[1:])).figure
    assert not dashed(alone) and not any("frozen" in text for text in texts(alone))


def test_the_picture_says_where_it_comes_from(flags, backend):
    figure = Picture(lanes(flags)).figure
    model = ", a model of capture on the CPU" if backend == "emulated" else ""
    assert f"run for this page, rung {backend}{model}" in texts(figure)
    assert f">run for this page, rung {backend}{model}</text>" in plot(flags).svg()


def test_boxes_have_names_where_there_is_room_and_letters_where_there_is_not(flags, made, backend):
    assert {"add", "mul", "where", "?"} <= set(texts(Picture(lanes(flags)).figure))
    crowded = Picture(columns_of("lora_short_circuit", made, backend))
    assert {"A", "B", "C", "?"} <= set(texts(crowded.figure)) and "add" not in texts(crowded.figure)
    assert "_lora_shrink_kernel" in texts(crowded.figure)  # below, with its letter


def test_what_is_left_of_counted_work_is_not_dashed_and_what_is_lost_is(made, backend):
    found = columns_of("lora_short_circuit", made, backend)
    last = found.of_phase("replay")[-1]
    moment = found.at(0, last)
    assert moment.graph and moment.missing
    figure = Picture(found).figure
    assert f"+{moment.missing}" in texts(figure) and f"…{moment.graph}" in texts(figure)
    heights = {round(box.get_height(), 2) for box in dashed(figure)}
    assert len(heights) == 2 and max(heights) == 2 * min(heights)


def test_the_rail_ends_at_the_last_box_that_is_wrong_and_an_arrow_points_at_each(made, backend):
    found = columns_of("lora_short_circuit", made, backend)
    picture = Picture(found)
    wrong = [i for i in found.of_phase("replay") if found.at(0, i).missing or found.at(0, i).is_stale]
    middles = [sum(picture.spans[i]) / 2 for i in wrong]
    arrows = [patch for patch in picture.axes.patches if isinstance(patch, FancyArrowPatch)]
    assert [arrow._posA_posB[1][0] for arrow in arrows] == middles
    rails = [line for line in picture.axes.lines if line.get_color() == COLOURS["buggy"]]
    assert [rail.get_xdata()[-1] for rail in rails] == [middles[-1]]


def test_empty_lanes_are_named(flags):
    figure = Picture(lanes(flags)).figure
    assert texts(figure).count("no Python runs") == texts(figure).count("nothing runs") == 2


def luminance(colour):
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


@pytest.mark.parametrize("ink", [INK, COLOURS["buggy"], COLOURS["tempting"], COLOURS["fixed"]])
def test_ink_can_be_read_on_light_pages_and_on_dark_ones(ink):
    for colour, paper in ((ink, "#ffffff"), (looks.DARK[ink], looks.DARK["#ffffff"])):
        light, dark = sorted((luminance(colour), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 4.5


# ---- words ----


@pytest.mark.parametrize("name", FIXED)
def test_the_text_holds_no_address(made, name, backend):
    assert "0x" not in plot(columns_of(name, made, backend).timelines).alt


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "pp_eager_fallback")) for name in FIXED]
)  # fmt: skip
def test_the_text_is_the_same_for_another_run_of_the_same(made, name, backend):
    found = columns_of(name, made, backend)
    again = get(name).timelines(*(t.name for t in found.timelines), rung=backend, **SMALL[name])
    assert plot(again).alt == plot(found.timelines).alt


def test_the_text_says_what_the_picture_shows(flags):
    assert plot(flags).alt == (
        "Timeline of asks_host above asks_device. asks_host: no Python runs in the replay; "
        "on_host was False at capture and is True now, and the graph lacks aten.mul. "
        "asks_device: no Python runs in the replay, nothing is frozen that has changed."
    )


def test_a_sentence_for_each_moment(flags):
    found = lanes(flags)
    at = {(c.phase, (c.slot.name or c.slot.sort) if c.slot else None): i for i, c in enumerate(found.columns)}
    assert sentence(found, 0, at["warm-up", "aten.add"]) == (
        "Python issues aten.add, and the device runs it at once."
    )
    assert sentence(found, 0, at["capture", "aten.add"]) == (
        "Python issues aten.add: written into the graph, not run."
    )
    assert sentence(found, 0, at["capture", "read"]) == (
        "Python reads on_host: False. What it decides by that is frozen into the graph."
    )
    assert sentence(found, 0, at["new inputs", None]).endswith("on_host is True now.")
    assert "goes on as if it were False" in sentence(found, 0, at["replay", "read"])
    assert "so nothing runs" in sentence(found, 0, at["replay", "aten.mul"])
    assert sentence(found, 1, at["replay", "aten.mul"]) == "The graph runs aten.mul, and no Python does."


def test_a_run_goes_on_by_the_value_that_its_own_graph_holds(made):
    """The one that it was shown beside holds another."""
    both = [made("lora_frozen_grid", variant, "emulated")[0] for variant in ("one_slot", "keyed_short")]
    found = lanes(both)
    held = [timeline.frozen.old for timeline in found.timelines]
    at = next(i for i in found.of_phase("replay") if found.columns[i].slot.sort == "read")
    assert held == [1, 2]
    assert [f"goes on as if it were {old}." in sentence(found, i, at) for i, old in enumerate(held)] == [
        True,
        True,
    ]


def test_the_graph_fills_while_it_is_captured(flags):
    found = lanes(flags)
    first, *_, last = found.of_phase("capture")
    assert found.nodes_until(1, first) == {"aten.add": 1}
    assert found.nodes_until(1, last) == {"aten.add": 1, "aten.mul": 1, "aten.where": 1}
    assert found.nodes_until(0, len(found.columns)) == {"aten.add": 1}


@pytest.mark.parametrize(
    ("value", "short"),
    [
        (None, "None"),
        (Described("a device tensor"), "tensor"),
        (Described("list of length 40"), "list of len…"),
        ("a device tensor", "'a device t…"),
    ],
)
def test_a_value_in_a_picture_is_short_and_no_other(value, short):
    assert value_text(value, None, short=True) == short
