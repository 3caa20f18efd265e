"""The command line: what it prints where, and its exit status."""

import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

import mrv2lab
from mrv2lab import catalogue, cli, doctor, forks, results
from mrv2lab.audit import AuditReport
from mrv2lab.cases import CASES
from mrv2lab.cli import app
from mrv2lab.doctor import Check
from mrv2lab.errors import counted
from mrv2lab.live import rung as live_module
from mrv2lab.results import DATA, Record, Run, provenance
from mrv2lab.source import Diff
from mrv2lab.terminal import verdict_table
from mrv2lab.upstream import process, releases
from mrv2lab.upstream.history import History
from mrv2lab.upstream.outcome import Cell, Outcome

FAST = ["run", "breakable_graph", "--variant", "whole_graph", "--rung", "emulated", "--batch-size", "1"]
FAST += ["--set", "num_steps=9", "--set", "num_layers=1"]
TORCH_INDEX = re.search(r"^TORCH_INDEX \?= (\S+)", (DATA.parents[1] / "Makefile").read_text(), re.M)[1]


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


# ---- at once ----

LIGHT = [
    ["--help"],
    ["--version"],
    ["list"],
    ["progress"],
    ["progress", "--export"],
    ["class", "not_there.jsonl"],
    ["class", __file__],
    ["audit", "--help"],
    ["graph", "--help"],
    ["graph", "diff", "not_there.py:step", "not_there.py:step"],
    ["dispatch", "vllm", "--help"],
    ["dispatch", "vllm", "--batch", "4x2"],
    ["run", "--help"],
    ["rnu"],
    ["run", "lora_short_circit"],
    ["run", "lora_short_circuit", "--variant", "zero_maping"],
    ["run", "--all", "--rung", "gpu"],
    ["live", "lora"],
    ["history", "lora"],
]


@pytest.fixture(scope="module")
def imported_by():
    """What each of these commands has imported, in one process: one that imports less is no less alone."""
    program = """
import json, sys
from typer.testing import CliRunner
from mrv2lab.cli import app
for args in json.loads(sys.argv[1]):
    CliRunner().invoke(app, args)
    print(json.dumps(sorted({"torch", "triton", "matplotlib", "ipywidgets"} & set(sys.modules))))
"""
    command = [sys.executable, "-c", program, json.dumps(LIGHT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(LIGHT)), ids=[" ".join(args) for args in LIGHT])
def test_what_needs_no_torch_imports_none(imported_by, number):
    assert imported_by[number] == []


def test_run_shows_that_it_works_before_it_imports_torch():
    """Into a terminal; elsewhere it shows nothing."""
    program = """
import io, sys
from rich.console import Console
from mrv2lab import cli
shown = io.StringIO()
cli.err = Console(file=shown, force_terminal=sys.argv[1] == "terminal")
class Stop:
    def find_spec(name, path, target=None):
        if name == "torch":
            raise SystemExit(repr(shown.getvalue()))
sys.meta_path.insert(0, Stop)
cli.app(["run", "lora_short_circuit"])
"""
    said = [
        subprocess.run([sys.executable, "-c", program, where], capture_output=True, text=True).stderr.strip()
        for where in ("terminal", "file")
    ]
    assert "starting" in said[0] and said[1] == "''"


ON_ONE_RUNG = """
CASE = Case(
    name="small", title="A title", upstream="nobody", rungs=("emulated",),
    variants=(BASELINE, Variant(off, "buggy", "wrong")),
)
"""


@pytest.fixture
def cases(tmp_path, monkeypatch):
    """Only two cases: one claims one rung, and one is hardly begun."""
    (tmp_path / "__init__.py").write_text("_MODULES = (small, begun)")
    (tmp_path / "base.py").write_text("LIMITS = {}")
    (tmp_path / "small.py").write_text('BASELINE = Variant(eager, "baseline", "correct")' + ON_ONE_RUNG)
    (tmp_path / "begun.py").write_text("def off(): ...")
    caches = (catalogue.entries, catalogue.listed)
    monkeypatch.setattr(catalogue, "_CASES", tmp_path)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("run small --rung source", "unknown rung of small 'source'; possible: emulated"),
        ("run small --rung vllm", "unknown rung of small 'vllm'; possible: emulated"),
        ("live small", "unknown rung of small 'vllm'; possible: emulated"),
        ("history small", "unknown rung of small 'source'; possible: emulated"),
        ("diff small off", "unknown rung of small 'source'; possible: emulated"),
        ("audit vllm small", "unknown rung of small 'vllm'; possible: emulated"),
        *(
            (f"{command} begun", "begun is not finished: mrv2lab/cases/begun.py has no CASE")
            for command in ("run", "live", "history", "audit vllm")
        ),
        ("diff begun off", "begun is not finished: mrv2lab/cases/begun.py has no CASE"),
    ],
)
def test_what_a_case_has_not_is_said_in_one_line(cases, words, line):
    result = invoke(*words.split())
    assert result.exit_code == 2 and result.stderr == f"mrv2lab: {line}\n"


def test_what_a_case_does_not_claim_is_passed_over(cases):
    chosen = [cli._checked_cases(None, True, (), rung) for rung in ("auto", "emulated", "source")]
    assert chosen == [["small"], ["small"], []]
    listed = invoke("list").stdout
    assert re.findall(r"^  (\w+) +(\w+)", listed, re.MULTILINE) == [("eager", "baseline"), ("off", "buggy")]


def test_the_catalogue_says_what_the_cases_say():
    def told(cases):
        return [
            (c.name, c.title, c.upstream, c.rungs, [(v.name, v.role, v.expected) for v in c.variants])
            for c in cases.values()
        ]

    assert [[*entry.shapes] for entry in catalogue.entries().values()] == [
        [*c.limits] for c in CASES.values()
    ]
    assert told(catalogue.entries()) == told(CASES) and list(catalogue.entries()) == list(CASES)


@pytest.mark.parametrize("group", [[], ["audit"], ["graph"], ["dispatch"]], ids=str)
def test_help_has_a_whole_line_for_each_command(group):
    lines = invoke(*group, "--help").stdout.split("Commands:\n")[1].splitlines()
    command = typer.main.get_command(app)
    commands = command.commands[group[0]].commands if group else command.commands
    assert [line.split()[0] for line in lines] == list(commands)
    assert [line for line in lines if len(line) > 80 or not line.endswith(".") or line.endswith("..")] == []


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["rnu"], "Did you mean 'run'?"),
        (["audit", "matrx"], "Did you mean 'matrix'?"),
        (["mystery", "7", "--pears"], "(Possible options: --pair)"),
        (["run", "--al"], "(Possible options: --all, --rank, --save)"),
        (["clas", "a.jsonl"], "Did you mean 'class'?"),
        (["run", "lora_short_circit"], "; did you mean 'lora_short_circuit'?"),
        (["run", "lora_short_circuit", "--variant", "zero_maping"], "; did you mean 'zero_mapping'?"),
        (["diff", "lora_shortcircuit", "zero_mapping"], "; did you mean 'lora_short_circuit'?"),
        (["diff", "lora_short_circuit", "zeromapping"], "; did you mean 'zero_mapping'?"),
        (["live", "stale_views"], "; did you mean 'stale_view'?"),
        (["run", "--all", "--rung", "cude"], "; did you mean 'cuda'?"),
    ],
)
def test_a_typo_is_told_what_was_meant(args, meant):
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.rstrip().endswith(meant)


def test_one_is_not_many():
    assert [counted(n, "request") for n in (0, 1, 2)] == ["0 requests", "1 request", "2 requests"]
    heads = [str(AuditReport("step", "emulated", (), n)) for n in (1, 2)]
    assert [re.search(r"\d nodes?\b", head)[0] for head in heads] == ["1 node", "2 nodes"]


def completed(*words):
    """What the shell is offered for the last of these words."""
    environment = {"_MRV2LAB_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["mrv2lab", *words])}
    environment["COMP_CWORD"] = str(len(words))
    return CliRunner().invoke(app, prog_name="mrv2lab", env=environment).stdout.split()


def test_names_are_completed():
    assert completed("rep") == ["report"]
    assert completed("cl") == ["class"]
    assert completed("progress", "--e") == ["--export"] and completed("mystery", "--p") == ["--pair"]
    assert completed("audit", "ma") == ["matrix"]
    assert completed("run", "lora_s") == ["lora_short_circuit"]
    assert completed("run", "stale_view", "--variant", "o") == ["one_state", "own_copies"]
    assert completed("diff", "stale_view", "k") == ["kept_pairs"]
    assert completed("run", "--rung", "e") == ["emulated"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_completion_for_each_shell(shell):
    environment = {"_MRV2LAB_COMPLETE": f"source_{shell}"}
    assert f"complete_{shell}" in CliRunner().invoke(app, prog_name="mrv2lab", env=environment).stdout


# ---- what is here ----


def test_doctor_says_what_is_here_and_what_is_missing():
    result = invoke("doctor")
    assert result.exit_code == 0
    assert torch.__version__.split("+")[0] in result.stdout and "CUDA GPU" in result.stdout


def test_doctor_ends_with_what_can_be_done_and_the_command_for_the_rest(monkeypatch):
    here = [Check(name, "1", "") for name in ("torch", "triton", "jupyterlab", "vllm")]
    monkeypatch.setattr(
        doctor, "examine", lambda: [*here, Check("CUDA GPU", None, ""), Check("xgrammar", None, "")]
    )
    told = " ".join(invoke("doctor").stdout.split())
    can, cannot = told.split("For the rest:")
    assert "audit of your own step mrv2lab audit FILE.py:FUNCTION" in can and "the workbook make lab" in can
    assert (
        "rung source) make source" in cannot and "rung cuda) make reproduce STACK=gpu on a GPU host" in cannot
    )
    assert "rung emulated" not in cannot and "rung vllm" not in can


@pytest.mark.parametrize(
    ("platform", "index"), [("linux", f"--extra-index-url {TORCH_INDEX} "), ("darwin", "")]
)
def test_far_from_a_clone_doctor_names_the_extra_to_take(monkeypatch, platform, index):
    """On Linux the public index has the build with CUDA alone."""
    monkeypatch.setattr(sys, "platform", platform)
    names = ("torch", "triton", "xgrammar", "CUDA GPU", "jupyterlab")
    monkeypatch.setattr(doctor, "IN_CLONE", False)
    monkeypatch.setattr(doctor, "examine", lambda: [Check(name, None, "") for name in names])
    monkeypatch.setattr(mrv2lab, "_has_gpu", lambda: False)
    told = " ".join(invoke("doctor").stdout.split())
    assert f"rung emulated) pip install {index}'mrv2lab[cpu]'" in told
    assert f"rung source) pip install {index}'mrv2lab[cpu,source]'" in told
    assert "rung cuda) pip install 'mrv2lab[gpu]' on a GPU host" in told
    assert "make " not in told


def test_without_torch_one_line_says_which_extra_to_take(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "mrv2lab.audit")
    monkeypatch.delitem(sys.modules, "mrv2lab.audit.driver")
    monkeypatch.setattr(mrv2lab, "_has_gpu", lambda: False)
    monkeypatch.setattr(sys, "platform", "linux")
    result = invoke("audit", "step", f"{__file__}:step")
    assert (result.exit_code, result.stdout) == (2, "")
    install = f"pip install --extra-index-url {TORCH_INDEX} 'mrv2lab[cpu]'"
    extra = f"this needs torch, which comes with an extra: {install}"
    assert result.stderr == f"mrv2lab: {extra}\n"


def test_a_missing_file_is_named_before_torch_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "mrv2lab.audit")
    result = invoke("audit", "not_there.py:step")
    assert result.exit_code == 2 and "not_there.py: no such file" in result.stderr


def test_a_place_where_nothing_can_be_written_is_one_line(monkeypatch):
    def write(*args):
        raise PermissionError(13, "Permission denied", "out")

    monkeypatch.setattr("mrv2lab.report.write", write)
    result = invoke("report")
    assert result.exit_code == 2
    assert result.stderr == "mrv2lab: out: Permission denied; name a place where you may write\n"


NUMPY = """
import os, sys
sys.path.remove(os.path.dirname(os.path.dirname(__file__)))  # whoever asks next finds the real one
raise KeyboardInterrupt
"""


def test_an_interrupt_while_numpy_is_imported_is_not_forgotten(tmp_path):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(NUMPY)
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "mrv2lab", *FAST], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_letters_that_a_terminal_does_not_have_are_told_by_others():
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "mrv2lab", *FAST], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "< 10%" in done.stdout


def test_where_standard_streams_are_closed_a_run_is_as_stated_all_the_same():
    """Stages of a pipeline write to theirs."""
    words = "run pp_eager_fallback --rung emulated --variant eager --set num_steps=9"
    closed = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "mrv2lab", *words.split()]
    assert subprocess.run(closed).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_standard_output_that_is_full_is_named():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "mrv2lab", "list"], stdout=full, stderr=-1, text=True)
    said = "mrv2lab: standard output: No space left on device; name a place where you may write\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_place_with_no_more_room_is_named(code, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(results.Path, "replace", full)
    done = invoke("report", DATA / "stale_view" / "source-cpu.json", "--output", tmp_path / "r.html")
    told = f"mrv2lab: {tmp_path / 'r.html'}: {os.strerror(code)}; name a place where you may write"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, told)


def test_a_folder_is_no_file_to_write(tmp_path):
    result = invoke("report", DATA / "lora_short_circuit" / "source-cpu.json", "--output", tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"mrv2lab: {tmp_path}: Is a directory; name a place where you may write\n"


@pytest.mark.parametrize(
    "words",
    [
        "run breakable_graph --report {place}/r.html",
        "run breakable_graph --save --data {place}",
        "live --save --data {place}",
        "audit {file}:step --save {place}/r.json",
        "graph show {file}:step --save {place}/r.json",
        "mystery --survey --save {place}/r.json",
        "report --output {place}/r.html",
        "report --figures {place}",
        "record --data {place}",
    ],
)
@pytest.mark.parametrize("place", ["/proc/nope", "{file}", "{file}/in"])
def test_a_place_that_cannot_be_made_is_told_before_torch_is_loaded(words, place, monkeypatch):
    """As root too, who may write there by its rights."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "mrv2lab.audit")
    place = place.format(file=__file__)
    result = invoke(*words.format(place=place, file=__file__).split())
    assert (result.exit_code, result.stdout) == (2, "")
    why = "(No such file|Not a|File exists)"
    assert re.fullmatch(rf"mrv2lab: {place}\S*: {why}.*; name a place where you may write\n", result.stderr)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("run --all --rung cude", "unknown --rung 'cude'; possible: auto, emulated, cuda, source, vllm; did"),
        (
            "run stale_view --set batch_sise=1",
            "unknown shape of stale_view 'batch_sise'; possible: batch_size",
        ),
        ("run --all --set x=1", "unknown shape of lora_device_assert 'x'; possible: batch_size, rank"),
        ("audit {file}:step --backend foo", "unknown --backend 'foo'; possible: auto, emulated, cuda"),
        ("audit matrix --backend foo", "unknown --backend 'foo'"),
        ("graph show {file}:step --backend foo", "unknown --backend 'foo'"),
        ("graph diff {file} not_there.json", "not_there.json: no such file"),
        ("bench growth --backend foo", "unknown --backend 'foo'"),
        ("wild --backend foo", "unknown --backend 'foo'"),
        ("wild nope", "unknown pair 'nope'; possible: "),
        ("mystery 7 --rung foo", "unknown --rung 'foo'"),
        ("live --executor foo", "unknown --executor 'foo'; possible: mp, ray"),
        ("live --release foo", "'foo' is no version of vLLM"),
        ("history --all --release foo", "'foo' is no version of vLLM"),
        ("dispatch vllm --release 0.17.0", "vllm 0.17.0 cannot be asked; possible: 0.18.1 or later"),
        ("dispatch vllm --cudagraph-mode FULLL", "unknown --cudagraph-mode 'FULLL'"),
        ("record --budget soon", "--budget soon: possible: a number and s, m or h"),
        ("record --rung foo", "unknown --rung 'foo'"),
        ("sweep {file} --to {folder} --on foo", "unknown --on 'foo'; possible: here, ray, slurm"),
        ("sweep not_there.toml --to {folder}", "not_there.toml: no such file"),
        ("report not_there.json", "not_there.json: no such file"),
        ("audit {folder}:step", "{folder}: no such file; give FILE.py:FUNCTION"),
        ("audit {file}:vary", "vary prepares a step and is none; did you mean {file}:step?"),
        ("audit {file}:again --reset again", "again prepares a step and is none"),
    ],
)
def test_a_typo_is_told_before_torch_is_loaded(words, told, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in ("audit", "bench", "cases", "live", "mystery", "record", "report", "sweep", "wild"):
        monkeypatch.setitem(sys.modules, f"mrv2lab.{module}", None)
    names = {"file": __file__, "folder": tmp_path}
    result = invoke(*words.format(**names).split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"mrv2lab: {told.format(**names)}") and result.stderr.count("\n") == 1


def test_what_is_not_yet_finished_is_completed_all_the_same():
    assert completed("run", "--rung", "cude", "lora_s") == ["lora_short_circuit"]


def test_list_leads_to_the_pull_requests(monkeypatch):
    shown = Console(force_terminal=True, width=200, file=io.StringIO())
    monkeypatch.setattr(cli, "out", shown)
    invoke("list")
    for number in re.findall(r"#(\d+)", " ".join(case.upstream for case in CASES.values())):
        assert f"https://github.com/vllm-project/vllm/pull/{number}\x1b" in shown.file.getvalue()


def test_list_names_every_variant_and_its_verdict():
    result = invoke("list")
    for word in (
        "lora_short_circuit",
        "zero_mapping",
        "forced_launch",
        "eager",
        "wrong",
        "correct",
        "tempting",
        "#43314",
    ):
        assert word in result.stdout


def test_run_prints_verdicts_that_fit_a_terminal():
    result = invoke(*FAST)
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if "whole_graph" in line)
    assert "wrong" in row and "yes" in row and "rung: emulated" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_cases_in_two_processes_show_what_they_show_in_one_and_in_its_order():
    small = [{"rung": "emulated", "num_layers": 1, "num_steps": 9, "batch_size": n} for n in (2, 1)]
    jobs = [("lora_short_circuit", ["zero_mapping"], small), ("breakable_graph", ["unrouted"], small)]
    with cli._progress("starting") as progress:
        in_two, in_one = (list(cli._run(progress, jobs, at_once=n)) for n in (2, 1))
    assert [[run.model_dump() for run in case] for case in in_two] == [
        [run.model_dump() for run in case] for case in in_one
    ]
    assert [run.shape["batch_size"] for case in in_one for run in case] == [2, 1, 2, 1]
    assert [{run.verdict for run in case} for case in in_one] == [{"wrong"}, {"eager"}]


def test_a_table_comes_as_soon_as_its_case_is_done(monkeypatch, capsys):
    [run], _ = cli._run_case(
        "breakable_graph", ["unrouted"], [{"rung": "emulated", "num_layers": 1, "num_steps": 9}]
    )
    shown = []

    def cases():
        for name in ("first", "second"):
            yield [run.model_copy(update={"case": name})]
            shown.append(capsys.readouterr().out)

    assert [run.case for run in cli._told(cases(), json=False)] == ["first", "second"]
    assert ["first" in text for text in shown] == ["second" not in text for text in shown] == [True, False]


@pytest.mark.parametrize(
    ("cores", "what", "wanted"), [(1, "--all", 1), (8, "--all", 2), (8, "stale_view", 1)]
)
def test_two_cores_run_two_cases_at_once(monkeypatch, cores, what, wanted):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(cli, "_run", lambda progress, jobs, at_once: asked.append(at_once) or [])
    asked = []
    assert invoke("run", what, "--rung", "emulated").exit_code == 1  # nothing was run
    assert asked == [wanted]


def test_a_case_whose_process_dies_costs_no_other_its_record(monkeypatch, tmp_path):
    def each(work, jobs, at_once):
        for job in jobs:
            is_kept = job[0] == "breakable_graph"
            small = [{"rung": "emulated", "num_layers": 1, "num_steps": 9}]
            yield cli._run_case("breakable_graph", ["unrouted"], small) if is_kept else forks.Died(-9)

    monkeypatch.setattr(forks, "each", each)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    told = invoke("run", "--all", "--rung", "emulated", "--save", "--data", str(tmp_path))
    assert told.exit_code == 1 and "lora_short_circuit: its process ended by SIGKILL" in told.stderr
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["breakable_graph"]


def test_the_verdict_table_has_room_for_speeds_and_long_names():
    from mrv2lab.terminal import verdict_table

    fields = {"case": "flashmla_lazy_init", "role": "workaround", "rung": "cuda", "shape": {"batch_size": 8}}
    latency = {"median": 12.345, "p20": 1, "p80": 20}
    run = Run(
        **fields, variant="persistent_buffers", verdict="correct", expected="correct",
        errors=[0.0], step_modes=["graph"], latency_ms=latency,
    )  # fmt: skip
    console = Console(width=80, file=io.StringIO())
    console.print(verdict_table([run]))
    text = console.file.getvalue()
    assert "persistent_buffers" in text and "workaround" in text and "12.345" in text
    assert "wrong: " not in text  # a line below says what a verdict means, if it is there
    console.print(verdict_table([run.model_copy(update={"verdict": "wrong"})]))
    assert "wrong: other answers" in console.file.getvalue()


def test_a_record_commands_neither_rich_nor_the_terminal(tmp_path):
    from mrv2lab.terminal import verdict_table

    made = provenance(0, uses_gpu=False).model_copy(update={"gpu": "[red]\x1b]0;owned\x07"})
    run = Run(case="[/nope]", variant="[bold]v\x1b[2J", role="fixed", rung="vllm", verdict="correct",
              expected="correct", errors=[0.0], step_modes=["graph"])  # fmt: skip
    Record(provenance=made, runs=[run]).save(tmp_path / "r.json")
    console = Console(file=io.StringIO(), width=200)
    console.print(verdict_table(results.load(tmp_path / "r.json").runs, recorded=True))
    told = console.file.getvalue()
    assert "[/nope]" in told and "[bold]v?[2J" in told and "[red]?]0;owned?" in told and "\x1b" not in told


def test_what_v1_answers_is_a_column_where_it_was_asked():
    from mrv2lab.terminal import verdict_table

    fields = {"case": "flashmla_lazy_init", "role": "buggy", "rung": "vllm"}
    asked = Run(
        **fields, variant="captured_reused", verdict="correct", expected="correct",
        errors=[0.0], step_modes=["graph"],
        latency_ms={"median": 12.345, "p20": 1, "p80": 20}, metrics={"equal_to_v1": 0.979},
    )  # fmt: skip
    crashed = Run(**fields, variant="shared", verdict="crash", expected="crash", errors=[], step_modes=[])
    console = Console(width=80, file=io.StringIO())
    console.print(verdict_table([asked, crashed]))
    head, one, other = (
        next(line.split() for line in console.file.getvalue().splitlines() if word in line)
        for word in ("variant", "captured_reused", "shared")
    )
    assert head[-2:] == ["ms", "V1%"] and one[-2:] == ["12.345", "98"] and other[-2:] == ["-", "-"]
    console = Console(width=80, file=io.StringIO())
    console.print(verdict_table([crashed]))
    assert "V1" not in console.file.getvalue()


def test_json_is_one_document_and_nothing_else():
    result = invoke(*FAST, "--batch-size", "2", "--json")
    record = Record.model_validate(json.loads(result.stdout))
    assert [run.shape["batch_size"] for run in record.runs] == [1, 2]
    assert record.provenance.gpu is None


def test_save_and_report_write_files(tmp_path):
    result = invoke(*FAST, "--save", "--data", tmp_path, "--report", tmp_path / "r.html")
    assert result.exit_code == 0
    kept = tmp_path / "breakable_graph" / "emulated-cpu.json"
    assert kept.exists() and "whole_graph" in (tmp_path / "r.html").read_text()
    again = invoke("report", kept, "--output", tmp_path / "again.html", "--figures", tmp_path / "svg")
    assert again.exit_code == 0
    assert "recorded" in (tmp_path / "again.html").read_text()
    assert [path.name for path in (tmp_path / "svg").iterdir()] == ["breakable_graph-emulated-errors.svg"]


def test_a_verdict_other_than_the_stated_one_is_status_1(monkeypatch):
    from mrv2lab.cases import breakable_graph

    monkeypatch.setattr(breakable_graph.whole_graph, "__code__", breakable_graph.breakable.__code__)
    result = invoke(*FAST)
    assert result.exit_code == 1
    assert "must be wrong" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "lora"], "unknown case 'lora'; possible: lora_device_assert, lora_short_circuit"),
        (["run"], "name one case or give --all"),
        (["run", "lora_short_circuit", "--variant", "x"], "unknown variant of lora_short_circuit 'x'"),
        (["run", "--all", "--rung", "gpu"], "unknown --rung 'gpu'; possible: auto, emulated, cuda, source"),
        (["run", "--all", "--batch-size", "0"], "batch_size=0 is out of range; possible: 1 to 8"),
        (["run", "--all", "--set", "num_layers=two"], "--set num_layers=two: possible: name=value"),
        (["run", "--all", "--set", f"num_layers={'9' * 5000}"], "--set num_layers=999"),
        (["dispatch", "vllm", "--batch", f"1x{'9' * 5000}"], "'1x999"),
        (["dispatch", "vllm", "--capture-sizes", "9" * 5000], "'999"),
        (["run", "--all", "--set", "width=2"], "unknown shape of lora_device_assert 'width'"),
        (["run", "--all", "--rank", "33"], "rank=33 is out of range; possible: 1 to 32"),
        (
            ["run", "--all", "--rung", "source", "--batch-size", "4"],
            "rung source has a workload of its own; leave out batch_size",
        ),
        (["run", "--all", "--rung", "source", "--rank", "4"], "rung source has a workload of its own"),
        (["report", "no-such-file.json"], "no-such-file.json: no such file"),
        (["history"], "name one case or give --all; possible cases: lora_device_assert, "),
        (["history", "lora_short_circuit", "--all"], "name one case or give --all"),
        (["history", "lora"], "unknown case 'lora'; possible: lora_device_assert, lora_short_circuit"),
        (["history", "--all", "--release", "0.23"], "'0.23' is no version of vLLM; possible: three numbers"),
    ],
)
def test_bad_input_is_one_line_and_status_2(args, message, tmp_path):
    extra = {
        "run": ["--report", tmp_path / "r.html", "--save", "--data", tmp_path],
        "history": ["--save", tmp_path / "h.json"],
    }
    result = invoke(*args, *extra.get(args[0], []))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"mrv2lab: {message}") and result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_rung_cuda_without_a_gpu_says_so():
    result = invoke("run", "--all", "--rung", "cuda")
    assert result.exit_code == 2
    assert (
        result.stderr
        == "mrv2lab: 'cuda' needs an NVIDIA GPU and there is none here; use 'emulated', or 'auto'\n"
    )


def test_a_shape_that_is_set_twice_is_run_twice():
    from mrv2lab.cli import _parse_shapes

    assert _parse_shapes(["a=1", "b=2", "a=3"]) == [{"a": 1, "b": 2}, {"a": 3, "b": 2}]
    assert _parse_shapes([]) == [{}]


# ---- vLLM's own classes, and the history of a bug; the processes of probes are stood in for ----

LINES = {"0.18.1": "not there", "0.21.0": "buggy", "0.22.1": "fixed", "0.23.0": "replaced"}
FOUR = [option for release in LINES for option in ("--release", release)]


@pytest.fixture
def cache(monkeypatch):
    """A cache that has every release."""
    monkeypatch.setattr(releases, "cached", lambda version: releases.Release(version, releases.cache_dir()))


@pytest.fixture
def probed(cache, monkeypatch):
    """Jobs of the history, in no order. FlashMLA has two rows."""
    jobs = []

    def tell_rows(case, release):
        jobs.append((case, release))
        rows = ("target", "speculator") if case == "flashmla_lazy_init" else ("",)
        return [
            Cell(row=row, word=LINES.get(release, "fixed"), observation=f"[seen] in {release}")
            for row in rows
        ]

    monkeypatch.setattr(process, "tell_rows", tell_rows)
    return jobs


def finds(monkeypatch, verdict):
    """Let every variant show this verdict on `source`."""

    def run_variants(case, variants):
        return [Outcome(verdict=verdict, errors=[0.0], step_modes=["graph"]) for _ in variants]

    monkeypatch.setattr(process, "run_variants", run_variants)


@pytest.mark.parametrize(("verdict", "status"), [("wrong", 0), ("correct", 1)])
def test_run_on_source_prints_verdicts_and_whose_classes_they_are(cache, monkeypatch, verdict, status):
    finds(monkeypatch, verdict)
    result = invoke("run", "lora_short_circuit", "--rung", "source", "--variant", "zero_mapping")
    assert result.exit_code == status
    assert re.search(rf"zero_mapping +buggy +{verdict}", result.stdout)
    assert f"rung: source (vllm {releases.TARGET}'s own classes" in " ".join(result.stdout.split())
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_run_on_source_as_json_is_one_document(cache, monkeypatch, tmp_path):
    finds(monkeypatch, "wrong")
    args = ["--rung", "source", "--json", "--save", "--data", tmp_path]
    result = invoke("run", "lora_short_circuit", *args)
    record = Record.model_validate(json.loads(result.stdout))
    assert [run.variant for run in record.runs] == ["eager", "zero_mapping", "forced_launch"]
    assert {run.rung for run in record.runs} == {"source"}
    assert (record.provenance.vllm, record.provenance.gpu) == (releases.TARGET, None)
    assert result.exit_code == 1  # not all of them should be wrong
    kept = json.loads((tmp_path / "lora_short_circuit" / "source-cpu.json").read_text())
    assert kept["runs"] == json.loads(result.stdout)["runs"]
    assert "upstream/probes/lora_short_circuit.py" in kept["provenance"]["sources"]


def test_history_prints_a_line_for_each_release_oldest_first(probed):
    shuffled = ["--release", "0.23.0", "--release", "0.18.1", "--release", "0.22.1", "--release", "0.21.0"]
    result = invoke("history", "lora_short_circuit", *shuffled, "--release", "0.23.0")
    assert result.exit_code == 0
    rows = [re.split("  +", line.strip()) for line in result.stdout.splitlines() if "[seen]" in line]
    assert rows == [[release, word, f"[seen] in {release}"] for release, word in LINES.items()]
    assert len(probed) == 4
    assert "first bad" not in result.stdout


def test_history_of_all_cases_takes_the_workbooks_releases(probed):
    result = invoke("history", "--all")
    assert result.exit_code == 0
    with_probes = [name for name, case in CASES.items() if "source" in case.rungs]
    assert sorted(probed) == sorted((case, release) for case in with_probes for release in releases.RELEASES)
    assert "flashmla_lazy_init, speculator" in result.stdout


def test_history_as_json_is_one_document_and_nothing_else(probed, tmp_path):
    result = invoke("history", "flashmla_lazy_init", *FOUR, "--json", "--save", tmp_path / "new" / "h.json")
    document = History.model_validate(json.loads(result.stdout))
    assert [(c.line, c.release) for c in document.cells] == [
        (f"flashmla_lazy_init, {row}", release) for release in LINES for row in ("target", "speculator")
    ]
    assert document.provenance.gpu is None
    kept = History.model_validate_json((tmp_path / "new" / "h.json").read_text())
    assert kept.cells == document.cells and kept.provenance.seconds > 0
    assert "upstream/probes/flashmla_lazy_init.py" in kept.provenance.sources
    assert "upstream/probes/pp_eager_fallback.py" not in kept.provenance.sources


def test_history_bisects(probed):
    result = invoke("history", "flashmla_lazy_init", *FOUR, "--bisect")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-2:] == [
        "flashmla_lazy_init, target: first bad 0.21.0, first good 0.22.1",
        "flashmla_lazy_init, speculator: first bad 0.21.0, first good 0.22.1",
    ]
    assert len(probed) == len(set(probed)) <= 4


def test_history_bisects_what_no_release_shows(probed):
    result = invoke("history", "pp_eager_fallback", "--release", "0.18.1", "--bisect")
    assert result.stdout.splitlines()[-1] == "pp_eager_fallback: first bad no release, first good no release"


def test_a_bisection_as_json_holds_the_cells_it_probed(probed):
    result = invoke("history", "lora_short_circuit", *FOUR, "--bisect", "--json")
    document = History.model_validate(json.loads(result.stdout))
    assert {(c.case, c.release) for c in document.cells} == set(probed)


COMMANDS = {
    "run": ["run", "lora_short_circuit", "--rung", "source"],
    "history": ["history", "lora_short_circuit", *FOUR],
    "bisect": ["history", "lora_short_circuit", *FOUR, "--bisect"],
}


@pytest.mark.parametrize("json_", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize("args", COMMANDS.values(), ids=COMMANDS)
def test_a_probe_that_fails_is_one_line_and_status_2(args, json_, cache, monkeypatch):
    def fails(*args):
        raise process.ProbeFailed("x on vllm 0.23.0: RuntimeError: [no] driver")

    monkeypatch.setattr(process, "run_variants", fails)
    monkeypatch.setattr(process, "tell_rows", fails)
    result = invoke(*args, *json_)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.strip() == "mrv2lab: x on vllm 0.23.0: RuntimeError: [no] driver"


def test_a_variant_that_failed_on_source_is_told_with_its_traceback_and_status_1(cache, monkeypatch):
    failed = Outcome(verdict="failed", message="NameError: x", log_tail=["Traceback", '  File "a.py"'])
    monkeypatch.setattr(process, "run_variants", lambda case, variants: [failed] * len(variants))
    result = invoke("run", "flashmla_lazy_init", "--variant", "captured_reused", "--rung", "source")
    assert result.exit_code == 1 and "must be crash" in result.stdout
    assert result.stdout.splitlines()[-3:] == [
        "captured_reused failed: NameError: x", "Traceback", '  File "a.py"',
    ]  # fmt: skip


@pytest.mark.parametrize("args", COMMANDS.values(), ids=COMMANDS)
def test_a_release_that_cannot_be_had_is_one_line_and_status_2(args, monkeypatch):
    def fetch(version):
        raise releases.ReleaseUnavailable(f"no vllm {version}; connect")

    monkeypatch.setattr(releases, "cached", lambda version: None)
    monkeypatch.setattr(releases, "fetch", fetch)
    monkeypatch.setattr(process, "missing_libraries", list)
    result = invoke(*args)
    version, total = (releases.TARGET, "1 release") if args[0] == "run" else ("0.18.1", "4 releases")
    assert (result.exit_code, result.stdout) == (2, "")
    first, second, *_ = result.stderr.splitlines()
    assert first.startswith(f"to fetch: {total} of vllm, ") and second == f"fetching vllm {version}"
    assert result.stderr.splitlines()[-1] == f"mrv2lab: no vllm {version}; connect"
    assert result.stderr.count("mrv2lab: ") == 1


@pytest.mark.parametrize("args", COMMANDS.values(), ids=COMMANDS)
def test_nothing_is_fetched_for_code_that_could_not_be_imported(args, monkeypatch):
    monkeypatch.setattr(releases, "cached", lambda version: None)
    monkeypatch.setattr(releases, "fetch", lambda version: pytest.fail("fetched"))
    monkeypatch.setattr(process, "missing_libraries", lambda: ["regex", "openai"])
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "not installed (regex, openai): " in result.stderr


def test_a_warning_comes_once_and_with_the_variant_that_it_is_about():
    words = "run breakable_graph --rung emulated --variant piecewise --variant downgraded --set num_layers=1"
    result = invoke(*words.split(), "--batch-size", 1, "--batch-size", 2)
    (line, other) = [line for line in result.stderr.splitlines() if "supports NEVER" in line]
    assert line == other and line.startswith(
        "breakable_graph downgraded: its runner warns: FULL_DECODE_ONLY graphs: "
    )


def test_a_warning_stands_above_the_table_of_its_case(capfd):
    jobs = [("stale_view", ["fresh_inputs"]), ("breakable_graph", ["downgraded"])]
    jobs = [(*job, [{"rung": "emulated", "num_layers": 1}]) for job in jobs]
    seen = []
    with cli._progress("") as progress:
        for runs in cli._run(progress, jobs, at_once=2):
            seen.append(([run.variant for run in runs], "downgraded" in capfd.readouterr().err))
    assert seen == [(["fresh_inputs"], False), (["downgraded"], True)]


def test_what_is_fetched_is_counted_once(monkeypatch):
    version, other = releases.RELEASES[:2]
    monkeypatch.setattr(releases, "cached", lambda wanted: wanted == other or None)
    monkeypatch.setattr(releases, "fetch", lambda wanted: None)
    fetched = []
    monkeypatch.setattr(cli.err, "print", lambda line, **_: fetched.append(line))
    cli._fetch([version, other, version], imports=False)
    assert len(fetched) == 2 and "1 release of vllm, 250 to 430 MB" in fetched[0]


def test_what_cannot_be_told_cannot_be_bisected(cache, monkeypatch):
    cell = Cell(row="", word="unreachable", observation="the probe does not fit")
    monkeypatch.setattr(process, "tell_rows", lambda case, release: [cell])
    result = invoke(*COMMANDS["bisect"])
    assert result.exit_code == 2
    line = r"mrv2lab: lora_short_circuit on vllm 0\.\d+\.\d: the probe does not fit"
    assert re.fullmatch(line, result.stderr.strip())
    assert invoke(*COMMANDS["history"]).exit_code == 0


@pytest.mark.parametrize("folder", ["stale_view", pytest.param("*", marks=pytest.mark.slow)])
def test_the_report_takes_every_record_kept_and_calls_each_recorded(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("mrv2lab.results.DATA", tmp_path / "data")
    for case in DATA.glob(folder):
        shutil.copytree(case, tmp_path / "data" / case.name)
    figures = tmp_path / "figures"
    result = invoke("report", "--output", tmp_path / "r.html", "--figures", figures)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "r.html").read_text()
    kept = [*DATA.glob(f"{folder}/*.json")]
    assert page.count(": recorded, rung ") == 2 * len(kept) > (1 if folder == "stale_view" else 10)
    assert page.count("(recorded: ") == len(kept)
    assert len(list(figures.glob("*-errors.svg"))) == len(kept)


# ---- the real engine ----


@pytest.fixture
def no_engine(monkeypatch):
    monkeypatch.setattr(live_module, "missing", lambda case, release: ["vllm 0.23.0", "an NVIDIA GPU"])


def test_live_without_an_engine_says_what_is_missing_and_shows_what_was_recorded(no_engine):
    result = invoke("live", "lora_short_circuit")
    assert result.exit_code == 0
    assert "lacks vllm 0.23.0 and an NVIDIA GPU" in " ".join(result.stderr.split())
    assert "forced_launch" in result.stdout and "recorded: NVIDIA H200" in result.stdout
    assert not invoke("live", "lora_short_circuit", "--json").stdout  # JSON is for what ran here


def test_live_runs_every_variant_as_asked_and_its_exit_status_is_the_verdict(monkeypatch):
    def run_variants(case, names, options):
        seen.append((case, names, options.at_once, options.executor))
        options.on_progress(names[0], 0.5, "serving")
        return iter([outcome] * len(names))

    here = provenance(0, uses_gpu=False).model_copy(update={"gpu": "a GPU"})
    monkeypatch.setattr("mrv2lab.cases.base.provenance", lambda seed, uses_gpu, made_by: here)
    monkeypatch.setattr(live_module, "missing", lambda case, release: [])
    monkeypatch.setattr(live_module, "run_variants", run_variants)
    seen, outcome = [], Outcome(verdict="correct", errors=[0.0], step_modes=["graph"])
    result = invoke("live", "lora_device_assert", "--at-once", "1", "--json")
    assert seen == [("lora_device_assert", ["dummy_adapters", "unwritten", "zero_mapping"], 1, "mp")]
    assert result.exit_code == 1  # one of them should have crashed
    record = Record.model_validate_json(result.stdout)
    assert {run.rung for run in record.runs} == {"vllm"}


def test_live_refuses_an_executor_that_there_is_not(monkeypatch):
    monkeypatch.setattr(live_module, "missing", lambda case, release: [])
    result = invoke("live", "pp_eager_fallback", "--executor", "slurm")
    assert result.exit_code == 2 and "possible" in result.stderr


def test_live_takes_a_case_or_all():
    assert invoke("live", "lora_short_circuit", "--all").exit_code == 2


def test_a_diff_in_a_pipe_is_whole_for_patch(monkeypatch):
    long = "-" + "x" * 300
    monkeypatch.setattr("mrv2lab.cli._fetch", lambda *args, **named: None)
    monkeypatch.setattr("mrv2lab.upstream.probes.diff", lambda *args: Diff((long,)))
    assert invoke("diff", "lora_short_circuit", "zero_mapping").stdout == f"{long}\n"


def test_a_terminal_that_does_not_know_its_width_is_told_all_the_same():
    command = [sys.executable, "-m", "mrv2lab", "list"]
    done = subprocess.run(command, env=os.environ | {"COLUMNS": "0"}, capture_output=True, text=True)
    assert done.returncode == 0 and "lora_short_circuit" in done.stdout


@pytest.mark.parametrize("width", [24, 40, 54])
def test_of_a_narrow_table_the_verdicts_are_the_last_thing_that_is_cut(width):
    runs = results.recorded("lora_short_circuit", "emulated") or results.recorded(
        "lora_short_circuit", "cuda"
    )
    told = Console(width=width, file=io.StringIO())
    told.print(verdict_table(runs))
    seen = told.file.getvalue()
    assert all(re.search(rf"\b{run.verdict}\b", seen) for run in runs) and "verdict" in seen


@pytest.mark.parametrize("command", [[], ["report"], ["audit", "matrix"], ["graph", "show"], ["mystery"]])
def test_help_has_a_short_name(command):
    asked = invoke(*command, "-h")
    assert asked.exit_code == 0 and asked.stdout == invoke(*command, "--help").stdout


def test_live_says_so_where_nothing_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(live_module, "missing", lambda *_: ["a GPU"])
    monkeypatch.setattr(results, "DATA", tmp_path)
    result = invoke("live", "stale_view")
    assert result.exit_code == 1
    assert "this machine lacks a GPU; and no run of it is recorded in" in " ".join(result.stderr.split())
