"""The command line for who looks for engines whose graphs are wrong."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from mrv2lab.cli_graphs import PLAIN, SaveTo, err, out, print_table, there, to_write
from mrv2lab.errors import BadInput, counted

if TYPE_CHECKING:
    from mrv2lab.live.hunted import Outcome

hunt = typer.Typer(help="Find engines whose graphs answer otherwise than no graphs.", **PLAIN)

All = Annotated[bool, typer.Option("--all", help="also show each that is not correct")]
Names = Annotated[list[str] | None, typer.Option(help="only this; may be repeated")]


@hunt.command("vllm")
def hunt_vllm(
    to: Annotated[
        Path | None, to_write("folder for outcomes; what is there is not run again", is_folder=True)
    ] = None,
    model: Names = None,
    mode: Names = None,
    feature: Names = None,
    at_once: Annotated[int, typer.Option(help="engines on the GPU at once", min=1)] = 14,
    audits: Annotated[int, typer.Option(help="at most, of what is wrong", min=0)] = 6,
    list_: Annotated[bool, typer.Option("--list", help="only say what would be run")] = False,
    save: SaveTo = None,
    all_: All = False,
) -> None:
    """Serve small models by vLLM with graphs and without.

    Exit status 1 if an answer is wrong, or an engine failed or hangs.
    """
    with err.status(Text("starting")):
        from mrv2lab import hunt as hunting
        from mrv2lab import hunt_grid, hunt_told
        from mrv2lab.live.hunted import FOUND

        chosen = hunt_grid.asked(model or (), mode or (), feature or ())
    if list_ or to is None:
        print_table([["model", "mode", "feature"], *(list(one.model_dump().values()) for one in chosen)])
        out.print(f"{len(chosen)} configurations")
        if not list_:
            raise BadInput("nothing was run; name a folder with --to, or ask for the --list alone")
        raise typer.Exit
    hunting.check()
    reused = sum((to / one.file).exists() for one in chosen)
    outcomes = list(hunting.run(chosen, to, at_once, lambda one: _say(str(one)), audits))
    if save is not None:
        from mrv2lab import results, sources
        from mrv2lab.cases.base import SEED

        made_by = sources.of("vllm", "hunt", "live.hunted", besides=hunt_grid.BESIDES)
        made_with = results.provenance(SEED, uses_gpu=True, made_by=made_by)
        told = hunt_told.without_places(outcomes)
        hunt_told.Hunted(provenance=made_with, outcomes=told, reused=reused, asked=len(chosen)).save(save)
        err.print(f"wrote {save}")
    _show("found", outcomes, reused, all_)
    raise typer.Exit(int(any(one.verdict in FOUND for one in outcomes)))


@hunt.command("recorded")
def hunt_recorded(
    file: Annotated[Path | None, typer.Argument(help="that `hunt vllm --save` wrote")] = None,
    all_: All = False,
) -> None:
    """Show what a recorded hunt has found."""
    if file is not None:
        there(file, "make one with mrv2lab hunt vllm --save")
    from mrv2lab import hunt_told

    for path in [file] if file else hunt_told.recorded():
        found = hunt_told.load(path)
        _show(f"recorded: {found.provenance.label}", found.outcomes, found.reused, all_)


def triage(
    model: Annotated[str, typer.Option(help="a folder, or a model of hunt's list")],
    engine: Annotated[list[str] | None, typer.Option(help="name=value, of vllm.LLM; may be repeated")] = None,
    prompt_lengths: Annotated[str, typer.Option(help="tokens of each request's prompt")] = "5,130,17,400",
    timeout: Annotated[int, typer.Option(help="seconds for each engine", min=1)] = 300,
    report: Annotated[Path | None, to_write("also write a report in Markdown to this file")] = None,
) -> None:
    """Find the graphs with which requests fail, hang or are wrong.

    The requests are served without graphs, with each kind of graphs, and then with fewer captured sizes.

    Exit status 1: they failed, hung or were wrong. 0: full graphs are right. 2: those could not be asked.
    """
    lengths = [int(length) for length in re.findall(r"\d+", prompt_lengths)]
    if not re.fullmatch(r"[1-9]\d{0,6}(,[1-9]\d{0,6})*", prompt_lengths):
        raise BadInput(f"--prompt-lengths {prompt_lengths}: possible: 5,130, numbers of tokens")
    with err.status(Text("starting")) as status:
        from mrv2lab import results
        from mrv2lab import triage as triaging
        from mrv2lab.live.hunted import FOUND

        given, found = triaging.case(model, engine or (), lengths, timeout), []
        for step in triaging.run(given):
            found.append(step)
            status.update(Text(" ".join(triaging.rows([step])[1][:3])))
    print_table(triaging.rows(found))
    if report is not None:
        results.write(report, triaging.report(given, found, results.provenance(0, uses_gpu=True)))
        err.print(f"wrote {report}")
    if said := triaging.unasked(found):
        _say(said)
    raise typer.Exit(2 if said else int(any(one.verdict in FOUND for _, _, one in found)))


def _show(title: str, outcomes: "list[Outcome]", reused: int | None, every: bool) -> None:
    from mrv2lab import hunt_told

    said: dict[str, list[str]] = {}
    for line in hunt_told.lines(outcomes):
        name, _, what = line.partition(": ")
        said.setdefault(what, []).append(name)
    _say(f"{title}; {counted(len(outcomes), 'configuration')}")
    _say("" if reused is None else f"{counted(reused, 'outcome')} of these had been found before")
    print_table(hunt_told.table(outcomes))
    _say(
        "open: wrong, and nothing known explains it" + "; --all shows each that is not correct" * (not every)
    )
    if every:
        _say("error: of logits, graphs against none; natural: the same without graphs, batches halved")
        _say("\n".join(f"{what}\n  {', '.join(names)}" for what, names in said.items()))


def _say(line: str) -> None:
    out.print(line, highlight=False, markup=False, soft_wrap=True)
