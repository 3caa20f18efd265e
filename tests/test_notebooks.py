"""Stored notebooks can be trusted: nbval compares what is stored, so what is stored must say something."""

import html
import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from stored import VIEW, WIDGET, without_views

from mrv2lab import looks, plots
from mrv2lab.cases import CASES, get

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
VERDICT = re.compile(r"\b(correct|wrong|crash|eager)\b")
MOST_IGNORED = 1  # cells whose output may differ from machine to machine
MOST_LINES = 6
MOST_BYTES = 60_000  # of a picture
# What an output is shown as on GitHub: the first of these that it has. Widgets are not shown.
SHOWN_FIRST = ("text/html", "image/svg+xml", "image/png", "text/plain")
NEEDS_MORE = re.compile(r"<style|\sstyle=|<use|url\(")  # than its attributes, and GitHub takes that away
TONES = {"good", "bad", "between", "added", "removed"}


def ignored(cell):
    return "nbval-ignore-output" in cell.metadata.get("tags", [])


def compared_text(cell):
    """What nbval compares of a cell's output, as text."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "" if ignored(cell) else "\n".join(filter(None, texts))  # a bar that is gone leaves no text


def lines_of_code(cell):
    return sum(bool(line.strip()) for line in cell.source.splitlines())


class OnGitHub(HTMLParser):
    """HTML as GitHub's viewer leaves it: no styles, scripts, classes, drawings or embedded pictures.

    Attributes:
        page: what is left.
        pictures: how many were taken away.
        told: texts that had a colour, each with the tags around it.
    """

    def __init__(self, page):
        super().__init__()
        self.page, self.pictures, self.told = "", 0, []
        self._open = []  # tags, and whether each has a colour
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.pictures += tag in ("svg", "img")
        if tag not in ("img", "br"):
            self._open.append((tag, not TONES.isdisjoint(dict(attributes).get("class", "").split())))
        if not self._is_taken_away and tag != "img":
            self.page += f"<{tag}>"

    def handle_endtag(self, tag):
        if not self._is_taken_away:
            self.page += f"</{tag}>"
        while self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if not self._is_taken_away:
            self.page += html.escape(data)
            if any(has_colour for _, has_colour in self._open):
                self.told.append((data, {tag for tag, _ in self._open}))

    @property
    def _is_taken_away(self):
        return any(tag in ("style", "script", "svg") for tag, _ in self._open)


def on_github(output):
    """The type that GitHub shows an output as, and what it shows."""
    if "data" not in output:
        return "text/plain", output.get("text") or output.get("ename", "")
    data = output.data
    kind = next((kind for kind in SHOWN_FIRST if kind in data), "text/plain")
    return kind, OnGitHub(data[kind]).page if kind == "text/html" else data.get(kind, "")


def shows_nothing(output):
    _, shown = on_github(output)
    return not re.sub(r"<[^>]*>", "", shown).strip()


def hides_a_picture(output):
    data = output.get("data", {})
    is_beside = "text/html" in data and any(kind.startswith("image/") for kind in data)
    return is_beside or bool(OnGitHub(data.get("text/html", "")).pictures)


def told_by_colour_alone(output):
    """Whether a verdict is neither bold nor marked by the sign of a line of a diff."""
    told = OnGitHub(output.get("data", {}).get("text/html", "")).told
    return any(not tags & {"b", "h3"} and text[0] not in "+-" for text, tags in told)


def images(output):
    return [data for kind, data in output.get("data", {}).items() if kind.startswith("image/")]


def is_raster(output):
    """Whether a picture is made of pixels: one of its own, or one within HTML or within a drawing."""
    data = output.get("data", {})
    shown = [data.get("text/html", ""), *images(output)]
    kinds = {kind for kind in data if kind.startswith("image/")} - {"image/svg+xml"}
    return bool(kinds) or any(re.search("<image|data:image/(?!svg)", text) for text in shown)


def is_mute(output):
    """Whether a picture has no words: for a screen reader, and for whoever sees text only."""
    words, of_images = output.get("data", {}).get("text/plain", ""), output.get("metadata", {})
    return bool(images(output)) and (len(words) < 20 or {"alt": words} not in of_images.values())


def breaks_off(cell, following):
    """Whether a text announces what does not follow it: it ends with a colon, and more text comes."""
    is_text = cell.cell_type == "markdown"
    return is_text and cell.source.rstrip().endswith(":") and following.cell_type != "code"


def complaints(notebook):
    """Why a notebook would pass, or teach, less than it seems to."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    in_order = zip(notebook.cells, [*notebook.cells[1:], new_markdown_cell()], strict=True)
    found = {
        "a colon that no code follows": any(breaks_off(*pair) for pair in in_order),
        "a cell without an execution count": any(cell.execution_count is None for cell in cells),
        "a stored error": any(output.output_type == "error" for output in outputs),
        "something on standard error": any(output.get("name") == "stderr" for output in outputs),
        "no compared verdict": not any(VERDICT.search(compared_text(cell)) for cell in cells),
        "too many ignored outputs": sum(map(ignored, cells)) > MOST_IGNORED,
        "a tag that weakens nbval": any(
            tag.startswith(("nbval-skip", "nbval-raises", "raises-exception", "skip-execution"))
            for cell in cells
            for tag in cell.metadata.get("tags", [])
        ),
        "widget state": "widgets" in notebook.metadata,
        VIEWED: any(VIEW in output.get("data", {}) for output in outputs),
        "a long cell": any(lines_of_code(cell) > MOST_LINES for cell in cells),
        "an output of which GitHub shows nothing": any(map(shows_nothing, outputs)),
        "a picture that GitHub hides": any(map(hides_a_picture, outputs)),
        "a picture without words": any(map(is_mute, outputs)),
        "a large picture": any(len(image) > MOST_BYTES for output in outputs for image in images(output)),
        "a picture made of pixels": any(map(is_raster, outputs)),
        "a picture that needs a style or a reference": any(
            NEEDS_MORE.search(image) for output in outputs for image in images(output)
        ),
        "a verdict told by its colour alone": any(map(told_by_colour_alone, outputs)),
    }
    return [complaint for complaint, is_so in found.items() if is_so]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebooks_give_no_cause_for_complaint(path):
    assert complaints(nbformat.read(path, 4)) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_to_open_a_notebook_changes_nothing_in_it(path):
    """JupyterLab writes this name of its kernel into each notebook that has another one."""
    assert nbformat.read(path, 4).metadata.kernelspec.display_name == "Python 3 (ipykernel)"


def test_notebooks_of_cases_stand_in_the_order_of_the_cases():
    of_cases = [path.stem[3:] for path in NOTEBOOKS if path.stem[3:] in CASES]
    assert of_cases == [name for name in CASES if name in of_cases] != []
    assert len({path.stem[:2] for path in NOTEBOOKS}) == len(NOTEBOOKS) > len(of_cases)


# ---- exercises ----

EXERCISES = [path for path in NOTEBOOKS if path.stem[0] == "1"]


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_the_stored_exercise_is_a_stub_that_is_not_solved_yet(path):
    cells = {cell.source: cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"}
    (stub,) = (source for source in cells if source.startswith("def my_repair("))
    assert stub.splitlines()[1:] == ['    raise NotImplementedError("write the repair here")']
    checked = compared_text(cells["case.check(my_repair)"])
    assert checked.startswith("not solved yet: my_repair is still the stub\n")


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_hints_and_solution_are_stored_closed(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    (ladder,) = (cell.outputs[0].data for cell in cells if "HintLadder(case)" in cell.source)
    assert ladder["text/html"].count("<details><summary>Hint ") == 3
    (solution,) = (
        cell.outputs[0].data for cell in cells if cell.source.startswith("case.solution(my_repair)")
    )
    assert looks.bare(solution["text/html"]).count("<details") == 1
    assert "<details><summary>Solution" in solution["text/html"]
    assert "def " not in solution["text/plain"]


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_nothing_shows_a_repair_before_the_reader_has_written_one(path):
    notebook = nbformat.read(path, 4)
    assert gives_away(notebook, get(path.stem[3:])) == []


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_the_page_goes_from_the_cause_to_the_readers_repair_and_only_then_to_another(path):
    markdown = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"]
    headings = re.findall(r"^#+ (.+)$", "\n".join(markdown), re.MULTILINE)
    (theirs,) = (heading for heading in ("Upstream's repair", "Our repair") if heading in headings)
    wanted = ["Your repair", theirs, "Wrong on purpose", "What upstream did"]
    places = [next(i for i, heading in enumerate(headings) if heading.startswith(words)) for words in wanted]
    assert places == sorted(places)
    assert {"Symptom", "Evidence", "Cause"} <= {heading.split(" ")[0] for heading in headings[: places[0]]}


def gives_away(notebook, case):
    """What shows a repair that holds too early: by name or source before the hints, behind them unfolded."""
    holds = {variant.name for variant in case.variants if variant.role == "fixed"}
    known = {line for variant in case.variants if variant.name not in holds for line in lines_of(variant.fn)}
    whole = lines_of(case.variant(case.exercise.solution).fn)
    parts = {"\n".join(whole), *(line for line in whole if line not in known and len(line) > 10)}
    assert holds, "nothing could be given away"
    name = re.compile(rf"(?<![\w.])({'|'.join(holds)})(?!\w)")
    (exercise,) = (n for n, cell in enumerate(notebook.cells) if "HintLadder(case)" in cell.source)
    found = []
    for number, cell in enumerate(notebook.cells):
        told = told_openly(cell)
        if number < exercise:
            found += name.findall(told)
        shown = "\n".join(line.strip("+- ") for line in told.splitlines())
        found += sorted(part for part in parts if f"\n{part}\n" in f"\n{shown}\n")
    return found


def lines_of(fn):
    """What of a function's source is its own: no signature, no docstring."""
    body = inspect.getsource(fn).split('"""')[-1]
    return [line.strip() for line in body.splitlines() if line.strip()]


def told_openly(cell):
    """Code, names in code and outputs of a cell, without what is folded."""
    if cell.cell_type == "markdown":
        text = re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL)
        return "\n".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
    pages = [output.get("data", {}).get("text/html", "") for output in cell.outputs]
    folded = re.sub(r"<details>.*?</details>", "", "\n".join(pages), flags=re.DOTALL)
    return "\n".join([cell.source, compared_text(cell), html.unescape(re.sub(r"<[^>]*>", "", folded))])


def test_what_gives_a_repair_away_is_seen():
    case = get("lora_short_circuit")
    name, line = "forced_launch", "    kernel_meta.num_active_loras_cpu[0] = 1"
    closed = f"<details><summary>Solution</summary><pre>{line}</pre></details>"
    right = [
        new_code_cell("HintLadder(case)"),
        new_markdown_cell(f"`{name}` launches, and {closed}"),
        new_code_cell(f'case.run("{name}")', outputs=[shown(text_html=looks.part(closed))]),
    ]
    assert gives_away(new_notebook(cells=right), case) == []
    for cell in (new_code_cell(f'case.run("{name}")'), new_markdown_cell(f"Take `{name}`.")):
        assert gives_away(new_notebook(cells=[cell, *right]), case) == [name]
    of_a_diff = new_code_cell("", outputs=[shown(text_html=f"<pre>+{line}</pre>")])
    for cell in (new_markdown_cell(f"```\n{line}\n```"), of_a_diff):
        assert gives_away(new_notebook(cells=[*right, cell]), case) == [line.strip()]


def shown(*, alt="", **data):
    given = {
        {"image_svg": "image/svg+xml"}.get(kind, kind.replace("_", "/")): text for kind, text in data.items()
    }
    metadata = {kind: {"alt": alt} for kind in given if alt and kind.startswith("image/")}
    return new_output("display_data", given, metadata=metadata)


WORDS = "Line plot: errors of two variants."
VIEWED = "a widget's view without its model"
EMPTY = "an output of which GitHub shows nothing"
HIDDEN = "a picture that GitHub hides"
MUTE = "a picture without words"
LARGE = "a large picture"
RASTER = "a picture made of pixels"
STYLED = "a picture that needs a style or a reference"
COLOURED = "a verdict told by its colour alone"
PICTURE = plots.flake_rates([1], total=2).svg()
GOOD_OUTPUTS = [
    shown(image_svg=PICTURE, text_plain=WORDS, alt=WORDS),
    shown(text_html=looks.words(WORDS)),
    shown(text_html=looks.part(looks.piece("cell", "wrong"))),
    new_output("display_data", {"text/plain": "Panel()", "text/html": "<p>A form.</p>"}),
]
OUTPUTS = {
    EMPTY: [shown()],
    HIDDEN: [shown(text_html="<p>Runs:</p>" + PICTURE)],
    MUTE: [shown(image_svg=PICTURE, text_plain=WORDS)],
    LARGE: [shown(image_svg=PICTURE + " " * MOST_BYTES, text_plain=WORDS, alt=WORDS)],
    RASTER: [shown(image_png="x", text_plain=WORDS, alt=WORDS)],
    STYLED: [shown(image_svg='<svg style="color: red"><text>1</text></svg>', text_plain=WORDS, alt=WORDS)],
    COLOURED: [shown(text_html='<span class="bad">wrong</span>')],
}


@pytest.mark.parametrize(
    "output, complaint",
    [
        (new_output("stream", text="\n"), EMPTY),
        (shown(text_html=looks.part("")), EMPTY),
        (shown(text_html="<p>Runs</p>", image_svg=PICTURE, text_plain=WORDS, alt=WORDS), HIDDEN),
        (shown(text_html="<p>Runs</p><svg><text>0.5</text></svg>"), HIDDEN),
        (shown(image_svg=PICTURE, text_plain="<Figure>", alt="<Figure>"), MUTE),
    ],
)
def test_other_outputs_that_read_badly_on_github(output, complaint):
    notebook = good_notebook()
    notebook.cells[0].outputs.append(output)
    assert complaints(notebook) == [complaint]


def test_of_a_widget_what_stands_in_for_it_is_stored():
    notebook = good_notebook()
    beside = {VIEW: {}, "text/plain": "Panel()", "text/html": "<p>A form.</p>"}
    notebook.cells[0].outputs.append(new_output("display_data", beside))
    assert complaints(notebook) == [VIEWED]
    notebook.cells[0].outputs.append(new_output("display_data", {VIEW: {}, "text/plain": "Panel()"}))
    stored = without_views(notebook)
    assert complaints(stored) == [VIEWED]  # nothing stands in for the second one
    *_, first, second = stored.cells[0].outputs
    assert first.metadata[WIDGET] and VIEW not in first.data and VIEW in second.data
    stored.cells[0].outputs.pop()
    assert complaints(stored) == []


def test_what_github_leaves_of_html():
    page = looks.part('<b class="bad">a &lt; b</b><details><summary>More</summary><br>text</details>')
    left = OnGitHub(page + '<img alt="a" src="data:image/svg+xml,x">')
    assert left.page == "<div><b>a &lt; b</b><details><summary>More</summary><br>text</details></div>"
    assert left.pictures == 1 and left.told == [("a < b", {"div", "b"})]


def good_notebook():
    output = new_output("execute_result", {"text/plain": "zero_mapping  wrong"}, execution_count=1)
    outputs = [output, *GOOD_OUTPUTS]
    code = new_code_cell("run()", outputs=outputs, execution_count=1)
    more = [new_markdown_cell("Again:"), new_code_cell("run()", outputs=outputs, execution_count=2)]
    return new_notebook(cells=[code, *more, new_markdown_cell("Done.")])


def spoil(kind):
    notebook = good_notebook()
    cell = notebook.cells[0]
    tags = {"too many ignored outputs": "nbval-ignore-output", "a tag that weakens nbval": "raises-exception"}
    if kind == "a colon that no code follows":
        notebook.cells.insert(0, new_markdown_cell("It still holds:"))
        notebook.cells.insert(1, new_markdown_cell("### A section"))
    elif kind == "a cell without an execution count":
        cell.execution_count = None
    elif kind == "a stored error":
        cell.outputs.append(new_output("error", ename="E", evalue="", traceback=[]))
    elif kind == "something on standard error":
        cell.outputs.append(new_output("stream", name="stderr", text="warning"))
    elif kind == "no compared verdict":
        cell.outputs[0].data["text/plain"] = "zero_mapping"
    elif kind == "widget state":
        notebook.metadata["widgets"] = {}
    elif kind == "a long cell":
        cell.source = "\n".join("1" * 7)
    elif kind in OUTPUTS:
        cell.outputs.extend(OUTPUTS[kind])
    else:
        cell.metadata["tags"] = [tags[kind]]
        notebook.cells[2].metadata["tags"] = [tags[kind]]
        notebook.cells.append(good_notebook().cells[0])
    return notebook


def test_a_good_notebook_is_not_complained_about():
    assert complaints(good_notebook()) == []


@pytest.mark.parametrize(
    "kind",
    [
        "a colon that no code follows",
        "a cell without an execution count",
        "a stored error",
        "something on standard error",
        "no compared verdict",
        "too many ignored outputs",
        "a tag that weakens nbval",
        "widget state",
        "a long cell",
        *OUTPUTS,
    ],
)
def test_each_complaint_can_be_raised(kind):
    assert complaints(spoil(kind)) == [kind]


def nbval(*paths):
    """Run nbval on notebooks, as `pytest --nbval notebooks/` would."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "pyproject.toml",
        "--nbval",
        "-q",
        "-p",
        "no:cacheprovider",
        *map(str, paths),
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_nbval_passes_what_is_stored_and_fails_when_a_verdict_is_edited(tmp_path):
    stored = ROOT / "notebooks" / "01_capture_and_replay.ipynb"
    edited = tmp_path / "edited.ipynb"
    edited.write_text(stored.read_text().replace("[21.0] wrong", "[21.0] correct"))
    assert edited.read_text() != stored.read_text()
    result = nbval(stored, edited)
    cells = sum(cell.cell_type == "code" for cell in nbformat.read(stored, 4).cells)
    assert result.returncode == 1 and f"1 failed, {2 * cells - 1} passed" in result.stdout, result.stdout
    assert "[21.0] correct" in result.stdout  # what was told not to agree


def sanitizers():
    return re.findall(r"^regex: (.*)$", (ROOT / "tests/nbval.cfg").read_text(), re.MULTILINE)


def test_nbval_forgives_the_executor_of_an_audit_and_not_what_it_found():
    _, rule, *_ = sanitizers()
    heads = ["audit of step (emulated, 1 node): 1 finding", "audit of step (cuda, 3 nodes): 1 finding"]
    assert {re.sub(rule, "", head) for head in heads} == {": 1 finding"}
    assert len({re.sub(rule, r"\1", f"audit of {step} (cuda, 3 nodes)") for step in ("a", "b")}) == 2


def test_nbval_forgives_the_number_of_a_cell_and_not_a_line_in_it():
    rule = sanitizers()[2]
    places = ["In[1]:5 in step", "In[12]:5 in step", "In[12]:6 in step", "In[12]:5 in vary"]
    seen = [re.sub(rule, r"\1", place) for place in places]
    assert seen == ["5 in step", "5 in step", "6 in step", "5 in vary"]


def test_nbval_forgives_the_name_of_the_machine_and_nothing_else():
    rule = sanitizers()[0]
    table = "forced_launch  fixed  correct\nrung: {}"
    names = ["emulated (a model of capture on the CPU: verdicts, no speeds)", "cuda (NVIDIA H200)"]
    assert len({re.sub(rule, "rung: RUNG", table.format(name)) for name in names}) == 1
    assert re.sub(rule, "", table.format(names[0])) == "forced_launch  fixed  correct\n"


SINCE = ["has changed since: graphs, verdict", "has changed since", "may have changed since"]


@pytest.mark.parametrize("since", SINCE)
@pytest.mark.parametrize("after", ["", "; relative to eager", ")", "</small></p>", "\n"])
def test_nbval_forgives_that_the_code_has_changed_since_and_not_where_a_number_is_from(since, after):
    rule = sanitizers()[4]
    shown = "recorded: NVIDIA H200, torch 2, triton 3, 2026-01-02{}" + after
    assert re.sub(rule, r"\1", shown.format(f"; the code {since}")) == shown.format("")
    other = "correct; the code may have changed since"
    assert re.sub(rule, r"\1", other) == other


def test_nbval_forgives_looks_and_not_the_words_beside_them():
    seen = re.sub(sanitizers()[3], "", looks.part("wrong"))
    assert seen == '<div class="mrv2lab mrv2lab-part">wrong</div>'


def test_nbval_forgives_a_picture_and_the_script_below_it_and_not_its_words():
    picture, script = sanitizers()[5:]
    assert re.sub(picture, "", PICTURE) == ""
    here, elsewhere = (looks.words(WORDS, f"() => '{address}'") for address in ("0x5", "0x7"))
    assert re.sub(script, "", here) == re.sub(script, "", elsewhere) and here != elsewhere
    assert re.sub(script, "", here) != re.sub(script, "", looks.words("Other words.", "() => '0x5'"))
