"""Whatever a reader's function does, the check says so, names the line, and the next run works."""

import ast
import html
import inspect
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import IPython
import pytest
import torch
import torch.nn.functional as F
from IPython.core.interactiveshell import InteractiveShell
from torch.nn.modules.module import register_module_forward_hook

from mrv2lab import looks, puzzles
from mrv2lab.cases import CASES, get, serving
from mrv2lab.cases.exercises import dummy_lora
from mrv2lab.cases.exercises.shared import put_back
from mrv2lab.cases.exercises.watch import require_function
from mrv2lab.cases.workload import workload
from mrv2lab.errors import BadInput
from mrv2lab.graphs.base import CaptureObserver, observed
from mrv2lab.lifeline import REFUSED
from mrv2lab.runner import LoRAMapping, RunnerConfig, model, pp_executor
from mrv2lab.runner.lora_kernel_metadata import LoRAKernelMeta
from mrv2lab.runner.model import Decoder
from mrv2lab.runner.punica_wrapper import PunicaWrapper

CASE = get("lora_short_circuit")
SMALL = {"rung": "emulated", "num_layers": 1, "batch_size": 1, "num_steps": 9}
AT_ONE_SHAPE = replace(CASE, exercise=replace(CASE.exercise, harder=()))
SOLUTION = CASE.variant("forced_launch").fn


@pytest.fixture(scope="module", autouse=True)
def imported():
    """By the first check of `lora_device_assert`, and by the first matmul: not where those are cut off.

    Not above: a stage imports this file for a function in it, and needs none of that.
    """
    import_module("torch._dynamo")
    import_module("torch.fx.experimental.symbolic_shapes")


few = pytest.mark.usefixtures("few_sizes")  # one request at a time
PART = '<div class="mrv2lab mrv2lab-part">'


ASKING = [pytest.param(case, id=name) for name, case in CASES.items() if case.exercise]


def strings(tree):
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


@pytest.mark.parametrize("case", ASKING)
def test_a_mistake_has_one_text_and_a_text_one_mistake(case):
    """Read off the code: a name that no repair in these tests brings about needs its text as well."""
    modules = {inspect.getmodule(look) for look in (case.exercise.mistakes, dummy_lora.DummyLoRAWatch)}
    trees = [ast.parse(inspect.getsource(module)) for module in modules]
    yields = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Yield)]
    firsts = [node.elts[0] for node in yields if isinstance(node, ast.Tuple)]
    names = {first.value for first in firsts if isinstance(first, ast.Constant)}
    if case.exercise.watch is not dummy_lora.DummyLoRAWatch:
        names -= {"adapter_in_no_slot"}
    assert len(names) >= 3, f"its code yields {len(names)} mistakes by name, not 3"  # as `test_complete.py`
    for texts in (case.exercise.seen, case.exercise.why):
        assert names <= texts.keys(), "a mistake has no text"
        assert texts.keys() <= set.union(*map(strings, trees)), "a text belongs to nothing"


@pytest.mark.parametrize("case", ASKING)
def test_hints_come_one_at_a_time_and_never_hold_the_solution(case):
    assert repr(case.hint(1)).startswith("hint 1: ")
    assert [case.hint(n).text for n in (1, 2, 3)] == list(case.exercise.hints)
    assert "def " not in "".join(case.exercise.hints)
    with pytest.raises(BadInput, match="unknown hint '4'; possible: 1, 2, 3"):
        case.hint(4)


def test_the_solution_stands_beside_ones_own_and_is_closed_at_first():
    shown = CASE.solution(raises)
    assert repr(shown) == "upstream: forced_launch: closed; open it above, or print it"
    assert "no_lora_flag_cpu" not in repr(shown)
    assert looks.bare(shown._repr_html_()).startswith(f"{PART}<details><summary>")
    left, right = zip(
        *(line.split(" | ", 1) for line in str(shown).splitlines() if " | " in line), strict=True
    )
    assert "def raises(adapter_manager, input_batch):" in left[1] + left[2]
    assert any("kernel_meta.no_lora_flag_cpu[0] = False" in line for line in right)


def test_without_a_function_or_its_source_one_side_is_empty():
    assert CASE.solution().left == ()
    made = {}
    exec("def typed(a, b): pass", made)
    assert CASE.solution(made["typed"]).left == ("(its source is not known)",)


# ---- what can go wrong in a function ----


def raises(adapter_manager, input_batch):
    mapping = LoRAMapping((0,), (0,))
    adapter_manager.no_such_method(mapping)


def helper(adapter_manager):
    adapter_manager.no_such_method()


def calls_a_helper(adapter_manager, input_batch):
    helper(adapter_manager)


def asks_for_what_is_not_there(adapter_manager, input_batch):
    get("lora")


def takes_too_little(adapter_manager):
    pass


def is_a_generator(adapter_manager, input_batch):
    yield adapter_manager


def leaves(adapter_manager, input_batch):
    raise SystemExit(3)


def hangs(adapter_manager, input_batch):
    n = 0
    while True:
        n += 1


def asks(adapter_manager, input_batch):
    input("which slot? ")


SLIPS = [
    (
        raises,
        "AttributeError: 'LoRAModelManager' object has no",
        "your line 3: adapter_manager.no_such_method(",
    ),
    (
        calls_a_helper,
        "AttributeError: 'LoRAModelManager' object",
        "your line: adapter_manager.no_such_method(",
    ),
    (asks_for_what_is_not_there, "BadInput: unknown case 'lora'; possible: ", 'your line 2: get("lora")'),
    (
        takes_too_little,
        "TypeError: takes_too_little takes (adapter_manager) and is given 2 arguments: LoRAModelManager, In",
        "your line 1: def takes_",
    ),
    (is_a_generator, "TypeError: is_a_generator is a generator or a c", "your line 1: def is_a_generator("),
    (leaves, "RuntimeError: leaves asked Python to exit", "your line 2: raise SystemExit(3)"),
    (asks, "RuntimeError: input() waits for an answer, and nobody gives one", "your line 2: input("),
]


@pytest.mark.parametrize(("fn", "message", "line"), SLIPS, ids=[fn.__name__ for fn, *_ in SLIPS])
def test_a_slip_is_a_sentence_with_the_readers_own_line(fn, message, line):
    check = CASE.check(fn, **SMALL)
    told = repr(check).splitlines()
    assert told[0] == "not solved yet: failed"
    assert told[1].startswith(message) and told[2].startswith(line)
    assert check.explanation is None  # nothing is made up


@few
def test_a_function_that_hangs_is_stopped_where_it_was(monkeypatch):
    monkeypatch.setattr("mrv2lab.cases.base.CHECK_CPU_S", 0.5)
    monkeypatch.setattr("mrv2lab.limits.PATIENCE", 10_000)  # by no clock
    told = repr(CASE.check(hangs, **SMALL)).splitlines()
    assert told[1] == "TimeoutError: hangs ran for 0.5 s without a result and was stopped"
    assert told[2] in ("your line 3: while True:", "your line 4: n += 1")
    monkeypatch.undo()
    assert CASE.run("forced_launch", **SMALL).as_expected


def test_a_stage_that_hangs_says_where(monkeypatch):
    monkeypatch.setattr("mrv2lab.cases.exercises.pp_eager_fallback.CPU_S", 0.2)
    told = repr(get("pp_eager_fallback").check(stage_hangs, rung="emulated")).splitlines()
    assert told[1] == "TimeoutError: stage_hangs ran for 0.2 s without a result and was stopped"
    assert told[2] in ("your line 2: while True:", "your line 3: pass")


def hoards(*args):
    held = [bytearray(1 << 24) for _ in range(400)]  # not so long that a limit that fails takes the machine
    raise AssertionError(f"{len(held)} pieces were given")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds what a process may still ask for")
@pytest.mark.parametrize("name", ["lora_short_circuit", "flashmla_lazy_init"])
def test_a_function_that_asks_for_memory_without_end_is_refused_more(name, monkeypatch):
    """A stage has a keeper, which ends it: `test_a_stage_that_dies_is_told_by_its_last_words`."""
    monkeypatch.setenv("MRV2LAB_MEMORY_GIB", "2")
    check = get(name).check(hoards, rung="emulated")
    told = repr(check).splitlines()
    assert told[0] == "not solved yet: failed"
    assert told[1] == f"MemoryError: {REFUSED}"
    assert told[2].startswith("your line 2: held = [bytearray(")
    monkeypatch.undo()
    assert get(name).run(get(name).exercise.solution, rung="emulated").as_expected


def stage_hangs(stage):
    while True:
        pass


# ---- what says nothing about a function ----


def works_for_ever(*args):
    while True:
        pass


def waits_for_ever(*args):
    threading.Event().wait()


@pytest.fixture
def no_processor(monkeypatch):
    """A machine so busy that the reader's function never runs, and nobody waits long for it."""
    monkeypatch.setattr("mrv2lab.limits.time.thread_time", lambda: 0.0)
    monkeypatch.setattr("mrv2lab.cases.base.CHECK_CPU_S", 0.1)


@pytest.mark.parametrize("name", ["lora_short_circuit", "lora_device_assert", "flashmla_lazy_init"])
@pytest.mark.parametrize("fn", [works_for_ever, waits_for_ever])
def test_a_check_that_is_cut_off_is_not_judged_and_blames_no_line(fn, name, no_processor):
    check = get(name).check(fn, rung="emulated")
    said = (
        f"CutOff: {fn.__name__} had no result after 0.5 s and was ended: the machine is too busy, or it waits"
    )
    told = ["not judged", f"{said} for something that never comes. Run it again"]
    assert repr(check).splitlines()[:-1] == told
    assert (check.status, check.run.verdict, check.run.where) == ("not judged", "failed", None)
    assert not check.solved and check.explanation is None
    page = looks.bare(check._repr_html_())
    assert page.startswith(f'{PART}<div data-status="not judged" data-verdict="failed">')
    assert "Run it again" in page and "<details>" not in page


def test_stages_that_are_cut_off_are_not_judged(monkeypatch):
    monkeypatch.setattr(pp_executor, "PATIENCE", 0.01)
    check = get("pp_eager_fallback").check(waits_for_ever, rung="emulated")
    assert check.status == "not judged"
    assert "your line" not in repr(check) and repr(check).count("Run it again") == 1


def fails_elsewhere(adapter_manager, input_batch):
    SOLUTION(adapter_manager, input_batch)
    adapter_manager.modules[0].set_lora = None
    adapter_manager.remove_all_adapters = None
    adapter_manager.punica_wrapper_mapping.clear()


@few
def test_what_fails_behind_the_function_comes_with_its_traceback():
    check = CASE.check(fails_elsewhere, **SMALL)
    told = repr(check).splitlines()
    assert told[0] == "not solved yet: failed" and "your line" not in repr(check)
    assert told[2] == "Traceback (most recent call last):" and len(told) > 5
    page = looks.bare(check._repr_html_())
    assert "<details><summary>traceback</summary><pre>Traceback" in page
    assert page.count(html.escape(told[1])) == 2


def test_a_slip_has_its_line_and_the_traceback_is_kept_closed():
    check = CASE.check(raises, **SMALL)
    assert "Traceback" not in repr(check)
    page = check._repr_html_()
    assert "<details><summary>traceback</summary>" in page and "raises failed" not in page


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flashmla_lazy_init", "returned None; return two AttentionStatePairs"),
        ("breakable_graph", "returned None; return what PIECEWISE batches call"),
    ],
)
def test_a_function_that_returns_nothing_is_told_what_the_seam_expects(name, expected):
    def forgets(*args):
        pass

    check = get(name).check(forgets, rung="emulated")
    assert expected in repr(check) and "your line 1: def forgets(*args):" in repr(check)


def test_half_a_result_is_told_as_well():
    check = get("flashmla_lazy_init").check(lambda build: (build(), build()), rung="emulated")
    assert "returned a tuple; return two AttentionStatePairs" in repr(check)


def looks_up_too_far(adapter_manager, input_batch):
    return F.embedding(torch.tensor([7]), torch.zeros(4, 2))


def test_ones_own_slip_is_not_the_crash_of_the_bug_in_the_same_words():
    check = get("lora_device_assert").check(looks_up_too_far)
    assert check.run.verdict == "failed" and "IndexError: index out of range in self" in repr(check)
    assert "your line 2: return F.embedding" in repr(check)


# ---- what every run shares ----


def replaces_a_method(adapter_manager, input_batch):
    LoRAKernelMeta.prepare_tensors = lambda self, mapping: None


def replaces_a_function(adapter_manager, input_batch):
    serving.serve = lambda *args: []
    torch.set_default_dtype(torch.float64)


def replaces_a_private_method(adapter_manager, input_batch):
    inner = PunicaWrapper._add_lora

    def always(self, meta, *rest):
        meta.no_lora_flag_cpu[0] = False
        meta.num_active_loras_cpu[0] = len(meta.active_lora_ids)
        return inner(self, meta, *rest)

    PunicaWrapper._add_lora = always


def adds_what_is_inherited(adapter_manager, input_batch):
    Decoder.__setattr__ = torch.nn.Module.__setattr__
    model.sorted = sorted


def changes_the_inside_of_a_function(adapter_manager, input_batch):
    serving.serve.__defaults__ = (serving,)


def replaces_what_torch_has(adapter_manager, input_batch):
    embedding = F.embedding
    F.embedding = lambda ids, weight, *rest: embedding(ids.clamp(0, len(weight) - 1), weight, *rest)
    torch.nn.Linear.forward = lambda self, x: x


def takes_one_of_torch(adapter_manager, input_batch):
    PunicaWrapper._add_lora = F.cross_entropy


def changes_settings(adapter_manager, input_batch):
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(torch.get_num_threads() + 1)
    register_module_forward_hook(lambda module, given, result: None)


def changes_a_case(adapter_manager, input_batch):
    object.__setattr__(CASE, "observe", None)


def changes_much(adapter_manager, input_batch):
    for change in (
        changes_settings,
        changes_a_case,
        adds_what_is_inherited,
        changes_the_inside_of_a_function,
        replaces_what_torch_has,
    ):
        change(adapter_manager, input_batch)


MUCH = {
    "torch's choice of deterministic algorithms",
    "torch's number of threads",
    "torch's hooks of all modules, _global_forward_hooks",
    "lora_short_circuit.observe",
    "mrv2lab.runner.model.sorted",
    "Decoder.__setattr__",
    "mrv2lab.cases.workload.serve",
    "torch.nn.functional.embedding",
    "Linear.forward",
}


@few
@pytest.mark.parametrize(
    ("fn", "names"),
    [
        (changes_much, MUCH),
        (takes_one_of_torch, {"PunicaWrapper._add_lora"}),
        (replaces_a_private_method, {"PunicaWrapper._add_lora"}),
        (replaces_a_method, {"LoRAKernelMeta.prepare_tensors"}),
        (replaces_a_function, {"mrv2lab.cases.serving.serve", "torch's default dtype"}),
    ],
)
def test_what_every_run_shares_is_put_back_and_named(fn, names):
    before = LoRAKernelMeta.prepare_tensors, serving.serve, F.embedding, torch.nn.Linear.forward
    num_threads = torch.get_num_threads()
    check = CASE.check(fn, **SMALL)
    assert set(check.changed) == names and len(check.changed) == len(names) and not check.solved
    assert f"{fn.__name__} replaced {', '.join(check.changed)}, which every run shares" in repr(check)
    assert before == (LoRAKernelMeta.prepare_tensors, serving.serve, F.embedding, torch.nn.Linear.forward)
    assert torch.get_default_dtype() is torch.float32
    assert not torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == num_threads


@few
def test_no_reference_of_a_changed_program_is_kept():
    serving.reference.cache_clear()
    assert CASE.check(replaces_a_function, **SMALL).changed
    assert CASE.run("forced_launch", **SMALL).as_expected


def test_who_asks_for_no_graphs_has_solved_nothing():
    """The batches that were to have graphs are those of the configuration as it was made."""

    def no_sizes(model, manager):
        vars(manager.config)["cudagraph_capture_sizes"] = ()
        return model

    check = get("breakable_graph").check(no_sizes, rung="emulated", num_layers=1, batch_size=2)
    assert check.changed == ("RunnerConfig.cudagraph_capture_sizes",) and not check.solved


def test_nothing_changed_is_nothing_put_back():
    with put_back() as changed:
        pass
    assert changed == []


def counts(adapter_manager, input_batch):
    global NUM_CALLS
    NUM_CALLS += 1
    SOLUTION(adapter_manager, input_batch)


NUM_CALLS = 0


@few
def test_globals_of_the_readers_own_are_the_readers():
    assert AT_ONE_SHAPE.check(counts, **SMALL).solved and NUM_CALLS


# ---- the check itself ----


def test_only_a_function_can_be_checked():
    with pytest.raises(BadInput, match="this is of type NoneType; give the function itself, uncalled"):
        CASE.check(None)


@few
def test_a_check_reads_the_same_in_a_notebook():
    check = CASE.check(CASE.variant("zero_mapping").fn, **SMALL)
    page = looks.bare(check._repr_html_())
    assert page.startswith(f'{PART}<div data-status="not solved yet" data-verdict="wrong">')
    assert "step 1 (of 0 to 8) went wrong first" in page
    solved = looks.bare(AT_ONE_SHAPE.check(SOLUTION, **SMALL)._repr_html_())
    assert solved.startswith(f'{PART}<div data-status="solved"')


@few
def test_without_evidence_only_the_step_is_told():
    check = CASE.check(drops_the_adapters, **SMALL)
    assert check.run.verdict == "wrong" and check.explanation is None
    assert [line.split(":")[0] for line in repr(check).splitlines()] == [
        "not solved yet",
        "step 0 (of 0 to 8) went wrong first",
        "rung",
    ]


def drops_the_adapters(adapter_manager, input_batch):
    """Nobody foresaw this: the repair, and weights that are all zero."""
    SOLUTION(adapter_manager, input_batch)
    for module in adapter_manager.modules:
        module.set_lora = lambda slot, generator: None


class Graphs(CaptureObserver):
    """Every graph that is captured, in order."""

    def __init__(self):
        self.all = []

    def begin(self):
        pass

    end = begin

    def captured(self, graph):
        self.all.append(graph)

    def replaying(self, graph):
        return nullcontext()


UNREACHABLE = {"breakable_graph": 0, "flashmla_lazy_init": 0, "lora_short_circuit": 0, "stale_view": 0}
UNREACHABLE["lora_frozen_grid"] = 3 + 2  # sizes with fewer requests than their key counts adapters


def shapes(case):
    """Those of a check."""
    return [case.complete({}) | changes for changes in (case.exercise.shape, *case.exercise.harder)]


MOST_WORK = 9_000
"""Nodes and ops in all that a check serves: the reader waits for each of them."""


@pytest.mark.parametrize(("name", "unreachable"), UNREACHABLE.items())
def test_the_solution_holds_at_every_shape_and_replays_every_graph_that_it_captures(name, unreachable):
    """Stages of a pipeline are processes of their own. `lora_device_assert` has no graphs."""
    case, never, work = get(name), {}, Counter()

    def observe(variant, backend, shape):
        graphs = Graphs()
        with observed(graphs):
            seen = case.observe(variant, backend, shape)
        unused = {i for i, graph in enumerate(graphs.all) if not graph.num_replays}
        if not shape.get("specialize_active_lora"):  # a shape of one request, beyond which the solution ends
            kind = len(graphs.all)
            never[kind] = never.get(kind, unused) & unused
        for step in (*seen.steps, *seen.reference, *seen.idle):
            work.update(nodes=step.work["step"].nodes, ops=step.work["step"].ops)
        return seen

    solution = case.variant(case.exercise.solution).fn
    least = case.limits["num_layers"].least
    check = replace(case, observe=observe).check(solution, rung="emulated", num_layers=least)
    assert check.solved, check
    assert [remark.name for remark in check.remarks] == ["room for few"] * (name == "lora_short_circuit")
    assert sum(map(len, never.values())) == unreachable
    assert 0 < work.total() < MOST_WORK


@pytest.mark.parametrize("name", ["breakable_graph", "flashmla_lazy_init", "stale_view"])
def test_where_lengths_matter_a_check_serves_the_longest_request_there_may_be(name):
    case = get(name)
    served = [request for shape in shapes(case) for request in workload(shape)]
    assert max(len(r.prompt_token_ids) + r.max_tokens for r in served) == RunnerConfig.max_model_len


@pytest.mark.parametrize("name", ["pp_eager_fallback", "lora_short_circuit"])
def test_where_rows_matter_a_check_serves_the_largest_batch_there_may_be(name):
    case = get(name)
    first = [workload(shape)[: shape["batch_size"]] for shape in shapes(case)]
    assert max(sum(len(r.prompt_token_ids) for r in batch) for batch in first) == RunnerConfig.max_num_tokens


def capped(model, manager):
    """The whole model in one graph, its attention wide enough for every request but the longest."""
    manager.use_breakable_cg = True
    for index in range(len(model.layers)):
        attn = model.layer(index).attn
        attend = attn.attend
        attn.attend = lambda q, k, v, meta, attend=attend: attend(
            q, k, v, replace(meta, max_seq_len=max(56, meta.max_seq_len))
        )
    return model


def test_a_frozen_length_that_most_requests_fit_is_no_repair():
    check = get("breakable_graph").check(capped, rung="emulated", num_layers=1, batch_size=2)
    assert (check.run.verdict, check.harder["to_the_limits"]) == ("wrong", 1)


def one_row_short(stage):
    """Buffers with room for every batch but the largest."""
    if not stage.pp_group.is_first_rank:
        rows = stage.config.max_num_tokens - 1
        stage.intermediate_tensors = stage.make_empty_intermediate_tensors(rows)
    stage.capture_model()


def test_buffers_that_most_batches_fit_are_no_repair():
    check = get("pp_eager_fallback").check(one_row_short, rung="emulated")
    assert not check.solved and check.run.shape["to_the_limits"] == 1


# ---- in a notebook ----


@pytest.mark.parametrize("kind", ["check", "check_test", "puzzle"])
def test_a_function_whose_last_version_did_not_compile_is_not_judged(kind, monkeypatch):
    cells = ["", "def raises(adapter_manager, input_batch):\n    pass", "def raises(a, b)\n    pass", "1 +"]
    ways = {
        "check": CASE.check,
        "check_test": CASE.check_test,
        "puzzle": lambda fn: puzzles.check("counter", fn, backend="emulated"),
    }
    shell = SimpleNamespace(user_ns={})
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    for number in range(1, len(cells) + 1):
        shell.user_ns["In"] = cells[:number]
        if number < 3:
            require_function(raises)
            continue
        with pytest.raises(BadInput, match=r"^the last version of raises did not compile; this is the one"):
            ways[kind](raises)
    cells += ["def raises(a, b):\n    pass"]
    shell.user_ns["In"] = cells
    require_function(raises)


def interrupts(adapter_manager, input_batch):
    raise KeyboardInterrupt


def test_in_a_notebook_what_a_reader_gives_or_does_is_told_in_a_line(capsys):
    shell = InteractiveShell()
    shell.user_ns |= {"case": CASE, "interrupts": interrupts, "small": SMALL}
    shell.run_cell("case.check(None)")
    assert capsys.readouterr().out.splitlines() == [
        "BadInput: this is of type NoneType; give the function itself, uncalled"
    ]
    shell.run_cell("case.check(interrupts, **small)")
    assert capsys.readouterr().out.splitlines() == [
        "KeyboardInterrupt: the check of interrupts was interrupted"
    ]
