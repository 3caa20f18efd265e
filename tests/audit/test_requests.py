"""More than one request: a reset that makes a fresh engine of all, and what is wrong only at a later one."""

from contextvars import ContextVar
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from mrv2lab.audit import audit, ops, passes
from mrv2lab.errors import AuditError
from mrv2lab.graphs import capture, host


class Engine:
    """Scales by a number of the host's. `reset` puts everything back, what `vary` has prepared as well."""

    def __init__(self, device, is_frozen=True):
        self.x, self.scale = torch.zeros(4, device=device), torch.ones(1, device=device)
        self.is_frozen, self.turn = is_frozen, 0
        self.prepare()

    def prepare(self):
        self.x.fill_(3.0 + self.turn)
        self.scale.fill_(self.turn + 1.0)

    def step(self):
        return self.x * (self.turn + 1.0 if self.is_frozen else self.scale)

    def vary(self):
        self.turn += 1
        self.prepare()

    def reset(self):
        self.turn = 0
        self.prepare()


def test_a_reset_that_undoes_vary_hides_nothing(device, backend):
    engine = Engine(device)
    (found,) = audit(engine.step, vary=engine.vary, reset=engine.reset, backend=backend).findings
    assert (found.kind, found.subject) == ("frozen-host-value", "self.turn")
    assert engine.x.tolist() == [4.0] * 4 and engine.turn == 1


def test_nor_accuses_what_is_right(device, backend):
    engine = Engine(device, is_frozen=False)
    report = audit(engine.step, vary=engine.vary, reset=engine.reset, backend=backend)
    assert not report.findings and not report.notes
    assert engine.x.tolist() == [4.0] * 4 and engine.turn == 1  # six requests have been prepared


def test_inputs_that_are_drawn_are_drawn_again(device, backend):
    engine = Engine(device)

    def vary():
        engine.turn += 1
        engine.x.copy_(torch.rand(4))

    (found,) = audit(engine.step, vary=vary, reset=engine.reset, backend=backend).findings
    assert found.subject == "self.turn"


def test_where_they_cannot_be_made_again_that_is_said(device, backend):
    engine, inputs = Engine(device), count(5)

    def vary():
        engine.turn += 1
        engine.x.fill_(next(inputs))

    report = audit(engine.step, vary=vary, reset=engine.reset, backend=backend)
    (note,) = report.notes
    assert "reset() undoes what vary() has changed (self.x, self.turn)" in note and "cannot show" in note


SCALE = ContextVar("SCALE", default=1.0)


def hooked(x):
    linear, handles = torch.nn.Linear(4, 4, device=x.device), []

    def vary():
        handles.append(linear.register_forward_hook(lambda module, given, output: output * 2))

    def reset():
        while handles:
            handles.pop().remove()

    return lambda: linear(x).detach(), vary, reset, "linear._forward_hooks"


def in_a_context(x):
    return lambda: x * SCALE.get(), lambda: SCALE.set(3.0), lambda: SCALE.set(1.0), "SCALE.get()"


def patched(x):
    class Attention:
        def forward(self):
            return x * 2

    one, method = Attention(), Attention.forward

    def vary():
        Attention.forward = lambda self: x * 3

    def reset():
        Attention.forward = method

    return lambda: one.forward(), vary, reset, "Attention.forward"


@pytest.mark.parametrize("program", [hooked, in_a_context, patched])
def test_what_only_code_shows_is_missed_as_well_where_reset_takes_it_back(program, device, backend):
    x = torch.ones(4, device=device)
    step, vary, reset, name = program(x)

    def also():
        vary()
        x.add_(1)  # and this is not taken back

    report = audit(step, vary=also, reset=reset, backend=backend)
    assert not report.findings and report.is_blind
    assert any("reset() undoes what vary() has changed" in n and name in n for n in report.notes), str(report)
    reset()
    assert audit(step, vary=also, backend=backend).findings  # without it all is found


def test_what_a_reset_alone_binds_anew_is_a_note_where_it_holds_the_same(device, backend):
    x, state = torch.ones(8, device=device), {"w": torch.ones(8, device=device)}

    def reset():
        state["w"] = torch.ones(8, device=device)

    report = audit(lambda: x * state["w"], vary=lambda: x.add_(1), reset=reset, backend=backend)
    assert not report.findings, str(report)
    assert any("reset lets go of memory that the graph reads" in note for note in report.notes)


def test_a_reset_of_what_steps_have_built_is_left_alone(device, backend):
    engine, built = Engine(device, is_frozen=False), {}

    def step():
        if "plan" not in built:
            built["plan"] = engine.scale * 2
        return engine.x * built["plan"]

    report = audit(step, vary=engine.vary, reset=built.clear, backend=backend)
    assert "lost-kernel" in [found.kind for found in report.findings]
    assert not any("undoes" in note for note in report.notes)


def counted(device):
    engine = Engine(device, is_frozen=False)
    engine.total, engine.owner = torch.zeros(4, device=device), -1

    def step():
        if engine.owner != engine.turn:
            engine.total.zero_()
            engine.owner = engine.turn
        engine.total.add_(engine.x)
        return engine.total * 2

    def reset():
        Engine.reset(engine)
        engine.owner = -1
        engine.total.zero_()

    return engine, step, reset


def test_between_steps_in_a_row_nobody_makes_a_fresh_engine(device, backend):
    engine, step, reset = counted(device)
    (found,) = audit(step, vary=engine.vary, reset=reset, backend=backend).findings
    assert (found.kind, found.subject) == ("not-rearmed", "engine.total")


def reloading(device, at):
    """Folds a weight once; every so many requests there is another one."""
    engine = Engine(device, is_frozen=False)
    engine.weight, engine.folded = torch.ones(4, device=device), None
    numbers = count(1)

    def vary():
        engine.vary()
        if next(numbers) == at:
            engine.weight.mul_(3)
            engine.folded = None

    def step():
        if engine.folded is None:
            engine.folded = engine.weight * 2
        return engine.x * engine.folded

    return engine, step, vary


@pytest.mark.parametrize("at", [2, 6])
def test_what_goes_wrong_at_a_later_request_is_found(at, device, backend):
    engine, step, vary = reloading(device, at)
    report = audit(step, vary=vary, backend=backend)
    assert "aten.mul" in report.findings[0].evidence or report.findings[0].subject == "engine.folded"
    before = f"nothing was found at {at - 1} request{'s' * (at > 2)} before this one"
    assert before in report.notes and engine.x.tolist() == [4.0] * 4


def test_at_the_seventh_nobody_looks(device, backend):
    _, step, vary = reloading(device, 7)
    report = audit(step, vary=vary, backend=backend)
    assert not report.findings and not any("request" in note for note in report.notes)


def test_inputs_may_run_out_before(device, backend):
    engine, inputs = Engine(device, is_frozen=False), iter([5.0, 6.0])

    def vary():
        engine.x.fill_(next(inputs))

    report = audit(engine.step, vary=vary, backend=backend)
    assert not report.findings and not report.notes
    assert engine.x.tolist() == [5.0] * 4


def test_memory_that_a_later_request_lets_go_is_seen(device, backend):
    """What lies there next would be read: nothing differs yet."""
    x, tables, numbers = torch.ones(4, device=device), {0: torch.arange(4.0, device=device)}, count(1)
    read = SimpleNamespace(table=tables[0])

    def vary():
        x.add_(1)
        if next(numbers) == 3:
            read.table = read.table.clone()
            del tables[0]

    def step():
        return x + read.table

    report = audit(step, vary=vary, backend=backend)
    assert report.findings[0].kind == "moved-address" and report.findings[0].subject == "read.table"


def test_work_of_a_graph_that_is_replayed_thrice_is_not_lost(device, backend):
    """Only the result is: each replay writes over the last one's."""

    def make():
        x, weight = torch.zeros(4, device=device), torch.arange(4.0, device=device)
        chunks = [torch.full((4,), float(n), device=device) for n in range(3)]
        made = []

        def piece():
            return (x * weight).sin()

        def step():
            if not made:
                piece()
                made.append(capture(piece, backend=backend))
            outs = []
            for chunk in chunks:
                x.copy_(chunk)
                made[0].replay()
                outs.append(made[0].outputs)
            return torch.cat(outs)

        def eager():
            outs = []
            for chunk in chunks:
                x.copy_(chunk)
                outs.append(piece())
            return torch.cat(outs)

        def vary():
            for chunk in chunks:
                chunk.add_(1)

        return SimpleNamespace(step=step, eager=eager, vary=vary)

    engine = make()
    (found,) = audit(engine.step, vary=engine.vary, twin=make, backend=backend).findings
    assert (found.kind, found.where.source) == ("overwritten-output", "return torch.cat(outs)")


@pytest.mark.parametrize("is_whole", [True, False])
def test_fresh_engines_whose_reset_undoes_vary_are_reset_once(is_whole, device, backend):
    """Else each request would be the first one, and this goes wrong at the third."""

    def make():
        x, made, state = torch.zeros(4, device=device), [], SimpleNamespace(turn=0)

        def piece():
            return x * 2

        def reset():
            state.turn = 0
            if is_whole:
                x.zero_()

        def vary():
            state.turn += 1
            x.fill_(state.turn)

        def step():
            if not made:
                piece()
                made.append(capture(piece, backend=backend))
            if state.turn != 3:
                made[0].replay()
            return made[0].outputs.clone()

        return SimpleNamespace(step=step, eager=piece, vary=vary, reset=reset)

    engine = make()
    report = audit(engine.step, vary=engine.vary, reset=engine.reset, twin=make, backend=backend)
    assert report.findings


def test_behind_a_reset_later_requests_find_what_steps_have_left(device, backend):
    """How often it iterates hangs on what the last step has left, which a reset takes away."""
    engine, state = Engine(device, is_frozen=False), torch.zeros(4, device=device)
    known = SimpleNamespace(error=9.0)

    def step():
        for _ in range(1 if known.error < 1.3 else 3):
            state.lerp_(engine.x, 0.5)
        return state * 1

    def vary():
        engine.vary()
        known.error = float((engine.x - state).abs().max())

    def reset():
        engine.reset()
        known.error = 9.0
        state.zero_()

    report = audit(step, vary=vary, reset=reset, backend=backend)
    assert report.findings and "known.error" in str(report)


@pytest.mark.parametrize("with_twin", [False, True])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_step_may_need_a_request_before_it_can_run(is_frozen, with_twin, device, backend):
    def make():
        engine = Engine(device, is_frozen)
        engine.x = None

        def vary():
            engine.turn += 1
            if engine.x is None:
                engine.x = torch.ones(4, device=device)
            engine.prepare()

        return SimpleNamespace(step=engine.step, vary=vary)

    one = make()
    report = audit(one.step, vary=one.vary, twin=make if with_twin else None, backend=backend)
    assert [found.subject for found in report.findings] == ["self.turn"] * is_frozen


def test_without_a_vary_its_error_is_told(device, backend):
    engine = SimpleNamespace(x=None)
    with pytest.raises(AuditError, match="unsupported operand"):
        audit(lambda: engine.x * 2, backend=backend)


@pytest.mark.parametrize("writes", ["one block", "a padded row"])
def test_a_pool_of_which_vary_fills_a_block_is_no_padded_input(writes, device, backend):
    """A prompt's keys lie in blocks from before, which the step writes too."""
    pool = torch.arange(12.0, device=device).view(6, 2)
    last = 5 if writes == "a padded row" else 4
    x, slots = torch.ones(3, 2, device=device), torch.tensor([5, 3, last], device=device)
    batch = SimpleNamespace(turn=0)

    def step():
        pool.index_add_(0, slots, x)  # two rows may have one slot, in any order
        return pool[slots] + pool[slots - 3]

    def vary():
        batch.turn += 1
        pool[batch.turn % 2].fill_(batch.turn)
        x[:2] += 1

    report = audit(step, vary=vary, rows=lambda: 2, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings] == (
        [("padding-leak", "x")] if writes == "a padded row" else []
    )


def test_rows_that_are_not_real_may_hold_anything(device, backend):
    """Garbage of memory that nobody wrote stands behind the real rows of a result."""
    x, num = torch.ones(4, device=device), SimpleNamespace(rows=2)

    def step():
        out = torch.empty(4, device=device)
        out[:2].copy_(x[:2])
        return out

    report = audit(step, vary=lambda: x.add_(1), rows=lambda: num.rows, backend=backend)
    assert not report.findings
    num.rows = 3
    (found,) = audit(step, vary=lambda: x.add_(1), rows=lambda: num.rows, backend=backend).findings
    assert found.kind == "unwritten-read"


@pytest.mark.parametrize("num_written", [3, 4])
def test_padding_that_vary_has_written_is_told_not_to_have_been_asked(num_written, device, backend):
    """The mean of all rows counts padding; only where it was left alone another number can stand there."""
    x = torch.ones(4, 2, device=device)

    def vary():
        x[:num_written].copy_(torch.arange(2.0 * num_written).view(-1, 2))

    report = audit(lambda: x - x.mean(0), vary=vary, rows=lambda: 3, backend=backend)
    assert [finding.kind for finding in report.findings] == ["padding-leak"] * (num_written == 3)
    told = "vary() has written x behind its 3 real rows too"
    assert [note.startswith(told) for note in report.notes] == [True] * (num_written == 4)


def refolding(s):
    if s.folded != s.version:
        s.table.copy_(s.weight * 2)
        s.folded = s.version
    return s.x * s.table


def now_and_then(s):
    y = s.x + s.table
    if s.turn % 3 == 2:
        s.table.lerp_(s.x, 0.5)
    return y


def snapshots(s):
    if s.turn == 2:
        s.table.copy_(s.x * 5)
    s.out.copy_(s.x * 2)


def in_an_attribute(s):
    s.hidden = s.x * (2.0 if s.turn < 2 else 3.0)


@pytest.mark.parametrize("step", [refolding, now_and_then, snapshots, in_an_attribute])
def test_whatever_a_later_step_leaves_is_compared(step, device, backend):
    """In place, once, in other memory than before, or in an attribute."""
    s = SimpleNamespace(turn=0, version=0, folded=-1, hidden=None)
    s.x, s.weight, s.table, s.out = (torch.arange(4.0, device=device) + n for n in range(4))

    def vary():
        s.turn += 1
        s.x.add_(1)
        if s.turn == 2:
            s.weight.mul_(3)
            s.version += 1

    report = audit(lambda: step(s), vary=vary, backend=backend)
    assert report.findings[0].subject in ("s.turn", "s.version"), str(report)


def test_a_request_that_eager_steps_refuse_is_told(device, backend):
    s = SimpleNamespace(x=torch.ones(4, device=device), turn=0)

    def step():
        if s.turn >= 3:
            raise ValueError("too long")
        return s.x * 2

    def vary():
        s.turn += 1
        s.x.add_(1)

    (note,) = audit(step, vary=vary, backend=backend).notes  # of three that are refused
    assert note.startswith("request 3 could not be compared: the step raised ValueError")


def test_a_reset_that_binds_tensors_anew_is_refused(device, backend):
    engine = Engine(device, is_frozen=False)
    with pytest.raises(AuditError, match=r"reset\(\) binds .*\.x to another tensor"):
        audit(engine.step, vary=engine.vary, reset=lambda: engine.__init__(device, False), backend=backend)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_counter_that_no_step_reads_hinders_nothing(is_frozen, device, backend):
    engine = Engine(device, is_frozen)
    engine.calls = 0

    def vary():
        engine.calls += 1
        engine.vary()

    report = audit(engine.step, vary=vary, reset=engine.reset, backend=backend)
    assert [found.subject for found in report.findings] == ["self.turn"] * is_frozen
    assert not report.notes


@pytest.mark.parametrize("with_twin", [False, True])
def test_a_plan_that_only_a_reset_drops_is_found_beside_a_twin_as_well(with_twin, device, backend):
    """It would be another one from the third request on, and a fresh engine is reset once."""

    def make():
        engine = Engine(device, is_frozen=False)
        engine.plan, engine.table = None, torch.zeros(4, device=device)

        def step():
            if engine.plan is None:
                engine.plan = True
                engine.table.fill_(1.0 + engine.turn // 3)
            return engine.x * engine.table

        def reset():
            engine.reset()
            engine.plan = None

        return SimpleNamespace(step=step, vary=engine.vary, reset=reset)

    one, twin = make(), make if with_twin else None
    report = audit(one.step, vary=one.vary, reset=one.reset, twin=twin, backend=backend)
    assert report.findings[0].subject == "engine.plan"


def test_a_twin_whose_reset_belongs_to_each_request_is_reset_for_each(device, backend):
    """It zeroes an input, and the requests go on: without it the plan would stay eagerly too."""

    def make():
        s = SimpleNamespace(plan=None, turn=0, ids=torch.zeros(4, device=device))

        def step():
            if s.plan is None:
                s.plan = s.turn // 3
            return s.ids * (1.0 + s.plan)

        def vary():
            s.turn += 1
            s.ids.fill_(s.turn)

        def reset():
            s.plan = None
            s.ids.zero_()

        return SimpleNamespace(step=step, vary=vary, reset=reset)

    one = make()
    assert audit(one.step, vary=one.vary, twin=make, backend=backend).findings


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize(
    "how", ["scatter_", "index_select", "gather", "index", "index_put_", "embedding", "take"]
)
def test_a_cache_that_has_run_out_is_told_and_ends_no_process(how, counts, device, backend, monkeypatch):
    """A few requests more than a program was made for: on a GPU such an index is an assertion."""
    monkeypatch.setattr(passes.Passes, "_may_run_out", property(lambda self: self.num_varied > 1))
    cache, x, at = (
        torch.zeros(8, device=device),
        torch.ones(1, device=device),
        torch.tensor([5], device=device),
    )
    s = SimpleNamespace(calls=0)
    works = {
        "scatter_": lambda: cache.scatter_(0, at, x),
        "index_select": lambda: cache.index_select(0, at) + x,
        "gather": lambda: cache.gather(0, at) + x,
        "index": lambda: cache[at] + x,
        "index_put_": lambda: cache.index_put_((at,), x),
        "embedding": lambda: torch.nn.functional.embedding(at, cache[:, None]) + x,
        "take": lambda: cache.take(at) + x,
    }

    def step():
        s.calls += counts
        return works[how]() * 2

    def vary():
        x.add_(1)
        at.add_(1)

    report = audit(step, vary=vary, backend=backend)
    assert report.findings == ()
    told = [note for note in report.notes if note.startswith("request 3 could not be compared: ")]
    assert told and "looks for number 8 of 8" in told[0], str(report)


def test_an_index_in_range_is_let_through():
    aten = torch.ops.aten
    x, table = torch.zeros(3, 5), torch.zeros(3, 2)
    cases = [
        (aten.gather.default, (x, 1, torch.tensor([[4]])), None),
        (aten.gather.default, (x, 0, torch.tensor([[3]])), "aten.gather looks for number 3 of 3"),
        (aten.gather.default, (x, 1, torch.tensor([[-1]])), "aten.gather looks for number -1 of 5"),
        (aten.index.Tensor, (x, [None, torch.tensor([-5, 4])]), None),
        (aten.index.Tensor, (x, [None, torch.tensor([5])]), "aten.index looks for number 5 of 5"),
        (aten.index.Tensor, (x, [torch.tensor([True, False, True])]), None),
        (aten.index.Tensor, (x[:1], [torch.tensor([True])]), None),
        (aten.embedding.default, (table, torch.tensor([2])), None),
        (aten.embedding.default, (table, torch.tensor([3])), "aten.embedding looks for number 3 of 3"),
        (aten.take.default, (x, torch.tensor([-15, 14])), None),
        (aten.take.default, (x, torch.tensor([15])), "aten.take looks for number 15 of 15"),
        (aten.max_pool2d_with_indices.default, (torch.zeros(1, 2, 2), [2, 2]), None),
    ]
    for op, args, told in cases:
        schema = ops.schema_of(op)
        assert ops.beyond(schema, *ops.arguments_of(schema, args, {})) == told, args


@pytest.mark.parametrize("grows_at", [1, 3])
def test_a_table_that_grows_is_named_where_the_replay_raises(grows_at):
    """On a GPU an index that leads out of memory ends the process: so this is of the emulator alone."""
    engine = SimpleNamespace(table=torch.arange(4.0), ids=torch.zeros(1, dtype=torch.long), turn=0)

    def vary():
        engine.turn += 1
        if engine.turn == grows_at:
            engine.table = torch.arange(8.0)
        engine.ids.fill_(5 if engine.turn >= grows_at else engine.turn)

    report = audit(lambda: engine.table[engine.ids], vary=vary, backend="emulated")
    assert (report.findings[0].kind, report.findings[0].subject) == ("moved-address", "engine.table")
    assert any("IndexError when it was replayed" in note for note in report.notes)


def test_what_raises_eagerly_too_is_no_fault_of_the_graph():
    ids = torch.zeros(1, dtype=torch.long)
    table = torch.arange(4.0)
    with pytest.raises(AuditError, match="IndexError when it was run eagerly"):
        audit(lambda: table[ids], vary=lambda: ids.add_(4), backend="emulated")


# ---- what the first request does not show ----


def late_in_host_memory(device):
    """Numpy fills it in the step; what it holds changes at the third request."""
    held = SimpleNamespace(n=0, value=1.0, x=torch.ones(4, device=device))
    held.staging, held.scale = host(torch.ones(1), pinned=True), torch.ones(1, device=device)
    table = held.staging.numpy()

    def step():
        table[:] = held.value
        held.scale.copy_(held.staging, non_blocking=True)
        return held.x * held.scale

    def vary():
        held.n += 1
        held.value = 1.0 if held.n < 3 else float(held.n)
        held.x.add_(1.0)

    return step, vary, ("stale-input", "held.staging")


def late_in_fresh_memory(device):
    """Four of eight rows are written; more and more of them get through a mask."""
    x, rows = torch.ones(8, device=device), torch.arange(8, device=device)
    lengths = torch.full((1,), 2, device=device)

    def step():
        work = torch.empty(8, device=device)
        work[:4].copy_(x[:4])
        return torch.where(rows < lengths, work, 0.0)

    def vary():
        x.add_(1.0)
        lengths.add_(1)

    return step, vary, ("unwritten-read", "work")


def fed_back_by_vary(device):
    """Pages in turn; the next input is made of the one that was written last."""
    held = SimpleNamespace(turn=0, x=torch.ones(4, device=device))
    held.pages = [torch.zeros(4, device=device) for _ in range(2)]

    def step():
        page = held.pages[held.turn]
        page.copy_(held.x * 0.5)
        return page.sum()

    def vary():
        held.x.copy_(held.pages[held.turn] + 1.0)
        held.turn ^= 1

    return step, vary, ("frozen-host-value", "held.turn")


def late(change, of_step):
    """Of a step over half a matrix in half precision; what `change` does to its state is done at the third
    request, and moves no norm of a row."""

    def make(device):
        generator = torch.Generator().manual_seed(0)
        held = SimpleNamespace(n=0, scale=1.0, bias={}, fed=0)
        x, w = torch.zeros(4, 64, device=device).bfloat16(), torch.randn(64, 4096, generator=generator)
        w = w.to(device).bfloat16()

        def vary():
            held.n += 1
            x.copy_(torch.randn(4, 64, generator=generator))
            if held.n > 2:
                change(held)

        vary()
        held.n = 0
        return lambda: of_step(held, x, w), vary, ("frozen-host-value", "held.")

    return make


def with_bias(held, x, w):
    scores = x @ w
    for token, bias in held.bias.items():
        scores[:, token] += bias
    return scores


def split_in_two(held, x, w):
    """Rounds otherwise from the second request on, and its positions are wrong from the third on."""
    half = 32 * (held.n > 0)
    return x[:, :half] @ w[:half] + x[:, half:] @ w[half:], torch.arange(4, device=x.device) + held.fed


one_score = late(lambda held: held.bias.update({17: 30.0}), with_bias)
a_small_factor = late(lambda held: setattr(held, "scale", 1.015), lambda held, x, w: (x @ w) * held.scale)
positions = late(lambda held: setattr(held, "fed", 7), split_in_two)


@pytest.mark.parametrize("make", [one_score, a_small_factor, positions])
def test_at_a_later_request_no_more_is_excused_than_at_the_first(make, device, backend):
    step, vary, (kind, begin) = make(device)
    report = audit(step, vary=vary, backend=backend)
    named = [finding.subject for finding in report.findings if finding.kind == kind]
    assert any(subject.startswith(begin) for subject in named), str(report)


def test_behind_a_request_that_eager_steps_refuse_the_next_ones_are_asked(device, backend):
    held = SimpleNamespace(n=0, scale=1.0, x=torch.ones(4, device=device))

    def step():
        if held.n == 3:
            raise RuntimeError("preempted")
        return held.x * held.scale

    def vary():
        held.n += 1
        held.x.add_(1)
        held.scale = 1.0 if held.n < 5 else 5.0

    report = audit(step, vary=vary, backend=backend)
    assert [finding.subject for finding in report.findings] == ["held.scale"]


def test_a_vary_that_raises_later_is_told(device, backend):
    held, factors = SimpleNamespace(n=0, x=torch.ones(4, device=device)), {1: 1.0, 2: 1.0}

    def vary():
        held.n += 1
        held.x.mul_(factors[held.n])
        held.x.add_(1)

    [note] = audit(lambda: held.x * 2, vary=vary, backend=backend).notes
    assert note.startswith(
        "no more requests were asked: the step raised KeyError when the inputs were varied"
    )


@pytest.mark.parametrize("make", [late_in_host_memory, late_in_fresh_memory, fed_back_by_vary])
def test_what_differs_at_a_later_request_has_its_cause(make, device, backend):
    step, vary, expected = make(device)
    report = audit(step, vary=vary, backend=backend)
    assert [(f.kind, f.subject) for f in report.findings][:1] == [expected], str(report)


@pytest.mark.parametrize("is_leaking", [False, True])
def test_what_the_audit_puts_into_an_input_is_no_result(is_leaking, device, backend):
    """Of a step that returns nothing: half of an input is not used, and nobody refreshes that."""
    x, out = torch.rand(4, 8, device=device), torch.zeros(4, device=device)

    def step():
        out.copy_((x if is_leaking else x[:, :4]).sum(1))

    report = audit(step, vary=lambda: x[:, :4].add_(1), inputs=[x], backend=backend)
    assert [found.kind for found in report.findings] == ["stale-input"] * is_leaking


@pytest.mark.parametrize("with_twin", [False, True])
def test_of_slots_nobody_knows_which_are_real(with_twin, device, backend):
    """Padding is written to slot 0, which no request has."""

    def make():
        s = SimpleNamespace(
            x=torch.rand(4, 3, device=device), pool=torch.zeros(16, 3, device=device), n=4, turn=0
        )
        s.slots = torch.arange(1, 5, device=device)

        def step():
            s.pool[s.slots] = s.x * 2

        def vary():
            s.turn, s.n = s.turn + 1, 2 + s.turn % 2
            s.x[: s.n].add_(s.turn)
            s.slots[: s.n].copy_(torch.arange(s.n) + 4 + s.turn)
            s.slots[s.n :].zero_()

        return SimpleNamespace(step=step, vary=vary, rows=lambda: s.n)

    own = make()
    twin = {"twin": make} if with_twin else {}
    report = audit(own.step, vary=own.vary, rows=own.rows, backend=backend, **twin)
    assert not report.findings, str(report)
    told = "the step returns nothing, and writes nothing of as many rows as"
    assert any(note.startswith(told) for note in report.notes), report.notes


def test_an_input_of_another_length_than_the_results_has_no_padded_rows(device, backend):
    """Where each request begins and ends: one more than there are requests, and the last one is forgotten."""
    x, ends = torch.rand(4, device=device), torch.arange(5, device=device)

    def vary():
        x.add_(1)
        ends[:3].copy_(torch.tensor([0, 2, 3]))

    def step():
        return x + (ends[1:] - ends[:-1])

    report = audit(step, vary=vary, rows=lambda: 3, inputs=[ends], backend=backend)
    assert [(found.kind, found.subject) for found in report.findings] == [("stale-input", "ends")]


@pytest.mark.parametrize("nobodys", [0.0, -1.0])
def test_a_number_that_clears_rows_marks_those_that_nobody_has_had(nobodys, device, backend):
    """Batches shrink before they grow, and what was used alone is cleared."""
    sizes = iter((3, 2, 4, 3, 5, 1))
    s = SimpleNamespace(n=5)
    x, mask = torch.zeros(8, 3, device=device), torch.full((8,), nobodys, device=device)
    x[:5], mask[:5] = torch.rand(5, 3), 1.0

    def step():
        is_real = (mask > 0)[:, None]
        return torch.where(is_real, x - torch.where(is_real, x, 0.0).sum(0) / is_real.sum(), 0.0)

    def vary():
        before, s.n = s.n, next(sizes)
        x[: s.n].copy_(torch.rand(s.n, 3))
        mask[: s.n].fill_(1.0)
        mask[s.n : before].fill_(nobodys)

    report = audit(step, vary=vary, rows=lambda: s.n, backend=backend)
    assert not report.findings, str(report)
    assert any(note.startswith("vary() has written mask behind its") for note in report.notes)


def test_one_row_that_is_cleared_marks_no_others(device, backend):
    """A guard row: rows that requests have had hold what they have left there."""
    sizes, s = iter((5, 2, 4, 3, 5, 1)), SimpleNamespace(n=8)
    x = torch.zeros(8, 3, device=device)

    def vary():
        s.n = next(sizes)
        x[: s.n].copy_(-torch.rand(s.n, 3))
        x[s.n : s.n + 1].zero_()

    report = audit(lambda: x - x.amax(0), vary=vary, rows=lambda: s.n, backend=backend)
    assert [(found.kind, found.subject) for found in report.findings] == [("padding-leak", "x")]


def test_what_was_not_compared_or_asked_is_told(device, backend):
    s = SimpleNamespace(rows=2, scale=1.0)
    x, ids = torch.rand(4, device=device), torch.zeros(4, dtype=torch.int64, device=device)
    table, other = torch.rand(3, device=device), torch.rand(8, device=device)

    def vary():
        s.scale += 1
        x[: s.rows or 1].add_(1)
        ids[:1].copy_(torch.zeros(1, dtype=torch.int64))

    def step():
        return x * table[ids], other[2:] * s.scale, other * s.scale

    def notes(**given):
        return "\n".join(audit(step, vary=vary, backend=backend, **given).notes)

    told = notes(rows=lambda: s.rows, inputs=[ids, torch.rand(3, device=device)])
    assert "the step returns tensors of 4 and 6 and 8 rows: of each the first 2 were compared" in told
    assert "ids holds zeros there, and may be an index" in told
    assert "an input of shape [3] is nothing that the step reaches now" in told
    s.rows = 0
    told = notes(rows=lambda: s.rows)
    assert "rows() has told that none is real" in told
    assert "frozen, with the same first 0 rows of the result: s.scale" in told


def test_what_a_step_writes_may_have_no_rows_and_show_an_input_all_the_same(device, backend):
    """Its rows, one behind the other: positions that nobody refreshes."""
    x, positions = torch.rand(4, 3, device=device), torch.ones(4, device=device)
    out = torch.zeros(12, device=device)

    def step():
        out.copy_((x + positions[:, None]).flatten())

    report = audit(step, vary=lambda: x.add_(1), rows=lambda: 3, inputs=[x, positions], backend=backend)
    assert [(found.kind, found.subject) for found in report.findings] == [("stale-input", "positions")]


def test_a_graph_that_reads_padding_for_a_number_that_froze_is_told_that_first(device, backend):
    s = SimpleNamespace(n=5)
    x = torch.rand(8, 3, device=device)

    def vary():
        s.n = s.n % 4 + 1
        x[: s.n].add_(1)

    report = audit(lambda: x - x[: s.n].mean(0), vary=vary, rows=lambda: s.n, backend=backend)
    kinds = [found.kind for found in report.findings]
    assert kinds[0] == "frozen-host-value", str(report)
    assert "padding-leak" in kinds


def test_a_ring_is_none_where_it_begins_again_either(device, backend):
    """One request, and a window of the last four inputs that `vary` writes one behind the other."""
    s = SimpleNamespace(at=0)
    ring, weight = torch.rand(4, 3, device=device), torch.rand(3, 3, device=device)

    def vary():
        s.at += 1
        ring[s.at % 4].copy_(torch.rand(3))

    report = audit(lambda: (ring.mean(0) @ weight)[None], vary=vary, rows=lambda: 1, backend=backend)
    assert not report.findings, str(report)


def test_one_row_for_all_is_no_number_of_rows(device, backend):
    """All real rows of the input are refreshed, and the result is their sum, without padding."""
    s = SimpleNamespace(n=2)
    x, mask = torch.zeros(8, 3, device=device), torch.zeros(8, device=device)
    x[:2], mask[:2] = 1.0, 1.0

    def step():
        return torch.where(mask[:, None] > 0, x, 0.0).sum(0, keepdim=True)

    report = audit(step, vary=lambda: x[:2].add_(1), rows=lambda: s.n, inputs=[x], backend=backend)
    assert not report.findings, str(report)


def test_of_a_column_of_zeros_it_is_told_that_nothing_was_asked(device, backend):
    table, x = torch.tensor([[0, 5], [0, 6]], device=device), torch.rand(2, 2, device=device)

    def vary():
        x.add_(1)
        table[:, 1].add_(1)

    report = audit(lambda: x * (1 + table[:, :1]), vary=vary, inputs=[table], backend=backend)
    assert report.notes[-1].startswith("table holds zeros there, and may be an index")


def test_a_step_may_let_go_of_what_it_has_written(device, backend):
    """What is put back has another size by then."""
    x, kept = torch.ones(4, device=device), torch.zeros(4, device=device)

    def step():
        if not kept.numel():
            kept.data = torch.zeros(4, device=device)
        kept.add_(x)
        y = x * 2
        kept.resize_(0)
        return y

    def reset():
        kept.data = torch.zeros(4, device=device)

    report = audit(step, vary=lambda: x.add_(1), reset=reset, backend=backend)
    assert report.findings
