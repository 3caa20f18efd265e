"""A game: an engine with one or two faults, chosen by a seed. Find kind, place and cause; read the story.

mystery = Mystery(1)
mystery.runs(), mystery.steps(), mystery.audit(step=4)
mystery.answer(kind="moved-address", place="attention.read_kv", cause="kv_cache")

Everybody who takes the same seed has the same engine. `engine` holds its parts, right ones and others, as
code to be read; `faults` holds the solutions.
"""

from mrv2lab.mystery.answer import GUESSED_KINDS, PLACES, Answer, Story
from mrv2lab.mystery.mystery import Mystery
from mrv2lab.mystery.survey import Survey, SurveyTable

__all__ = ["GUESSED_KINDS", "PLACES", "Answer", "Mystery", "Story", "Survey", "SurveyTable"]
