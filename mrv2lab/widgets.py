"""The panel of a case: a switch for the fix, its shape, and what comes of them. And its hints.

Results are written into `HTML` widgets, pictures too: an `Image` has no alternative text. Nothing is printed,
so a notebook that shows the panel looks the same whoever runs it. Beside each widget stands what a page
without a kernel shows instead.
"""

import html
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import ipywidgets as ipw
from IPython.display import display

from mrv2lab import journal, looks, plots, progress
from mrv2lab.cases import Case
from mrv2lab.errors import Mrv2labError
from mrv2lab.live import rung as live
from mrv2lab.mystery import GUESSED_KINDS, PLACES, Mystery
from mrv2lab.mystery.mystery import EXAMPLE, level
from mrv2lab.results import Run
from mrv2lab.tables import VerdictTable, failure_html, plain_html, rung_line

# Without a kernel nothing answers, and what is chosen then would stand over the verdict of another choice.
_GONE = """<style>
.mrv2lab-panel .widget-html.jupyter-widgets-disconnected { display: none; }
.mrv2lab-panel.jupyter-widgets-disconnected::after { content: "No kernel answers here: run the cell again."; }
</style>"""

# What is code in a hint: names with dots or underscores, calls, and what is set to them.
_CALLED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_NAME = rf"\w+(?:\.\w+|{_CALLED})+|\w+_\w+"
_CODE = re.compile(rf"(?:{_NAME})(?: = (?:{_NAME}|True|False))?")


class FixPanel(ipw.VBox):
    """Switch a case between variants, by default its first buggy and its first fixed one.

    All are run when one of the shapes on offer is chosen (`choices={"batch_size": [1, 2, 4, 8]}`), behind a
    progress bar, and kept: the switch only chooses which run is shown. Of the runs that a reader has made
    already, those of the case on this rung are not made again. Where no kernel answers, in an exported page,
    the runs stand in a table, with one picture.
    """

    def __init__(
        self,
        case: Case,
        choices: dict[str, list[int]],
        variants: Sequence[str] = (),
        rung: str = "auto",
        runs: Sequence[Run] = (),
    ):
        self.case, self.rung = case, rung
        fixed = {name: limit.default for name, limit in case.limits.items() if name not in choices}.items()
        here = [run for run in runs if (run.case, run.rung) == (case.name, case.checked_rung(rung, {}))]
        here = [run for run in here if fixed <= run.shape.items()]
        of_shape = ((run.variant, *(run.shape[name] for name in choices)) for run in here)
        self.runs: dict[tuple[Any, ...], Run] = dict(zip(of_shape, here, strict=True))
        first = {variant.role: variant.name for variant in reversed(case.variants)}
        options = [self._option(name) for name in variants or (first["buggy"], first["fixed"])]
        self.switch = ipw.ToggleButtons(options=options, style={"button_width": "auto"})
        self.switch.add_class("mrv2lab-switch")
        self.shape = {}
        for name, values in choices.items():
            default = case.limits[name].default
            chosen = default if default in values else values[0]
            self.shape[name] = control = ipw.Dropdown(options=values, value=chosen)
            control.description, control.style.description_width = name.replace("_", " "), "initial"
        self.progress = ipw.FloatProgress(max=len(self.switch.options), description="running")
        self.verdict = ipw.HTML()
        self.errors = ipw.HTML().add_class("mrv2lab-errors")
        self.kernels = ipw.HTML().add_class("mrv2lab-kernels")
        for control in (self.switch, *self.shape.values()):
            control.observe(self._changed, names="value")
        controls = _row(ipw.Label("the fix is"), self.switch, *self.shape.values(), self.progress)
        controls.layout.align_items = "center"
        super().__init__([controls, self.verdict, _row(self.errors, self.kernels), ipw.HTML(_GONE)])
        self.add_class("mrv2lab").add_class("mrv2lab-panel")
        self._show()

    def __repr__(self) -> str:
        return f"FixPanel({self.case.name})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        still = str(self.verdict.value)
        if runs := self._on_show():
            told = "A switch, in JupyterLab. It chooses between these runs, and runs other shapes:"
            still = looks.part(f"<p>{told}</p>{looks.bare(VerdictTable(runs)._repr_html_())}")
        return {**super()._repr_mimebundle_(**kwargs), "text/html": still}

    def _ipython_display_(self) -> None:
        display(self._repr_mimebundle_(), raw=True)
        if runs := self._on_show():
            plots.errors_per_step(runs)._ipython_display_()

    def _on_show(self) -> list[Run]:
        return [self.runs[key] for key in self._keys() if key in self.runs]

    def _option(self, name: str) -> tuple[str, str]:
        role = self.case.variant(name).role
        words = {"buggy": "out", "tempting": "tempting", "fixed": "in"}
        return f"{words[role]} ({name})" if role in words else name, name

    def _changed(self, _change: Any) -> None:
        with progress.heard_by(self._tell):  # no cell runs now that could show a bar below itself
            self._show()

    def _tell(self, _doing: str, share: float) -> None:
        self.progress.value = int(self.progress.value) + min(share, 0.99)

    def _show(self) -> None:
        try:
            run = self._run()
        except Mrv2labError as error:  # the panel stays usable: say it where the verdict would be
            self._show_only(f'<b data-verdict="refused">{html.escape(str(error))}</b>')
            return
        self.verdict.value = looks.part(looks.piece("verdict", run, rung_line(run), failure_html(run)))
        self.kernels.value = kernels_html(self._on_show())
        self.errors.value = plots.errors_per_step([run]).svg() if run.errors else ""

    def _show_only(self, told: str) -> None:
        """A word in the verdict's place, and no picture of a run that is no longer chosen."""
        self.verdict.value, self.errors.value, self.kernels.value = looks.part(told), "", ""

    def _run(self) -> Run:
        """The run on show. A shape that is new is run with every variant first."""
        shape = {name: control.value for name, control in self.shape.items()}
        self.progress.value, self.progress.layout.visibility = 0, "visible"
        for key in self._keys():
            if key not in self.runs or self.runs[key].verdict == "failed":
                self._show_only('<p class="quiet">running ...</p>')
                self.runs[key] = self.case.run(key[0], rung=self.rung, **shape)
            self.progress.value = int(self.progress.value) + 1
        self.progress.layout.visibility = "hidden"
        return self.runs[self.switch.value, *shape.values()]

    def _keys(self) -> list[tuple[Any, ...]]:
        shape = [control.value for control in self.shape.values()]
        return [(variant, *shape) for _, variant in self.switch.options]


class HintLadder(ipw.VBox):
    """The hints of a case's exercise, one button for each; a button wakes when the hint before it is open."""

    def __init__(self, case: Case):
        self.case = case
        hints = case.exercise.hints if case.exercise else ()
        self.buttons = [ipw.Button(description=f"Hint {i}") for i in range(1, len(hints) + 1)]
        self.texts = [ipw.HTML(layout=ipw.Layout(flex="1 1 100%")) for _ in self.buttons]
        for number, button in enumerate(self.buttons, start=1):
            button.disabled, button.layout.flex = number > 1, "0 0 auto"
            button.on_click(partial(self._open, number))
        rungs = zip(self.buttons, self.texts, strict=True)
        super().__init__([ipw.HTML(looks.style()), *(_row(*rung) for rung in rungs)])
        self.add_class("mrv2lab").add_class("mrv2lab-hints")

    def __repr__(self) -> str:
        return f"HintLadder({self.case.name})"

    def _open(self, number: int, _button: Any = None) -> None:
        self.texts[number - 1].value = looks.marked(_CODE.sub(r"`\g<0>`", self.case.hint(number).text))
        journal.note("hints", self.case.name, number)
        if number < len(self.buttons):
            self.buttons[number].disabled = False

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        if progress.watched():
            journal.note("begun", self.case.name)
        closed = looks.piece("hints_to_open", self.case.exercise.hints if self.case.exercise else ())
        return {**super()._repr_mimebundle_(**kwargs), "text/html": looks.part(closed)}


class ProgressPanel(ipw.VBox):
    """What the reader has done so far, as kept on the reader's machine; a button looks again.

    An exported page shows nobody's progress, only where it would stand.
    """

    def __init__(self) -> None:
        self.state, self.again = ipw.HTML(), ipw.Button(description="Look again")
        self.again.on_click(self._show)
        super().__init__([self.state, self.again])
        self._show()

    def __repr__(self) -> str:
        return "ProgressPanel()"

    def _show(self, _button: Any = None) -> None:
        kept = journal.load()
        self.state.value = plain_html(journal.rows(kept, level), "; ".join(journal.remarks()))

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        note = looks.part("<p>Here stands what you have solved, once the page runs on your machine.</p>")
        return {**super()._repr_mimebundle_(**kwargs), "text/html": note}


class AnswerPanel(ipw.VBox):
    """Name the faults of a mystery: a row of choices for each, a button, and what comes of it.

    Tab and the arrow keys reach and set everything. Where no kernel answers, in an exported page, the choices
    stand in a table.
    """

    def __init__(self, mystery: Mystery):
        self.mystery = mystery
        self.level = f"mystery {mystery.seed}, level {level(mystery.seed)} of 3"
        self.number = ipw.Dropdown(description="faults", options=[1, 2])
        self.guesses = [self._guess(), self._guess()]
        self.button = ipw.Button(description="Answer")
        self.result = ipw.HTML()
        self.number.observe(self._show_rows, names="value")
        self.button.on_click(self._answer)
        self._rows = [_row(*guess.values()) for guess in self.guesses]
        super().__init__([ipw.Label(self.level), self.number, *self._rows, self.button, self.result])
        self._show_rows()

    def __repr__(self) -> str:
        return f"AnswerPanel({self.mystery})"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        if progress.watched() and self.mystery.seed != EXAMPLE:
            journal.note("begun", f"mystery {self.mystery.seed}")
        elsewhere = "mystery.answer(kind=..., place=..., cause=...)"
        told = f"{self.level}. A form, in JupyterLab; elsewhere {elsewhere}."
        names = {"kind": GUESSED_KINDS, "place": PLACES, "cause": ["names in the source"]}
        rows = [["choose", "from"], *([word, ", ".join(those)] for word, those in names.items())]
        return {**super()._repr_mimebundle_(**kwargs), "text/html": plain_html(rows, told)}

    @staticmethod
    def _guess() -> dict[str, Any]:
        """The widgets of one fault; in its lists nothing is chosen yet, for their first value is empty."""
        row: dict[str, Any] = {}
        for word, names in (("kind", GUESSED_KINDS), ("place", PLACES)):
            options = [("choose ...", ""), *zip(names, names, strict=True)]
            row[word] = ipw.Dropdown(description=word, options=options)
        return row | {"cause": ipw.Text(description="cause", placeholder="a name in the source")}

    def _show_rows(self, _change: Any = None) -> None:
        self._rows[1].layout.display = "" if self.number.value == 2 else "none"

    def _answer(self, _button: Any = None) -> None:
        asked = self.guesses[: self.number.value]
        named = [[guess[word].value for guess in asked] for word in ("kind", "place", "cause")]
        if not all(value.strip() for values in named for value in values):
            self.result.value = "choose a kind and a place, and name a cause"
            return
        answer = self.mystery.answer(*named)
        story = self.mystery.story()._repr_html_() if answer.is_solved else ""
        self.result.value = answer._repr_html_() + story


def _row(*parts: ipw.Widget) -> ipw.HBox:
    """Side by side; on a narrow page some of them lie below the others."""
    return ipw.HBox(parts, layout=ipw.Layout(flex_flow="row wrap", align_items="flex-start"))


def live_or_recorded(case: Case) -> tuple[list[Run], bool]:
    """`Case.live_or_recorded`, with a bar in the notebook that says what its engines do."""
    with progress.shown(case.name):
        heard = live.Options(on_progress=lambda name, share, doing: progress.tell(f"{name}: {doing}", share))
        return case.live_or_recorded(heard)


def kernels_html(runs: Sequence[Run]) -> str:
    """How often each kernel stands in the graphs: first where they differ; what they share is closed."""
    graphs = {run.variant: run.kernels for run in runs if run.kernels}
    names = {name for graph in graphs.values() for name in graph}
    counts = {name: [str(graph.get(name, 0)) for graph in graphs.values()] for name in names}
    ranked = sorted(counts.items(), key=lambda row: (not row[0].startswith("_"), -int(row[1][0]), row[0]))
    head, both = ["in the graph", *graphs], (True, False)
    alone = len(graphs) < 2  # nothing to compare with, so all is open
    is_open = {name: alone or len(set(row)) > 1 for name, row in ranked}
    sorts = [[[name, *row] for name, row in ranked if is_open[name] == first] for first in both]
    tables = [plain_html([head, *rows], "") if rows else "" for rows in sorts]
    return looks.piece("kernels", *tables, len(sorts[1]))
