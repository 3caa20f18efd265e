"""What leaks into both passes of an audit, and shows beside a fresh engine."""

import re
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mrv2lab.audit import audit
from mrv2lab.audit.memory import RowsWritten, Shadow
from mrv2lab.errors import AuditError, NotRepeatable
from mrv2lab.graphs import capture


def engine(device, kind):
    """Two static inputs, of which the runner may forget to refresh one behind the capture."""
    x, scale = torch.ones(3, device=device), torch.ones(3, device=device)
    held = SimpleNamespace(results=[], number=0)
    table = {"plan": None}

    def step():
        if kind == "planned" and table["plan"] is None:
            table["plan"] = held.number + 1
        factor = table["plan"] or 1
        held.out = x * scale * factor
        return held.out

    def eager():
        return x * (held.number + 1.0) if kind == "stale" else step()

    def vary():
        held.number += 1
        x.fill_(held.number)
        if kind != "stale":
            scale.fill_(held.number + 1)
        if kind == "planned_anew":
            table["plan"] = None
        if kind == "kept":
            held.results.append(getattr(held, "out", x))

    made = {"step": step, "vary": vary, "eager": eager, "reset": None}
    if kind == "kept":
        made["finish"] = lambda: torch.stack(held.results[1:])
    return SimpleNamespace(**made)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("stale", ("stale-input", "scale")),
        ("kept", ("overwritten-output", "held.out")),
        ("right", None),
    ],
)
def test_what_both_passes_share_shows_beside_a_fresh_engine(kind, found, device, backend):
    def asked(**twin):
        one = engine(device, kind)
        return audit(one.step, vary=one.vary, backend=backend, **twin)

    assert not asked().findings
    findings = asked(twin=lambda: engine(device, kind)).findings
    assert [(f.kind, f.subject) for f in findings] == ([found] if found else [])


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_replay_that_raises_where_eager_steps_do_not_is_named_by_what_it_reads(goes_on, device, backend):
    if backend == "cuda":
        pytest.skip("an index out of range ends the process there")

    def make():
        table, position = torch.ones(8, device=device), torch.zeros(1, dtype=torch.int64, device=device)

        def step():
            y = table[position]
            if goes_on:
                position.add_(3)
            return y

        def eager():
            position.zero_()
            return table[position]

        def vary():
            if not goes_on:
                position.add_(3)

        return SimpleNamespace(step=step, vary=vary, eager=eager)

    one = make()
    (first,) = audit(one.step, vary=one.vary, twin=make, backend=backend).findings
    assert "raised IndexError" in first.evidence
    found = (first.kind, first.where.source)
    if goes_on:
        assert found == ("not-rearmed", "position.add_(3)") and first.subject == "position"
    else:
        assert found == ("diverged", "y = table[position]")


def test_a_key_that_leaves_out_what_a_graph_holds_shows_at_the_line_that_reads_it(device, backend):
    """The engine looks its graph up by rows alone; the graph holds the number of tokens of its capture."""

    def make():
        x, lens = torch.arange(64.0, device=device), torch.full((2, 1), 4, device=device)
        batch, captured = SimpleNamespace(tokens=4), {}

        def attention():
            seen = torch.arange(batch.tokens, device=device) < lens
            return (seen * x[: batch.tokens]).sum(1)

        def step():
            if len(lens) not in captured:
                attention()
                captured[len(lens)] = capture(attention, backend=backend)
            captured[len(lens)].replay()
            return captured[len(lens)].outputs

        def vary():
            batch.tokens += 3
            lens.fill_(batch.tokens)

        return SimpleNamespace(step=step, vary=vary, eager=lambda: attention(), batch=batch)

    one = make()
    (first, *_) = audit(one.step, vary=one.vary, twin=make, backend=backend).findings
    assert (first.kind, first.subject, first.change) == ("frozen-host-value", "batch.tokens", (4, 7))


def padded(device, mixes):
    """Four rows, of which fewer are real later; eagerly the step takes the real ones alone."""
    x, batch = torch.ones(4, 3, device=device), SimpleNamespace(rows=4)
    bias = torch.ones(4, 1, device=device)  # is read first, and each row keeps its own

    def forward(rows, bias):
        bias = bias * 2
        scale = rows.abs().amax() if mixes else rows.abs().amax(1, keepdim=True)  # MIXES
        return rows / scale + bias

    def vary():
        batch.rows = max(1, batch.rows - 1)
        x.copy_(torch.arange(12.0, device=device).view(4, 3) + 1)
        x[batch.rows :] *= 10

    def eager():
        return forward(x[: batch.rows], bias[: batch.rows])

    made = {"step": lambda: forward(x, bias), "eager": eager, "vary": vary}
    return SimpleNamespace(**made, rows=lambda: batch.rows, finish=None)


@pytest.mark.parametrize("mixes", [True, False])
def test_where_real_rows_meet_padding_is_the_place(mixes, device, backend):
    one = padded(device, mixes)
    found = audit(one.step, vary=one.vary, twin=lambda: padded(device, mixes), backend=backend).findings
    assert [(f.kind, f.subject, "MIXES" in f.where.source) for f in found] == (
        [("padding-leak", "x", True)] if mixes else []
    )
    assert all("aten.amax is the first" in f.evidence for f in found)


def states_of(device, slots_of_padding="stale", writes="all", clears=False):
    """States by slot, written for all rows of a batch, padded ones too."""
    states = torch.zeros(7, device=device)
    slots, written = (torch.full((4,), 6, dtype=torch.int64, device=device) for _ in range(2))
    x, batch = torch.ones(4, device=device), SimpleNamespace(size=4)
    batches, known = iter([[0, 1, 2, 3], [4, 5], [0, 1, 2, 3], [5], [5, 1]]), set()

    def step():
        accepted = states[slots] * 0.5 + x
        states.index_copy_(0, written if slots_of_padding == "stale" else slots, accepted)  # LEAVES
        return accepted

    def vary():
        new = next(batches)
        batch.size = len(new)
        slots.fill_(6)
        for each in slots, written:
            each[: batch.size] = torch.tensor(new, device=device)
        if writes == "all":
            x.add_(1)
        else:
            x[: batch.size] += 1
        for slot in [one for one in new if clears and one not in known]:
            if clears != "at first" or known < {0, 1, 2, 3}:
                states[slot] = 0.0  # a new request's
            known.add(slot)

    return SimpleNamespace(step=step, vary=vary, rows=lambda: batch.size)


@pytest.mark.parametrize(
    "how, subjects",
    [
        ({}, {"written"}),
        ({"writes": "real"}, {"written", "x"}),
        ({"slots_of_padding": "a slot of its own", "writes": "real"}, set()),
        ({"slots_of_padding": "a slot of its own", "writes": "real", "clears": True}, set()),
        ({"slots_of_padding": "a slot of its own", "writes": "real", "clears": "at first"}, set()),
    ],
)
def test_padding_that_is_left_in_a_state_shows_where_a_later_request_reads_it(how, subjects, device, backend):
    one = states_of(device, **how)
    made = {"vary": one.vary, "rows": one.rows, "backend": backend}
    found = audit(one.step, twin=lambda: states_of(device, **how), **made).findings
    assert {(f.kind, f.subject) for f in found} == {("padding-leak", subject) for subject in subjects}
    assert all(f.where.source for f in found)


def behind_the_rows(device, step, dtype=torch.float32):
    """Batches of other sizes; what an earlier one has left behind the rows stays there."""
    x, batch = torch.ones(4, dtype=dtype, device=device), [4]
    batches = iter([[1, 2, -3, 7], [5, 6], [7], [1, -2, 3], [4]])

    def vary():
        new = next(batches)
        batch[0] = len(new)
        x[: len(new)] = torch.tensor(new, dtype=dtype, device=device)

    return SimpleNamespace(step=lambda: step(x), vary=vary, rows=lambda: batch[0], x=x)


def any_negative(x):
    return x.new_ones(4) * torch.where((x < 0).any(), 2, 1)


def any_stop(x):
    return x.new_ones(4) * torch.where((x == 7).any(), 2, 1)


@pytest.mark.parametrize("has_twin", [False, True])
@pytest.mark.parametrize(
    "step, dtype", [(any_negative, torch.float32), (any_stop, torch.float32), (any_stop, torch.int64)]
)
def test_what_earlier_rows_have_left_is_asked_beside_patterns(step, dtype, has_twin, device, backend):
    """Neither a large number nor NaN is below 0 or equal to 7, and neither 0 nor 1 is 7."""
    make = partial(behind_the_rows, device, step, dtype)
    one = make()
    how = {"twin": make if has_twin else None, "backend": backend}
    assert {f.subject for f in audit(one.step, vary=one.vary, rows=one.rows, **how).findings} == {"x"}


def sums_by_request(device, is_read_later):
    """Four requests have eight tokens. What one behind them adds is read at once, or by the next batch."""
    x, of = torch.ones(8, device=device), torch.zeros(8, dtype=torch.int64, device=device)
    state, batch = torch.zeros(4, device=device), [4]
    sizes = iter([(4, 8), (2, 4), (2, 3), (1, 2), (2, 4)])

    def step():
        seen, sums = state * 2, torch.zeros_like(state).index_add(0, of, x)
        state.copy_(sums)
        return seen if is_read_later else sums

    def vary():
        batch[0], num_tokens = next(sizes)
        x[:num_tokens] += 1
        of[:num_tokens] = torch.arange(num_tokens, device=device) * batch[0] // num_tokens

    return SimpleNamespace(step=step, vary=vary, rows=lambda: batch[0])


def beside_odd_types(device, **how):
    """The same, in an engine that holds inputs of types that torch neither compares nor fills."""
    one, types = states_of(device, **how), (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16)
    odd = [torch.ones(4, device=device).to(dtype) for dtype in types]

    def step(step=one.step):
        return step() + sum(one.to(torch.float32) for one in odd)

    def vary(vary=one.vary):
        vary()
        for tensor in odd:
            tensor[: one.rows()].copy_(torch.full((one.rows(),), 2.0, device=device).to(tensor.dtype))

    one.step, one.vary = step, vary
    return one


def in_place(device):
    """What the step makes lies in a buffer, and it returns nothing."""
    one, out = states_of(device), torch.zeros(4, device=device)

    def step():
        out.copy_(made())

    made, one.step = one.step, step
    return one


@pytest.mark.parametrize(
    "make, subject, has_twin",
    [
        (partial(sums_by_request, is_read_later=False), "of", False),
        (partial(sums_by_request, is_read_later=True), "x", True),
        (in_place, "written", True),
        (beside_odd_types, "written", True),
    ],
)
def test_inputs_of_another_length_than_results_have_padding_too(make, subject, has_twin, device, backend):
    one, twin = make(device), partial(make, device) if has_twin else None
    found = audit(one.step, vary=one.vary, rows=one.rows, twin=twin, backend=backend).findings
    assert ("padding-leak", subject) in {(f.kind, f.subject) for f in found}


def in_batches(write, sizes=(2, 3, 1, 2, 3, 1)):
    """`vary`, which has the rows of each next batch written, and `rows`."""
    batch, left = [4], iter(sizes)

    def vary():
        batch[0] = next(left)
        write(batch[0])

    return {"vary": vary, "rows": lambda: batch[0]}


def side_by_side(device, leaks):
    """Three inputs that lie in one memory; the step mixes the rows of one of them."""
    memory, batch = torch.ones(24, device=device), [4]
    x, y, z = (memory[8 * n : 8 * (n + 1)].view(4, 2) for n in range(3))
    held, sizes = SimpleNamespace(x=x, y=y, z=z), iter([2, 3, 1, 2, 3, 1])

    def vary():
        batch[0] = next(sizes)
        for tensor in vars(held).values():
            tensor[: batch[0]] += 1

    def step():
        return held.x + held.y + held.z + getattr(held, leaks).mean(0)

    return SimpleNamespace(step=step, vary=vary, rows=lambda: batch[0])


@pytest.mark.parametrize("has_twin", [False, True])
@pytest.mark.parametrize("leaks", ["x", "y", "z"])
def test_inputs_that_lie_in_one_memory_are_told_apart(leaks, has_twin, device, backend):
    one, twin = side_by_side(device, leaks), partial(side_by_side, device, leaks) if has_twin else None
    found = audit(one.step, vary=one.vary, rows=one.rows, twin=twin, backend=backend).findings
    assert [(f.kind, f.subject) for f in found] == [("padding-leak", f"held.{leaks}")]


def with_slots(device, null_slot, mixes=False):
    """Padding is written to a slot that nobody reads, and the step returns nothing."""
    x, out = torch.ones(4, device=device), torch.zeros(4, device=device)
    slots, pool = torch.arange(4, device=device), torch.zeros(7, device=device)

    def step():
        pool.index_copy_(0, slots, x)
        out.copy_(pool[slots] + (x.mean() if mixes else 0))

    def write(rows):
        slots.fill_(null_slot)
        slots[:rows] = (torch.arange(rows, device=device) + null_slot + 1) % 7
        x[:rows] += 1

    return SimpleNamespace(step=step, **in_batches(write))


@pytest.mark.parametrize("has_twin", [False, True])
def test_beside_rows_that_are_written_a_pool_counts_for_none(has_twin, device, backend):
    twin = partial(with_slots, device, 0, True) if has_twin else None
    one = with_slots(device, 0, True)
    found = audit(one.step, vary=one.vary, rows=one.rows, twin=twin, backend=backend).findings
    assert [(f.kind, f.subject) for f in found] == [("padding-leak", "x")]


def whole_beside_part(device):
    """All of one input is written, and the real rows of another."""
    x, places = torch.ones(4, device=device), torch.ones(4, device=device)

    def write(rows):
        x.add_(1)
        places[:rows] += 1

    return SimpleNamespace(step=lambda: places + x.mean(), **in_batches(write))


def test_of_each_input_it_is_told_that_it_was_not_asked(device, backend):
    one = whole_beside_part(device)
    (note,) = audit(one.step, vary=one.vary, rows=one.rows, backend=backend).notes
    assert note.startswith("vary() has written x behind its 2 real rows too")


def test_a_twin_without_rows_is_told(device, backend):
    def make():
        one = states_of(device)
        del one.rows
        return one

    one = states_of(device)
    report = audit(one.step, vary=one.vary, rows=one.rows, twin=make, backend=backend)
    assert "what padding leaves in a state was not asked: a twin tells no rows" in report.notes


def left_two_requests_back(device):
    """A mark that only the first request has reached."""
    x, of = torch.ones(4, device=device), torch.zeros(4, dtype=torch.int64, device=device)

    def write(rows):
        x[:rows] += 1
        of[:rows] = 1

    # The last mark counts from the third request on.
    step = lambda: x + of[2] * (x[0] > 3)  # noqa: E731 - has no name to tell
    return SimpleNamespace(step=step, **in_batches(write, [3, 1, 1, 1, 1, 1]))


@pytest.mark.parametrize("has_twin", [False, True])
def test_what_any_request_has_left_is_asked(has_twin, device, backend):
    one, twin = left_two_requests_back(device), partial(left_two_requests_back, device) if has_twin else None
    found = audit(one.step, vary=one.vary, rows=one.rows, twin=twin, backend=backend).findings
    assert [(f.kind, f.subject) for f in found] == [("padding-leak", "of")]


def used_up(device):
    """A step writes its input, as one that draws tokens does: it is zero then."""
    x, total = torch.ones(4, device=device), torch.zeros(1, device=device)

    def step():
        seen = total + x
        total.copy_(x.sum(0, keepdim=True))
        x[:2].zero_()
        return seen

    def write(rows):
        x[:rows] += 2

    return SimpleNamespace(step=step, **in_batches(write))


def test_an_input_that_the_step_writes_has_padding_too(device, backend):
    one = used_up(device)
    report = audit(one.step, vary=one.vary, rows=one.rows, twin=partial(used_up, device), backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == [("padding-leak", "x")]


@pytest.mark.parametrize("dtypes", ["one", "several"])
@pytest.mark.parametrize("leaks", ["q", "v"])
def test_parts_of_a_buffer_that_lie_between_each_other_are_asked_one_by_one(leaks, dtypes, device, backend):
    if dtypes == "one":  # by columns
        memory = torch.ones(4, 4, device=device)
        q, v = memory[:, :2], memory[:, 2:]
    else:
        memory = torch.zeros(48, dtype=torch.uint8, device=device)
        q, v = memory[:16].view(torch.float32).view(4, 1), memory[16:].view(torch.float64).view(4, 1)
    held, batch, sizes = SimpleNamespace(q=q, v=v), [4], iter([2, 3, 1, 2, 3, 1])

    def vary():
        batch[0] = next(sizes)
        q[: batch[0]] += 1
        v[: batch[0]] += 2

    step = lambda: held.q.sum(1) + held.v.sum(1) + getattr(held, leaks).mean()  # noqa: E731 - reads both
    found = audit(step, vary=vary, rows=lambda: batch[0], backend=backend).findings
    assert [(f.kind, f.subject) for f in found] == [("padding-leak", f"held.{leaks}")]


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_number_that_is_written_beside_rows_is_asked_too(shape, device, backend):
    x, out, loss = (torch.ones(size, device=device) for size in (4, 4, shape))

    def step():
        out.copy_(x * 2)
        loss.copy_(x.sum().reshape(shape))

    found = audit(step, vary=lambda: x[:2].add_(1), rows=lambda: 2, backend=backend).findings
    assert [(f.kind, f.subject) for f in found] == [("padding-leak", "x")]


@pytest.mark.parametrize("has_twin", [False, True])
def test_of_a_buffer_and_its_views_the_buffer_is_told(has_twin, device, backend):
    def make():
        held, batch = SimpleNamespace(qkv=torch.ones(4, 6, device=device)), [4]
        held.q, held.k, held.v = held.qkv.split(2, dim=1)
        sizes = iter([2, 3, 1, 2, 3, 1])

        def vary():
            batch[0] = next(sizes)
            held.qkv[: batch[0]] += 1

        return SimpleNamespace(step=lambda: held.q + held.k.mean(0), vary=vary, rows=lambda: batch[0])

    one = make()
    how = {"twin": make if has_twin else None, "backend": backend}
    assert [f.subject for f in audit(one.step, vary=one.vary, rows=one.rows, **how).findings] == ["held.qkv"]


def fitted(device):
    """A buffer that is made as long as the batch, in place, where it lies."""
    x, wide = torch.ones(4, device=device), torch.ones(64, device=device)

    def write(rows):
        wide.resize_(4 + rows)
        wide[:4] = 1
        x[:rows] += 1

    return SimpleNamespace(step=lambda: x * wide[0], **in_batches(write))


def a_slot_ahead(device):
    """`vary` writes the rows of the batch, and one that the next batch is to have."""
    x = torch.ones(4, device=device)

    def write(rows):
        x[:rows] += 1
        x[3] += 1

    return SimpleNamespace(step=lambda: x + x[2], **in_batches(write, [2, 1, 2, 1, 2, 1]))


def marks(device, dtype, nobody, begin, sizes):
    """Who is in the batch is marked; marks are taken away only as far as the last batch reached."""
    group, batch = torch.full((4,), nobody, dtype=dtype, device=device), [begin]
    x, seen = torch.ones(4, 2, device=device), torch.zeros(1, device=device)
    group[:begin] = 0
    sizes = iter(sizes)

    def step():
        rows = torch.where(group > nobody, x.sum(1), 0.0)
        out = rows + seen + (rows.sum() if begin or dtype.is_floating_point else 0.0)
        seen.copy_(rows.sum(0, keepdim=True))
        return out

    def vary():
        num, last = next(sizes), batch[0]
        group[:num] = torch.arange(num, dtype=dtype, device=device)
        group[num : max(num, last)] = nobody
        x[:num, 0] += 1  # the other column stays
        batch[0] = num

    return SimpleNamespace(step=step, vary=vary, rows=lambda: batch[0])


def cleared_at_times(device, is_read_later):
    """Rows that nobody has are zeroed every other time."""
    x, state, batch = torch.ones(4, device=device), torch.zeros(1, device=device), [4]
    sizes = iter([1, 3, 2, 3, 1, 3, 2])

    def step():
        out = x + (state if is_read_later else x.sum())
        state.copy_(x.sum(0, keepdim=True))
        return out

    def vary():
        batch[0] = next(sizes)
        x[: batch[0]] += 1
        if batch[0] == 1:
            x[1:] = 0

    return SimpleNamespace(step=step, vary=vary, rows=lambda: batch[0])


def test_who_clears_no_row_has_cleared_none(device, backend):
    """An empty slice is written, as by an engine whose batch is full."""
    one = behind_the_rows(device, lambda x: x + x.sum())
    found = audit(one.step, vary=lambda: (one.vary(), one.x[4:].fill_(0)), rows=one.rows, backend=backend)
    assert {f.subject for f in found.findings} == {"x"}


@pytest.mark.parametrize("is_read_later", [False, True])
def test_a_row_that_was_somebodys_again_is_not_cleared(is_read_later, device, backend):
    make = partial(cleared_at_times, device, is_read_later)
    one = make()
    how = {"twin": make if is_read_later else None, "backend": backend}
    assert {f.subject for f in audit(one.step, vary=one.vary, rows=one.rows, **how).findings} == {"x"}


def two_names(device):
    """Of the same memory."""
    x, batch = torch.ones(4, 2, device=device), SimpleNamespace(size=4)
    column, sizes = x[:, 0], iter([4, 2, 3, 1, 4])

    def vary():
        batch.size = next(sizes)
        x[: batch.size] += 1

    return SimpleNamespace(step=lambda: x.sum(1) + column, vary=vary, rows=lambda: batch.size)


def accumulators(device):
    """More than there are rows: vary clears as many as are real, and what stands in all is read."""
    x, sums, batch = torch.ones(4, device=device), torch.zeros(7, device=device), [4]
    sizes = iter([3, 2, 3, 1, 3])

    def step():
        sums.add_(1)
        return x + sums.sum()

    def vary():
        batch[0] = next(sizes)
        x[: batch[0]] += 1
        sums[: batch[0]] = 0

    return SimpleNamespace(step=step, vary=vary, rows=lambda: batch[0])


def floats_as_indices(device):
    """A large number behind the rows is no place of the table, and NaN is none either."""
    table, x, batch = torch.arange(8.0, device=device), torch.ones(4, device=device), [4]
    sizes = iter([3, 2, 3, 1, 3])

    def vary():
        batch[0] = next(sizes)
        x[: batch[0]] = torch.arange(1.0, batch[0] + 1, device=device)

    return SimpleNamespace(step=lambda: table[x.long()], vary=vary, rows=lambda: batch[0])


def filled_in_turn(device, step, num_rows):
    """A slot, place or row at a time, of what the step only reads."""
    pool, x, turn = torch.eye(num_rows, 4, device=device), torch.ones(4, 4, device=device), [0]
    slots = torch.zeros(4, dtype=torch.int64, device=device)

    def vary():
        turn[0] += 1
        pool[(turn[0] + 2) % num_rows] += turn[0]
        slots[:2] = torch.tensor([turn[0] % num_rows, 0])
        x[:2] += 1

    return SimpleNamespace(step=lambda: step(x, pool, slots), vary=vary, rows=lambda: 2)


def in_a_buffer(device):
    """What is made of each row lies there, and nothing is returned or read again."""
    x, out, batch = torch.ones(4, device=device), torch.zeros(4, device=device), [4]
    sizes = iter([3, 2, 3, 1, 2])

    def vary():
        batch[0] = next(sizes)
        x[: batch[0]] += 1

    def step():
        out.copy_(x * 2)

    return SimpleNamespace(step=step, vary=vary, rows=lambda: batch[0])


def table_of(device, num_entries, begin):
    """Each row names an entry of a table, from `begin` on; 0 or 1 need not be one."""
    table, x = torch.arange(1.0, num_entries + 1, device=device), torch.ones(4, device=device)
    entries, batch = torch.full((4,), begin, dtype=torch.int64, device=device), [4]
    sizes = iter([4, 3, 2, 3, 1, 2])

    def vary():
        batch[0] = next(sizes)
        entries[: batch[0]] = torch.arange(batch[0], device=device) % num_entries + begin
        x[: batch[0]] += 1

    return SimpleNamespace(step=lambda: x * table[entries - begin], vary=vary, rows=lambda: batch[0])


def loaded_for_later(device):
    """Of six entries vary loads the first ones, and rows use others."""
    table, x, batch = torch.ones(6, device=device), torch.ones(4, device=device), [4]
    entries = torch.tensor([4, 5, 0, 0], device=device)
    sizes = iter([3, 2, 3, 1, 2])

    def vary():
        batch[0] = next(sizes)
        table[: batch[0]] += 1
        x[: batch[0]] += 1

    return SimpleNamespace(step=lambda: x * table[entries], vary=vary, rows=lambda: min(2, batch[0]))


def grows_at_one_address(device):
    """Host memory that is bound anew, larger each time, where the smaller one lay."""
    arena, state = np.zeros(1 << 21, dtype=np.float32), SimpleNamespace(size=64)
    x, batch = torch.ones(4, device=device), [4]
    state.raw = torch.from_numpy(arena[: state.size])
    sizes = iter([3, 2, 3, 1, 2])

    def vary():
        batch[0] = next(sizes)
        state.raw.fill_(batch[0])
        state.size *= 8
        state.raw = torch.from_numpy(arena[: state.size])
        x[: batch[0]] += 1

    step = lambda: x * 2 if state.raw is not None else None  # noqa: E731 - reads it
    return SimpleNamespace(step=step, vary=vary, rows=lambda: batch[0])


def test_what_lies_where_something_else_lay_is_another_tensor():
    """A larger one would be written behind the end of what is known of the smaller one."""
    small, large = (torch.from_numpy(np.zeros(64, dtype=np.float32)[:size]) for size in (8, 64))
    shadow, known = Shadow(small), RowsWritten(small)
    assert shadow.view(small).shape == (8,) and shadow.view(large) is None
    assert shadow.view(torch.as_strided(small, (2, 2), (4, 3))).shape == (2, 2)
    assert known.is_of(small) and not known.is_of(large) and not known.is_of(small.view(8))


ASSERTS = pytest.mark.skipif(torch.cuda.is_available(), reason="a bad index is an assert there")


@pytest.mark.parametrize("has_twin", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        two_names,
        accumulators,
        pytest.param(
            floats_as_indices, marks=pytest.mark.skipif(torch.cuda.is_available(), reason="asserts")
        ),
        in_a_buffer,
        a_slot_ahead,
        fitted,
        partial(with_slots, null_slot=0),
        partial(with_slots, null_slot=6),
        partial(beside_odd_types, slots_of_padding="a slot of its own", writes="real"),
        partial(table_of, num_entries=1, begin=0),
        partial(table_of, num_entries=4, begin=5),
        loaded_for_later,
        grows_at_one_address,
        partial(marks, dtype=torch.int64, nobody=-1, begin=4, sizes=[1, 2, 3, 1, 2, 2, 1]),
        partial(marks, dtype=torch.int64, nobody=-1, begin=0, sizes=[2, 3, 1, 3, 2, 2, 1]),
        partial(marks, dtype=torch.float32, nobody=-float("inf"), begin=4, sizes=[1, 2, 3, 1, 2, 2, 1]),
        partial(marks, dtype=torch.float32, nobody=-float("inf"), begin=0, sizes=[2, 3, 1, 3, 2, 2, 1]),
        partial(filled_in_turn, step=lambda x, pool, slots: x * pool[slots], num_rows=8),
        partial(filled_in_turn, step=lambda x, pool, slots: x + pool.sum(0), num_rows=4),
        partial(filled_in_turn, step=lambda x, pool, slots: x @ pool, num_rows=4),
    ],
)
def test_what_is_no_padding_is_not_taken_for_it(make, has_twin, device, backend):
    one, twin = make(device), partial(make, device) if has_twin else None
    report = audit(one.step, vary=one.vary, rows=one.rows, twin=twin, backend=backend)
    assert not report.findings and not any("behind its" in note for note in report.notes)


def test_what_a_step_only_rebinds_is_left_behind_for_who_reads_it_later(device, backend):
    def make():
        x, layer = (
            torch.ones(3, device=device),
            SimpleNamespace(hidden=torch.zeros(3, device=device), seen=[]),
        )

        def step():
            layer.hidden = x * 2
            return layer.hidden.sum(0, keepdim=True)

        def vary():
            layer.seen.append(layer.hidden.clone())
            layer.hidden = torch.zeros(3, device=device)
            x.add_(1)

        return SimpleNamespace(step=step, vary=vary, finish=lambda: torch.stack(layer.seen), layer=layer)

    one = make()
    (first,) = audit(one.step, vary=one.vary, twin=make, backend=backend).findings
    assert (first.kind, first.subject, first.where.source) == (
        "left-behind",
        "layer.hidden",
        "layer.hidden = x * 2",
    )


def served(device, backend, kind):
    """An engine with graphs of its own: of the step, of a draft that goes on from it, or never used."""
    x, weight = torch.ones(3, device=device), torch.full((3,), 2.0, device=device)
    held = SimpleNamespace(weight=weight, last=torch.zeros(3, device=device), number=0)

    def model():
        return x * held.weight

    graph = capture(model, backend=backend)

    def drafted_from(result):
        drafted, held.last = held.last + 1, result
        return result.clone(), drafted

    def step():
        if (
            kind == "unused"
            or (kind == "sometimes" and held.number == 4)
            or (kind == "later" and held.number < 3)
        ):
            return drafted_from(model())
        graph.replay()
        return drafted_from(graph.outputs if kind == "kept" else graph.outputs.clone())

    def vary():
        held.number += 1
        x.fill_(held.number)
        if kind == "reloaded" and held.number == 3:
            held.weight = torch.full((3,), 5.0, device=device)

    return SimpleNamespace(step=step, eager=lambda: drafted_from(model()), vary=vary, held=held)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("kept", ("overwritten-output", "graph.outputs")),
        ("reloaded", ("moved-address", "held.weight")),
        ("unused", ("silent-eager", "served.<locals>.step")),
        ("right", None),
    ],
)
def test_graphs_of_an_engines_own_are_held_against_one_that_runs_eagerly(kind, found, device, backend):
    one = served(device, backend, kind)
    report = audit(one.step, vary=one.vary, backend=backend, twin=lambda: served(device, backend, kind))
    assert [(f.kind, f.subject) for f in report.findings] == ([found] if found else []), str(report)
    assert all("test_twin.py" in str(f.where) for f in report.findings)
    if kind == "reloaded":
        assert re.search(r", bound anew at .*test_twin.py:\d+ in vary$", report.findings[0].evidence)
    if kind == "unused":
        assert report.findings[0].where.source == 'kind == "unused"'
        assert "replays none for 16 requests" in report.findings[0].evidence


def handing_out(device, backend, way):
    """Each step replays the same graph and hands out the same memory, which is kept until the end."""
    x, held = torch.ones(4, device=device), SimpleNamespace(kept=[], out=None)
    graph = capture(lambda: x * 2, backend=backend)

    def replayed():
        graph.replay()
        return graph.outputs

    def served(run):
        hidden = run()
        if way == "step":
            held.kept.append(hidden)
        if way == "runner":
            held.out = hidden
        return hidden

    def vary():
        if held.out is not None:
            held.kept.append(held.out)
        x.add_(1)

    return SimpleNamespace(
        step=lambda: served(replayed), eager=lambda: served(lambda: x * 2), vary=vary,
        finish=lambda: torch.stack(held.kept),
    )  # fmt: skip


@pytest.mark.parametrize(("way", "subject"), [("step", "hidden"), ("runner", "held.out")])
def test_memory_of_an_own_graph_that_is_kept_is_overwritten_and_not_left_behind(
    way, subject, device, backend
):
    make = partial(handing_out, device, backend, way)
    one = make()
    (found,) = audit(one.step, vary=one.vary, twin=make, backend=backend).findings
    assert (found.kind, found.subject) == ("overwritten-output", subject)
    assert found.where.source.startswith("held.kept.append(")


def adapting(device, backend, captures, says_eager):
    """Adapters come with each batch, a graph was captured without any. One way out: no graph."""
    x, batch = torch.ones(3, device=device), SimpleNamespace(adapter=None, number=0)

    def forward():
        return x * 2 if batch.adapter is None else x * 2 + batch.adapter

    graph = capture(forward, backend=backend) if captures else None

    def step():
        if graph is None:
            return forward()
        graph.replay()
        return graph.outputs

    def vary():
        batch.number += 1
        batch.adapter = torch.full((3,), 4.0, device=device) if batch.number % 2 else None

    more = {"eager": forward} if says_eager else {}
    return SimpleNamespace(step=step, vary=vary, batch=batch, **more)


@pytest.mark.parametrize(
    ("captures", "says_eager", "kinds"),
    [
        (False, True, []),  # it chooses to run eagerly, and is right
        (True, True, ["frozen-host-value"]),
        (False, False, ["frozen-host-value"]),  # whoever says nothing of running eagerly asks for a capture
    ],
)
def test_what_an_engine_chooses_to_run_eagerly_is_not_judged_as_a_capture(
    captures, says_eager, kinds, device, backend
):
    make = partial(adapting, device, backend, captures, says_eager)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert [f.kind for f in report.findings][:1] == kinds, str(report)
    told = "runs eagerly as it is served; captured it goes wrong: frozen-host-value: batch.adapter: was None"
    assert any(note.startswith(told) for note in report.notes) == (not kinds)


_ENGINES = count()


def going_on(device, backend, kind, is_right, says_eager=True):
    """State goes on from step to step: passes at the same inputs show other results each time."""
    held = SimpleNamespace(state=torch.ones(3, device=device), scale=1.0, number=0, graph=None)
    its_number = next(_ENGINES) if kind == "unlike" else 0

    def model():
        held.state.mul_(0.5).add_(held.scale if kind != "random" else torch.rand(3, device=device))
        return held.state * (2 + its_number)

    if kind in ("before", "random", "unlike"):
        held.graph = capture(model, backend=backend)

    def step():
        if held.graph is None:
            held.number += 1
            if held.number < 3:  # it warms up
                return model()
            held.graph = capture(model, backend=backend)
        held.graph.replay()
        return held.graph.outputs.clone()

    def vary():
        if not is_right:
            held.scale += 1.0

    more = {"eager": model} if says_eager else {}
    return SimpleNamespace(step=step, vary=vary, held=held, **more)


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("kind", ["before", "later"])
def test_a_step_that_cannot_be_repeated_is_held_against_a_fresh_engine(kind, is_right, device, backend):
    make = partial(going_on, device, backend, kind, is_right)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    told = [(f.kind, f.subject) for f in report.findings]
    assert told == ([] if is_right else [("frozen-host-value", "held.scale")]), str(report)
    note = next(n for n in report.notes if n.startswith("only held against a fresh engine that runs eagerly"))
    assert "in 6 requests in a row: the step cannot be repeated" in note


@pytest.mark.parametrize(("kind", "has_twin"), [("before", False), ("later", False), ("unlike", True)])
def test_it_is_refused_without_a_twin_and_where_fresh_engines_differ(kind, has_twin, device, backend):
    make = partial(going_on, device, backend, kind, True)
    one = make()
    with pytest.raises(AuditError, match="cannot be"):
        audit(one.step, vary=one.vary, backend=backend, twin=make if has_twin else None)


def test_fresh_engines_are_made_with_the_same_random_numbers(device, backend):
    make = partial(going_on, device, backend, "random", True)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert not report.findings and "only held against a fresh engine" in "".join(report.notes)


def test_a_step_without_results_is_refused_with_a_twin_too(device, backend):
    def make():
        one = going_on(device, backend, "before", True)
        one.held.state = None  # nobody finds what the graph writes
        return SimpleNamespace(step=lambda: one.step() and None, eager=lambda: None, vary=lambda: None)

    one = make()
    with pytest.raises(AuditError):
        audit(one.step, vary=one.vary, backend=backend, twin=make)


def growing(device, backend, is_right):
    """Each step adds work to the next one, unless what it has made is written back."""
    x, held = torch.ones(3, device=device), SimpleNamespace(load=lambda: x * 1.0)
    total = torch.zeros(3, device=device)

    def step():
        before = held.load
        if is_right:
            return total.copy_(before() + 1)
        held.load = lambda: before() + 1
        return held.load()

    return SimpleNamespace(step=step, vary=lambda: x.add_(1), held=held)


@pytest.mark.parametrize(("is_right", "kinds"), [(True, set()), (False, {"frozen-host-value"})])
def test_what_does_more_work_each_time_is_captured_fresh_and_served(is_right, kinds, device, backend):
    make = partial(growing, device, backend, is_right)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert {f.kind for f in report.findings[:1]} == kinds, str(report)


# ---- what nobody is to be told wrongly ----


def own(device, backend, model, held, **more):
    """An engine with a graph of its own, captured when it is made."""
    graph = capture(model, backend=backend)

    def step():
        graph.replay()
        return graph.outputs.clone()

    return SimpleNamespace(**{"step": step, "eager": model, "held": held, "graph": graph} | more)


def prefilling(device, backend):
    """The first request is a prompt, for which no graph is; those after it replay one."""
    x, held = torch.ones(4, device=device), SimpleNamespace(left=2, scale=2.0)

    def model():
        return x * held.scale

    graph = capture(model, backend=backend)

    def step():
        if held.left > 0:
            return model()
        graph.replay()
        return graph.outputs.clone()

    def vary():
        held.left -= 1
        held.scale += 1
        x.add_(1)

    return SimpleNamespace(step=step, eager=model, vary=vary, held=held)


def by_chance(device, backend):
    """It reads memory that nobody wrote, and has no graph."""
    x, held = torch.ones(4, device=device), SimpleNamespace(graph=None)

    def model():
        part = torch.empty(4, device=device)
        part[:2] = x[:2]
        return x * part

    def step():
        if held.graph is None:
            return model()
        held.graph.replay()
        return held.graph.outputs

    return SimpleNamespace(step=step, eager=model, vary=lambda: x.add_(1), held=held)


def called_replay(device, backend):
    """An attribute of that name, and no graph."""
    x, held = torch.ones(4, device=device), SimpleNamespace(scale=2.0, replay=False)

    def step():
        y = x * held.scale
        if held.replay:
            y = y + 1
        return y

    def vary():
        held.scale += 1
        x.add_(1)

    return SimpleNamespace(step=step, eager=step, vary=vary, held=held)


def captured_late(device, backend):
    """At the fourth request, with a number of then."""
    x, held = torch.ones(3, device=device), SimpleNamespace(number=0, graph=None)

    def step():
        if held.number < 3:
            return x * 2
        if held.graph is None:
            first = float(x[0])
            held.graph = capture(lambda: x + first, backend=backend)
        held.graph.replay()
        return held.graph.outputs.clone()

    def vary():
        held.number += 1
        x.add_(1)

    return SimpleNamespace(step=step, eager=lambda: x * 2, vary=vary, held=held)


def never_run_first(device, backend):
    """The call that captures returns what nothing has computed yet."""
    x, held = torch.ones(4, device=device), SimpleNamespace(graph=None)

    def model():
        return x * 2

    def step():
        if held.graph is None:
            held.graph = capture(model, backend=backend)
            return held.graph.outputs.clone()
        held.graph.replay()
        return held.graph.outputs.clone()

    return SimpleNamespace(step=step, eager=model, vary=lambda: x.add_(1), held=held)


def number_returned(device, backend):
    """What counts is written, and a number is returned."""
    x, out, held = torch.ones(4, device=device), torch.zeros(4, device=device), SimpleNamespace(scale=2.0)

    def model():
        out.copy_(x * held.scale)
        return 4

    graph = capture(model, backend=backend)

    def step():
        graph.replay()
        return 4

    def vary():
        held.scale += 1
        x.add_(1)

    return SimpleNamespace(step=step, eager=model, vary=vary, held=held, out=out)


def row_of_a_cache(device, backend):
    """It writes a row that is none of the first ones, which are real rows of a batch."""
    cache, held = torch.zeros(8, device=device), SimpleNamespace(scale=2.0)

    def model():
        cache[4] = cache[5] + held.scale

    graph = capture(model, backend=backend)

    def vary():
        held.scale += 1
        cache[5] += 1

    step = graph.replay
    return SimpleNamespace(
        step=lambda: step(), eager=model, vary=vary, rows=lambda: 2, cache=cache, held=held
    )


def harmless_branch(device, backend):
    """The arms of a branch do the same, and it goes another way each time; a weight is bound anew."""
    x, held = torch.ones(4, device=device), SimpleNamespace(odd=False, weight=torch.ones(4, device=device))

    def model():
        if held.odd:
            y = torch.mul(x, 2)
            return y * held.weight
        y = torch.mul(x, 2)
        return y * held.weight

    def vary():
        x.add_(1)
        held.odd = not held.odd
        held.weight = held.weight + 1

    return own(device, backend, model, held, vary=vary)


def unrelated_branch(device, backend):
    """Graphs are looked up by another key than they are kept under; the last branch is of a log."""
    x, held = torch.ones(4, device=device), SimpleNamespace(size=4, log={})
    graphs = {4: capture(lambda: x * 2, backend=backend)}

    def step():
        key = (held.size, "fp32")
        if key in graphs:
            graphs[key].replay()
            return graphs[key].outputs
        y = x * 2
        if held.size not in held.log:
            held.log[held.size] = 0
        return y

    return SimpleNamespace(step=step, eager=lambda: x * 2, vary=lambda: x.add_(1), held=held, graphs=graphs)


@pytest.mark.parametrize(
    ("make", "kind", "subject"),
    [
        (prefilling, "frozen-host-value", "held.scale"),
        (by_chance, "unwritten-read", "part"),
        (called_replay, "frozen-host-value", "held.scale"),
        (captured_late, "lost-kernel", "aten.mul"),
        (number_returned, "frozen-host-value", "held.scale"),
        (row_of_a_cache, "frozen-host-value", "held.scale"),
        (harmless_branch, "freed-memory", "held.weight"),
        (unrelated_branch, "silent-eager", "key"),
    ],
)
def test_a_wrong_engine_is_told_and_by_its_cause(make, kind, subject, device, backend):
    make = partial(make, device, backend)
    one = make()
    rows = getattr(one, "rows", None)
    report = audit(one.step, vary=one.vary, backend=backend, twin=make, rows=rows)
    assert [(f.kind, f.subject) for f in report.findings][:1] == [(kind, subject)], str(report)
    assert not any(note.startswith("runs eagerly as it is served") for note in report.notes)
    assert "not whether they are right" not in str(report)


def test_without_an_eager_of_its_twin_an_engine_would_be_held_against_itself(device, backend):
    def make():
        one = going_on(device, backend, "before", False)
        del one.eager
        return one

    one = make()
    with pytest.raises(AuditError, match="cannot be repeated"):
        audit(one.step, vary=one.vary, backend=backend, twin=make)


def seen_in_part(device, backend, what):
    """Of what is wrong the audit cannot compare anything."""
    held = SimpleNamespace(scale=2.0, x=torch.ones((1 << 24) + 1 if what == "large" else 4, device=device))
    held.out = torch.zeros_like(held.x)

    def model():
        return held.out.copy_(held.x * held.scale)

    graph = capture(model, backend=backend)
    ways = {"large": lambda: None, "array": lambda: held.out.cpu().numpy(), "text": lambda: str(held.out[0])}
    given = ways[what]

    def step():
        graph.replay()
        return given()

    def eager():
        model()
        return given()

    def vary():
        held.scale += 1

    return SimpleNamespace(step=step, eager=eager, vary=vary, held=held)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("large", "held.out (of more than 16777216 elements)"),
        ("array", "the returned value (a ndarray)"),
        ("text", "the returned value (a str)"),
    ],
)
def test_what_is_not_compared_is_told(what, told, device, backend):
    make = partial(seen_in_part, device, backend, what)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    note = next(
        note for note in report.notes if note.startswith("of what fresh engines give, not compared: ")
    )
    assert told in note


def kept_length(device, backend):
    """Drafts are cut to how many there were at capture."""
    draft, held = torch.arange(4, device=device), SimpleNamespace(num=1)

    def model():
        return draft * 3 % 7

    graph, kept = capture(model, backend=backend), 4

    def step():
        graph.replay()
        return graph.outputs.tolist()[:kept]

    def vary():
        held.num = held.num % 3 + 1
        draft.add_(1)

    return SimpleNamespace(step=step, eager=lambda: model().tolist()[: held.num], vary=vary, held=held)


def ends_early(device, backend):
    """A budget of the host that a warm-up has used."""
    x, held = torch.ones(4, device=device), SimpleNamespace(left=7, graph=None)

    def model():
        held.left -= 1
        return x * 2

    def step():
        if held.graph is None:
            model()
            model()
            held.graph = capture(model, backend=backend)
        held.left -= 1
        held.graph.replay()
        return held.graph.outputs.clone()

    def vary():
        if held.left <= 0:
            raise StopIteration
        x.add_(1)

    return SimpleNamespace(step=step, eager=model, vary=vary, held=held)


def small_steps(device, backend):
    """A rate that changes weights by less than rounding could."""
    weight, held = torch.linspace(-1, 1, 8, device=device), SimpleNamespace(rate=1e-5)

    def model():
        weight.sub_(weight.detach() * held.rate)

    graph = capture(model, backend=backend)

    def vary():
        held.rate /= 2

    return SimpleNamespace(step=lambda: graph.replay(), eager=model, vary=vary, held=held, weight=weight)


def attending(device, backend):
    """Behind a graph that writes its cache and reads it, a number of the first call is kept."""
    cache, ids, held = torch.zeros(8, device=device), torch.ones(4, device=device), SimpleNamespace(scale=1.0)

    def model():
        cache[:4].copy_(ids)
        return cache.sum()

    graph, kept = capture(model, backend=backend), held.scale

    def step():
        graph.replay()
        return graph.outputs * kept

    def vary():
        held.scale += 1
        ids.add_(1)

    return SimpleNamespace(step=step, eager=lambda: model() * held.scale, vary=vary, held=held)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (kept_length, "diverged"),
        (ends_early, "diverged"),
        (small_steps, "frozen-host-value"),
        (attending, "diverged"),
    ],
)
def test_what_only_one_of_both_gives_and_what_is_small_is_told(make, kind, device, backend):
    make = partial(make, device, backend)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert [f.kind for f in report.findings][:1] == [kind], str(report)
    assert "cache" not in str(report.findings[0])  # what the graph has written itself is not stale


def leaves_open(device, backend, kind):
    """A tensor that is wrong and no result, or wrong as far as rounding might be."""
    held = SimpleNamespace(x=torch.ones(4, device=device), scale=1.0)

    def model():
        if kind == "rows":
            return torch.cat([held.x, held.x * held.scale])
        return held.x * held.scale

    graph = capture(model, backend=backend)

    def step():
        graph.replay()
        return graph.outputs.clone()

    def vary():
        held.scale += 1e-5 if kind == "rounding" else 1
        held.x.add_(1)

    rows = {"rows": lambda: 4} if kind == "rows" else {}
    return SimpleNamespace(step=step, eager=lambda: model().clone(), vary=vary, held=held, **rows)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("rows", "was not taken for a result: the returned value behind 4 rows (from request 1 on)"),
        ("rounding", "as rounding may explain: the returned value"),
    ],
)
def test_what_differs_and_is_no_finding_is_told(kind, told, device, backend):
    make = partial(leaves_open, device, backend, kind)
    one = make()
    rows = getattr(one, "rows", None)
    report = audit(one.step, vary=one.vary, backend=backend, twin=make, rows=rows)
    assert not report.findings and any(note.endswith(told) for note in report.notes), str(report)


def beside(device, backend, kind):
    """Writes more than it returns. What only captured work adds to, or binds anew, is nobody's result."""
    held = SimpleNamespace(x=torch.arange(1.0, 9, device=device), scale=1.0, splits=2)
    held.metric, held.sums = torch.zeros(8, device=device), torch.zeros(4, device=device)
    held.kept = held.metric

    def model():
        if kind in ("metric", "rebound"):
            held.metric.copy_(held.x * held.scale)
        if kind == "rebound":
            held.kept = held.metric = torch.zeros(8, device=device)
        if kind == "partial sums":
            held.sums.zero_()
            held.sums[: held.splits].copy_(held.x.view(held.splits, -1).sum(1))
            return held.sums.sum() * 2
        if kind == "padding":
            held.metric[: 2 * held.splits].copy_(held.x[: 2 * held.splits])
        return held.x * 2

    held.splits = 4
    model()
    graph = capture(model, backend=backend)
    held.splits = 2

    def step():
        graph.replay()
        return graph.outputs.clone()

    def vary():
        held.scale += 1
        held.x.add_(1)

    return SimpleNamespace(step=step, eager=lambda: model().clone(), vary=vary, held=held)


@pytest.mark.parametrize(
    ("kind", "found"),
    [("metric", ["held.scale"]), ("partial sums", []), ("padding", []), ("rebound", [])],
)
def test_what_is_written_beside_what_is_returned_is_a_result_too(kind, found, device, backend):
    make = partial(beside, device, backend, kind)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert [one.subject for one in report.findings] == found, str(report)


def test_numbers_are_compared_exactly(device, backend):
    def make(off=0):
        held = SimpleNamespace(x=torch.ones(3, device=device), number=0)
        graph = capture(lambda: held.x * 2, backend=backend)

        def step():
            graph.replay()
            return graph.outputs.clone(), (1 << 63) + held.number + off, 0

        def eager():
            return held.x * 2, (1 << 63) + held.number, 0.0

        def vary():
            held.number += 1
            held.x.add_(1)

        return SimpleNamespace(step=step, eager=eager, vary=vary, held=held)

    one = make()
    assert not audit(one.step, vary=one.vary, backend=backend, twin=make).findings
    report = audit(one.step, vary=one.vary, backend=backend, twin=partial(make, 1))
    [found] = report.findings
    assert (found.kind, found.subject, found.where) == ("diverged", "the returned value[1]", None)


@pytest.mark.parametrize("number", [7, -1, 1 << 100, 2.5, 1e30])
def test_a_number_beside_rows_is_no_row(number, device, backend):
    def make(off=0):
        x = torch.ones(3, device=device)
        graph = capture(lambda: x * 2, backend=backend)

        def step():
            graph.replay()
            return graph.outputs.clone(), number + off

        return SimpleNamespace(
            step=step, eager=lambda: (x * 2, number), vary=lambda: x.add_(1), rows=lambda: 1, x=x
        )

    one = make()
    assert not audit(one.step, vary=one.vary, backend=backend, twin=make, rows=one.rows).findings
    wrong = partial(make, number)
    report = audit(one.step, vary=one.vary, backend=backend, twin=wrong, rows=one.rows)
    assert [found.subject for found in report.findings] == ["the returned value[1]"]


def test_a_call_before_any_request_that_differs_is_told(device, backend):
    make = partial(never_run_first, device, backend)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert "the call before any request gives another result than eagerly: the returned value" in report.notes


def test_a_twin_that_serves_nothing_says_so(device, backend):
    def make():
        x = torch.ones(3, device=device)
        numbers = iter(())
        return own(device, backend, lambda: x * 2, None, vary=lambda: x.fill_(next(numbers)))

    one = make()
    report = audit(one.step, backend=backend, twin=make)
    assert "its twin serves 0 requests and no more" in report.notes


def padded_by_its_graph(device, backend):
    """Rows behind the real ones hold what an eager run leaves alone."""
    x, out = torch.ones(4, device=device), torch.zeros(4, device=device)
    graph = capture(lambda: out.copy_(x * 2), backend=backend)

    def eager():
        out[:3] = x[:3] * 2

    return SimpleNamespace(
        step=lambda: graph.replay(), eager=eager, vary=lambda: x.add_(1), rows=lambda: 3, x=x, out=out
    )


def with_reset(device, backend):
    """A request is prepared from a fresh state."""
    x, held = torch.ones(3, device=device), SimpleNamespace(given=None)

    def vary():
        x.add_(1)
        held.given = 2.0

    def step():
        return x * (held.given or 2.0)

    def reset():
        held.given = None

    return SimpleNamespace(step=step, vary=vary, reset=reset, held=held)


@pytest.mark.parametrize("make", [padded_by_its_graph, with_reset])
def test_a_right_engine_is_left_alone(make, device, backend):
    make = partial(make, device, backend)
    one = make()
    options = {name: getattr(one, name, None) for name in ("rows", "reset")}
    report = audit(one.step, vary=one.vary, backend=backend, twin=make, **options)
    assert not report.findings, str(report)


def sized(device, backend, captured):
    """Graphs of some sizes; others run eagerly."""
    x, batch = torch.ones(4, device=device), SimpleNamespace(number=3)
    graphs = {}
    for size in captured:
        (x[:size] * 2).sum()
        graphs[size] = capture(lambda size=size: x[:size] * 2, backend=backend)

    def step():
        size = batch.number % 4 + 1
        if size in graphs:
            graphs[size].replay()
            return graphs[size].outputs
        return x[:size] * 2

    def vary():
        batch.number += 1
        x.fill_(batch.number)

    return SimpleNamespace(
        step=step, eager=lambda: x[: batch.number % 4 + 1] * 2, vary=vary, batch=batch, graphs=graphs
    )


@pytest.mark.parametrize(("captured", "kinds"), [((2, 3, 4), []), ((2, 4), []), ((4,), ["silent-eager"])])
def test_a_size_without_a_graph_is_a_note_where_most_requests_have_one(captured, kinds, device, backend):
    one = sized(device, backend, captured)
    report = audit(
        one.step, vary=one.vary, backend=backend, twin=lambda: sized(device, backend, captured)
    )  # the first request has a graph, and the next one none
    assert [f.kind for f in report.findings] == kinds, str(report)
    assert any("of 6 requests in a row without a graph" in note for note in report.notes) == (not kinds)


def test_a_step_that_is_reached_by_a_name_made_anew_has_moved(device, backend):
    def make():
        x, held = torch.ones(3, device=device), SimpleNamespace(number=0, known=[])

        def load():
            scale = torch.full((3,), held.number + 1.0, device=device)
            held.call = lambda: x * scale
            held.known.append(held.call)

        def vary():
            held.number += 1
            if held.number == 2:
                load()
            x.fill_(held.number)

        load()
        return SimpleNamespace(step=lambda: held.call(), vary=vary, held=held)

    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert [(f.kind, f.subject) for f in report.findings] == [("moved-address", "scale")], str(report)


def test_an_engine_whose_graphs_come_in_later_is_not_silently_eager(device, backend):
    one = served(device, backend, "later")
    report = audit(one.step, vary=one.vary, backend=backend, twin=lambda: served(device, backend, "later"))
    assert "silent-eager" not in report.kinds


def test_a_step_that_is_there_to_be_captured_may_have_graphs_beside_it(device, backend):
    def make():
        x = torch.ones(3, device=device)
        draft = capture(lambda: x + 1, backend=backend)
        return SimpleNamespace(step=lambda: x * 2, vary=lambda: x.add_(1), draft=draft)

    one = make()
    assert not audit(one.step, vary=one.vary, backend=backend, twin=make).findings


def test_requests_that_replay_no_graph_are_counted(device, backend):
    one = served(device, backend, "sometimes")
    report = audit(
        one.step, vary=one.vary, backend=backend, twin=lambda: served(device, backend, "sometimes")
    )
    assert "1 of 6 requests in a row without a graph, the first is number 4" in report.notes


def test_a_count_that_each_step_raises_is_left_behind_for_who_reads_it(device, backend):
    x, held = torch.ones(3, device=device), SimpleNamespace(count=0, once=0)

    def step():
        held.count += 1
        held.once = 1
        return x * 2

    def vary():
        x.add_(1)
        held.once = 0

    report = audit(step, vary=vary, backend=backend, reads=lambda: held.count)
    [found] = report.findings
    assert (found.kind, found.where.source) == ("left-behind", "held.count += 1")
    report = audit(step, vary=vary, backend=backend, reads=lambda: held.once)
    assert [f.where.source for f in report.findings] == ["held.once = 1"]
    assert not audit(step, vary=vary, backend=backend, reads=lambda: 1).findings


def test_what_a_step_puts_into_a_list_is_left_behind_for_who_reads_it_later(device, backend):
    def make():
        x, held = torch.ones(3, device=device), SimpleNamespace(seen=[], number=0)

        def step():
            y = x * 2
            held.seen.append(y.clone())
            return y

        def vary():
            held.number += 1
            x.fill_(held.number)

        return SimpleNamespace(step=step, vary=vary, finish=lambda: torch.stack(held.seen), held=held)

    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert [f.kind for f in report.findings] == ["left-behind"], str(report)
    assert report.findings[0].subject.startswith("held.seen")


def test_engines_that_do_not_agree_with_themselves_are_not_compared(device, backend):
    numbers = iter(range(1, 1000))  # of all engines

    def make():
        x = torch.ones(3, device=device)
        return SimpleNamespace(step=lambda: x * 2, vary=lambda: x.fill_(next(numbers)))

    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert not report.findings and any("two fresh engines" in note for note in report.notes)


def test_numbers_that_a_step_returns_are_compared_and_what_it_writes_if_it_returns_nothing(device, backend):
    def make(kind):
        x, out, held = torch.ones(3, device=device), torch.zeros(3, device=device), SimpleNamespace(number=0)
        graph = capture(lambda: out.copy_(x * 2), backend=backend)

        def step():
            graph.replay()
            return out.tolist() if kind == "numbers" else None

        def eager():
            out.copy_(x * (3 if held.number > 2 else 2))
            return out.tolist() if kind == "numbers" else None

        def vary():
            held.number += 1
            x.fill_(held.number)

        return SimpleNamespace(step=step, eager=eager, vary=vary, held=held)

    for kind, subject in (("numbers", "the returned value[0]"), ("nothing", "out")):
        one = make(kind)
        report = audit(one.step, vary=one.vary, backend=backend, twin=lambda kind=kind: make(kind))
        assert [(f.kind, f.subject) for f in report.findings] == [("diverged", subject)], str(report)


def rescaled(device, backend, kind):
    """An engine whose own graph reads a scale that each step makes anew, of the same numbers."""
    x, held = torch.ones(64, device=device), SimpleNamespace(made=[], kept=[], graph=None, number=0)
    held.scale = torch.full((64,), 2.0, device=device)

    def model():
        return x * held.scale

    def replay():
        if held.graph is None:
            held.graph = capture(model, backend=backend)
            held.kept += [held.scale] if kind == "kept" else []
        held.graph.replay()
        return held.graph.outputs.clone()

    def step(run):
        if kind in ("freed", "kept"):
            held.scale = torch.full((64,), 2.0, device=device)  # ANEW
        result = run()
        if kind == "rebound":
            held.scale = held.scale * 1.0  # ANEW
        elif kind == "written":
            held.scale.copy_(held.scale * 1.0)
        else:
            held.scale = None  # GONE
        held.made.append(torch.zeros(64, device=device))  # which may lie there
        return result

    def vary():
        held.number += 1
        x.fill_(held.number)

    return SimpleNamespace(step=lambda: step(replay), eager=lambda: step(model), vary=vary, held=held)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("rebound", ("moved-address", "held.scale", "ANEW")),
        ("freed", ("freed-memory", "held.scale", "GONE")),
        ("written", None),
        ("kept", None),
    ],
)
def test_what_a_graph_reads_and_nobody_keeps_is_named_with_the_line_that_lets_go(
    kind, found, device, backend
):
    one = rescaled(device, backend, kind)
    report = audit(one.step, vary=one.vary, backend=backend, twin=lambda: rescaled(device, backend, kind))
    if backend == "cuda" and not report.findings:
        pytest.skip("freed memory holds what it held, for a while")
    assert [(f.kind, f.subject) for f in report.findings] == ([found[:2]] if found else []), str(report)
    lines = Path(__file__).read_text().splitlines()
    for finding in report.findings:
        line = re.search(r"let go at \S+test_twin\.py:(\d+) in step", finding.evidence)[1]
        assert found[2] in lines[int(line) - 1] and finding.where.source == "return x * held.scale"


def wrapped(device, backend, is_twice):
    """One function runs the engine eagerly or with graphs, which hold a value or memory that has gone."""
    x, y = torch.ones(3, device=device), torch.zeros(3, device=device)
    held = SimpleNamespace(factor=2.0, number=0, scale=torch.full((3,), 2.0, device=device))
    graphs = {}

    def doubled():
        y.copy_(x * 2)

    def scaled():
        y.copy_((y * held.factor) if not is_twice else y * held.scale)

    def run(task):
        task()

    def replay(task):
        if task not in graphs:
            graphs[task] = capture(lambda: run(task), backend=backend)
        graphs[task].replay()

    def frame(execute):
        if is_twice:
            execute(doubled)
        execute(scaled)
        return y.clone()

    def vary():
        held.number += 1
        x.fill_(held.number)
        y.fill_(held.number)
        held.factor = held.number + 1.0
        if held.number == 3:
            held.scale = torch.full((3,), 5.0, device=device)

    step, eager = (lambda call=call: frame(call) for call in (replay, run))
    return SimpleNamespace(step=step, eager=eager, vary=vary, held=held)


@pytest.mark.parametrize(
    ("is_twice", "found"),
    [(False, ("frozen-host-value", "held.factor")), (True, ("moved-address", "held.scale"))],
)
def test_who_calls_what_is_captured_may_go_another_way_and_calls_are_told_apart(
    is_twice, found, device, backend
):
    one = wrapped(device, backend, is_twice)
    report = audit(one.step, vary=one.vary, backend=backend, twin=lambda: wrapped(device, backend, is_twice))
    assert [(f.kind, f.subject) for f in report.findings] == [found], str(report)


def test_what_makes_an_input_anew_where_all_runs_eagerly_is_told_with_its_line(device, backend):
    """The metadata of the graphs keep a plan that eager ones never have; nobody lets go of it."""

    def make():
        x, kept = torch.ones(3, device=device), SimpleNamespace(plan=None)
        held = SimpleNamespace(metadata=kept)

        def run(metadata):
            held.metadata = metadata
            if held.metadata.plan is None:
                held.metadata.plan = x.cumsum(0)  # MADE
            return x * held.metadata.plan

        def eager():
            return run(SimpleNamespace(plan=None))

        return SimpleNamespace(step=lambda: run(kept), eager=eager, vary=lambda: x.add_(1), held=held)

    one = make()
    [found] = audit(one.step, vary=one.vary, twin=make, backend=backend).findings
    assert (found.kind, found.subject) == ("stale-input", "kept.plan")
    line = 1 + next(i for i, text in enumerate(Path(__file__).read_text().splitlines()) if "# MADE" in text)
    assert f"aten.cumsum makes it anew at {Path(__file__).name}" in found.evidence.replace("tests/audit/", "")
    assert f":{line} in run" in found.evidence


def sampling(device, backend, kind):
    """Tokens are drawn behind the graph, by a generator of its own, and logits are returned beside them."""
    numbers = torch.Generator(device).manual_seed(0)
    held = SimpleNamespace(logits=torch.linspace(0, 1, 64, device=device), scale=1.0, number=0, noise=None)

    def model():
        return held.logits * held.scale

    def sample(logits):
        noise = torch.rand(64, generator=numbers, device=device) if held.noise is None else held.noise
        return logits + noise, logits

    graph = capture(model, backend=backend)

    def step():
        if held.number == 0 and kind in ("warm", "warm_and_wrong"):
            sample(graph.outputs)
        if kind == "seeded":
            numbers.manual_seed(0)
        graph.replay()
        drawn, logits = sample(graph.outputs)
        if kind == "kept":
            held.noise = drawn - logits
        return (drawn, logits.clone()) if kind == "warm_and_wrong" else drawn

    def eager():
        drawn, logits = sample(model())
        return (drawn, logits) if kind == "warm_and_wrong" else drawn

    def vary():
        held.number += 1
        held.logits.add_(1 / 64)
        held.scale += kind in ("wrong", "warm_and_wrong")

    return SimpleNamespace(step=step, eager=eager, vary=vary, held=held)


@pytest.mark.parametrize(
    ("kind", "is_found", "is_told"),
    [
        ("right", False, False),
        ("warm", False, True),  # a warm-up has drawn, so all numbers are others
        ("seeded", True, False),
        ("kept", True, False),
        ("wrong", True, False),
        ("warm_and_wrong", True, False),
    ],
)
def test_other_random_numbers_are_told_and_the_same_in_each_replay_found(
    kind, is_found, is_told, device, backend
):
    make = partial(sampling, device, backend, kind)
    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert bool(report.findings) == is_found, str(report)
    assert any("draws other random numbers" in note for note in report.notes) == is_told, str(report)


def test_where_results_agree_no_further_engine_is_made(device, backend):
    """Whether two that run eagerly agree with each other is asked of results that differ alone."""
    made = []

    def make():
        made.append(engine(device, "right"))
        return made[-1]

    one = engine(device, "right")
    assert not audit(one.step, vary=one.vary, twin=make, backend=backend).findings
    assert len(made) <= 4


def test_a_fresh_engine_captures_what_is_beside_its_step_behind_it_too(device, backend):
    """What is captured behind the step puts another workspace in place of the one that its graph reads."""

    def make():
        x, work = torch.ones(4, device=device), torch.ones(4, device=device)
        held = SimpleNamespace(work=work, steps=0)

        def step():
            held.steps += 1
            return x * held.work

        def prefill():
            if held.steps > 1 and held.work is work:  # once the step has run, and was captured
                held.work = work.clone()
            return x + 1

        def vary():
            x.add_(1)
            held.work.add_(1)

        return SimpleNamespace(step=step, vary=vary, beside=[prefill], held=held)

    one = make()
    findings = audit(one.step, vary=one.vary, twin=make, backend=backend).findings
    assert [(f.kind, f.subject) for f in findings] == [("moved-address", "held.work")]


class Entry:
    def __init__(self, graph):
        self.graph = graph

    def run(self):
        self.graph.replay()
        return self.graph.outputs


def dispatching(device, backend, way, key=4):
    """The graph is kept under a key that nobody asks for, and code that would replay it never runs."""
    x, held = torch.ones(4, device=device), SimpleNamespace(size=4)

    def model():
        return x * 2 + 1

    entries = {} if way == "late" else {key: Entry(capture(model, backend=backend))}
    runs = {key: entry.run for key, entry in entries.items()}

    def helper():
        entry = entries.get(held.size)
        return entry.run() if entry else model()

    def tried():
        try:
            return entries[held.size].run()
        except KeyError:
            return model()

    def table():
        return runs.get(held.size, model)()

    def late():
        if key not in entries:
            entries[key] = Entry(capture(model, backend=backend))
        return entries[held.size].run() if held.size in entries else model()

    def another():
        return model() * 3 if entries else 0

    step = locals()[way]
    return SimpleNamespace(step=step, eager=model, vary=lambda: x.add_(1), held=held)


@pytest.mark.parametrize("has_twin", [True, False])
@pytest.mark.parametrize("way", ["helper", "tried", "table", "late"])
def test_a_graph_that_nobody_replays_is_told_wherever_it_is_kept(way, has_twin, device, backend):
    one, twin = dispatching(device, backend, way, "4"), partial(dispatching, device, backend, way, "4")
    report = audit(one.step, vary=one.vary, backend=backend, twin=twin if has_twin else None)
    (told,) = (note for note in report.notes if note.startswith("replays no graph of its own, and could: "))
    assert told.endswith(".graph holds the same work") and not report.findings


@pytest.mark.parametrize(("way", "key"), [("helper", 4), ("table", 4), ("another", "4")])
def test_a_graph_that_is_replayed_or_holds_other_work_is_not(way, key, device, backend):
    one = dispatching(device, backend, way, key)
    report = audit(one.step, vary=one.vary, backend=backend)
    assert not any("and could" in note for note in report.notes), str(report)


def by_parts(device, backend):
    """Parts that are called one after the other: the second one counts on the host."""
    x, cache, held = torch.ones(4, device=device), torch.zeros(16, 4, device=device), SimpleNamespace(at=0)
    key = torch.zeros(4, device=device)

    def project():
        torch.mul(x, 2, out=key)

    def append():
        cache[held.at].copy_(key)
        held.at += 1

    def together():
        return [part() for part in (project, append)]

    graph = capture(together, backend=backend)
    held.at = 0

    def step():
        graph.replay()
        return cache.sum(0)

    def eager():
        project()
        append()
        return cache.sum(0)

    return SimpleNamespace(step=step, eager=eager, vary=lambda: x.add_(1), held=held)


def never_noted(device, backend):
    """A graph is made of what is noted, and a part is not."""
    x, parts = torch.ones(4, device=device), []
    half, out = torch.zeros(4, device=device), torch.zeros(4, device=device)

    def launch(part):
        parts.append(part)
        part()

    def shifted():
        half.sub_(0.5)

    def model():
        launch(lambda: torch.mul(x, 2, out=half))
        shifted()
        launch(lambda: torch.tanh(half, out=out))
        return out

    model()
    noted = list(parts)
    graph = capture(lambda: [part() for part in noted], backend=backend)

    def step():
        graph.replay()
        return out

    return SimpleNamespace(step=step, eager=model, vary=lambda: x.add_(1), parts=parts)


def cut_too_late(device, backend):
    """Rows behind the real ones get into what is made of them, and the result is cut to more than is real."""
    held, static = SimpleNamespace(x=torch.ones(2, device=device)), torch.zeros(4, device=device)

    def model(x):
        return torch.tanh(x.unfold(0, 2, 1).sum(1))

    graph = capture(lambda: model(static), backend=backend)

    def step():
        static.zero_()
        static[: len(held.x)].copy_(held.x)
        graph.replay()
        return graph.outputs[: len(held.x)].clone()

    def vary():
        held.x = torch.arange(1.0, 4.0, device=device)

    return SimpleNamespace(step=step, eager=lambda: model(held.x), vary=vary, held=held, static=static)


def captured_in_a_request(device, backend):
    """A capture runs the step once before, which moves what the step keeps once more."""
    x, held = torch.ones(4, device=device), SimpleNamespace(graph=None, steps=0)
    mean = torch.zeros(4, device=device)

    def model():
        mean.lerp_(x, 0.5)
        return mean * 2

    def step():
        if held.steps < 1:
            return model()
        if held.graph is None:
            model()
            held.graph = capture(model, backend=backend)
        held.graph.replay()
        return held.graph.outputs.clone()

    def vary():
        held.steps += 1
        x.mul_(3)

    return SimpleNamespace(step=step, eager=model, vary=vary, held=held)


@pytest.mark.parametrize(
    ("make", "kind", "subject"),
    [
        (by_parts, "frozen-host-value", "held.at"),
        (never_noted, "lost-kernel", "aten.sub_"),
        (cut_too_late, "padding-leak", "static"),
        (captured_in_a_request, "stale-input", "mean"),
    ],
)
def test_where_calls_go_another_way_the_first_that_parts_is_named(make, kind, subject, device, backend):
    make = partial(make, device, backend)
    one = make()
    (found,) = audit(one.step, vary=one.vary, backend=backend, twin=make).findings
    assert (found.kind, found.subject) == (kind, subject)


def test_a_number_that_work_between_graphs_was_given_is_told(device, backend):
    def make():
        x, mid = torch.ones(4, device=device), torch.zeros(4, device=device)
        held = SimpleNamespace(number=1, planned=1)
        one, other = (capture(part, backend=backend) for part in (lambda: x * 2, lambda: mid + 1))

        def between(hidden, number):
            mid.copy_(hidden * number)

        def step():
            one.replay()
            between(one.outputs, held.planned)
            other.replay()
            return other.outputs.clone()

        def eager():
            between(x * 2, held.number)
            return mid + 1

        def vary():
            held.number += 1
            x.add_(1)

        return SimpleNamespace(step=step, eager=eager, vary=vary, held=held)

    one = make()
    (found,) = audit(one.step, vary=one.vary, backend=backend, twin=make).findings
    assert found.kind == "stale-input" and found.where.source == "mid.copy_(hidden * number)"
    assert found.evidence.endswith("aten.mul made it with other=1, and there with 2")


def test_of_a_branch_that_calls_the_line_is_told_that_decided_inside(device, backend):
    x, held = torch.ones(4, device=device), SimpleNamespace(rows=3, limit=2)

    def model():
        return x * 2 + 1

    graph = capture(model, backend=backend)

    def fits():
        wanted = held.rows
        return wanted <= held.limit

    def step():
        if fits():
            graph.replay()
            return graph.outputs
        return model()

    report = audit(step, vary=lambda: x.add_(1), backend=backend)
    (told,) = (note for note in report.notes if note.startswith("replays no graph of its own, and could: "))
    assert "in step: if fits():; decided at" in told
    assert "in fits: return wanted <= held.limit (wanted = 3, held.limit = 2" in told


def test_that_two_replays_differ_anyway_is_not_laid_to_memory_that_nobody_wrote(device, backend):
    """Two graphs by turns; each asks for memory that it makes nothing of."""
    held = SimpleNamespace(turn=0, graphs={}, x=torch.ones(4, device=device))
    held.states = [torch.full((4,), float(n), device=device) for n in (1, 2)]

    def model(past, now):
        torch.empty(1, dtype=torch.int64, device=device)
        now.copy_(past * 0.5 + held.x)
        return now * 2

    def step():
        both = held.states[held.turn], held.states[1 - held.turn]
        if held.turn not in held.graphs:
            model(*both)
            held.graphs[held.turn] = capture(lambda: model(*both), backend=backend)
        held.graphs[held.turn].replay()
        result = held.graphs[held.turn].outputs.clone()
        held.turn = 1 - held.turn
        return result

    with pytest.raises(AuditError, match="cannot be repeated: other results each time"):
        audit(step, vary=lambda: held.x.add_(1.0), backend=backend)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a file is the host's memory")
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_file_that_nobody_may_write_is_let_be(tmp_path):
    """An engine's weights, mapped: to write them back, as they are, would end the process. So it would to
    move them by an ulp, where a result differs by what rounding may do."""
    path = tmp_path / "weights.bin"
    np.arange(4, dtype=np.float16).tofile(path)

    def make():
        s, x = SimpleNamespace(scale=1.0), torch.ones(4, dtype=torch.float16)
        weight = torch.from_numpy(np.memmap(path, np.float16, "r"))

        def vary():
            s.scale += 1e-3
            x.add_(1)

        return SimpleNamespace(step=lambda: (x * weight * s.scale).softmax(0), vary=vary, weight=weight)

    own = make()
    given = {"inputs": [own.weight], "twin": make}
    report = audit(own.step, vary=own.vary, backend="emulated", **given)
    assert any("s.scale" in f"{one}" for one in (*report.findings, *report.notes)), str(report)


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("num_turns", [1, 2])
def test_results_that_are_read_later_are_asked_of_a_step_that_draws_too(device, backend, draws, num_turns):
    """What such a step gives can only be held against a fresh engine."""

    def make():
        x = torch.arange(1.0, 5.0, device=device)

        def work():
            return x * torch.rand(4, device=device) if draws else x * 2

        graphs = [capture(work, backend=backend) for _ in range(num_turns)]

        def step():
            graphs.append(graphs.pop(0))
            graphs[-1].replay()
            return graphs[-1].outputs

        return SimpleNamespace(step=step, eager=work, vary=lambda: x.mul_(2))

    one = make()
    report = audit(one.step, vary=one.vary, in_flight=1, backend=backend, twin=make)
    assert [f.kind for f in report.findings] == ["overwritten-output"] * (num_turns == 1), str(report)


def test_a_step_that_draws_is_not_judged_by_draws_that_agree_by_chance(backend, device):
    """One in two, and few passes: by chance the first two give the same. What differs then is no finding."""
    x = torch.arange(1.0, 3.0, device=device)

    def step():
        return x * (torch.rand((), device=device) < 0.5)

    told = set()
    for seed in range(8):
        torch.manual_seed(seed)
        try:
            report = audit(step, vary=lambda: x.mul_(2), backend=backend)
        except NotRepeatable:
            told.add("refused")
        else:
            assert not report.findings, str(report)
            assert any("random numbers" in note for note in report.notes), str(report)
            told.add("noted")
    assert "refused" in told


def test_a_step_with_a_seed_of_its_own_is_repeated():
    """On the emulator: a graph of CUDA's holds no seed."""
    x, s = torch.ones(4), SimpleNamespace(n=1)

    def step():
        torch.manual_seed(3)
        return x * s.n + torch.rand(4)

    def vary():
        s.n += 1

    (found,) = audit(step, vary=vary, backend="emulated").findings
    assert found.subject == "s.n"


def test_requests_that_vary_does_not_change_are_told_of_a_step_that_draws(backend, device):
    def make():
        x = torch.ones(4, device=device)
        return SimpleNamespace(step=lambda: x * torch.rand(4, device=device), vary=lambda: None)

    one = make()
    report = audit(one.step, vary=one.vary, backend=backend, twin=make)
    assert report.is_blind and "not all could show" in str(report), str(report)
