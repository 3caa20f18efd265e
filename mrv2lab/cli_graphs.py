"""The command line for who works at an engine: what a step captures, and what has changed in it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mrv2lab.errors import file_and_function

if TYPE_CHECKING:
    from mrv2lab.described import Described
    from mrv2lab.graph_diff import GraphDiff

_PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None}
graph = typer.Typer(help="Show what a step captures, and what differs between two.", **_PLAIN)
out, err = Console(), Console(stderr=True)

Backend = Annotated[str, typer.Option(help="auto, emulated or cuda")]
Reset = Annotated[str | None, typer.Option(help="function that resets host state; default: reset")]
Json = Annotated[bool, typer.Option("--json", help="print the JSON document and nothing else")]


@graph.command("show")
def graph_show(
    step: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="a function without arguments")],
    reset: Reset = None,
    backend: Backend = "auto",
    json: Json = False,
    save: Annotated[Path | None, typer.Option(help="also write the JSON document to this file")] = None,
) -> None:
    """Capture a step, and list the nodes of its graph."""
    file_and_function(step)  # before torch is loaded
    found = _described(step, reset, backend)
    _print(found, json)
    if save is not None:
        found.save(save)


@graph.command("diff")
def graph_diff(
    before: Annotated[str, typer.Argument(help="FILE.py:FUNCTION, or what `graph show --save` wrote")],
    after: Annotated[str, typer.Argument(help="the same")],
    reset: Reset = None,
    backend: Backend = "auto",
    json: Json = False,
) -> None:
    """Compare two graphs: exit status 0 if they are equal, 1 if not."""
    for step in filter(_is_step, (before, after)):
        file_and_function(step)  # before torch is loaded
    both = [_described(given, reset, backend) for given in (before, after)]
    from mrv2lab.graph_diff import diff

    found = diff(*both)
    _print(found, json)
    raise typer.Exit(1 if found else 0)


def _is_step(given: str) -> bool:
    return ":" in given and not Path(given).is_file()


def _described(given: str, reset: str | None, backend: str) -> "Described":
    """Of a step, captured now, or of a kept document."""
    with err.status(f"{'capturing' if _is_step(given) else 'reading'} {given}"):
        from mrv2lab.described import Described, describe_target

        if _is_step(given):
            return describe_target(given, reset=reset, backend=backend)
        return Described.load(Path(given))


def _print(found: "Described | GraphDiff", json: bool) -> None:
    """As a document, or as a header, rows and a note below."""
    if json:
        typer.echo(found.to_json(), nl=False)
        return
    header, *rows = found.rows()
    table = Table(*header, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*map(Text, row))
    if rows:
        out.print(table)
    out.print(found.note(), highlight=False, soft_wrap=True)
