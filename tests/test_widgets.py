"""The panel: the switch shows the run it names, quickly, and survives what goes wrong."""

import html
import re
import time
from dataclasses import replace

import pytest

from mrv2lab import journal, progress
from mrv2lab.cases import get
from mrv2lab.cases.base import Limit
from mrv2lab.errors import BadInput
from mrv2lab.mystery import GUESSED_KINDS, PLACES, Mystery
from mrv2lab.mystery.mystery import level
from mrv2lab.widgets import AnswerPanel, FixPanel, HintLadder, kernels_html, live_or_recorded


def few_steps(name="lora_short_circuit"):
    """A case with another default shape."""
    case = get(name)
    fewer = {"num_steps": Limit(9, 9, 40), "num_layers": Limit(1, 1, 8)}
    return replace(case, limits=case.limits | fewer)


@pytest.fixture(scope="module")
def panel():
    return FixPanel(few_steps(), {"batch_size": [1, 2], "rank": [4, 8]}, rung="emulated")


def test_the_switch_turns_the_verdict_within_a_second(panel):
    for variant, verdict in (
        ("forced_launch", "correct"),
        ("zero_mapping", "wrong"),
        ("forced_launch", "correct"),
    ):
        start = time.process_time()
        panel.switch.value = variant
        assert time.process_time() - start < 1
        assert f'data-verdict="{verdict}"' in panel.verdict.value
        assert f'aria-label="Line plot: relative error of the logits in each step, for {variant} ' in (
            panel.errors.value
        )


def test_what_the_fix_changes_in_the_graph_is_said_first_and_the_rest_is_closed(panel):
    first, _, closed = panel.kernels.value.partition("<details>")
    rows = re.findall(r"<tr><td>(\w[\w.]*)</td><td[^>]*>(\d+)</td><td[^>]*>(\d+)</td></tr>", first)
    assert {("_lora_shrink_kernel", "0"), ("_lora_expand_kernel", "0")} <= {row[:2] for row in rows}
    assert all(out != with_fix for _, out, with_fix in rows)
    same = re.findall(r"<tr><td>([\w.]+)</td><td[^>]*>(\d+)</td><td[^>]*>(\d+)</td></tr>", closed)
    assert len(same) > 5 and all(out == with_fix for _, out, with_fix in same)


def test_kernels_of_one_graph_are_open_and_of_equal_graphs_closed():
    run = get("lora_short_circuit").run("zero_mapping", rung="emulated")
    alone = kernels_html([run])
    assert "<details>" not in alone and "<th>in the graph</th>" in alone
    equal = [run, run.model_copy(update={"variant": "same"})]
    first, fold, closed = kernels_html(equal).partition("<details>")
    assert first == "" and fold and " kernels, the same number of each in all graphs</summary>" in closed


def test_a_new_shape_is_run_and_shown(panel):
    panel.switch.value = "zero_mapping"
    before = panel.errors.value
    panel.shape["batch_size"].value = 2
    assert panel.errors.value != before
    assert ("forced_launch", 2, 8) in panel.runs  # both are run, so that the switch stays quick
    assert panel.progress.layout.visibility == "hidden"


def test_runs_that_were_made_already_are_not_made_again(monkeypatch):
    case = get("lora_device_assert")
    known = [case.run(name, rung="emulated", batch_size=1) for name in ("unwritten", "zero_mapping")]
    other_shape = case.run("zero_mapping", rung="emulated", batch_size=1, fill_memory=0)
    monkeypatch.setattr(type(case), "run", None)
    names = [run.variant for run in known]
    panel = FixPanel(case, {"batch_size": [1]}, names, rung="emulated", runs=[*known, other_shape])
    assert list(panel.runs.values()) == known
    with pytest.raises(TypeError):
        FixPanel(case, {"batch_size": [1]}, names, rung="emulated", runs=[known[0], other_shape])


def test_it_can_switch_between_any_variants():
    names = ["whole_graph", "full_graph"]  # not those that it takes by itself
    panel = FixPanel(few_steps("breakable_graph"), {"batch_size": [1]}, names, rung="emulated")
    assert [label for label, _ in panel.switch.options] == ["out (whole_graph)", "in (full_graph)"]
    assert 'data-verdict="wrong"' in panel.verdict.value
    panel.switch.value = "full_graph"
    assert 'data-verdict="correct"' in panel.verdict.value


def test_its_text_is_the_same_everywhere(panel):
    assert repr(panel) == "FixPanel(lora_short_circuit)"


def test_a_page_without_a_kernel_shows_the_runs_of_both_variants(panel, displayed):
    panel._ipython_display_()
    (bundle, _), (picture, _), _ = displayed
    assert bundle["text/plain"] == repr(panel) and "application/vnd.jupyter.widget-view+json" in bundle
    page = bundle["text/html"]
    assert re.findall(r'<tr data-verdict="(\w+)">', page) == ["wrong", "correct"]
    assert page.count("<style") == 1 and "<img" not in page
    assert "zero_mapping wrong, forced_launch correct" in picture["text/plain"]


def test_it_survives_a_refusal(panel, monkeypatch):
    def refuse(*_, **__):
        raise BadInput("out of <range>")

    monkeypatch.setattr(type(panel.case), "run", refuse)
    panel.shape["rank"].value = 4
    assert 'data-verdict="refused"' in panel.verdict.value and "out of &lt;range&gt;" in panel.verdict.value
    assert panel.errors.value == panel.kernels.value == ""  # not those of another choice
    monkeypatch.undo()
    panel.shape["rank"].value = 8
    assert 'data-verdict="wrong"' in panel.verdict.value


def test_a_run_that_failed_is_not_kept_and_none_is_shown_while_one_is_made(monkeypatch):
    case, shown = few_steps("breakable_graph"), []
    panel = FixPanel(case, {"batch_size": [1, 2]}, ["whole_graph", "breakable"], rung="emulated")
    right = type(case).run

    def run(self, variant, **options):
        shown.append(panel.verdict.value)
        made = right(self, variant, **options)
        return made.model_copy(update={"verdict": "failed"}) if len(shown) == 1 else made

    monkeypatch.setattr(type(case), "run", run)
    panel.shape["batch_size"].value = 2
    assert 'data-verdict="failed"' in panel.verdict.value
    panel.switch.value = "breakable"
    panel.switch.value = "whole_graph"
    assert 'data-verdict="wrong"' in panel.verdict.value
    assert len(shown) == 3 and all("running" in text and "data-verdict" not in text for text in shown)


def test_an_answer_with_a_blank_is_not_judged():
    panel = AnswerPanel(Mystery(1))
    panel.button.click()
    panel.guesses[0]["kind"].value, panel.guesses[0]["place"].value = "moved-address", "attention.read_kv"
    panel.button.click()
    assert panel.result.value == "choose a kind and a place, and name a cause"
    assert journal.load().mysteries == {}
    panel.guesses[0]["cause"].value = "kv_cache"
    panel.button.click()
    assert "of 4 points" in panel.result.value and 1 in journal.load().mysteries


def test_a_page_without_a_kernel_says_what_there_is_to_answer():
    bundle = AnswerPanel(Mystery(1))._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert f"level {level(1)} of 3" in bundle["text/html"]
    for name in (*GUESSED_KINDS, *PLACES):
        assert name in bundle["text/html"]


def test_a_crash_says_where_and_claims_no_step():
    panel = FixPanel(get("lora_device_assert"), {"batch_size": [1]}, rung="emulated")
    assert 'data-verdict="crash"' in panel.verdict.value and "index out of range" in panel.verdict.value
    assert "reported at runner/vocab_parallel_embedding.py:" in panel.verdict.value
    assert "no step was finished" in panel.verdict.value and "largest error" not in panel.verdict.value
    assert panel.kernels.value == ""


def test_a_run_that_failed_has_its_traceback_closed_below_the_verdict(monkeypatch):
    def make_config(*args, **changes):
        raise MemoryError("no room")

    monkeypatch.setattr("mrv2lab.cases.lora_device_assert.config_of", make_config)
    panel = FixPanel(get("lora_device_assert"), {"batch_size": [1]}, rung="emulated")
    assert 'data-verdict="failed"' in panel.verdict.value
    assert "<details><summary>unwritten failed: MemoryError: no room</summary>" in panel.verdict.value
    assert "in make_config" in panel.verdict.value


# ---- hints ----


def test_a_rung_opens_the_next_and_says_nothing_before():
    ladder = HintLadder(get("flashmla_lazy_init"))
    assert [button.disabled for button in ladder.buttons] == [False, True, True]
    assert [text.value for text in ladder.texts] == ["", "", ""]
    ladder.buttons[0].click()
    assert [button.disabled for button in ladder.buttons] == [False, False, True]
    assert ladder.texts[0].value == html.escape(get("flashmla_lazy_init").hint(1).text)
    assert [text.value for text in ladder.texts[1:]] == ["", ""]


def test_what_is_code_in_a_hint_is_set_as_code():
    ladder = HintLadder(get("breakable_graph"))
    for button in ladder.buttons:
        button.click()
    found = re.findall("<code>(.*?)</code>", ladder.texts[2].value)
    assert found == [
        "manager.use_breakable_cg = True",
        "range(len(model.layers))",
        "attn.op",
        "eager_break_during_capture(attn.op)",
    ]
    plain = re.sub("</?code>", "", ladder.texts[2].value)
    assert plain == html.escape(ladder.case.hint(3).text)


def test_an_exported_page_has_the_hints_closed():
    ladder = HintLadder(get("lora_short_circuit"))
    bundle = ladder._repr_mimebundle_()
    assert bundle["text/plain"] == repr(ladder) == "HintLadder(lora_short_circuit)"
    assert bundle["text/html"].count("<details><summary>Hint ") == 3
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_what_engines_do_is_heard_while_they_run(monkeypatch):
    def live(self, engine):
        engine.on_progress("eager", 0.5, "serving")
        return ["run"], False

    heard = []
    monkeypatch.setattr("mrv2lab.cases.Case.live_or_recorded", live)
    with progress.heard_by(lambda *told: heard.append(told)):
        assert live_or_recorded(get("lora_short_circuit")) == (["run"], False)
    assert heard == [("eager: serving", 0.5)]


def test_live_runs_that_nobody_watches_show_no_bars(monkeypatch, displayed):
    monkeypatch.setattr("mrv2lab.cases.Case.live_or_recorded", lambda self, engine: (["run"], False))
    assert live_or_recorded(get("lora_short_circuit")) == (["run"], False)
    assert displayed == []
