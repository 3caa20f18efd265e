"""The command line for who works at an engine: what a step captures, and what has changed in it."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mrv2lab.errors import BadInput, choose, counted, file_and_function, printable

if TYPE_CHECKING:
    from mrv2lab.described import Described
    from mrv2lab.dispatch import DispatchTable
    from mrv2lab.graph_diff import GraphDiff

PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None}
dispatch = typer.Typer(help="Show which graph a batch is given, and why no more.", **PLAIN)
graph = typer.Typer(help="Show what a step captures, and what differs between two.", **PLAIN)
# 0: of a terminal that does not know; Rich would print nothing.
if not os.environ.get("COLUMNS", "1").strip("0"):
    del os.environ["COLUMNS"]
out, err = Console(), Console(stderr=True)


def before_all(check: Callable[[str, Any], object]) -> Any:
    """An option's callback: each of its values is checked before the command imports or does anything."""

    def callback(ctx: typer.Context, param: typer.CallbackParam, given: Any) -> Any:
        for value in given if isinstance(given, list | tuple) else [given]:
            if value is not None and not ctx.resilient_parsing:  # completion looks at what is not finished
                check(param.opts[0], value)
        return given

    return callback


def one_of(help: str, *names: str) -> Any:
    check = before_all(lambda option, name: choose(option, name, names))
    return typer.Option(help=help, autocompletion=lambda: names, callback=check)


def there(path: Path | str, remedy: str) -> None:
    """BadInput: nothing is there, and the remedy."""
    if not Path(path).exists():
        raise BadInput(f"{path}: no such file; {remedy}")


def to_write(help: str, *names: str, is_folder: bool = False) -> Any:
    """A file to write, or a folder to write files into."""

    def check(option: str, path: Path) -> None:
        from mrv2lab.results import check_place

        check_place(path, is_folder)

    return typer.Option(*names, help=help, callback=before_all(check))


SaveTo = Annotated[Path | None, to_write("also write the JSON document to this file", "--save")]
Backend = Annotated[str, one_of("auto, emulated or cuda", "auto", "emulated", "cuda")]
Reset = Annotated[str | None, typer.Option(help="function that resets host state; default: reset")]
Json = Annotated[bool, typer.Option("--json", help="print the JSON document and nothing else")]


MODES = "NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"
SUPPORT = "ALWAYS", "UNIFORM_BATCH", "UNIFORM_SINGLE_TOKEN_DECODE", "NEVER"
"""vLLM's names, the same in 0.21.0 to 0.33.0; another one is told before a release is fetched."""


@graph.command("show")
def graph_show(
    step: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="a function without arguments")],
    reset: Reset = None,
    backend: Backend = "auto",
    json: Json = False,
    save: SaveTo = None,
) -> None:
    """Capture a step, and list the nodes of its graph."""
    file_and_function(step)  # before torch is loaded
    if save is not None and save.is_file():
        from mrv2lab.described import Described

        Described.load(save)  # nothing else gives way to a graph
    found = _described(step, reset, backend)
    typer.echo(found.to_json(), nl=False) if json else _print(found)
    if save is not None:
        found.save(save)
        err.print(f"wrote {save}", soft_wrap=True, highlight=False, markup=False)


@graph.command("diff")
def graph_diff(
    before: Annotated[str, typer.Argument(help="FILE.py:FUNCTION, or what `graph show --save` wrote")],
    after: Annotated[str, typer.Argument(help="the same")],
    reset: Reset = None,
    backend: Backend = "auto",
    json: Json = False,
) -> None:
    """Compare two graphs: exit status 0 if they are equal, 1 if not. Dtypes and strides are not compared."""
    for given in (before, after):  # before torch is loaded
        file_and_function(given) if _is_step(given) else there(given, "make one with mrv2lab graph show")
    both = [_described(given, reset, backend) for given in (before, after)]
    from mrv2lab.graph_diff import diff

    found = diff(*both)
    typer.echo(found.to_json(), nl=False) if json else _print(found)
    raise typer.Exit(1 if found else 0)


def unfix(
    where: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="package.module:Class.method")],
    find: Annotated[str, typer.Option(help="a statement; _ is any expression, ... any statements")],
    tests: Annotated[list[str] | None, typer.Argument(metavar="[TEST]...", help="as pytest has them")] = None,
    put: Annotated[str, typer.Option(help="what stands there instead; ... is what was found")] = "pass",
    matches: Annotated[int, typer.Option(help="so many statements of the function", min=1)] = 1,
    versions: Annotated[str | None, typer.Option(help="of the package, say ==0.23.0; no others")] = None,
) -> None:
    """Take a statement out of a package, and see whether tests notice.

    Exit status 0: one fails then; 1: none does; 2: nobody can tell. Without tests, show what would be taken
    out. No file of it is written.
    """
    from mrv2lab.unfixed import check, noticed
    from mrv2lab.upstream.unfix import Edit, diff

    edit = Edit(where, find, put, matches)
    if tests or versions:
        check(edit, versions)
    if not (changes := diff(edit)).lines:
        raise BadInput(f"--put {put} changes nothing")
    out.print(str(changes), soft_wrap=True, highlight=False, markup=False)
    if not tests:
        return
    failed, number = noticed(edit, versions, tests)
    for name, why in failed.items():
        out.print(f"{name}: {why}", soft_wrap=True, highlight=False, markup=False)
    out.print(f"noticed by {len(failed) or 'none'} of {counted(number, 'test')}", highlight=False)
    raise typer.Exit(0 if failed else 1)


@dispatch.command("vllm")
def dispatch_vllm(
    ctx: typer.Context,
    release: Annotated[str | None, typer.Option(help="of vLLM; default: the one of the workbook")] = None,
    cudagraph_mode: Annotated[str, one_of("as vLLM names it", *MODES)] = "FULL_AND_PIECEWISE",
    capture_sizes: Annotated[str | None, typer.Option(help="1,2,4,8; default: vLLM's own")] = None,
    max_num_seqs: Annotated[int, typer.Option(help="requests at once", min=1)] = 128,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="tokens at once; default: of a bare config", min=1)
    ] = None,
    num_speculative_tokens: Annotated[
        int, typer.Option(help="drafts of each request, always as many", min=0)
    ] = 0,
    num_adapters: Annotated[int, typer.Option(help="max_loras; 0: no LoRA", min=0)] = 0,
    specialize_active_lora: Annotated[bool, typer.Option("--specialize-active-lora", help="of LoRA")] = False,
    attention_support: Annotated[
        str, one_of("AttentionCGSupport of the attention backend; of several, the weakest", *SUPPORT)
    ] = "ALWAYS",
    batch: Annotated[list[str] | None, typer.Option(help="only this, REQSxTOKENS; may be repeated")] = None,
    json: Json = False,
) -> None:
    """Ask Model Runner V2 of a release of vLLM, on its own Python. It needs what `make source` sets up.

    Without --batch: every decode with all drafts, and a prefill beside another request.
    """
    from mrv2lab.upstream.releases import RELEASES, TARGET, sort_key

    release = release or TARGET
    if sort_key(release) < sort_key(RELEASES[0]):
        raise BadInput(f"vllm {release} cannot be asked; possible: {RELEASES[0]} or later")
    sizes = None
    if capture_sizes is not None:
        sizes = _numbers(capture_sizes, "1,2,4: from 1 on, rising", r"\d{1,18}(,\d{1,18})*")
    like = "4x12: requests, and tokens of all together, one each or more"
    shapes = [_numbers(one, like, r"\d{1,18}x\d{1,18}") for one in batch or ()]
    if over := [one for one, shape in zip(batch or (), shapes, strict=True) if shape[0] > max_num_seqs]:
        raise BadInput(f"--batch {over[0]} has more requests than --max-num-seqs {max_num_seqs}")
    if specialize_active_lora and not num_adapters:
        raise BadInput("--specialize-active-lora says nothing without --num-adapters")
    ctx.obj([release])  # have it in the cache
    with err.status(Text(f"asking vllm {release}")):
        from mrv2lab.dispatch import DispatchTable, Question, ask

        question = Question(
            cudagraph_mode=cudagraph_mode, capture_sizes=sizes, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens, num_speculative_tokens=num_speculative_tokens,
            max_loras=num_adapters,
            specialize_active_lora=specialize_active_lora, attention_support=attention_support,
            batches=tuple((shape[0], shape[-1]) for shape in shapes) or None,
        )  # fmt: skip
        answer = ask(release, question)
    typer.echo(answer.to_json(), nl=False) if json else _print(DispatchTable(answer))


def _numbers(given: str, like: str, form: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, none less than the one before."""
    numbers = [int(number) for number in re.findall(r"\d+", given)] if re.fullmatch(form, given) else [0]
    if numbers != sorted(numbers) or 0 in numbers:
        raise BadInput(f"{given!r} is not like {like}")
    return tuple(numbers)


def _is_step(given: str) -> bool:
    return ":" in given and not Path(given).is_file()


def _described(given: str, reset: str | None, backend: str) -> "Described":
    """Of a step, captured now, or of a kept document."""
    with err.status(Text(f"{'capturing' if _is_step(given) else 'reading'} {given}")):
        from mrv2lab.described import Described, describe_target

        if _is_step(given):
            return describe_target(given, reset=reset, backend=backend)
        if given.endswith(".py"):
            raise BadInput(f"{given}: name a function of it, {given}:FUNCTION")
        return Described.load(Path(given))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """A header and rows, as they are."""
    table = Table(*rows[0], box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    out.print(table)


def _print(found: "Described | GraphDiff | DispatchTable") -> None:
    """A header, rows and a note below."""
    if len(rows := found.rows()) > 1:
        print_table([[printable(cell) for cell in row] for row in rows])
    for line in found._below().splitlines():
        out.print(printable(line), highlight=False, markup=False, soft_wrap=True)
