"""The command line.

Importing this module takes no torch and no matplotlib: help, lists, mistyped names and the first sign of
progress come at once. What takes either of them a command imports when it runs.
"""

from __future__ import annotations

import atexit
import codecs
import errno
import itertools
import logging
import math
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from io import TextIOWrapper
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args

import typer
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from mrv2lab import catalogue, cli_graphs, cli_hunt
from mrv2lab.catalogue import Rung
from mrv2lab.cli_graphs import PLAIN, Backend, Json, Reset, SaveTo, err, one_of, out, print_table, to_write
from mrv2lab.errors import BadInput, RecordError, choose, counted, file_and_function, printable

if TYPE_CHECKING:
    from mrv2lab.bench import What
    from mrv2lab.live.rung import Options
    from mrv2lab.results import Document, Provenance, Record, Run
    from mrv2lab.sweep import Cell
    from mrv2lab.timed import Row, Timed


def _numpy_first(name: str, *_: object) -> None:
    """Before torch, which imports it in C++, where Ctrl-C would be forgotten."""
    if name == "torch":
        with suppress(ImportError):
            __import__("numpy")


_Job = tuple[str, list[str], list[dict[str, Any]]]  # a case, some of its variants, the options of each run

_UNWRITABLE = {errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOSPC, errno.ENOTDIR}
_UNWRITABLE |= {errno.EDQUOT, errno.EFBIG, errno.EPERM, errno.EROFS}


def _spelt(error: Any) -> tuple[str, int]:
    """For a letter that the encoding of a terminal lacks."""
    return {"≤": "<", "×": "x"}.get(error.object[error.start], "?"), error.start + 1


codecs.register_error("spelt", _spelt)


def _prepare_streams() -> None:
    """See that each is there, and that a letter it cannot write ends nothing."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:  # closed: what is opened next, or by a process of ours, would get its number
            with suppress(OSError):
                os.fstat(number)
                continue
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        elif number and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="spelt")


def _die_of_interrupt() -> NoReturn:
    """By SIGINT, as a shell expects it of what Ctrl-C has ended: else a loop goes on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    atexit._run_exitfuncs()  # nothing of Python's comes after that
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGINT)
    sys.exit(130)  # where it is blocked


class _Commands(TyperGroup):
    """Commands whose user can cause what goes wrong: that takes one line, and exit status 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._main(*args, **kwargs)
        except KeyboardInterrupt:  # between what catches it otherwise, also in an `except` below
            if args or kwargs:  # a program has asked, which goes on
                raise
            _die_of_interrupt()

    def _main(self, *args: Any, **kwargs: Any) -> Any:
        _prepare_streams()
        if not (args or kwargs):
            sys.meta_path.insert(0, SimpleNamespace(find_spec=_numpy_first))  # type: ignore[arg-type]
        try:
            return super().main(*args, **kwargs)
        except SystemExit as end:
            if end.code != 130 or args or kwargs:
                raise
            raise KeyboardInterrupt from end  # which Typer has caught
        except BadInput as error:
            line = str(error)
        except ModuleNotFoundError as error:
            if error.name not in ("torch", "triton"):
                raise
            from mrv2lab.doctor import pip_install, stack

            line = f"this needs {error.name}, which comes with an extra: {pip_install(stack())}"
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
            place = error.filename or "standard output"
            line = f"{place}: {error.strerror}; name a place where you may write"
        typer.echo(f"mrv2lab: {printable(line)}", err=True)
        sys.exit(2)


class _Audits(TyperGroup):
    """What can be audited. A file, named without a word before it, is that of a step; its options may stand
    before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_option = bool(args) and args[0].startswith("-") and args[0] not in _HELP["help_option_names"]
        return super().parse_args(ctx, ["step", *args] if is_option else args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0].endswith(".py") and [*map(str.isidentifier, args[1:])] == [True]:
            raise BadInput(f"give FILE.py:FUNCTION, here {args[0]}:{args[1]}")
        if args[0] not in self.commands and ("." in args[0] or ":" in args[0]):
            args = ["step", *args]
        return super().resolve_command(ctx, args)


class _WithNumber(TyperCommand):
    """Takes -1 for a number, if a wrong one, and any other option that it does not know for a typo."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(re.fullmatch(r"-\d+", arg) for arg in args)
        return super().parse_args(ctx, args)


_HELP = {"help_option_names": ["--help", "-h"]}
app = typer.Typer(cls=_Commands, pretty_exceptions_enable=False, context_settings=_HELP, **PLAIN)
_AUDIT = """Find what a captured graph got wrong, and the line.

A step of your own: audit FILE.py:FUNCTION, for example `mrv2lab audit model.py:step`. Functions vary() and
reset() beside it prepare the next step; its options: audit step --help."""
audit = typer.Typer(cls=_Audits, help=_AUDIT, **PLAIN)
app.add_typer(audit, name="audit")
app.add_typer(cli_graphs.graph, name="graph")
app.add_typer(cli_hunt.hunt, name="hunt")
app.command("triage")(cli_hunt.triage)
app.command("unfix")(cli_graphs.unfix)
app.add_typer(cli_graphs.dispatch, name="dispatch", context_settings={"obj": lambda them: _fetch(them)})
bench = typer.Typer(help="Time graphs as they grow, beside verdicts.", **PLAIN)
app.add_typer(bench, name="bench")

# ---- what several commands take ----


def _complete_variant(ctx: typer.Context) -> Iterable[str]:
    entries = catalogue.entries()
    words = {ctx.params.get("case"), *ctx.args}  # a case before an option without a value stays unread
    chosen = [entry for name, entry in entries.items() if name in words] or entries.values()
    return dict.fromkeys(variant.name for entry in chosen for variant in entry.variants)


CaseName = Annotated[str | None, typer.Argument(help="of `mrv2lab list`", autocompletion=catalogue.entries)]
AllCases = Annotated[bool, typer.Option("--all", help="every case")]
SaveRecord = Annotated[bool, typer.Option("--save", help="keep the record in the folder of --data")]


def _file(help: str, remedy: str, metavar: str | None = None) -> Any:
    check = cli_graphs.before_all(lambda _, path: cli_graphs.there(path, remedy))
    return typer.Argument(help=help, metavar=metavar, callback=check)


def _release(help: str) -> Any:
    def check(_: str, release: str) -> None:
        from mrv2lab.upstream.releases import sort_key

        sort_key(release)

    return typer.Option(help=help, callback=cli_graphs.before_all(check))


def _pairs() -> list[str]:
    from mrv2lab.results import RECORDS

    return sorted(path.stem for path in (RECORDS / "wild").glob("*.py"))


_IS_PAIR = cli_graphs.before_all(lambda _, name: choose("pair", name, _pairs()))
Results = Annotated[Path | None, typer.Option(help="folder that --save writes to; default: data/results")]


def _checked_cases(
    case: str | None, all_cases: bool, variants: Sequence[str] = (), rung: str = "auto"
) -> list[str]:
    """One case, or all that claim the rung; each with these variants."""
    if all_cases == (case is not None):
        raise BadInput(f"name one case or give --all; possible cases: {', '.join(catalogue.entries())}")
    claiming = [name for name, entry in catalogue.entries().items() if rung in ("auto", *entry.rungs)]
    names = claiming if case is None else [case]
    for name in names:
        catalogue.check(name, variants, rung)
    return names


def _below(folder: Path | None, *names: str, writes: bool = True) -> Path:
    """Where records are written: into the clone's `data`, or into one here. A package stays as it is."""
    from mrv2lab import results

    below = folder or (results.RECORDS if results.IN_CLONE else Path("data")).joinpath(*names)
    if writes:
        results.check_place(below, is_folder=True)
    return below


# ---- commands ----


def _print_version(wanted: bool) -> None:
    if wanted:
        from mrv2lab.results import version_or_none

        version = version_or_none("mrv2lab")
        typer.echo(f"mrv2lab {version}" if version else "mrv2lab, not installed: a folder on Python's path")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version)
    ] = False,
) -> None:
    """Real bugs of vLLM's Model Runner V2, to run, audit and repair. `mrv2lab doctor` says what works here.

    Standard output holds what was asked for (with --json one document and nothing else); progress and
    complaints go to standard error. Exit status: 0 as expected, 1 another verdict than the stated one or a
    finding, 2 bad input.
    """


@app.command()
def doctor() -> None:
    """Say what works here, and how to get the rest."""
    from mrv2lab import doctor

    checks = doctor.examine()
    table = Table("what", "here", "allows", title="mrv2lab doctor")
    for check in checks:
        table.add_row(check.what, check.found or "[yellow]no[/]", check.allows)
    out.print(table)
    here, elsewhere = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 2))
    for ability in doctor.abilities():
        lacks = ability.lacks(checks)
        command = ability.remedy(lacks) if lacks else ability.command
        (elsewhere if lacks else here).add_row(f"  {ability.what}", Text(command))
    for title, rows in (("Here you can have", here), ("For the rest", elsewhere)):
        if rows.row_count:
            out.print(f"{title}:", rows, highlight=False)


@app.command("list")
def list_cases() -> None:
    """List the cases, their variants, and what each must show."""
    out.print(f"{'variant':22}{'role':12}must show")
    for case in catalogue.entries().values():
        link = r"[link=https://github.com/vllm-project/vllm/pull/\1]#\1[/link]"
        linked = re.sub(r"#(\d+)", link, case.upstream)
        out.print(f"\n[bold]{case.name}[/]: {case.title}\n[dim]{linked}[/]", soft_wrap=True)
        for variant in case.variants:
            out.print(f"  {variant.name:20}{variant.role:12}{variant.expected}", highlight=False)


@app.command()
def run(
    case: CaseName = None,
    all_cases: AllCases = False,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="only this variant; may be repeated", autocompletion=_complete_variant),
    ] = None,
    rung: Annotated[str, one_of("auto, emulated, cuda, source or vllm", "auto", *get_args(Rung))] = "auto",
    batch_size: Annotated[list[int] | None, typer.Option(help="requests at once; may be repeated")] = None,
    rank: Annotated[int | None, typer.Option(help="rank of the adapters")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="any other shape: name=value")] = None,
    json: Json = False,
    save: SaveRecord = False,
    data: Results = None,
    report: Annotated[Path | None, to_write("also write an HTML report to this file")] = None,
) -> None:
    """Run a case, and judge each variant by the eager reference."""
    names = _checked_cases(case, all_cases, variant or [], rung)
    settings = [*(f"batch_size={n}" for n in batch_size or ()), *(set_ or ())]
    shapes = _parse_shapes(settings if rank is None else [*settings, f"rank={rank}"])
    for name in names[:1]:  # a typo is one in every case; what else is wrong with a shape a case says itself
        catalogue.check(name, shapes=shapes[0])
    below = _below(data, "results") if save else None
    with _progress("starting") as progress:
        from mrv2lab.cases import CASES
        from mrv2lab.upstream.process import releases_of

        options = [{"rung": rung, **shape} for shape in shapes]
        jobs = [(n, variant or [v.name for v in CASES[n].variants], options) for n in names]
        # All input is checked before anything runs.
        rungs = {CASES[name].checked_rung(rung, shape) for name in names for shape in shapes}
        if rung == "source":
            _fetch(release for name, variants, _ in jobs for release in releases_of(name, variants))
        at_once = min(2, os.cpu_count() or 1, len(jobs)) if rungs == {"emulated"} else 1
        runs = _told(_run(progress, jobs, at_once=at_once), json)
    wanted = sum(len(variants) * len(shapes) for _, variants, shapes in jobs)
    _deliver(runs, json, below, report, wanted=wanted)


@app.command("sweep")
def run_sweep(
    grid: Annotated[Path, _file("case, variant, rung, shape: lists", "name a TOML file", "GRID.toml")],
    to: Annotated[Path, typer.Option(help="folder for a file of each run; what is there is not run again")],
    workers: Annotated[int, typer.Option(help="runs at once", min=1)] = os.cpu_count() or 1,
    shard: Annotated[str, typer.Option(help="i/n: only run i, i + n, i + 2n and so on")] = "1/1",
    on: Annotated[str, one_of("who spreads them: here, ray or slurm", "here", "ray", "slurm")] = "here",
    address: Annotated[str | None, typer.Option(help="of Ray's cluster, or submitit's name of one")] = None,
    json: Json = False,
) -> None:
    """Run a grid of cases, variants and shapes, or what is left of it."""
    if not (found := re.fullmatch(r"([1-9]\d{0,8})/([1-9]\d{0,8})", shard)) or int(found[1]) > int(found[2]):
        raise BadInput(f"--shard takes i/n with i from 1 to n, not {shard}")
    with _progress("starting") as progress:
        from mrv2lab.results import check_place
        from mrv2lab.sweep import sweep

        cells = _cells(grid)[int(found[1]) - 1 :: int(found[2])]
        if not cells:
            raise BadInput(f"the grid has fewer runs than --shard {shard} needs")

        def there() -> int:  # those that have died, or that somebody else runs, are not
            return sum((to / cell.file).exists() for cell in cells)

        number, before = counted(len(cells), "run"), there()
        if before < len(cells):  # what is done may be where nobody writes
            check_place(to, is_folder=True)
        told: list[Run | str] = []
        done, others = _counter(progress, "running", len(cells)), "the same command runs the others"
        with _told_if_cut(lambda: f"{there()} of {number} lie in {to}; asked again, {others}"):
            for cell, run in sweep(cells, to, workers=workers, on=on, address=address):
                told.append(run)
                done(f"{cell.case} {cell.variant}")
    if before:
        err.print(f"{before} of {number} lay in {to} already", soft_wrap=True, highlight=False, markup=False)
    for died in (run for run in told if isinstance(run, str)):
        err.print(died, soft_wrap=True, highlight=False, markup=False)
    runs = [run for run in told if not isinstance(run, str)]
    if not json and runs:
        table = Table("case", "variant", "rung", "runs", "as stated", "verdicts")
        kind = attrgetter("case", "variant", "rung")
        for key, group_ in itertools.groupby(sorted(runs, key=kind), kind):
            mine = list(group_)
            table.add_row(*key, str(len(mine)), str(sum(run.as_expected for run in mine)), _verdicts(mine))
        out.print(table)
        err.print(f"each run with its shape and error: mrv2lab report {to}", soft_wrap=True, highlight=False)
    if len(runs) < len(told):
        raise typer.Exit(1)
    _deliver(runs, json, None, None)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What a step prints, also in C or another process, is no part of a document."""
    kept, stdout = os.dup(1), sys.stdout
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if stdout is not None:  # it may be closed
            stdout.flush()  # who has kept it may have written there
        os.dup2(kept, 1)
        os.close(kept)


@audit.command("step")
def audit_step(
    target: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="a function without arguments")],
    vary: Annotated[str | None, typer.Option(help="function that changes the inputs; default: vary")] = None,
    reset: Reset = None,
    twin: Annotated[bool, typer.Option("--twin", help="also serve fresh runs of the file")] = False,
    backend: Backend = "auto",
    json: Json = False,
    save: SaveTo = None,
) -> None:
    """Audit a step of your own.

    Functions named `vary` and `reset` beside it are used, if there are any. Exit status 2 as well where
    nothing was found, and something frozen could not have been: the inputs did not change, or what was made
    of them once is in use eagerly too, or graphs that the step replays were held against nothing that runs
    eagerly.
    """
    file, name = file_and_function(target)  # before torch is loaded
    if name in (vary or "vary", reset or "reset"):
        raise BadInput(f"{name} prepares a step and is none; did you mean {file}:step?")
    with _progress("auditing"):
        from unittest.mock import patch

        from mrv2lab.audit import audit_target
        from mrv2lab.audit.report import NO_SIGN
        from mrv2lab.audit.target import HOW_TO_VARY
        from mrv2lab.audit.waiting import Waiting
        from mrv2lab.results import write

        # A step would end its audit by it, and nobody be told. A fork of the step's may leave.
        os.register_at_fork(after_in_child=partial(setattr, os, "_exit", os._exit))
        left = patch("os._exit", side_effect=SystemExit("it called os._exit()"))
        with Waiting(err.print), left, _stdout_to_stderr() if json else nullcontext():
            report = audit_target(target, vary=vary, reset=reset, backend=backend, runs_anew=twin)
    typer.echo(report.to_json() if json else str(report), nl=not json)
    if NO_SIGN in str(report):  # there is no vary(), or it changed nothing
        typer.echo(HOW_TO_VARY, err=True)
    if save is not None:
        write(save, report.to_json())
    raise typer.Exit(1 if report.findings else 2 if report.is_blind else 0)


@audit.command("matrix")
def audit_matrix(
    case: CaseName = None,
    backend: Backend = "auto",
    seeds: Annotated[int, typer.Option(help="audits of each variant", min=1)] = 1,
    json: Json = False,
    save: SaveTo = None,
) -> None:
    """Audit every variant of all cases, or of one, and count."""
    chosen = _checked_cases(case, case is None)
    with _progress("auditing") as progress:
        from mrv2lab.audit import KINDS
        from mrv2lab.cases import CASES, matrix
        from mrv2lab.cases.base import best_rung

        on = best_rung(backend)
        names = [name for name in chosen if on in CASES[name].rungs]
        done = _counter(progress, "auditing", sum(len(CASES[name].variants) for name in names))
        made = matrix.make(on, range(seeds), cases=names, done=done)
    _save(made, save, prints=json)
    if not json:
        typer.echo(repr(matrix.DetectionTable(made)))
        err.print(f"kinds: {', '.join(KINDS)}")
    raise typer.Exit(0 if made.is_clean else 1)


@audit.command("recorded")
def audit_recorded(json: Json = False) -> None:
    """Print the recorded matrix."""
    from mrv2lab.cases import matrix

    kept = matrix.load()
    typer.echo(kept.to_json() if json else repr(matrix.DetectionTable(kept, True)), nl=not json)


@audit.command("model")
def audit_model(
    folder: Annotated[str, typer.Argument(help="of a checkpoint")],
    lora: Annotated[list[str] | None, typer.Option(help="folder of a PEFT adapter; may be repeated")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="name=value, as of vllm.LLM")] = None,
    scenario: Annotated[list[str] | None, typer.Option(help="what is served: all, or one of them")] = None,
    json: Json = False,
    save: SaveTo = None,
) -> None:
    """Audit what vLLM's engine captures of a checkpoint."""
    from mrv2lab.live import scenarios
    from mrv2lab.live.audited import job_of_model, values_of
    from mrv2lab.live.releases import installed
    from mrv2lab.live.rung import missing_gpus
    from mrv2lab_vllm import TRIED

    scenarios.chosen(scenario or ())  # a slip is told on any machine
    values_of(engine or (), "vllm.LLM")
    if find_spec("vllm") is None:  # it may be of any release, but must be there
        lacks = [f"vllm ({', '.join(TRIED)} were tried)", *missing_gpus(1)]
        raise BadInput(f"audit model needs {' and '.join(lacks)}")
    job = job_of_model(folder, lora or [], engine or [], scenario or [])
    if (release := installed()).rpartition(".")[0] not in TRIED:
        err.print(f"audits were tried with vllm {', '.join(TRIED)}; this is {release}")
    _audit_engines([job], json, save, fails_on_findings=True)


@audit.command("transformers")
def audit_transformers(
    folder: Annotated[str, typer.Argument(help="of a checkpoint")],
    engine: Annotated[
        list[str] | None, typer.Option(help="name=value, as of ContinuousBatchingConfig")
    ] = None,
    attention: Annotated[str, typer.Option(help="an attention implementation of transformers")] = "sdpa",
    json: Json = False,
) -> None:
    """Audit graphs of transformers' continuous batching, on a GPU."""
    from mrv2lab.live import continuous
    from mrv2lab.live.rung import missing_gpus

    if lacks := missing_gpus(1):
        raise BadInput(f"continuous batching makes its graphs on a GPU, and this machine lacks {lacks[0]}")
    batches = continuous.audit_checkpoint(folder, engine or [], attention)
    for report in batches.reports:
        typer.echo(report.to_json() if json else str(report), nl=not json)
    for told in batches.failed:
        err.print(f"not audited: {told}")
    if batches.num_left:
        err.print(f"not audited: {counted(batches.num_left, 'graph')} captured, and not replayed")
    has_findings = any(report.findings for report in batches.reports)
    raise typer.Exit(1 if has_findings else 2 if batches.failed else 0)


@audit.command("vllm")
def audit_vllm(
    case: Annotated[list[str], typer.Argument(help="of `mrv2lab list`", autocompletion=catalogue.entries)],
    json: Json = False,
    save: SaveTo = None,
) -> None:
    """Audit vLLM's engine, fixes of cases taken out and put in."""
    for name in case:
        catalogue.check(name, rung="vllm")
    from mrv2lab.live.audited import jobs_of

    _audit_engines([job for name in case for job in jobs_of(name)], json, save, fails_on_findings=False)


def _audit_engines(jobs: list[Any], json: bool, save: Path | None, fails_on_findings: bool) -> None:
    from mrv2lab.live import audited
    from mrv2lab.live.rung import AT_ONCE

    with _progress("starting") as progress:
        tell = _bar(progress, "vllm", len(jobs))
        audits = audited.run(jobs, at_once=AT_ONCE, on_progress=lambda job, *how: tell(job.variant, *how))
    made_with = _made_with("vllm", "live.audited")
    _save(audited.EngineAudits(provenance=made_with, audits=audits), save, prints=json)
    if json:
        return
    for engine in audits:
        told = [f"== {engine.case} {engine.variant}", *map(str, engine.read())]
        told += [*engine.left_out, *engine.apart]
        typer.echo("\n".join(told))
    has_findings = any(one.apart or any(report.findings for report in one.read()) for one in audits)
    raise typer.Exit(1 if fails_on_findings and has_findings else 0)


@bench.command("floor")
def bench_floor(json: Json = False, save: SaveTo = None) -> None:
    """Time launches and nodes, on a GPU."""
    from mrv2lab.live.rung import missing_gpus

    if lacks := missing_gpus(1):
        raise BadInput(f"bench floor times launches on a GPU, and this machine lacks {lacks[0]}")
    _bench("floor", "cuda", json, save)


@bench.command("growth")
def bench_growth(
    backend: Backend = "auto",
    max_nodes: Annotated[int | None, typer.Option(help="only graphs up to this size", min=10)] = None,
    json: Json = False,
    save: SaveTo = None,
) -> None:
    """Time capture, replay and audit as graphs grow: for minutes; up to 100 nodes seconds."""
    _bench("growth", backend, json, save, max_nodes)


@bench.command("sweep")
def bench_sweep(json: Json = False, save: SaveTo = None) -> None:
    """Time sweeps as their grid grows, by the clock: for minutes, on a machine that does nothing else."""
    _bench("sweep", "emulated", json, save)


@bench.command("guard")
def bench_guard(backend: Backend = "auto", json: Json = False, save: SaveTo = None) -> None:
    """Time replays with a guard and without one."""
    _timed("guard", backend, json, save)


@bench.command("lora")
def bench_lora(backend: Backend = "auto", json: Json = False, save: SaveTo = None) -> None:
    """Time the LoRA kernels beside vLLM's."""
    _timed("lora", backend, json, save)


@bench.command("runner")
def bench_runner(backend: Backend = "auto", json: Json = False, save: SaveTo = None) -> None:
    """Time the mini runner's decode step, eagerly and by graphs."""
    _timed("runner", backend, json, save)


@bench.command("engine")
def bench_engine(
    model: Annotated[list[str] | None, typer.Option(help="0.6B, 1.7B or 8B; may be repeated")] = None,
    runner: Annotated[list[str] | None, typer.Option(help="V1 or V2; may be repeated")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="eager, for example; may be repeated")] = None,
    json: Json = False,
    save: SaveTo = None,
) -> None:
    """Time vLLM's engine with graphs and without, on a GPU."""
    with _progress("starting") as progress:
        from mrv2lab import bench_engine
        from mrv2lab.live.loads import RUNNERS

        models, runners = model or list(bench_engine.MODELS), runner or list(RUNNERS)
        found = bench_engine.rows(models, runners, mode or bench_engine.ASKED)
        # Kept each time: a call that is cut off has timed engines before.
        document = _time(progress, "engine", "vllm", "bench_engine", found, bench_engine.BESIDES, save)
    _end_timed(document, json, save)


@bench.command("server")
def bench_server(json: Json = False, save: SaveTo = None) -> None:
    """Time vLLM's engine with a guard and with audits, on a GPU."""
    with _progress("starting") as progress:
        from mrv2lab import bench_server

        found, besides = bench_server.rows(), bench_server.BESIDES
        document = _time(progress, "server", "vllm", "bench_server", found, besides)
    _end_timed(document, json, save)


@bench.command("stages")
def bench_stages(
    way: Annotated[list[str] | None, typer.Option(help="eager, for example; may be repeated")] = None,
    json: Json = False,
    save: SaveTo = None,
) -> None:
    """Time vLLM's engine with two pipeline stages, on two GPUs."""
    with _progress("starting") as progress:
        from mrv2lab import bench_stages

        found = bench_stages.rows(way or list(bench_stages.WAYS))
        document = _time(progress, "stages", "vllm", "bench_stages", found, bench_stages.BESIDES, save)
    _end_timed(document, json, save)


@bench.command("join")
def bench_join(
    part: Annotated[list[Path], typer.Argument(help="records of one bench, timed in parts")],
    save: SaveTo = None,
) -> None:
    """Put what was timed in parts into one record."""
    from mrv2lab import results, tables, timed

    parts = [tables.checked(timed.load(path)) for path in part]
    _check_verdicts(parts)
    document = tables.checked(timed.joined(parts))
    if any(one.provenance.seconds is None for one in parts):  # what was cut off stays so
        made_with = document.provenance.model_copy(update={"seconds": None})
        document = document.model_copy(update={"provenance": made_with})
    if save is not None:
        results.write(save, document.to_json())  # with the seconds of its parts, not of this process
        err.print(f"wrote {save}")
    _tell_timed(document)


_AS_ONE: dict[str, tuple[str, ...]] = {
    "engine": ("model",), "runner": ("batch", "adapters"), "stages": (), "server": (),
}  # fmt: skip
"""Of benches whose ways are held against each other: the labels that such ways have in common."""


def _check_verdicts(parts: list[Timed]) -> None:
    """BadInput: parts of several commits that do not tell their code, engines of one model in two parts, or
    two verdicts for one row. What has failed may be made again."""
    of = [one.provenance for one in parts]
    if len({one.commit for one in of}) > 1 and not all(one.sources for one in of):
        raise BadInput("these parts make no record together: they differ in commit")
    for group in (_AS_ONE[one.what] for one in parts[:1] if one.what in _AS_ONE):
        timed_in = [{tuple(row.labels.get(name) for name in group) for row in one.rows} for one in parts]
        if twice := [key for key, number in Counter(itertools.chain(*timed_in)).items() if number > 1]:
            told = ", ".join(f"{name} {value}" for name, value in zip(group, twice[0], strict=True))
            raise BadInput(f"{told or parts[0].what}: in two parts, and ratios are of ways that ran in one")
    known: dict[frozenset[tuple[str, str | int]], str] = {}
    for row in (row for one in parts for row in one.rows):
        before = known.get(key := frozenset(row.labels.items()), row.verdict)
        if before not in (row.verdict, "failed"):
            told = ", ".join(f"{name} {value}" for name, value in row.labels.items())
            raise BadInput(f"{told}: {before} in one part and {row.verdict} in a later one")
        known[key] = row.verdict


def _timed(what: str, backend: str, json: bool, save: Path | None) -> None:
    with _progress("starting") as progress:
        from mrv2lab import timed
        from mrv2lab.cases.base import best_rung

        rung = best_rung(backend)
        found = timed.rows(what, rung)
        document = _time(progress, what, rung, timed.MODULES[what], found, save=save)
    _end_timed(document, json, save)


def _time(
    progress: Progress,
    what: str,
    rung: Rung,
    module: str,
    found: Iterable[Row],
    besides: Iterable[str] = (),
    save: Path | None = None,
) -> Timed:
    """Time one row after the other; with `save` what is there is kept after each."""
    from mrv2lab.results import Document
    from mrv2lab.timed import Timed

    rows: list[Row] = []
    made_with = _made_with(rung, module, besides=besides)
    of_all = partial(Timed, provenance=made_with, what=what, rung=rung)
    done = _counter(progress, "timing", None)
    with _told_if_cut(lambda: _kept_of(counted(len(rows), "row"), save if rows else None)):
        for row in found:
            rows.append(row)
            if save is not None:  # without the seconds that a whole one has
                Document.save(of_all(rows=rows), save)
            done(", ".join(f"{label} {value}" for label, value in row.labels.items()))
    return of_all(rows=rows)


@contextmanager
def _told_if_cut(tell: Callable[[], str]) -> Iterator[None]:
    """Where Ctrl-C ends what is inside, say what is left of it."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(tell(), soft_wrap=True, highlight=False, markup=False)
        raise


def _kept_of(number: str, save: Path | None) -> str:
    return f"{number} timed, {f'kept in {save}' if save else 'and nothing kept'}; a bench begins anew"


def _end_timed(document: Timed, json: bool, save: Path | None) -> NoReturn:
    _save(document, save, prints=json)
    if not json:
        _tell_timed(document)
    raise typer.Exit(0 if all(row.verdict == "correct" for row in document.rows) else 1)


def _tell_timed(document: Timed) -> None:
    from mrv2lab.tables import EngineTable, TimedTable

    for table in [TimedTable] + [EngineTable] * (document.what == "engine"):
        typer.echo(repr(table(document)))


def _bench(what: What, backend: str, json: bool, save: Path | None, max_nodes: int | None = None) -> None:
    with _progress("starting") as progress:
        from unittest.mock import patch

        from mrv2lab import bench, bench_sweep
        from mrv2lab.cases.base import best_rung

        rung, points = best_rung(backend), list[bench.Point]()
        measured = {**bench.MEASURED, "sweep": bench_sweep.points}
        module = "bench_sweep" if what == "sweep" else "bench"
        made_with = _made_with(rung, module, besides=() if what == "growth" else ("audit",))
        done = _counter(progress, "timing", None)
        sizes = {rung: tuple(n for n in bench.SIZES[rung] if n <= (max_nodes or n))}
        tell = _told_if_cut(lambda: _kept_of(counted(len(points), "size"), None))
        with patch.dict(bench.SIZES, sizes), tell:
            for point in measured[what](rung):
                points.append(point)
                done(f"{point.chain}, {point.num_nodes:,}")
        document = bench.Bench(provenance=made_with, what=what, rung=rung, points=points)
    _save(document, save, prints=json)
    if not json:
        from mrv2lab.tables import BenchTable

        typer.echo(repr(BenchTable(document)))
    raise typer.Exit(0 if all(point.is_right for point in points) else 1)


@app.command()
def history(
    case: CaseName = None,
    all_cases: AllCases = False,
    release: Annotated[list[str] | None, _release("only this release; may be repeated")] = None,
    bisect: Annotated[bool, typer.Option("--bisect", help="find first bad and first good")] = False,
    json: Json = False,
    save: SaveTo = None,
) -> None:
    """Run a bug's probe over releases of vLLM, without a GPU."""
    chosen = _checked_cases(case, all_cases, rung="source")
    with _progress("starting") as progress:
        from mrv2lab.terminal import history_table
        from mrv2lab.upstream import history, probes, releases

        for name in chosen:
            probes.get(name)  # before anything is fetched for it
        wanted = sorted(set(release or releases.RELEASES), key=releases.sort_key)
        _fetch(wanted)
        made_with = _made_with("source", "upstream.history", *(f"upstream.probes.{name}" for name in chosen))
        done = _counter(progress, "probing", None if bisect else len(chosen) * len(wanted))
        found = [history.bisect(name, wanted, done=done) for name in chosen] if bisect else []
        turns = [turn for more, _ in found for turn in more]
        bisected = [cell for _, more in found for cell in more]
        cells = bisected if bisect else history.observe(chosen, wanted, done=done)
    document = history.History(provenance=made_with, cells=cells)
    _save(document, save, prints=json)
    if json:
        return
    out.print(history_table(document))
    for turn in turns:
        first_bad, first_good = turn.first_bad or "no release", turn.first_good or "no release"
        out.print(f"{turn.line}: first bad {first_bad}, first good {first_good}")


@app.command()
def live(
    case: CaseName = None,
    all_cases: Annotated[bool, typer.Option("--all", help="every case that runs in the engine")] = False,
    at_once: Annotated[int | None, typer.Option(help="engines on one GPU; 1 for speeds", min=1)] = None,
    executor: Annotated[str, one_of("of several GPUs: mp, or ray for several hosts", "mp", "ray")] = "mp",
    release: Annotated[str | None, _release("whose engine; the one installed")] = None,
    json: Json = False,
    save: SaveRecord = False,
    data: Results = None,
) -> None:
    """Run cases in the real engine; without one, show recorded runs."""
    names = _checked_cases(case, all_cases or case is None, rung="vllm")
    below = _below(data, "results") if save else None
    with _progress("starting"):
        from mrv2lab import results
        from mrv2lab.live import rung
        from mrv2lab.live.releases import ENGINES, gone, variants
        from mrv2lab.terminal import verdict_table
        from mrv2lab.upstream import releases

    release = choose("release", release or releases.TARGET, ENGINES)
    other = "" if release == releases.TARGET else release
    for name in names:
        for variant, why in gone(name, release).items():
            err.print(f"{name} {variant}, vllm {release}: {why}")
    lacking, shown = {name: lacks for name in names if (lacks := rung.missing(name, release))}, 0
    for name, lacks in lacking.items():
        kept = results.recorded(name, "vllm", other)
        instead = "recorded runs instead" if kept else f"and no run of it is recorded in {results.DATA}"
        err.print(f"{name}: this machine lacks {' and '.join(lacks)}; {instead}")
        if kept:
            (err if json else out).print(verdict_table(kept, recorded=True))  # JSON is for what ran here
        shown += bool(kept)
    jobs = [(n, list(variants(n, release)), [{"rung": "vllm"}]) for n in names if n not in lacking]
    if not jobs:
        raise typer.Exit(0 if shown else 1)
    engine = rung.Options(at_once or rung.AT_ONCE, rung.checked_executor(executor), release)
    with _progress("starting") as progress:
        runs = _told(_run(progress, jobs, engine), json)
    _deliver(runs, json, below, None, other)


@app.command()
def diff(
    case: Annotated[str, typer.Argument(help="a case from `mrv2lab list`", autocompletion=catalogue.entries)],
    variant: Annotated[str, typer.Argument(help="one of its variants", autocompletion=_complete_variant)],
) -> None:
    """Show what a variant takes out of vLLM's source, or puts in."""
    catalogue.check(case, [variant], "source")
    from rich.syntax import Syntax

    from mrv2lab.upstream import probes
    from mrv2lab.upstream.process import releases_of

    (release,) = releases_of(case, [variant])
    _fetch([release], imports=False)
    shown = probes.diff(case, variant)
    if shown.lines and not out.is_terminal:
        typer.echo(repr(shown))  # for `patch`
    elif shown.lines:
        out.print(Syntax(repr(shown), "diff", background_color="default", word_wrap=True))
    else:
        out.print(f"{variant} is vllm {release} as released, with settings that it offers")


@app.command()
def progress(
    forget: Annotated[bool, typer.Option("--forget", help="delete what is kept")] = False,
    export: Annotated[bool, typer.Option("--export", help="print it as JSON Lines, without names")] = False,
) -> None:
    """Show what you have solved; it is kept on this machine."""
    from mrv2lab import journal

    if forget:
        try:
            deleted = journal.forget()
        except OSError as error:
            raise BadInput(f"cannot delete {journal.file()}: {error.strerror}") from error
        out.print("\n".join(f"deleted {path}" for path in deleted) or "nothing was kept", soft_wrap=True)
        return
    kept = journal.load()
    if export:
        typer.echo("".join(f"{line.model_dump_json()}\n" for line in journal.exported(kept)), nl=False)
        return
    print_table(journal.rows(kept, _level))
    out.print("\n".join(journal.remarks()), soft_wrap=True)


@app.command()
def wild(
    pairs: Annotated[
        list[str] | None,
        typer.Argument(help="of data/wild; default: all", callback=_IS_PAIR),
    ] = None,
    backend: Backend = "auto",
    save: SaveTo = None,
) -> None:
    """Ask the audit, and checks of today, about public bugs."""
    from mrv2lab.cases.base import best_rung
    from mrv2lab.wild import served

    _save(served(pairs or (), best_rung(backend)), save, prints=False)
    err.print("detects: something is said of the buggy program; accuses: of the fixed one; -: of neither")
    err.print("n/a: cannot be asked here; truth: whether results are those of the fixed one, run eagerly")


@app.command("class")
def class_(files: Annotated[list[Path], typer.Argument(help="exports, one of each member")]) -> None:
    """Show what a group has solved: mrv2lab progress --export of each."""
    from mrv2lab import group

    members, broken = group.read(files)
    for line in broken:
        typer.echo(f"left out: {line}", err=True)
    if not members:
        raise BadInput("no file that can be read; make one with `mrv2lab progress --export > NAME.jsonl`")
    print_table(group.rows(members))
    out.print("minutes: from the first look at an item until it was solved, pauses included", soft_wrap=True)


@app.command(cls=_WithNumber)
def mystery(
    seed: Annotated[int | None, typer.Argument(help="any whole number from 0 on", min=0)] = None,
    step: Annotated[int | None, typer.Option("--audit", help="also audit this step of it")] = None,
    solution: Annotated[
        bool, typer.Option("--solution", help="for whoever leads the game: the story")
    ] = False,
    pair: Annotated[bool, typer.Option("--pair", help="name two seeds as hard as each other")] = False,
    survey: Annotated[bool, typer.Option("--survey", help="run and audit many seeds instead")] = False,
    seeds: Annotated[int, typer.Option(help="with --survey: how many, from 0 on", min=1)] = 100,
    rung: Backend = "auto",
    save: Annotated[Path | None, to_write("with --survey: also write the record here")] = None,
) -> None:
    """Show an engine with one or two faults to find."""
    if survey + pair + (seed is not None) != 1:
        raise BadInput("name one seed, or give --pair, or --survey")
    if seed is None:
        _pair() if pair else _survey(rung, seeds, save)
        return
    with _progress("starting"):
        from mrv2lab import journal
        from mrv2lab.mystery import Mystery
        from mrv2lab.terminal import verdict_table

        game = Mystery(seed, rung)
        if solution:
            typer.echo(repr(game.story(give_up=True)))
            return
        audited = [game.audit(step)] if step is not None else []  # a wrong step is refused before all else
        journal.note("begun", f"mystery {seed}")
        out.print(verdict_table(game.runs()))
        typer.echo("\n".join(map(str, [repr(game.steps()), f"level: {_level(seed)} of 3", *audited])))
    typer.echo(
        "\nSomething in this engine is wrong: one fault, or two. Audit a step: "
        f"mrv2lab mystery {seed} --audit STEP\n"
        "Then name kind, place and cause in notebooks/40_mystery.ipynb."
    )


def _level(seed: int) -> int:
    from mrv2lab.mystery.mystery import level  # only where it is asked for: it imports torch

    return level(seed)


def _pair() -> None:
    from mrv2lab import group
    from mrv2lab.mystery import survey
    from mrv2lab.mystery.mystery import EXAMPLE

    before, after = group.pair(survey.load().seeds, EXAMPLE)
    told = "one fault each, not the same, and the recorded survey finds them equally hard"
    typer.echo(f"before: mrv2lab mystery {before}\nafter:  mrv2lab mystery {after}\n{told}")


def _survey(rung: str, seeds: int, save: Path | None) -> None:
    with _progress("surveying") as progress:
        from mrv2lab.cases.base import best_rung
        from mrv2lab.mystery import SurveyTable, survey

        done = _counter(progress, "surveying", seeds)
        made = survey.make(best_rung(rung), range(seeds), done=lambda seed: done(f"seed {seed}"))
    _save(made, save)
    typer.echo(repr(SurveyTable(made)))
    raise typer.Exit(0 if all(seen.is_accounted_for for seen in made.seeds) else 1)


def _cells(grid: Path) -> list[Cell]:
    """What a grid asks for. BadInput: it cannot be read, names nothing, or what is not there; and where."""
    from mrv2lab.sweep import Grid

    try:
        asked = Grid.read(grid)
    except BadInput as error:
        known = "; possible: case, variant, rung, and what belongs below [shape]"
        raise BadInput(f"{error}{known if 'no such key' in str(error) else ''}") from error
    if none := [name for name in sorted(asked.model_fields_set) if not getattr(asked, name)]:
        raise BadInput(f"{grid}: {none[0]}: names nothing; without that line all are meant")
    if none := [name for name, sizes in asked.shape.items() if not sizes]:
        raise BadInput(f"{grid}: shape.{none[0]}: no number; without that line it is what the case has")
    try:
        return asked.cells()
    except BadInput as error:
        raise BadInput(f"{grid}: {error}") from error


def _verdicts(runs: Sequence[Run]) -> str:
    """Of one variant; where there are several, each with the sizes at which it came."""
    found = dict.fromkeys(run.verdict for run in runs)
    if len(found) == 1:
        return runs[0].verdict
    varying = [name for name in runs[0].shape if len({run.shape.get(name) for run in runs}) > 1]

    def sizes(verdict: str) -> str:
        mine = [run.shape for run in runs if run.verdict == verdict]
        each = {name: sorted({shape[name] for shape in mine if name in shape}) for name in varying}
        return ", ".join(f"{name} {' '.join(map(str, numbers))}" for name, numbers in each.items())

    return "; ".join(f"{verdict} ({sizes(verdict)})" if varying else verdict for verdict in found)


@app.command()
def record(
    case: CaseName = None,
    budget: Annotated[str | None, typer.Option(help="time there is, for example 20m; none: no limit")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="print what would be made, and exit")] = False,
    rung: Annotated[list[str] | None, one_of("only this; may be repeated", *get_args(Rung))] = None,
    only: Annotated[str, one_of("all, or stale: those that other code made", "all", "stale")] = "all",
    data: Annotated[
        Path | None, typer.Option(help="folder to write to; what it lacks is judged by data of the clone")
    ] = None,
) -> None:
    """Make records again, stale ones first: all, or one case alone."""
    _checked_cases(case, case is None)
    budget_s = math.inf if budget is None else _seconds(budget)
    below = _below(data, writes=not plan)
    from mrv2lab import record

    recipes = record.RECIPES if case is None else record.of_case(case)
    wanted = [recipe for recipe in recipes if recipe.rung in (rung or get_args(Rung))]
    steps = record.plan(wanted, below, budget_s, only_stale=only == "stale")
    if plan:
        for step in steps:
            typer.echo(str(step))
        here = [step.seconds for step in steps if step.fits]
        where = "" if below.is_dir() else f"; {below} is not there yet"
        typer.echo(f"{counted(len(here), 'record')} to make here, about {sum(here) / 60:.0f} minutes{where}")
        return
    is_well = True
    for name, made in record.follow(steps, below, budget_s):
        typer.echo(printable(f"{name}: {made.told} ({made.seconds:.0f} s)"))
        is_well &= made.is_well
    raise typer.Exit(0 if is_well else 1)


@app.command()
def report(
    files: Annotated[
        list[Path] | None,
        _file("or folders; default: all of data/results", "make one with mrv2lab run --save"),
    ] = None,
    output: Annotated[Path, to_write("the HTML file to write")] = Path("out/recorded.html"),
    figures: Annotated[
        Path | None, to_write("also write plots as SVG to this folder", is_folder=True)
    ] = None,
) -> None:
    """Write an HTML report from recorded runs; it needs no network."""
    with _progress("reading"):
        from mrv2lab import bench, report, results, tables, timed

        given = files or sorted(filter(Path.is_dir, results.DATA.glob("*")))
        each = (sorted(path.glob("*.json")) if path.is_dir() else [path] for path in given)
        named = [*itertools.chain(*each)]
        if not named:
            where = f" in {', '.join(map(str, files))}" if files else ""
            raise BadInput(f"no results files{where}; make one with `mrv2lab run --all --save`, or name one")
        benches = [tables.checked(bench.load(path)) for path in named if path.name.startswith("bench-")]
        ways = [tables.checked(timed.load(path)) for path in named if path.name.startswith("timed-")]
        records: list[Record] = []
        for path in (path for path in named if not path.name.startswith(("bench-", "timed-"))):
            try:
                records.append(results.load(path))
            except RecordError as error:
                if files and path in files:
                    raise
                err.print(f"left out: {error}", soft_wrap=True, highlight=False, markup=False)
        if not (records or benches or ways):
            raise BadInput("none of these files holds results")
        report.write(output, [], records, benches, ways)
        paths = [output, *(report.write_figures(figures, records, benches, ways) if figures else [])]
    for path in paths:
        err.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)


# ---- what they share ----


@contextmanager
def _progress(doing: str) -> Iterator[Progress]:
    """Show that something is done: at once, before torch is imported. In no terminal, show nothing."""
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        progress.add_task(doing, total=None)
        yield progress


def _counter(progress: Progress, what: str, total: int | None) -> Callable[[str], None]:
    """To be called with the name of each part that is done. The bar that only waited counts from now on."""
    [task] = progress.task_ids
    progress.reset(task, total=total, description=what)
    return lambda name: progress.update(task, advance=1, description=name)


def _bar(progress: Progress, name: str, num_variants: int) -> Callable[[str, float, str], None]:
    """The progress of a case: of each of its variants a share is done."""
    [task], shares = progress.task_ids, dict[str, float]()
    progress.reset(task, total=num_variants, description=name)

    def tell(variant: str, share: float, doing: str) -> None:
        shares[variant] = share
        progress.update(task, description=f"{name} {variant}: {doing}", completed=sum(shares.values()))

    return tell


def _fetch(versions: Iterable[str], imports: bool = True) -> None:
    """Have these releases in the cache, to import or to read, and say what is fetched: it takes minutes."""
    from mrv2lab.upstream import process, releases

    wanted = [version for version in dict.fromkeys(versions) if releases.cached(version) is None]
    if not wanted:
        return
    if imports and (missing := process.missing_libraries()):
        from mrv2lab.doctor import install

        missed = f"what vLLM imports is not installed ({', '.join(missing)})"
        raise BadInput(f"{missed}: {install('source')}")
    n = len(wanted)
    sizes = f"{250 * n:,} to {430 * n:,} MB to download, {24 * n} to {57 * n} MB to keep"
    err.print(f"to fetch: {counted(n, 'release')} of vllm, {sizes} in {releases.cache_dir()}", soft_wrap=True)
    for version in wanted:
        err.print(f"fetching vllm {version}")
        releases.fetch(version)


def _parse_shapes(settings: list[str]) -> list[dict[str, int]]:
    """Every combination, where a name is given more than one value."""
    values: dict[str, list[int]] = {}
    for name, _, value in (setting.partition("=") for setting in settings):
        if not re.fullmatch(r"-?\d{1,18}", value):  # Python turns no more than 4300 digits into a number
            raise BadInput(f"--set {name}={value}: possible: name=value with a whole number")
        values.setdefault(name, []).append(int(value))
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def _seconds(text: str) -> float:
    """Seconds: `90s`, `20m`, `2h`. BadInput: something else."""
    if (found := re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)) is None:
        raise BadInput(f"--budget {text}: possible: a number and s, m or h, for example 20m")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def _run(
    progress: Progress, jobs: Sequence[_Job], engine: Options | None = None, at_once: int = 1
) -> Iterator[list[Run]]:
    """Run cases, and show how far it is. Yields the runs of each, in order, as soon as they are done."""
    from mrv2lab import forks

    each: Iterable[tuple[list[Run], list[str]] | forks.Died]
    if at_once == 1:
        each = (_run_case(*job, engine, partial(_bar, progress)) for job in jobs)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # side by side their threads would fight for cores
        done, each = _counter(progress, "running", len(jobs)), forks.each(_run_case, jobs, at_once)
    for (name, *_), ran in zip(jobs, each, strict=True):
        if at_once > 1:
            done(name)
        if isinstance(ran, forks.Died):
            err.print(f"{name}: {ran}", soft_wrap=True, highlight=False, markup=False)
        runs, warnings = ([], []) if isinstance(ran, forks.Died) else ran
        for warning in warnings:  # above the table of these runs, not above another case's
            typer.echo(warning, err=True)
        yield runs


def _run_case(
    name: str,
    variants: list[str],
    options: list[dict[str, Any]],
    engine: Options | None = None,
    bar: Callable[[str, int], Callable[[str, float, str], None]] = lambda *what: lambda *how: None,
) -> tuple[list[Run], list[str]]:
    """The runs of a case, and what its runner has warned of."""
    from mrv2lab.cases import CASES
    from mrv2lab.cases.base import DEFAULT_ENGINE

    runs: list[Run] = []
    warned: list[str] = []
    for chosen in options:
        tell, waiting = bar(name, len(variants)), list(variants)
        told = replace(engine or DEFAULT_ENGINE, on_progress=tell)
        with _warnings_of(name, waiting) as warnings:
            for run in CASES[name].run_all(variants, engine=told, **chosen):
                runs.append(run)
                waiting.remove(run.variant)
                tell(run.variant, 1, run.verdict)
        warned += warnings
    return runs, warned


def _told(done: Iterable[list[Run]], json: bool) -> list[Run]:
    """All runs; those of each case are shown as they come, unless a document is asked for."""
    from mrv2lab.tables import failure
    from mrv2lab.terminal import verdict_table

    runs: list[Run] = []
    for of_case in done:
        runs += of_case
        if of_case and not json:
            out.print(verdict_table(of_case))
            for line in (line for run in of_case for line in failure(run)):
                typer.echo(line)
    return runs


@contextmanager
def _warnings_of(case: str, waiting: Sequence[str]) -> Iterator[list[str]]:
    """What the runner warns of, with the variant that runs: the first of those waiting."""
    told, handler, logger = list[str](), logging.Handler(), logging.getLogger("mrv2lab")
    handler.emit = lambda record: told.append(  # type: ignore[method-assign]
        f"{case} {waiting[0]}: its runner warns: {record.getMessage()}"
    )
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)


def _deliver(
    runs: list[Run], json: bool, below: Path | None, report: Path | None, release: str = "", wanted: int = 0
) -> None:
    """Keep and count them. `wanted`: how many there should be, with those of processes that have died."""
    from mrv2lab.results import file_name

    wanted = wanted or len(runs)
    if not runs:
        raise typer.Exit(1)
    if json:
        typer.echo(_record(runs).to_json(), nl=False)
    if below is not None:
        for name in dict.fromkeys(r.case for r in runs):
            record = _record([r for r in runs if r.case == name])
            path = below / name / file_name(runs[0].rung, record.provenance, release)
            record.save(path)
            err.print(f"kept {path.name} for {name}")
    if report is not None:
        from mrv2lab.report import write

        write(report, runs)
        err.print(f"wrote {report}")
    stated = sum(r.as_expected for r in runs)
    if len({r.case for r in runs}) > 1:
        err.print(f"{'all' if stated == wanted else f'{stated} of'} {wanted} runs are as stated")
    raise typer.Exit(0 if stated == wanted else 1)


def _record(runs: list[Run]) -> Record:
    """One provenance for all: that of the first, with the code that any of them depends on."""
    from mrv2lab.results import Record

    made_with = runs[0].provenance or _made_with("emulated")
    made_by = [hashed for run in runs if run.provenance for hashed in run.provenance.sources.items()]
    return Record(provenance=made_with.model_copy(update={"sources": dict(sorted(made_by))}), runs=runs)


def _made_with(rung: str, *modules: str, besides: Iterable[str] = ()) -> Provenance:
    """Where numbers come from that these modules make on a rung, here and now."""
    from mrv2lab import results, sources
    from mrv2lab.cases.base import SEED

    uses_gpu = rung in ("cuda", "vllm")
    made_by = sources.of(rung, *modules, besides=besides)
    made_with = results.provenance(SEED, uses_gpu=uses_gpu, made_by=made_by)
    engine = {"vllm": made_with.vllm or "not installed"} if rung == "vllm" else {}
    return made_with.model_copy(update=engine)


def _save(document: Document, path: Path | None, prints: bool = False) -> None:
    if prints:
        typer.echo(document.to_json(), nl=False)
    if path is not None:
        document.save(path)
        err.print(f"wrote {path}")
