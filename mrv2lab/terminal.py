"""What runs and histories look like in a terminal of 80 columns."""

from rich import box
from rich.markup import escape
from rich.table import Table

from mrv2lab import prose
from mrv2lab.results import Run
from mrv2lab.tables import as_stated, eager_band, error_band, rung_line
from mrv2lab.upstream.history import History

_TOLD = prose.beside(__file__)
_STYLES: dict[str, str] = _TOLD["styles"]  # of verdicts and of a history's words


def history_table(document: History) -> Table:
    """One line for each release and bug: the word, and the observation behind it."""
    table = Table("release", "shows", "observed", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for line in dict.fromkeys(cell.line for cell in document.cells):
        table.add_row(f"[bold]{line}[/]")
        for cell in (cell for cell in document.cells if cell.line == line):
            style = _STYLES[cell.word]
            table.add_row(f"  {cell.release}", f"[{style}]{cell.word}[/]", escape(cell.observation))
        table.add_section()
    return table


def verdict_table(runs: list[Run], *, recorded: bool = False) -> Table:
    """Runs as a table for a terminal of 80 columns, one section for each case; batch sizes if they differ."""
    shown = {r.verdict for r in runs}
    legend = [f"{verdict}: {words}" for verdict, words in _TOLD["legend"].items() if verdict in shown]
    caption = "\n".join([escape(rung_line(runs[0], recorded=recorded)), *legend])
    table = Table(caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    batches = [str(r.shape.get("batch_size", "-")) for r in runs]
    varying = ["batch"] if len(set(batches)) > 1 else []
    v1 = ["V1%"] if any("equal_to_v1" in r.metrics for r in runs) else []
    seen_as = ("verdict", "as\nstated", "error", "outside\ngraphs", "ms")
    for column in ("variant", "role", *varying, *seen_as, *v1):
        least = len("verdict") if column == "verdict" else None  # as long as any of them: the last to be cut
        table.add_column(column, no_wrap=True, min_width=least)
    for name in dict.fromkeys(r.case for r in runs):
        table.add_row(f"[bold]{escape(name)}[/]")
        for r, batch in ((r, batch) for r, batch in zip(runs, batches, strict=True) if r.case == name):
            mark = f"[{'green' if r.as_expected else 'bold red'}]{as_stated(r)}[/]"
            verdict = f"[{_STYLES[r.verdict]}]{r.verdict}[/]"
            speed = f"{r.latency_ms.median:.3f}" if r.latency_ms else "-"
            chosen = [batch] if varying else []
            share = f"{100 * r.metrics['equal_to_v1']:.0f}" if "equal_to_v1" in r.metrics else "-"
            seen = (error_band(r), eager_band(r), speed, *([share] if v1 else []))
            table.add_row(f"  {escape(r.variant)}", r.role or "yours", *chosen, verdict, mark, *seen)
        table.add_section()
    return table
