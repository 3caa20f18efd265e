"""The panel gives the same answers as the call."""

from mrv2lab.mystery import PLACES, Mystery
from mrv2lab.widgets import AnswerPanel


def test_the_panel_names_a_fault_and_tells_the_story_when_it_is_solved():
    panel = AnswerPanel(Mystery(12, "emulated"))
    assert repr(panel) == "AnswerPanel(Mystery(12))"
    guess = panel.guesses[0]
    guess["kind"].value, guess["place"].value = "moved-address", "rotary_embedding.extend"
    guess["cause"].value = "positions"
    panel.button.click()
    assert "3 of 4 points" in panel.result.value and "<h4>" not in panel.result.value
    guess["place"].value = "input_batch.write_positions"
    panel.button.click()
    assert "solved" in panel.result.value and "<h4>" in panel.result.value


def test_a_second_row_comes_with_the_second_fault():
    panel = AnswerPanel(Mystery(12, "emulated"))
    second = panel.children[3]
    assert second.layout.display == "none"
    panel.number.value = 2
    assert second.layout.display == ""
    for guess, place in zip(panel.guesses, PLACES, strict=False):
        guess["kind"].value, guess["place"].value, guess["cause"].value = "diverged", place, "x"
    panel.button.click()
    assert panel.result.value.count("you said") == 2
