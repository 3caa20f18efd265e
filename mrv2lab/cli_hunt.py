"""The command line for who looks for engines whose graphs are wrong."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from mrv2lab.cli_graphs import PLAIN, SaveTo, err, out, print_table, there, to_write

if TYPE_CHECKING:
    from mrv2lab.hunt import Outcome

hunt = typer.Typer(help="Find engines whose graphs answer otherwise than no graphs.", **PLAIN)

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
    list_: Annotated[bool, typer.Option("--list", help="only say what would be run")] = False,
    save: SaveTo = None,
) -> None:
    """Serve small models by vLLM's engine, over ways to capture and features, with and without graphs.

    Exit status 1 if an answer is wrong, or an engine failed or hangs.
    """
    with err.status(Text("starting")):
        from mrv2lab import hunt as hunting

        chosen = hunting.asked(model or (), mode or (), feature or ())
    if list_ or to is None:
        print_table([["model", "mode", "feature"], *(list(one.model_dump().values()) for one in chosen)])
        out.print(
            f"{len(chosen)} configurations" + ("" if list_ else "; name a folder with --to to run them")
        )
        raise typer.Exit(0 if list_ else 2)
    hunting.check()
    outcomes = list(hunting.run(chosen, to, at_once, lambda one: _say(hunting.told(one))))
    if save is not None:
        from mrv2lab import results, sources
        from mrv2lab.cases.base import SEED

        made_by = sources.of("vllm", "hunt", "live.hunted", besides=hunting.BESIDES)
        made_with = results.provenance(SEED, uses_gpu=True, made_by=made_by)
        hunting.Hunted(provenance=made_with, outcomes=outcomes).save(save)
        err.print(f"wrote {save}")
    _show(outcomes)
    raise typer.Exit(int(any(one.verdict in hunting.FOUND for one in outcomes)))


@hunt.command("recorded")
def hunt_recorded(
    file: Annotated[Path | None, typer.Argument(help="that `hunt vllm --save` wrote")] = None,
) -> None:
    """Show what a hunt has found, of the record of this workbook or another."""
    if file is not None:
        there(file, "make one with mrv2lab hunt vllm --save")
    from mrv2lab import hunt as hunting

    found = hunting.load(file or hunting.FILE)
    _show(found.outcomes)
    _say(f"recorded: {found.provenance.label}")


def _show(outcomes: "list[Outcome]") -> None:
    from mrv2lab import hunt as hunting

    for line in hunting.lines(outcomes):
        _say(line)
    print_table(hunting.table(outcomes))


def _say(line: str) -> None:
    out.print(line, highlight=False, markup=False, soft_wrap=True)
