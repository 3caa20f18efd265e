"""`mrv2lab audit step FILE:FUNCTION` and the cell magic."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from typer.testing import CliRunner

from mrv2lab.audit import AuditReport, audit, audit_target
from mrv2lab.audit.target import audit_cell
from mrv2lab.cli import app
from mrv2lab.errors import BadInput

PROGRAM = """
import torch

x = torch.ones(4)
state = {"n": 2}


def step():
    return x * state["n"]


def fixed():
    return x * 2


def vary():
    state["n"] = 5
    x.add_(1)


def restart():
    state["n"] = 2
"""


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def run(*arguments):
    return CliRunner().invoke(app, ["audit", "step", *map(str, arguments)])


@pytest.mark.parametrize("before", [["--json"], ["--twin", "--json"], ["--backend", "emulated", "--json"]])
def test_options_of_a_step_may_stand_before_its_file(before, program):
    told = CliRunner().invoke(app, ["audit", *before, f"{program}:step"])
    assert told.exit_code == 1 and json.loads(told.stdout)["step"] == "step"
    assert CliRunner().invoke(app, ["audit", "--help"]).stdout.count("Commands") == 1


def test_the_page_shows_what_its_example_prints(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    code, printed = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", page, re.DOTALL).groups()
    (tmp_path / "decode.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    result = run("decode.py:step", "--backend", "emulated")
    assert (result.stdout, result.exit_code) == (printed, 1)


def test_a_finding_is_exit_status_1_and_names_the_line(program):
    result = run(f"{program}:step", "--backend", "emulated")
    assert result.exit_code == 1
    assert "frozen-host-value: state['n']" in result.stdout
    assert 'program.py:9 in step: return x * state["n"]' in result.stdout


def test_state_in_an_object_that_each_step_replaces_is_named_by_the_line_that_does(tmp_path):
    """The attribute that holds it is assigned nowhere."""
    (program := tmp_path / "carried.py").write_text(
        """
from dataclasses import dataclass, replace
import torch

@dataclass(frozen=True)
class State:
    h: torch.Tensor
    n: int = 0

state, x = State(torch.zeros(4)), torch.ones(4)

def step():
    global state
    state = replace(state, h=state.h * 0.5 + x)
    return state.h * 1

def vary():
    x.add_(1)
"""
    )
    (found,) = audit_target(f"{program}:step", backend="emulated").findings
    assert (found.kind, found.subject) == ("moved-address", "state")
    assert found.where is not None and "replace(state" in found.where.source


def test_nothing_found_is_exit_status_0(program):
    result = run(f"{program}:fixed", "--backend", "emulated")
    assert (result.exit_code, "nothing found" in result.stdout) == (0, True)


def test_nothing_found_says_what_was_changed_and_whether_all_could_show(program):
    program.write_text(
        """
import torch

x, y, z, n = torch.ones(4), torch.ones(4), torch.ones(4), {"rows": 3, "kept": 3}
plan = {}

def step():
    return (x[: n["rows"]] + y[:3] + z[:3]).sum()

def planned():
    if "mask" not in plan:
        plan["mask"] = torch.arange(4) < n["kept"]
    return torch.where(plan["mask"], x, 0).sum()

def vary():
    for one in (x, y, z):
        one.add_(1)
    n["kept"] -= 1
"""
    )
    found, plan = (run(f"{program}:{name}", "--backend", "emulated") for name in ("step", "planned"))
    assert (found.exit_code, plan.exit_code) == (0, 2), plan.output
    head = found.stdout.splitlines()[0]
    assert head.endswith("nothing found as vary() changed x, y, z and n['kept']"), head
    assert "changed x and n['kept'], and not all could show" in plan.stdout.splitlines()[0]


def test_a_file_whose_step_draws_is_held_against_a_fresh_one_unasked(program, backend, device):
    """Also where it draws at a later request alone, which a graph of the first one never does."""
    program.write_text(
        f"""
import torch
D = "{device}"
"""
        """
x, state = torch.rand(4, device=D), {"n": 0, "rounds": 1}

def step():
    y = x * 2
    for _ in range(state["rounds"]):
        y = y + torch.rand(4, device=D)
    return y

def late():
    return x * 2 + torch.rand(4, device=D) if state["n"] >= 3 else x * 2

def vary():
    x.copy_(torch.rand(4, device=D))
    state["n"] += 1

def changes():
    vary()
    state["rounds"] = 2
"""
    )
    right, wrong, late = (
        run(f"{program}:{step}", "--vary", vary, "--backend", backend)
        for step, vary in (("step", "vary"), ("step", "changes"), ("late", "vary"))
    )
    assert right.exit_code == 0 and "nothing found" in right.stdout, right.output
    assert "only held against a fresh engine" in " ".join(right.stdout.split())
    assert wrong.exit_code == 1 and "frozen-host-value: state['rounds']" in wrong.stdout, wrong.output
    assert late.exit_code == 1 and "frozen-host-value: state['n']" in late.stdout, late.output


def test_a_file_that_cannot_be_run_twice_is_told_what_its_first_run_showed(program, tmp_path):
    program.write_text(
        f"""
import torch
open({str(tmp_path / "lock")!r}, "x").close()
x = torch.ones(4)

def step():
    return x + torch.rand(4)

def vary():
    x.add_(1)
"""
    )
    told = run(f"{program}:step", "--backend", "emulated")
    assert told.exit_code == 2 and "draws random numbers" in told.stderr, told.output


def test_a_variable_that_is_nothing_an_audit_takes_is_left_alone_with_a_word(program):
    program.write_text(PROGRAM + "rows = 4\ninputs = {'x': x}.values()\n")
    report = audit_target(f"{program}:fixed", vary="restart", backend="emulated")
    assert report.notes[-1] == "rows is not what an audit takes by that name: it was left alone"
    assert [found.kind for found in report.findings] == ["stale-input"]  # of a dict's values as of a list


def test_a_step_whose_inputs_nobody_changed_is_not_called_clean_without_a_word(program):
    program.write_text(PROGRAM.replace("def vary", "def other"))
    warning = "no vary(): the inputs did not change, so what is frozen cannot show"
    assert warning in run(f"{program}:step", "--backend", "emulated").stdout
    report = audit_target(f"{program}:step", backend="emulated")
    again = AuditReport.of(json.loads(report.to_json()))
    assert not report.findings and warning in again._repr_html_()
    assert warning in str(audit(lambda: torch.ones(2) + 1, backend="emulated"))
    assert warning not in str(audit_target(f"{program}:step", vary="other", backend="emulated"))


ALTERNATING = """
import torch

x, total, weight = torch.ones(4), torch.zeros(4), torch.ones(4)
state = {"micro": 0, "fed": 0}


def step():
    if state["micro"] == 0:
        total.zero_()
    state["micro"] = (state["micro"] + 1) % 2
    total.add_(x)
    return x * weight


def vary():
    state["fed"] += 1
    if state["fed"] % 2 == 0:
        weight.sub_(total, alpha=0.1)
    x.add_(1)
"""


def test_a_file_that_is_run_anew_is_a_fresh_engine(tmp_path, monkeypatch):
    """Each second eager step clears the total and no replay does, which shows only to who serves two."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "alternating.py"
    file.write_text(ALTERNATING)
    alone, beside = (run(f"{file}:step", "--backend", "emulated", *more) for more in ([], ["--twin"]))
    assert alone.exit_code == 0 and "a twin would tell" in alone.stdout
    assert beside.exit_code == 1 and "a twin would tell" not in beside.stdout
    written = file.stat().st_mtime_ns
    file.write_text(ALTERNATING.replace("% 2", "% 1"))  # each step clears it
    os.utime(file, ns=(written, written))  # as two saves within a second: what was compiled is old
    assert run(f"{file}:step", "--backend", "emulated", "--twin").exit_code == 0
    assert not (tmp_path / "__pycache__").exists()  # nothing is left beside the file of others


SHARED = """
import torch

class Runner:
    def __init__(self):
        self.total = torch.zeros(4)

runner = Runner()
"""
SHARING = """
import torch
from lives_elsewhere import runner

x = torch.ones(4)

def step():
    {step}
    return runner.total * 2

def vary():
    x.add_(1)
"""


def test_modules_beside_a_file_are_run_anew_with_it(tmp_path):
    (tmp_path / "lives_elsewhere.py").write_text(SHARED)
    file = tmp_path / "sharing.py"
    file.write_text(SHARING.format(step="runner.total.add_(x)"))
    right = run(f"{file}:step", "--backend", "emulated", "--twin")
    assert right.exit_code == 0 and "fresh engines share" not in right.stdout, right.stdout
    file.write_text(SHARING.format(step="runner.total = runner.total + x"))
    wrong = run(f"{file}:step", "--backend", "emulated", "--twin")
    assert wrong.exit_code == 1 and "moved-address: runner.total" in wrong.stdout, wrong.stdout


def test_ops_are_registered_once(tmp_path):
    """By a module beside the file; of the file itself a line says so."""
    ops = (
        'import torch\nL = torch.library.Library("run_anew", "DEF")\nL.define("twice(Tensor x) -> Tensor")\n'
    )
    ops += 'L.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")\n'
    step = "import torch\nx = torch.ones(4)\ndef step():\n    return torch.ops.run_anew.twice(x)\n"
    step += "def vary():\n    x.add_(1)\n"
    (tmp_path / "its_ops.py").write_text(ops)
    (tmp_path / "beside.py").write_text(f"import its_ops\n{step}")
    assert run(f"{tmp_path}/beside.py:step", "--backend", "emulated", "--twin").exit_code == 0
    (tmp_path / "inside.py").write_text((ops + step).replace("run_anew", "run_anew_too"))
    refused = run(f"{tmp_path}/inside.py:step", "--backend", "emulated", "--twin")
    assert refused.exit_code == 2 and "into a module beside it, which is run once" in refused.stderr


def test_what_a_step_prints_is_no_part_of_the_document(tmp_path):
    file = tmp_path / "talks.py"
    file.write_text(
        "import os\nimport torch\nx = torch.ones(3)\n\n\ndef step():\n    print('said')\n"
        "    os.write(1, b'said by C')\n    return x * 2\n\n\n"
        "def vary():\n    x.add_(1)\n"
    )
    result = run(f"{file}:step", "--backend", "emulated", "--json")
    assert json.loads(result.stdout)["findings"] == [] and "said" in result.stderr
    assert "said" in run(f"{file}:step", "--backend", "emulated").stdout


def test_what_a_step_has_left_in_a_buffer_of_python_s_is_no_part_of_the_document(tmp_path):
    file = tmp_path / "keeps.py"
    file.write_text(
        "import sys\nimport torch\nx = torch.ones(3)\n\n\ndef step():\n"
        "    print('said', file=sys.__stdout__)\n    return x * 2\n\n\ndef vary():\n    x.add_(1)\n"
    )
    words = [sys.executable, "-m", "mrv2lab", "audit", f"{file}:step", "--backend", "emulated", "--json"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert json.loads(done.stdout)["findings"] == [] and "said" in done.stderr


def test_of_a_method_it_is_told_how_it_gets_a_name(program):
    told = run(f"{program}:Engine.step").stderr
    assert f"give {program}:FUNCTION; of a method: step = engine.step there, of an object" in told


def test_json_is_the_report_and_nothing_else(program, tmp_path):
    kept = tmp_path / "kept.json"
    result = run(f"{program}:step", "--backend", "emulated", "--json", "--save", kept)
    assert json.loads(result.stdout)["findings"][0]["subject"] == "state['n']"
    assert kept.read_text() == result.stdout


def test_vary_and_reset_by_other_names(program):
    # `restart` takes back what `vary` does, so the eager pass sees what capture saw.
    assert not audit_target(f"{program}:step", reset="restart", backend="emulated").findings
    assert not audit_target(f"{program}:step", vary="restart", backend="emulated").findings


def test_a_file_that_has_changed_is_read_anew(program):
    for text in (PROGRAM, "# more\n" * 3 + PROGRAM.replace("return x *", "return (x + 1) *")):
        program.write_text(text)
        (found,) = audit_target(f"{program}:step", backend="emulated").findings
        assert found.subject == "state['n']" and found.where.source in text


def test_a_module_that_is_loaded_again_is_read_anew(program):
    for text in (PROGRAM, "# more\n" * 3 + PROGRAM.replace("return x *", "return (x + 1) *")):
        program.write_text(text)
        module = types.ModuleType("again")
        exec(compile(text, str(program), "exec"), vars(module))
        (found,) = audit(module.step, vary=module.vary, backend="emulated").findings
        assert found.subject == "state['n']"


def test_a_plain_triton_kernel_needs_no_gpu(program):
    """In a process of its own: it matters what is imported first."""
    program.write_text(
        "import torch, triton, triton.language as tl\n"
        "@triton.jit\n"
        "def add_sum(x_ptr, y_ptr, N: tl.constexpr):\n"
        "    at = tl.arange(0, N)\n"
        "    tl.store(y_ptr + at, tl.zeros((N,), tl.float32) + tl.sum(tl.load(x_ptr + at)))\n"
        "x, y, state = torch.ones(4), torch.zeros(4), [2]\n"
        "def step():\n"
        "    add_sum[state[0],](x, y, N=4)\n"
        "    return y * state[0]\n"
        "def vary():\n"
        "    state[0] = 3\n"
    )
    command = [sys.executable, "-m", "mrv2lab", "audit", "step", f"{program}:step", "--backend", "emulated"]
    environment = dict(os.environ) | {"CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert "frozen-grid: add_sum" in done.stdout, done.stderr


def test_a_step_may_be_a_lambda_of_a_module(program):
    program.write_text(
        "import torch\n"
        "x, on = torch.ones(4), []\n"
        "step = lambda: x * 3 if on else x + 1\n"
        "vary = lambda: on.append(1)\n"
    )
    (first, *_) = audit_target(f"{program}:step", backend="emulated").findings
    assert (first.kind, first.subject) == ("frozen-host-value", "on")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py:step"], "nowhere.py: no such file"),
        (["program.step"], "names no function; possible: FILE.py:FUNCTION"),
        (["program.py::step"], "program.py: no such file"),
        (["program.py"], "names no function; possible: FILE.py:FUNCTION"),
        (["{file}:"], "names no function; possible: {file}:step, {file}:fixed, {file}:vary, {file}:restart"),
        (["{file}"], "names no function; possible: {file}:step, {file}:fixed, {file}:vary, {file}:restart"),
        (["{file} fixed"], "names no function; possible: {file}:fixed"),
        (["{file}:nothing"], "no function 'nothing'; possible: step, fixed, vary, restart"),
        (["{file}:step", "--vary", "x1"], "no function 'x1'"),
        (["{file}:step", "--backend", "tpu"], "unknown --backend 'tpu'"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(program, arguments, message):
    result = run(*[argument.format(file=program) for argument in arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message.format(file=program) in result.stderr and result.stderr.count("\n") == 1


def test_of_a_file_alone_those_functions_are_told_that_need_no_argument(program):
    program.write_text(
        "def step(): ...\ndef one(a): ...\ndef first(a, /): ...\ndef named(*, a): ...\n"
        "def more(a=1, *b, c=2, **d): ...\nclass Engine:\n    def step(): ...\n"
        "short = lambda: 1\nof_some = lambda a: a\n"
    )
    told = run(program).stderr
    assert told.endswith(f"possible: {program}:step, {program}:more, {program}:short\n")
    program.write_text("def step(:\n")
    assert run(program).stderr.endswith("possible: FILE.py:FUNCTION\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["program.step"], "names no function; possible: FILE.py:FUNCTION"),
        (["program.py", "step"], "give FILE.py:FUNCTION, here program.py:step"),
    ],
)
def test_a_step_that_is_written_otherwise_is_told_how(arguments, message):
    result = CliRunner().invoke(app, ["audit", *arguments])
    assert result.exit_code and message in (result.stderr or str(result.exception))


def test_a_function_as_python_imports_it_is_told_as_a_file(program):
    told = run(f"{program.with_suffix('')}.step").stderr
    assert told.endswith(f"possible: {program}:step\n")


def test_a_number_is_no_name_of_a_function(program):
    told = run(f"{program}:3").stderr
    assert told == f"mrv2lab: '3' is no name of a function; give {program}:FUNCTION\n"


def test_a_file_that_does_not_run_names_its_line(program):
    program.write_text("x = 1\nraise KeyError('y')\n")
    with pytest.raises(BadInput, match=r"program.py:2 raised KeyError"):
        audit_target(f"{program}:step")


def test_a_step_that_raises_is_bad_input(program):
    program.write_text("def step():\n    raise ValueError('no')\n")
    result = run(f"{program}:step", "--backend", "emulated")
    assert result.exit_code == 2
    assert "program.py:2 in step" in result.stderr


# ---- the magic ----


@pytest.fixture
def shell():
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "mrv2lab.audit")
    yield shell
    InteractiveShell.clear_instance()


def test_the_magic_runs_the_cell_and_shows_the_report(shell):
    report = shell.run_cell_magic("audit", "--backend emulated", PROGRAM)
    (found,) = report.findings
    assert (found.kind, found.subject) == ("frozen-host-value", "state['n']")
    assert found.where.source == 'return x * state["n"]'
    assert shell.display_formatter.format(report)[0]["text/plain"] == str(report)


def cell(shell, source):
    """Run a cell as a notebook does, with a prompt of its own. Returns what it raised or showed."""
    ran = shell.run_cell(source, store_history=True)
    return ran.error_in_exec or shell.user_ns["Out"].get(ran.execution_count)


def test_a_line_of_the_magic_is_named_by_the_prompt_and_counted_as_the_cell_shows_it(shell):
    cell(shell, "1")
    source = "%%audit --backend emulated\nx, n = __import__('torch').ones(4), [2]\n\n"
    source += "def step():\n    return x * n[0]"
    report = cell(shell, source + "\ndef vary():\n    n[0] = 5")
    assert str(report.findings[0].where) == "In[2]:5 in step"
    assert report.findings[0].where.source == source.splitlines()[4].strip()
    assert cell(shell, "7") == shell.user_ns["Out"][3] == 7


def test_the_magic_audits_what_its_own_cell_defines(shell, capsys):
    cell(shell, "%%audit --backend emulated\n" + PROGRAM)
    typo = cell(shell, "%%audit\ndef stepp():\n    return x + 1")
    assert isinstance(typo, UsageError)
    assert "this cell defines no 'step'; it defines: stepp" in str(typo)
    capsys.readouterr()
    alone = "%%audit --backend emulated\ndef step():\n    return x * state['n']"
    report = cell(shell, alone)
    assert not report.varied and "--vary vary" in capsys.readouterr().out
    assert cell(shell, alone.replace("emulated", "emulated --vary vary")).varied
    assert cell(shell, alone.replace("emulated", "emulated --step fixed")).step == "fixed"
    assert cell(shell, "%%audit --step step --backend emulated\ndef vary(): ...").varied


@pytest.mark.parametrize("also", ["", "from functions import step, vary\n"])
def test_a_cell_of_the_magic_may_run_again_and_may_import_its_step(shell, tmp_path, monkeypatch, also):
    (tmp_path / "functions.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    source = "%%audit --backend emulated\n" + (also or PROGRAM)
    first, second = cell(shell, source), cell(shell, source)
    assert first.varied and second.varied
    monkeypatch.delitem(sys.modules, "functions", raising=False)


def test_without_vary_both_say_how_it_is_given(shell, program, capsys):
    without = PROGRAM.replace("def vary", "def other")
    shell.run_cell_magic("audit", "--backend emulated", without)
    assert "def vary(): " in capsys.readouterr().out
    shell.run_cell_magic("audit", "--backend emulated", PROGRAM)
    assert "def vary():" not in capsys.readouterr().out
    program.write_text(without)
    result = run(f"{program}:step", "--backend", "emulated", "--json")
    assert "def vary():" in result.stderr and json.loads(result.stdout)["varied"] is False
    assert "def vary():" not in run(f"{program}:step", "--backend", "emulated", "--vary", "other").stderr


@pytest.mark.parametrize(
    "step, change, status",
    [
        ("fixed", "", 0),
        ("step", "", 1),
        ("step", "def vary(): x.add_(1)", 0),
        ("fixed", "def vary(): pass", 2),  # nothing was found, and nothing could have been
        ("fixed", "del vary", 2),
        ("unwritten", "del vary", 1),
    ],
)
def test_who_has_asked_nothing_is_not_told_that_all_is_well(program, step, change, status):
    unwritten = "def unwritten(): return torch.empty(4) + x"
    program.write_text(f"{PROGRAM}\n{unwritten}\n{change}\n")
    result = run(f"{program}:{step}", "--backend", "emulated")
    assert result.exit_code == status
    assert ("def vary():" in result.stderr) == (change in ("def vary(): pass", "del vary"))


LEAVES = """
import os
import torch

def step():
    if not (child := os.fork()):
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    os._exit(0)
"""


def test_a_step_that_ends_its_process_is_told_with_its_line(program):
    program.write_text(LEAVES)
    result = run(f"{program}:step", "--backend", "emulated")
    assert result.exit_code == 2
    assert "raised SystemExit" in result.stderr and "os._exit(0): it called os._exit()" in result.stderr


def test_a_line_of_a_notebook_is_named_by_its_cell(shell):
    shell.run_cell(PROGRAM, store_history=True)
    shell.run_cell("report = __import__('mrv2lab').audit.audit(step, vary=vary, backend='emulated')")
    where = shell.user_ns["report"].findings[0].where
    assert re.fullmatch(r"In\[1\]:\d+ in step", str(where)), str(where)


def test_the_magic_takes_other_names(shell):
    report = shell.run_cell_magic("audit", "--step fixed --backend emulated", PROGRAM)
    assert report.findings == ()


def test_a_cell_that_fails_is_not_audited(shell, capsys):
    assert audit_cell(shell, "", "1 / 0") is None


@pytest.mark.parametrize("line", ["--speed 3", "--step"])
def test_an_unknown_option_of_the_magic(shell, line):
    with pytest.raises(BadInput, match="%%audit"):
        audit_cell(shell, line, PROGRAM)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cache = torch.cat([cache[1:], x[None]])", ["moved-address: cache"]),
        ("cache = torch.cat([cache, x[None]])", ["moved-address: cache"]),
        ("cache.copy_(torch.cat([cache[1:], x[None]]))", []),
    ],
)
def test_a_global_that_each_step_binds_anew(tmp_path, line, found):
    """Neither a twin nor a reset is needed to see that no replay binds it."""
    code = "import torch\nx, cache = torch.ones(4), torch.zeros(8, 4)\ndef step():\n    global cache\n"
    code += f"    {line}\n    return cache.sum(0)\ndef vary():\n    x.add_(1)\n"
    (file := tmp_path / "binds.py").write_text(code)
    module = types.ModuleType("binds")
    exec(compile(code, str(file), "exec"), vars(module))
    report = audit(module.step, vary=module.vary, backend="emulated")
    assert [f"{f.kind}: {f.subject}" for f in report.findings] == found, str(report)
