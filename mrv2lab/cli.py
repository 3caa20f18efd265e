"""The command line; `mrv2lab --help` names its commands.

Standard output holds what was asked for (with `--json` a results document and nothing else); progress
and complaints go to standard error. Exit status: 0 as expected, 1 a verdict other than the stated one or a
finding, 2 bad input.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from json import loads
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.syntax import Syntax
from rich.table import Table

from mrv2lab import doctor as doctor_module
from mrv2lab import journal, sources
from mrv2lab import record as record_module
from mrv2lab import report as report_module
from mrv2lab.audit import KINDS, audit_target
from mrv2lab.audit import cost as cost_module
from mrv2lab.cases import CASES, Case, get
from mrv2lab.cases import matrix as matrix_module
from mrv2lab.cases.audit_costs import Costs
from mrv2lab.cases.base import DEFAULT_ENGINE, SEED, best_rung
from mrv2lab.errors import BadInput, choose
from mrv2lab.live import audited as live_audit
from mrv2lab.live import releases as live_releases
from mrv2lab.live import rung as live_module
from mrv2lab.live.audit_worker import AUDITED
from mrv2lab.live.audited import EngineAudited, EngineAudits
from mrv2lab.live.initcheck import compare as compare_initcheck
from mrv2lab.live.rung import AT_ONCE
from mrv2lab.live.variants import VARIANTS
from mrv2lab.mystery import Mystery, SurveyTable
from mrv2lab.mystery import survey as survey_module
from mrv2lab.quiz import QUESTIONS
from mrv2lab.results import DATA, Document, Record, Run, Rung, file_name, load, provenance, recorded
from mrv2lab.tables import eager_band, error_band, failure, rung_line
from mrv2lab.upstream import history as history_module
from mrv2lab.upstream import probes, releases
from mrv2lab.upstream.history import History, Turn
from mrv2lab.upstream.process import releases_of

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
out, err = Console(), Console(stderr=True)

_WORD_STYLES = {
    "not there": "dim",
    "buggy": "bold red",
    "fixed": "bold green",
    "replaced": "green",
    "unreachable": "yellow",
}
_VERDICT_STYLES = {
    "correct": "bold green",
    "eager": "bold yellow",
    **dict.fromkeys(["wrong", "crash", "failed"], "bold red"),
}


def _one_line_on_bad_input(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except BadInput as error:
            typer.echo(f"mrv2lab: {error}", err=True)
            raise typer.Exit(2) from error

    return wrapped


@app.command()
@_one_line_on_bad_input
def doctor() -> None:
    """Say what is here, what that allows, what is missing and how to get it."""
    table = Table("what", "here", "allows", "how to get it", title="mrv2lab doctor")
    for check in doctor_module.examine():
        table.add_row(
            check.what, check.found or "[red]no[/]", check.allows, "" if check.found else check.remedy
        )
    out.print(table)
    if stale := doctor_module.stale_records():
        lines = ["Records that other code made; `mrv2lab record --only stale` makes them again:", *stale]
        out.print("\n".join(lines), soft_wrap=True, highlight=False)


def _linked(upstream: str) -> str:
    """Numbers of vLLM's pull requests as links, in terminals that know links."""
    return re.sub(r"#(\d+)", r"[link=https://github.com/vllm-project/vllm/pull/\1]#\1[/link]", upstream)


@app.command("list")
@_one_line_on_bad_input
def list_cases() -> None:
    """List the cases, their variants, and the verdict each must show."""
    table = Table("case", "variant", "role", "must show")
    for case in CASES.values():
        for i, variant in enumerate(case.variants):
            table.add_row(case.name if i == 0 else "", variant.name, variant.role, variant.expected)
        table.add_row("", f"[dim]{_linked(case.upstream)}[/]", end_section=True)
    out.print(table)


@app.command()
@_one_line_on_bad_input
def run(
    case: Annotated[str | None, typer.Argument(help="a case from `mrv2lab list`")] = None,
    all_cases: Annotated[bool, typer.Option("--all", help="run every case")] = False,
    variant: Annotated[list[str] | None, typer.Option(help="only this variant; may be repeated")] = None,
    rung: Annotated[str, typer.Option(help="auto, emulated, cuda, source or vllm")] = "auto",
    batch_size: Annotated[list[int] | None, typer.Option(help="requests at once; may be repeated")] = None,
    rank: Annotated[int | None, typer.Option(help="rank of the adapters")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="any other shape: name=value; may be repeated")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print the results document and nothing else")] = False,
    save: Annotated[bool, typer.Option(help="keep the record below data/results")] = False,
    data: Annotated[Path, typer.Option(help="where --save writes")] = DATA,
    report: Annotated[Path | None, typer.Option(help="also write an HTML report to this file")] = None,
) -> None:
    """Run variants of a case beside the eager reference and print a verdict for each."""
    if all_cases == (case is not None):
        raise BadInput(f"name one case or give --all; possible cases: {', '.join(CASES)}")
    chosen = list(CASES.values()) if case is None else [get(case)]
    shapes = [{"batch_size": n} for n in batch_size or []] or [{}]
    others = [*(set_ or []), *([f"rank={rank}"] if rank is not None else [])]
    shapes = [shape | more for shape in shapes for more in _parse_shapes(others)]
    jobs = [(c, variant or [v.name for v in c.variants], s) for c in chosen for s in shapes]
    for c, names, s in jobs:  # all input is checked before anything runs
        c.checked_rung(rung, s), [c.variant(name) for name in names]
    if rung == "source":
        _fetch(dict.fromkeys(release for c, names, _ in jobs for release in releases_of(c.name, names)))

    runs = _run([(c, names, {"rung": rung, **s}) for c, names, s in jobs])
    _deliver(runs, json, data if save else None, report)


@app.command()
@_one_line_on_bad_input
def audit(
    target: Annotated[str | None, typer.Argument(help="path/to/file.py:function")] = None,
    vary: Annotated[str | None, typer.Option(help="function that changes the inputs; default: vary")] = None,
    reset: Annotated[str | None, typer.Option(help="function that resets host state; default: reset")] = None,
    backend: Annotated[str, typer.Option(help="auto, emulated or cuda")] = "auto",
    matrix: Annotated[bool, typer.Option("--matrix", help="audit every variant of every case")] = False,
    recorded: Annotated[bool, typer.Option("--recorded", help="print the matrix in data/audit.json")] = False,
    seeds: Annotated[int, typer.Option(help="with --matrix: audits of each variant", min=1)] = 1,
    cost: Annotated[bool, typer.Option("--cost", help="time audits of growing graphs, as JSON")] = False,
    initcheck: Annotated[
        bool,
        typer.Option("--initcheck", help="with vllm: FlashMLA under compute-sanitizer, and audited"),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print the report as JSON and nothing else")] = False,
    save: Annotated[Path | None, typer.Option(help="also write the JSON document to this file")] = None,
    model: Annotated[str | None, typer.Option(help="with vllm: folder of a checkpoint")] = None,
    lora: Annotated[
        str | None, typer.Option(help="with vllm: folder of a PEFT adapter to serve with")
    ] = None,
    engine: Annotated[list[str] | None, typer.Option(help="with vllm: name=value, as of vllm.LLM")] = None,
    case: Annotated[list[str] | None, typer.Option(help="with vllm: a case; may be repeated")] = None,
) -> None:
    """Capture a step, replay it on other inputs, and name what its graph got wrong.

    The target is path/to/file.py:function, or vllm for the engine's own graphs.
    """
    if (target is not None) + matrix + recorded + cost != 1:
        possible = "path/to/file.py:function, vllm, --matrix, --recorded, --cost"
        raise BadInput(f"name one thing to audit; possible: {possible}")
    if initcheck and target != "vllm":
        raise BadInput("--initcheck is about vLLM's own FlashMLA: mrv2lab audit vllm --initcheck")
    if initcheck:
        _deliver_document(compare_initcheck(), save)
        return
    if target == "vllm":
        _audit_vllm(model, lora, engine or [], case or [], json, save)
        return
    if recorded:
        kept = matrix_module.load()
        typer.echo(kept.to_json() if json else repr(matrix_module.DetectionTable(kept, True)), nl=not json)
        return
    if cost:
        uses_gpu = best_rung(backend) == "cuda"
        made_by = sources.of("cuda" if uses_gpu else "emulated", "audit.cost")
        made_with = provenance(SEED, uses_gpu=uses_gpu, made_by=made_by)
        costs = cost_module.measure(backend, cost_module.SIZES)
        _deliver_document(Costs(provenance=made_with, costs=costs), save)
        return
    if target is not None:
        report = audit_target(target, vary=vary, reset=reset, backend=backend)
        typer.echo(report.to_json() if json else str(report), nl=not json)
        if save is not None:
            save.write_text(report.to_json())
        raise typer.Exit(1 if report.findings else 0)
    with Progress(console=err, transient=True) as progress:
        task = progress.add_task("auditing", total=sum(len(case.variants) for case in CASES.values()))

        def done(name: str) -> None:
            progress.update(task, advance=1, description=name)

        made = matrix_module.make(best_rung(backend), range(seeds), done=done)
    if save is not None:
        made.save(save)
        err.print(f"wrote {save}")
    if json:
        typer.echo(made.to_json(), nl=False)
    else:
        typer.echo(repr(matrix_module.DetectionTable(made)))
        err.print(f"kinds: {', '.join(KINDS)}")
    if not made.is_clean:
        raise typer.Exit(1)


def _deliver_document(document: Document, save: Path | None) -> None:
    typer.echo(document.to_json(), nl=False)
    if save is not None:
        document.save(save)
        err.print(f"wrote {save}")


def _audit_vllm(
    model: str | None, lora: str | None, options: list[str], cases: list[str], json: bool, save: Path | None
) -> None:
    """Audit vLLM's own graphs: of a checkpoint, or of cases with their fixes out and in."""
    if (model is None) == (not cases):
        raise BadInput(f"vllm needs --model, or --case with one of {', '.join(AUDITED)}")
    jobs = [job for name in cases for job in live_audit.jobs_of(name)]
    jobs = jobs or [live_audit.job_of_model(str(model), lora, options)]
    with Progress(console=err, transient=True) as progress:
        bar = _Bar(progress, "vllm", len(jobs))
        found = live_audit.run(
            jobs, at_once=AT_ONCE, on_progress=lambda job, share, doing: bar.tell(job.variant, share, doing)
        )
    audits = [
        EngineAudited(case=job.case, variant=job.variant, reports=[loads(r.to_json()) for r in reports])
        for job, reports in zip(jobs, found, strict=True)
    ]
    made_with = provenance(SEED, uses_gpu=True, made_by=sources.of("vllm", "live.audited"))
    made_with = made_with.model_copy(update={"vllm": releases.TARGET})
    document = EngineAudits(provenance=made_with, audits=audits)
    if save is not None:
        document.save(save)
        err.print(f"wrote {save}")
    if json:
        typer.echo(document.to_json(), nl=False)
        return
    for job, reports in zip(jobs, found, strict=True):
        typer.echo(f"== {job.case} {job.variant}")
        for report in reports:
            typer.echo(str(report))
    if model is not None and any(report.findings for reports in found for report in reports):
        raise typer.Exit(1)


@app.command()
@_one_line_on_bad_input
def history(
    case: Annotated[str | None, typer.Argument(help="a case from `mrv2lab list`")] = None,
    all_cases: Annotated[bool, typer.Option("--all", help="every case")] = False,
    release: Annotated[list[str] | None, typer.Option(help="only this release; may be repeated")] = None,
    bisect: Annotated[bool, typer.Option("--bisect", help="find first bad and first good")] = False,
    json: Annotated[bool, typer.Option("--json", help="print the results document and nothing else")] = False,
    save: Annotated[Path | None, typer.Option(help="also write the results document to this file")] = None,
) -> None:
    """Run a bug's probe over releases of vLLM, without a GPU, and print what each release shows."""
    if all_cases == (case is not None):
        raise BadInput(f"name one case or give --all; possible cases: {', '.join(CASES)}")
    chosen = list(CASES) if case is None else [get(case).name]
    wanted = sorted(set(release or releases.RELEASES), key=releases.sort_key)
    _fetch(wanted)
    made_by = sources.of("source", "upstream.history", *(f"upstream.probes.{name}" for name in chosen))
    turns: list[Turn] = []
    with Progress(console=err, transient=True) as progress:
        task = progress.add_task("probing", total=None if bisect else len(chosen) * len(wanted))

        def done(name: str) -> None:
            progress.update(task, advance=1, description=name)

        if bisect:
            found = [history_module.bisect(name, wanted, done=done) for name in chosen]
            turns = [turn for more, _ in found for turn in more]
            cells = [cell for _, more in found for cell in more]
        else:
            cells = history_module.observe(chosen, wanted, done=done)
    document = History(provenance=provenance(SEED, uses_gpu=False, made_by=made_by), cells=cells)
    if save is not None:
        document.save(save)
        err.print(f"wrote {save}")
    if json:
        typer.echo(document.to_json(), nl=False)
        return
    out.print(history_table(document))
    for turn in turns:
        first_bad, first_good = turn.first_bad or "no release", turn.first_good or "no release"
        out.print(f"{turn.line}: first bad {first_bad}, first good {first_good}")


def history_table(document: History) -> Table:
    """One line for each release and bug: the word, and the observation behind it."""
    table = Table("release", "shows", "observed", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for line in dict.fromkeys(cell.line for cell in document.cells):
        table.add_row(f"[bold]{line}[/]")
        for cell in (cell for cell in document.cells if cell.line == line):
            style = _WORD_STYLES[cell.word]
            table.add_row(f"  {cell.release}", f"[{style}]{cell.word}[/]", escape(cell.observation))
        table.add_section()
    return table


@app.command()
@_one_line_on_bad_input
def live(
    case: Annotated[str | None, typer.Argument(help="a case from `mrv2lab list`")] = None,
    all_cases: Annotated[bool, typer.Option("--all", help="every case that runs in the engine")] = False,
    at_once: Annotated[int, typer.Option(help="engines that share the GPU; 1 for speeds", min=1)] = AT_ONCE,
    executor: Annotated[
        str, typer.Option(help="workers of several GPUs: mp, or ray for several hosts")
    ] = "mp",
    release: Annotated[str, typer.Option(help="whose engine; the one installed")] = releases.TARGET,
    json: Annotated[bool, typer.Option("--json", help="print the results document and nothing else")] = False,
    save: Annotated[bool, typer.Option(help="keep the record below data/results")] = False,
    data: Annotated[Path, typer.Option(help="where --save writes")] = DATA,
) -> None:
    """Run cases in the real engine; without vLLM or a GPU, say what is missing and show recorded runs."""
    if all_cases and case is not None:
        raise BadInput(f"name one case or give --all; possible cases: {', '.join(VARIANTS)}")
    release, other = live_module.checked_release(release), "" if release == releases.TARGET else release
    chosen = [get(name) for name in ([case] if case else VARIANTS)]
    for one in chosen:
        for name, why in live_releases.gone(one.name, release).items():
            err.print(f"{one.name} {name}, vllm {release}: {why}")
    for c in [c for c in chosen if live_module.missing(c.name, release)]:
        chosen.remove(c)
        lacks = " and ".join(live_module.missing(c.name, release))
        err.print(f"{c.name}: this machine lacks {lacks}; recorded runs instead")
        if kept := recorded(c.name, "vllm", other):
            (err if json else out).print(verdict_table(kept, recorded=True))  # JSON is for what ran here
    if not chosen:
        return
    engine = live_module.Options(at_once, live_module.checked_executor(executor), release)
    jobs = [(c, list(live_releases.variants(c.name, release)), {"rung": "vllm"}) for c in chosen]
    _deliver(_run(jobs, engine), json, data if save else None, None, other)


@app.command()
@_one_line_on_bad_input
def diff(
    case: Annotated[str, typer.Argument(help="a case from `mrv2lab list`")],
    variant: Annotated[str, typer.Argument(help="one of its variants")],
) -> None:
    """Show what a variant takes out of vLLM's source, or puts in, for the rung source."""
    get(case).variant(variant)
    (release,) = releases_of(case, [variant])
    _fetch([release])
    shown = probes.diff(case, variant)
    if shown.lines:
        out.print(Syntax(repr(shown), "diff", background_color="default", word_wrap=True))
    else:
        out.print(f"{variant} is vllm {release} as released, with settings that it offers")


def _fetch(versions: Iterable[str]) -> None:
    """Have these releases in the cache, and say what is fetched: it may take minutes."""
    for version in versions:
        if releases.cached(version) is None:
            sizes = "about 400 MB to download, 24 to 57 MB to keep"
            err.print(f"fetching vllm {version}: {sizes} in {releases.cache_dir()}")
            releases.fetch(version)


def _parse_shapes(settings: list[str]) -> list[dict[str, int]]:
    """Every combination, where a name is given more than one value."""
    pairs = [setting.partition("=") for setting in settings]
    for name, _, value in pairs:
        if not value.isdecimal():
            raise BadInput(f"--set {name}={value}: possible: name=value with a whole number")
    names = dict.fromkeys(name for name, _, _ in pairs)
    values = [[int(value) for name, _, value in pairs if name == wanted] for wanted in names]
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def _run(
    jobs: Sequence[tuple[Case, list[str], dict[str, Any]]], engine: live_module.Options = DEFAULT_ENGINE
) -> list[Run]:
    """Run variants of cases, each with its options, and show how far it is."""
    runs: list[Run] = []
    with Progress(console=err, transient=True) as progress:
        for case, names, options in jobs:
            bar = _Bar(progress, case.name, len(names))
            for run in case.run_all(names, engine=replace(engine, on_progress=bar.tell), **options):
                runs.append(run)
                bar.tell(run.variant, 1, run.verdict)
    return runs


class _Bar:
    """The progress of a case: of each of its variants a share is done."""

    def __init__(self, progress: Progress, name: str, num_variants: int):
        self._progress, self._name = progress, name
        self._task = progress.add_task(name, total=num_variants)
        self._shares: dict[str, float] = {}

    def tell(self, variant: str, share: float, doing: str) -> None:
        self._shares[variant] = share
        description, done = f"{self._name} {variant}: {doing}", sum(self._shares.values())
        self._progress.update(self._task, description=description, completed=done)


def _deliver(
    runs: list[Run], json: bool, save_below: Path | None, report: Path | None, release: str = ""
) -> None:
    if json:
        typer.echo(_record(runs).to_json(), nl=False)
    else:
        out.print(verdict_table(runs))
        for line in (line for run in runs for line in failure(run)):
            typer.echo(line)
    if save_below is not None:
        for name in dict.fromkeys(r.case for r in runs):
            record = _record([r for r in runs if r.case == name])
            path = save_below / name / file_name(runs[0].rung, record.provenance, release)
            record.save(path)
            err.print(f"kept {path.name} for {name}")
    if report is not None:
        report_module.write(report, runs)
        err.print(f"wrote {report}")
    if not all(r.as_expected for r in runs):
        raise typer.Exit(1)


def _record(runs: list[Run]) -> Record:
    """One provenance for all: that of the first, with the code that any of them depends on."""
    made_with = runs[0].provenance or provenance(SEED, uses_gpu=False)
    made_by = [hashed for run in runs if run.provenance for hashed in run.provenance.sources.items()]
    return Record(provenance=made_with.model_copy(update={"sources": dict(sorted(made_by))}), runs=runs)


def verdict_table(runs: list[Run], *, recorded: bool = False) -> Table:
    """Runs as a table for a terminal of 80 columns, one section for each case; batch sizes if they differ."""
    caption = rung_line(runs[0], recorded=recorded)
    table = Table(caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    batches = [str(r.shape.get("batch_size", "-")) for r in runs]
    varying = ["batch"] if len(set(batches)) > 1 else []
    v1 = ["V1%"] if any("equal_to_v1" in r.metrics for r in runs) else []
    for column in ("variant", "role", *varying, "verdict", "as stated", "error", "eager", "ms", *v1):
        table.add_column(column, no_wrap=True)
    for name in dict.fromkeys(r.case for r in runs):
        table.add_row(f"[bold]{name}[/]")
        for r, batch in ((r, batch) for r, batch in zip(runs, batches, strict=True) if r.case == name):
            mark = "[green]yes[/]" if r.as_expected else f"[bold red]NO: {r.expected}[/]"
            verdict = f"[{_VERDICT_STYLES[r.verdict]}]{r.verdict}[/]"
            speed = f"{r.latency_ms.median:.3f}" if r.latency_ms else "-"
            chosen = [batch] if varying else []
            share = f"{100 * r.metrics['equal_to_v1']:.0f}" if "equal_to_v1" in r.metrics else "-"
            seen = (error_band(r), eager_band(r), speed, *([share] if v1 else []))
            table.add_row(f"  {r.variant}", r.role or "yours", *chosen, verdict, mark, *seen)
        table.add_section()
    return table


@app.command()
@_one_line_on_bad_input
def progress(
    forget: Annotated[bool, typer.Option("--forget", help="delete what is kept")] = False,
) -> None:
    """Show what you have solved so far; it is kept on this machine and sent nowhere."""
    if forget:
        try:
            deleted = journal.forget()
        except OSError as error:
            raise BadInput(f"cannot delete {journal.file()}: {error.strerror}") from error
        out.print("\n".join(f"deleted {path}" for path in deleted) or "nothing was kept", soft_wrap=True)
        return
    kept = journal.load()
    head, *rows = journal.rows(kept, list(CASES), [question.name for question in QUESTIONS])
    table = Table(*head, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*row)
    out.print(table)
    out.print("\n".join(journal.remarks()), soft_wrap=True)


@app.command()
@_one_line_on_bad_input
def mystery(
    seed: Annotated[int | None, typer.Argument(help="any whole number from 0 on", min=0)] = None,
    step: Annotated[int | None, typer.Option("--audit", help="also audit this step of it")] = None,
    solution: Annotated[bool, typer.Option("--solution", help="for who leads the game: the story")] = False,
    survey: Annotated[bool, typer.Option("--survey", help="run and audit many seeds instead")] = False,
    seeds: Annotated[int, typer.Option(help="with --survey: how many, from 0 on", min=1)] = 100,
    rung: Annotated[str, typer.Option(help="auto, emulated or cuda")] = "auto",
    save: Annotated[Path | None, typer.Option(help="with --survey: also write the record here")] = None,
) -> None:
    """Show an engine with one or two faults, the same for everybody who names the same seed."""
    if survey == (seed is not None):
        raise BadInput("name one seed, or give --survey")
    if seed is None:
        _survey(rung, seeds, save)
        return
    game = Mystery(seed, rung)
    if solution:
        typer.echo(repr(game.story(give_up=True)))
        return
    out.print(verdict_table(game.runs()))
    typer.echo(repr(game.steps()))
    if step is not None:
        typer.echo(str(game.audit(step)))
    typer.echo(
        "\nSomething in this engine is wrong: one fault, or two. Audit a step: "
        f"mrv2lab mystery {seed} --audit STEP\n"
        "Then name kind, place and cause in notebooks/40_mystery.ipynb."
    )


def _survey(rung: str, seeds: int, save: Path | None) -> None:
    with Progress(console=err, transient=True) as progress:
        task = progress.add_task("surveying", total=seeds)
        made = survey_module.make(
            best_rung(rung), range(seeds), done=lambda seed: progress.update(task, advance=1)
        )
    if save is not None:
        made.save(save)
        err.print(f"wrote {save}")
    typer.echo(repr(SurveyTable(made)))
    if not all(seen.is_accounted_for for seen in made.seeds):
        raise typer.Exit(1)


@app.command()
@_one_line_on_bad_input
def record(
    budget: Annotated[str | None, typer.Option(help="time there is, for example 20m; none: no limit")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="print what would be made, and exit")] = False,
    rung: Annotated[list[str] | None, typer.Option(help="only this rung; may be repeated")] = None,
    only: Annotated[str, typer.Option(help="all, or stale: those that other code made")] = "all",
    data: Annotated[Path, typer.Option(help="where records are written")] = record_module.DATA,
) -> None:
    """Make recorded runs again, stale ones first: those that this machine can make in the time there is."""
    choose("--only", only, ["all", "stale"])
    rungs = [choose("rung", name, list(get_args(Rung))) for name in rung or get_args(Rung)]
    budget_s = record_module.seconds(budget) if budget else math.inf
    wanted = [recipe for recipe in record_module.RECIPES if recipe.rung in rungs]
    steps = record_module.plan(wanted, data, budget_s, only_stale=only == "stale")
    if plan:
        out.print("\n".join(map(str, steps)), soft_wrap=True, highlight=False)
        return
    is_well = True
    for name, made in record_module.follow(steps, data, budget_s):
        out.print(f"{name}: {made.told} ({made.seconds:.0f} s)", soft_wrap=True, highlight=False)
        is_well &= made.is_well
    if not is_well:
        raise typer.Exit(1)


@app.command()
@_one_line_on_bad_input
def report(
    files: Annotated[
        list[Path] | None, typer.Argument(help="results files; default: all of data/results")
    ] = None,
    output: Annotated[Path, typer.Option(help="the HTML file to write")] = Path("out/report.html"),
    figures: Annotated[Path | None, typer.Option(help="also write the plots as PNG to this folder")] = None,
) -> None:
    """Write an HTML report from recorded runs: tables and plots in one file that needs no network."""
    of_target = sorted(path for rung in get_args(Rung) for path in DATA.glob(f"*/{rung}-[!0-9]*.json"))
    records = [load(path) for path in files or of_target]
    if not records:
        raise BadInput("no results files; make one with `mrv2lab run --all --save`, or name one")
    report_module.write(output, [], records)
    paths = [output, *(report_module.write_figures(figures, records) if figures else [])]
    for path in paths:
        err.print(f"wrote {path}")
