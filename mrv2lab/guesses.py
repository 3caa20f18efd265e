"""What pages ask before a cell that answers: any choice opens what will be seen."""

from mrv2lab import prose
from mrv2lab.questions import Question

GUESSES = {name: Question(name, **told) for name, told in prose.beside(__file__).items()}
