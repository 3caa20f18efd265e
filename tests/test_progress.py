"""How far long work is, told and shown; and that what a notebook stores does not know of it."""

import html
import re
from dataclasses import replace

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from mrv2lab import progress
from mrv2lab.cases import get
from mrv2lab.runner import Engine


def test_nobody_hears_where_nobody_listens():
    progress.tell("serving", 0.5)


def test_the_listener_that_came_last_hears():
    heard = {"outer": [], "inner": []}
    with progress.heard_by(lambda *told: heard["outer"].append(told)):
        with progress.heard_by(lambda *told: heard["inner"].append(told)):
            progress.tell("serving", 0.5)
        progress.tell("serving", 0.75)
    progress.tell("serving", 1.0)
    assert heard == {"outer": [("serving", 0.75)], "inner": [("serving", 0.5)]}


def test_a_listener_goes_when_the_work_fails():
    with pytest.raises(ZeroDivisionError), progress.heard_by(print):
        raise ZeroDivisionError
    assert progress._listeners == []


def test_a_case_tells_how_far_it_is():
    told = []
    with progress.heard_by(lambda doing, share: told.append((doing, share))):
        get("breakable_graph").run("breakable", rung="emulated", num_layers=1, batch_size=2)
    serving = [share for doing, share in told if doing == "serving"]
    assert {doing for doing, _ in told} == {"capturing", "serving"}
    assert serving[0] == 0 and max(serving) == pytest.approx(1) and len(set(serving)) > 10


def at_one_shape(case):
    return replace(case, exercise=replace(case.exercise, harder=()))


@pytest.mark.parametrize(
    ("name", "wrong"), [("breakable_graph", "whole_graph"), ("stale_view", "own_copies")]
)
def test_the_first_wrong_step_is_told_when_it_is_done_and_until_the_end(name, wrong, monkeypatch):
    case, events, step = at_one_shape(get(name)), [], Engine.step
    small = {"rung": "emulated", "num_layers": 1, "batch_size": 2}
    case.check(case.variant(case.exercise.solution).fn, **small)  # makes the reference

    def noted(engine):
        output = step(engine)
        events.extend(["step"] * (output is not None))
        return output

    monkeypatch.setattr(Engine, "step", noted)
    with progress.heard_by(lambda doing, share: events.append(doing)):
        check = case.check(case.variant(wrong).fn, **small)
    first, num_steps = check.first_wrong, len(check.run.errors)
    assert first is not None and first + 1 < num_steps
    news = f"step {first + 1} of {num_steps} went wrong"
    assert events[: events.index(news)].count("step") == first + 1
    after = events[events.index(news) :]
    assert set(after) == {"step", news}
    assert after.count("step") == num_steps - first - 1  # what is wrong is not served once more


def test_what_is_new_is_shown_at_once(monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", lambda: 0.0)  # nothing else is, then
    shown = []
    monkeypatch.setattr(progress._Bar, "_publish", lambda self, data, *_: shown.append(data))
    bar = progress._Bar("my_<repair>", None)
    for doing, share in (("serving", 0.1), ("serving", 0.2), ("step 2 of 9 went wrong", 0.3)):
        bar.tell(doing, share)
    text = "my_<repair>: step 2 of 9 went wrong"
    bar = f'{html.escape(text)} <progress value="0.30"></progress>'
    assert shown[-1] == {"text/html": f'<label class="mrv2lab-bar">{bar}</label>', "text/plain": text}


CELLS = [
    "import time\nfrom mrv2lab import progress",
    """
for name in ("first", "second"):
    with progress.shown(name):
        with progress.shown("not twice"):
            for i in range(3):
                time.sleep(0.11)
                progress.tell("working", i / 2)
print("done")""",
    "with progress.shown('third'):\n    raise ValueError('stop')",
]


class Watched(NotebookClient):
    """Runs a notebook as JupyterLab does: somebody sits there who can be asked for input."""

    async def async_start_new_kernel_client(self, **kwargs):
        client = await super().async_start_new_kernel_client(**kwargs)
        client.allow_stdin = True
        return client


def executed(sent, client_class):
    """A notebook with bars, run by a kernel; and what the bars told meanwhile."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in CELLS])
    client = client_class(notebook, kernel_name="python3", allow_errors=True, store_widget_state=False)
    process = client.process_message

    def hear(msg, *args):
        if msg["msg_type"].endswith("display_data"):
            sent.append(msg["content"]["data"])
        return process(msg, *args)

    client.process_message = hear
    client.execute()
    return notebook


def test_in_a_notebook_bars_move_and_leave_nothing_behind():
    sent = []
    _, cell, failed = executed(sent, Watched).cells
    bar, printed = cell.outputs
    assert bar == nbformat.v4.new_output("display_data", {}) and printed.text == "done\n"
    assert [output.output_type for output in failed.outputs] == ["display_data", "error"]
    assert failed.outputs[0].data == {}
    told = [shown.get("text/plain") for shown in sent]
    assert told == [
        *["first", *["first: working"] * 3, None, "second", *["second: working"] * 3, None],
        "third",
        None,
    ]
    values = [re.search(r'value="(.*?)"', shown["text/html"])[1] for shown in sent if shown]
    assert values == [*["0.00", "0.00", "0.50", "1.00"] * 2, "0.00"]


def test_a_notebook_that_is_run_to_be_stored_has_no_bars():
    sent = []
    _, cell, failed = executed(sent, NotebookClient).cells
    assert [output.output_type for output in (*cell.outputs, *failed.outputs)] == ["stream", "error"]
    assert sent == []
