"""Whatever a step does, `mrv2lab audit step` ends in a report, or in one line that says what it was."""

import ast
import functools
import os
import subprocess
import sys
import textwrap
from functools import partial
from types import MethodType, SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from typer.testing import CliRunner

from mrv2lab.audit import atoms, audit, frozen_host_value, names
from mrv2lab.cli import app
from mrv2lab.errors import NotRepeatable

BEGINNING = """
import sys
import torch
from mrv2lab.graphs import capture, host

x = torch.ones(4)
"""

# What cannot be audited: the step, and words of the one line that is said.
REFUSED = {
    "a replay of its own whose state nobody holds": (
        """
        def make():
            total = torch.zeros(4)
            graph = capture(lambda: total.add_(1))

            def step():
                graph.replay()
                return graph.outputs
            return step

        step = make()
        """,
        "what such a graph writes is not known",
    ),
    "returns nothing": ("def step():\n    x + 1", "leaves no result that the audit can see"),
    "raises": ("def step():\n    raise KeyError('batch')", "raised KeyError while it was captured at"),
    "raises, and says nothing": ("def step():\n    raise Exception", "raised Exception"),
    "raises what is no Exception": (
        "class Stop(BaseException): ...\n\ndef step():\n    raise Stop",
        "raised Stop",
    ),
    "leaves the process": ("def step():\n    sys.exit(0)", "raised SystemExit while it was captured at"),
    "leaves the process when it is varied": (
        "def step():\n    return x + 1\n\ndef vary():\n    sys.exit(0)",
        "raised SystemExit when the inputs were varied at",
    ),
    "cannot be reset twice": (
        """
        times = iter([1])

        def step():
            return x + 1

        def reset():
            next(times)
        """,
        "raised StopIteration when it was reset at",
    ),
    "a file that leaves the process": ("def step():\n    pass\n\nsys.exit(0)", "raised SystemExit: 0"),
    "recursion without end": ("def step():\n    return step()", "raised RecursionError"),
    "captures inside": ("def step():\n    capture(lambda: x + 1)", "capture inside a capture"),
    "uses its input up": (
        "given = [x]\n\ndef step():\n    return given.pop() + 1",
        "raised IndexError while it was captured at",
    ),
    "deletes its tensor": ("def step():\n    global x\n    del x", "raised NameError"),
    "on a GPU that is not there": (
        "def step():\n    return torch.ones(4, device='cuda')",
        'Here is no GPU: capture is emulated, so let tensors lie on device="cpu"',
    ),
    "of a package": (
        "from . import other\n\ndef step():\n    return x + 1",
        "A file of a package cannot be run alone",
    ),
    "a generator": ("def step():\n    yield x + 1", "is a generator or a coroutine"),
    "a coroutine": ("async def step():\n    return x + 1", "is a generator or a coroutine"),
    "empty": ("def step():\n    pass", "does no work on the device (its last line:"),
    "numpy only": (
        "import numpy as np\n\ndef step():\n    return np.ones(3) + 1",
        "does no work on the device",
    ),
    "in another thread": (
        """
        import threading

        def step():
            thread = threading.Thread(target=lambda: x + 1)
            thread.start()
            thread.join()
        """,
        "does no work on the device",
    ),
    "of the host's only": ("y = host(torch.ones(2))\n\ndef step():\n    return y + 1", "does no work"),
    "wants an argument": ("def step(n):\n    return x + n", "step() asks for n; step takes a function"),
    "a helper that wants an argument": (
        "def helper(n):\n    return x + n\n\ndef step():\n    return helper()",
        "raised TypeError while it was captured at",
    ),
    "no function": ("step = 3", "no function 'step'"),
    "an op that leaves the process": (
        """
        library = torch.library.Library("odd_steps", "FRAGMENT")
        library.define("leave(Tensor x) -> Tensor")
        library.impl("leave", lambda x: sys.exit(0), "CompositeExplicitAutograd")

        def step():
            return torch.ops.odd_steps.leave(x)
        """,
        "raised SystemExit while it was captured at",
    ),
    "an op that nobody has implemented": (
        """
        library = torch.library.Library("odd_steps", "FRAGMENT")
        library.define("nothing(Tensor x) -> Tensor")

        def step():
            return torch.ops.odd_steps.nothing(x)
        """,
        "Could not run 'odd_steps::nothing'",
    ),
    "an op in C++ without a shape function": (
        "def step():\n    return torch.ops.quantized.embedding_bag_4bit_prepack(x[None])",
        "quantized.embedding_bag_4bit_prepack.default has no shape function",
    ),
}

# What can be audited, although it looks odd.
TAKEN = {
    "a replay of its own": """
        graph = capture(lambda: x + 1)

        def step():
            graph.replay()
            return graph.outputs
        """,
    "a partial": "import functools\n\nstep = functools.partial(torch.add, x, 1)",
    "a class": "class step:\n    def __init__(self):\n        self.y = x + 1",
    "returns what does not let itself be looked at": """
        class Shy:
            def __getattribute__(self, name):
                raise RuntimeError(name)

        shy = Shy()

        def step():
            return [shy, x + 1]
        """,
    "leaves a mode on": """
        from torch.utils._python_dispatch import TorchDispatchMode

        class Through(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return func(*args, **(kwargs or {}))

        def step():
            Through().__enter__()
            return x + 1
        """,
    "returns a part of itself": "def step():\n    y = [x + 1]\n    y.append(y)\n    return y",
}


def run(tmp_path, source):
    file = tmp_path / "odd.py"
    file.write_text(BEGINNING + textwrap.dedent(source))
    result = CliRunner().invoke(app, ["audit", "step", f"{file}:step", "--backend", "emulated"])
    assert not _get_current_dispatch_mode_stack()
    return result


@pytest.mark.parametrize(("source", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_audited_is_one_line_and_exit_status_2(tmp_path, source, words):
    result = run(tmp_path, source)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("mrv2lab: ") and words in line


def test_more_results_each_time_are_held_against_a_file_that_is_run_anew(tmp_path):
    result = run(tmp_path, "kept = []\n\ndef step():\n    kept.append(x)\n    return [t + 1 for t in kept]")
    assert result.exit_code == 1 and "does more work each time" in result.stdout
    assert "a fresh engine that runs eagerly gives another result" in result.stdout


@pytest.mark.parametrize("source", TAKEN.values(), ids=TAKEN)
def test_what_only_looks_odd_is_audited(tmp_path, source):
    result = run(tmp_path, source)
    could_not_show = "what is frozen cannot show" in " ".join(result.output.split())
    assert (result.exit_code, "nothing found" in result.stdout) == (2 * could_not_show, True), result.output


BUILT_ONCE = """
lens, x, state, n = torch.tensor([3, 1]), torch.rand(2, 4), {{}}, [2, 5]
def build(): return {build}
def step():
    if "plan" not in state:
        state["plan"] = build()
    return x * state["plan"]
def vary(): {vary}
"""


@pytest.mark.parametrize(
    ("build", "vary", "read"),
    [
        ("lens.cumsum(0).unsqueeze(1)", "lens.add_(1)", "lens"),
        ("int(lens.max())", "lens.add_(1)", "lens"),
        ("2 * n[1]", "n.__setitem__(1, 6)", "n[1]"),
        ("sum(n)", "n.append(1)", "n[2]"),
        ("int(lens.max())", "x.add_(1)", None),
        ("torch.arange(2).unsqueeze(1) * 2", "lens.add_(1)", None),
    ],
)
def test_where_inputs_of_what_was_built_once_have_changed_a_note_asks_for_a_reset(
    tmp_path, build, vary, read
):
    told = run(tmp_path, BUILT_ONCE.format(build=build, vary=vary))
    output = " ".join(told.output.split())
    cannot_show = read is not None or "what is frozen cannot show" in output
    assert told.exit_code == 2 * cannot_show and "nothing found" in output
    assert (f"{read} was read in the first pass alone" in output) is (read is not None)
    assert ("define a reset()" in output) is (read is not None)


ON_ONE_LINE = """
@__import__("functools").lru_cache
def halves(given):
    return given * 0.5

y, plan, owner, n = torch.ones(8), {{}}, __import__("types").SimpleNamespace(made=None, several=[]), 2
def step():
    z = x * 2
    {line}
def vary():
    global n
    x.add_(1); n += 1
"""
MADE_ONCE = [
    'if "p" not in plan: plan["p"] = x.sum()\n    return x + plan["p"]',
    'if "p" not in plan: plan["p"] = z.sum()\n    return x + plan["p"]',
    'if (p := plan.get("p")) is None: p = plan["p"] = x.sum()\n    return x + p',
    "owner.several = owner.several or [x.sum()]\n    return x + owner.several[0]",
    "owner.made = owner.made if owner.made is not None else x.sum()\n    return x + owner.made",
    '"p" in plan or plan.update(p=x.sum())\n    return x + plan["p"]',
    'if "p" not in plan: plan["p"] = torch.full((4,), n)\n    return x + plan["p"]',
]
MADE_ONCE += [
    'if "p" not in plan: plan["p"] = (lambda t: t * 2)(x)\n    return x + plan["p"]',
    "return x + halves(x)",
]
MADE_OF_OTHERS = [
    'if "p" not in plan: plan["p"] = torch.zeros_like(x)\n    return x + plan["p"]',
    'if "p" not in plan:\n        plan["p"] = torch.empty_like(x)\n    return torch.add(x, 1, out=plan["p"])',
    'return x.sum() + (plan["p"] if "p" in plan else plan.setdefault("p", (y * 2).sum()))',
    'return (plan["p"] if "p" in plan else plan.setdefault("p", (y * 2).sum())) + x.sum()',
]


@pytest.mark.parametrize("line", [*MADE_ONCE, *MADE_OF_OTHERS])
def test_what_is_made_once_on_a_line_that_every_pass_runs_is_noted_by_what_it_looked_at(tmp_path, line):
    told = run(tmp_path, ON_ONE_LINE.format(line=line))
    assert told.exit_code == 2 * (line in MADE_ONCE), told.output
    assert ("was read in the first pass alone" in told.output) is (line in MADE_ONCE), told.output


def test_what_a_reset_lets_go_of_is_no_finding_beside_what_it_was_to_show(tmp_path):
    source = ON_ONE_LINE.format(line=MADE_ONCE[0]) + "def reset(): plan.clear()\n"
    told = run(tmp_path, source)
    assert told.exit_code == 1 and "freed-memory" not in told.output
    assert "was 'dict of length 1' at capture, is 'dict of length 0' now" in " ".join(told.output.split())


def test_a_step_that_draws_is_told_what_to_do(backend, device):
    x = torch.ones(4, device=device)
    with pytest.raises(NotRepeatable, match=r"draw them in vary\(\).*a twin needs none"):
        audit(lambda: x + torch.rand(4, device=device), vary=lambda: x.add_(1), backend=backend)


def test_where_python_has_no_source_a_note_says_so():
    source = "import torch\nfrom mrv2lab.audit import audit\nx, s = torch.ones(4), [2]\n"
    source += "print(audit(lambda: x * s[0], vary=lambda: s.append(s.pop() + 1), backend='emulated'))"
    told = subprocess.run([sys.executable, "-"], input=source, text=True, capture_output=True, check=True)
    assert told.stdout.count("as where code is piped to Python") == 1


def test_who_gives_a_reset_is_not_asked_for_one(tmp_path):
    source = BUILT_ONCE.format(build="int(lens.max())", vary="lens.add_(1)") + "def reset(): pass\n"
    assert "first pass alone" not in run(tmp_path, source).output


@pytest.mark.parametrize(
    ("vary", "is_told"),
    [
        ("pass", True),
        ("n = 3", True),
        ("global n; n = 3", False),
        ("x.add_(1)", False),
        ("large.add_(1)", False),
        ("few.add(3)", False),
        ("array[0] = 4", False),
        ("many[1999] = 4", False),
        ("owner.n = 3", False),
        ("del owner.parts[0]['n']", False),
        ("Context.made.scale.add_(1)", False),
        ("Context.made.n = 3", False),
        ("Context.made.zero = 1", False),
    ],
)
def test_a_note_says_so_where_vary_has_changed_nothing(tmp_path, vary, is_told):
    source = """
    import types
    n, large, few, many, owner = 2, torch.ones(1 << 17), {1, 2}, [0] * 2000, types.SimpleNamespace(n=2)
    array, owner.parts = __import__("numpy").ones(2), [{"n": 3}]
    class Context:
        made = None
        @classmethod
        def get(cls):
            return cls.made
    Context.made = Context()
    Context.made.scale, Context.made.n, Context.made.zero = torch.ones(4), 2, 0
    def step():
        len(few), array, many, owner, n
        used = Context.get()
        return x.sum() * large[:4] * used.scale * 0 * used.n * getattr(used, "zero")
    """
    told = run(tmp_path, textwrap.dedent(source) + f"def vary(): {vary}\n")
    assert ("vary() changed nothing" in told.output) is is_told, told.output


def test_what_explains_that_a_reset_lets_go_is_looked_for_once(monkeypatch):
    """To look takes as long as a pass, and a reset may let go of much: of a step's metadata, say."""
    x, plan, looks, find = torch.ones(2, 8), {}, [], frozen_host_value.find

    def step():
        for i in range(0 if plan else 12):
            plan[i] = x.sum() * i
        return sum(plan.values(), start=x)

    def look(evidence):
        looks.append(evidence)
        return find(evidence)

    monkeypatch.setattr(frozen_host_value, "find", look)
    report = audit(step, vary=lambda: x.add_(1), reset=plan.clear, backend="emulated")
    assert "freed-memory" not in [found.kind for found in report.findings] and report.findings
    assert len(looks) == 2  # as a kind of its own, and for all twelve


def test_what_a_reset_lets_go_of_and_a_step_makes_anew_is_lost_work():
    """And not memory that was freed, though the graph reads it: that it is read is what is wrong."""
    x, n = torch.ones(4), torch.full((4,), 4.0)

    class Tables:
        @functools.cached_property
        def doubled(self):
            return n * 2

    tables = Tables()
    found = audit(
        lambda: x * tables.doubled,
        vary=lambda: n.add_(1),
        reset=lambda: vars(tables).pop("doubled", None),
        backend="emulated",
    ).findings
    kinds = [one.kind for one in found]  # where it comes to lie elsewhere, it has moved as well
    assert "lost-kernel" in kinds and "freed-memory" not in kinds


@pytest.mark.parametrize("settles_at, found", [(3, []), (5, []), (8, ["frozen-host-value"])])
def test_what_moves_on_by_itself_is_no_work_of_what_is_captured_beside_it(settles_at, found):
    x, state = torch.ones(4), SimpleNamespace(n=0)

    def step():
        state.n = min(state.n + 1, settles_at)
        return x * state.n

    report = audit(step, vary=lambda: x.add_(1), beside=[lambda: x + 1], backend="emulated")
    assert [one.kind for one in report.findings] == found


def plus(x):
    return x + 1


def times(x):
    return x * 2


@pytest.mark.parametrize("now, name", [(times, "times"), (torch.neg, "neg")])
def test_what_is_called_comes_before_what_else_has_changed_on_its_line(now, name):
    x, held = torch.full((4,), 3.0), SimpleNamespace(act=plus, log=[])

    def step():
        return held.act(held.log.append(1) or x)

    found = audit(step, vary=lambda: setattr(held, "act", now), backend="emulated").findings[0]
    assert (found.kind, found.subject, found.change) == ("frozen-host-value", "held.act", ("plus", name))


def test_a_forward_that_an_object_gets_of_its_own_is_named():
    x, module = torch.ones(4), torch.nn.Linear(4, 4).requires_grad_(False)

    def vary():
        module.forward = times
        x.add_(1)

    def vary_back():
        del module.forward
        x.add_(1)

    for change, which in ((vary, 1), (vary_back, 0)):
        found = audit(lambda: module(x), vary=change, backend="emulated").findings[0]
        assert (found.kind, found.subject) == ("frozen-host-value", "module.forward")
        assert found.change[1 - which] == "not set" and found.change[which].startswith("times of line")


def test_what_a_partial_holds_is_named_by_the_way_to_it():
    x, held = torch.ones(4), [functools.partial(torch.mul, other=2.0)]

    def vary():
        held[0] = functools.partial(torch.mul, other=3.0)

    found = audit(lambda: held[0](x), vary=vary, backend="emulated").findings[0]
    assert found.kind == "frozen-host-value" and "held[0].keywords['other'] was and is" in found.evidence
    bound = dict(names.leaves({"held": functools.partial(x.add, 1, alpha=2)}))
    assert bound["held.args[0]"] == 1 and bound["held.keywords['alpha']"] == 2


def test_what_a_bound_method_is_of_is_named_by_the_way_to_it():
    owner = SimpleNamespace(k=3.0)
    known = names.plain({"held": [MethodType(lambda self, x: x * self.k, owner)]})
    assert known == {"held[0].__self__.k": 3.0}


# Of a value that is not there at capture: the expression, how it comes to be, what it was and is.
OFTEN_UNSET = {
    "getattr(held, 'flag', None)": ("held.flag = 2", (None, 2)),
    "getattr(held, 'scale', 1.0)": ("held.scale = 3.0", (1.0, 3.0)),
    "hasattr(held, 'flag')": ("held.flag = None", (False, True)),
    "getattr(layer, 'flag', False)": ("layer.flag = True", (False, True)),
    "held.table.get('flag')": ("held.table['flag'] = 1", (None, 1)),
    "held.table.get('n', 5)": ("held.table['n'] = 6", (5, 6)),
    "os.environ.get('MRV2LAB_A_FLAG', '0')": ("os.environ['MRV2LAB_A_FLAG'] = '1'", ("0", "1")),
    "os.getenv('MRV2LAB_A_FLAG')": ("os.environ['MRV2LAB_A_FLAG'] = '1'", (None, "1")),
}


@pytest.mark.parametrize("asked", OFTEN_UNSET)
def test_what_is_asked_for_where_it_may_be_missing_is_named(asked, tmp_path, monkeypatch):
    monkeypatch.delenv("MRV2LAB_A_FLAG", raising=False)
    change, both = OFTEN_UNSET[asked]
    held = SimpleNamespace(table={i: object() for i in range(20)})
    scope = {"held": held, "x": torch.ones(4), "layer": torch.nn.ReLU(), "os": os, "MISSING": both[0]}
    file = tmp_path / "step.py"
    file.write_text(f"def step():\n    return x * (2 if {asked} == MISSING else 3)\ndef vary(): {change}\n")
    exec(compile(file.read_text(), file, "exec"), scope)
    monkeypatch.setenv("MRV2LAB_A_FLAG", "0")  # so that it is undone
    monkeypatch.delenv("MRV2LAB_A_FLAG")
    found = audit(scope["step"], vary=scope["vary"], backend="emulated").findings[0]
    assert (found.kind, found.subject, found.change) == ("frozen-host-value", asked, both)


class Computed:
    """Nobody can tell what it has without running code of its own."""

    @property
    def flag(self):
        raise AssertionError("an audit has asked")

    def __getattr__(self, name):
        raise AssertionError("an audit has asked")


@pytest.mark.parametrize("asked", ["getattr(it, 'flag', 0)", "hasattr(it, 'other')", "it.get('flag', 0)"])
def test_what_would_have_to_be_computed_is_not_asked_for(asked):
    [atom] = atoms.atoms_in(ast.parse(asked, mode="eval").body, compile("", "", "exec"))[:1]
    assert atom.value(sys._getframe(), {"it": Computed()}) is atoms.MISSING


def test_a_function_of_the_steps_own_that_is_called_like_an_argument_is_left_alone(tmp_path):
    source = """
    state = {"n": 2}
    def rows(free, active): return free + active
    def reads(name): return state[name]
    def twin(x): return x
    def step(): return x * rows(state["n"], reads("n"))
    def vary(): state["n"] = 3
    """
    told = run(tmp_path, textwrap.dedent(source))
    assert told.exit_code == 1 and "state['n']" in told.output, told.output


GIVEN = {  # a helper, how a step asks it, and what is returned: not what it is given
    "def helper(it): return held['true']": "x * helper(held['it'])",
    "def helper(it):\n    w = held['true']\n    return w": "x * helper(held['it'])",
    "def helper(it): return held['true'] if it < 99 else 0.0": "x * helper(it=held['it'])",
    "def helper(it, most=9): return min(most, held['true'])": "x * helper(held['it'], most=8)",
    "def helper(it): return held['true']  # ": "(s := helper(held['it'])) * x * s",
}


@pytest.mark.parametrize("helper", GIVEN)
@pytest.mark.parametrize("is_local", [False, True])
def test_what_a_helper_returns_comes_before_what_it_is_given(helper, is_local, tmp_path):
    asked = GIVEN[helper]
    if is_local:
        call = asked[asked.index("helper(") : asked.index(")") + 1]
        asked = f"{asked.replace(call, 's')}" if ":=" not in asked else "x * s"
        body = f"    s = {call}\n    return {asked}"
    else:
        body = f"    return {asked}"
    file = tmp_path / "step.py"
    file.write_text(f"{helper}\ndef step():\n{body}\ndef vary():\n    held['it'] += 1; held['true'] += 1.0\n")
    scope = {"x": torch.ones(4), "held": {"it": 0, "true": 2.0}}
    exec(compile(file.read_text(), file, "exec"), scope)
    found = audit(scope["step"], vary=scope["vary"], backend="emulated").findings[0]
    assert (found.kind, found.subject) == ("frozen-host-value", "held['true']")


def test_what_a_helper_is_given_is_named_where_it_decides(tmp_path):
    file = tmp_path / "step.py"
    file.write_text(
        "def helper(it): return 2.0 if it < 1 else held['same']\ndef step(): return x * helper(held['it'])\n"
    )
    scope = {"x": torch.ones(4), "held": {"it": 0, "same": 5.0}}
    exec(compile(file.read_text(), file, "exec"), scope)
    vary = partial(exec, "held['it'] += 1", scope)
    found = audit(scope["step"], vary=vary, backend="emulated").findings[0]
    assert (found.kind, found.subject) == ("frozen-host-value", "held['it']")


def test_a_forward_that_a_class_gets_later_is_named():
    class Norm(torch.nn.Module):
        def forward(self, x):
            return x * 2

    norm, x = Norm(), torch.ones(4)

    def vary():
        Norm.forward = lambda self, x: torch.tanh(x)
        x.add_(1)

    found = audit(lambda: norm(x), vary=vary, backend="emulated").findings[0]
    assert (found.kind, found.subject) == ("frozen-host-value", "norm.forward")


def test_what_torch_is_given_is_not_what_somebody_elses_call_returns(tmp_path):
    """`clip` stands as an argument alone, and of a call of which no line was seen."""
    file = tmp_path / "step.py"
    file.write_text(
        "def gate(t): return s['alpha']\ndef step(): return x.clamp(min=-s['clip']) + z * gate(s['t'])\n"
    )
    held = {"clip": 0.5, "alpha": 1.0, "t": 0}
    scope = {"x": torch.full((4,), -9.0), "z": torch.zeros(4), "s": held}
    exec(compile(file.read_text(), file, "exec"), scope)
    vary = partial(held.update, clip=4.0, alpha=2.0, t=1)
    found = audit(scope["step"], vary=vary, backend="emulated").findings
    assert found[0].subject == "s['clip']"


UNSURE = [
    "it * 2 + math.floor(held['calls'] / 1e9)",
    "it * 2 if not math.isnan(held['calls']) else 0",
    "it / math.copysign(1.0, held['calls'])",
]


@pytest.mark.parametrize("returned", UNSURE)
def test_what_a_helper_is_given_comes_first_where_nobody_can_work_out_the_rest(returned, tmp_path):
    file = tmp_path / "step.py"
    file.write_text(f"import math\ndef of(it): return {returned}\ndef step(): return x * of(held['it'])\n")
    held = {"it": 3, "calls": 1}
    scope = {"x": torch.ones(4), "held": held}
    exec(compile(file.read_text(), file, "exec"), scope)
    vary = partial(held.update, it=7, calls=2)
    found = audit(scope["step"], vary=vary, backend="emulated").findings
    assert found[0].subject == "held['it']"
