"""Texts beside modules: read as they are meant, each of them used, in plain characters."""

from pathlib import Path

import pytest

import mrv2lab
from mrv2lab import prose
from mrv2lab.errors import BadInput

PACKAGE = Path(mrv2lab.__file__).parent
FILES = sorted(PACKAGE.rglob("*.toml"))


def test_a_sentence_is_a_line_and_an_empty_line_ends_a_paragraph(tmp_path):
    (tmp_path / "a.toml").write_text('''
short = "One."
[more]
long = """
One sentence,
in two lines.

Another paragraph.
"""
several = ["One.", """
  Two,
  indented.
"""]
''')
    assert prose.beside(str(tmp_path / "a.py")) == {
        "short": "One.",
        "more": {
            "long": "One sentence, in two lines.\nAnother paragraph.",
            "several": ("One.", "Two, indented."),
        },
    }


def test_what_is_missing_or_too_much_is_named_at_once():
    prose.require_one_each({"a": "A."}, ["a"])
    with pytest.raises(BadInput, match=r"^b has no text; the text a belongs to nothing$"):
        prose.require_one_each({"a": "A."}, ["b"])


def strings(value):
    if isinstance(value, str | int):
        return [value] if isinstance(value, str) else []
    inner = value.values() if isinstance(value, dict) else value
    return [text for some in inner for text in strings(some)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_module_tells_the_texts_and_none_is_empty(path):
    assert "prose.beside(__file__)" in path.with_suffix(".py").read_text()
    texts = strings(prose.beside(str(path)))
    assert len(texts) > 5 and all(texts)
    assert not {letter for text in texts for letter in text if not letter.isascii()} - {"×"}
    long = [n for n, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 120]
    assert long == [], f"lines of {path.name} with more than 120 letters"
