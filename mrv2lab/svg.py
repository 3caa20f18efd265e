"""A figure as SVG that looks the same wherever it is shown: shapes and words, each with its attributes.

What shows SVG may drop styles and references (GitHub does), and two pictures on one page must share no names;
so there are none. Words stay words, on white paper: readable on any page, and dark where `looks` has its say.
"""

import html
import io
import re
import warnings
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

_CONTROL = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # no character of XML
_WIDE = 450  # points: words of a picture no wider can be read on a phone
_ROOT = (
    '<svg xmlns="http://www.w3.org/2000/svg" class="{}" role="img" aria-label="{}" width="{:.0f}pt" '
    'height="{:.0f}pt" viewBox="0 0 {:.1f} {:.1f}" font-family="sans-serif" stroke-linejoin="round">{}</svg>'
)


def svg(figure: Figure, alt: str) -> str:
    """The figure with its words as a label: a file, or a part of a page, as it is."""
    buffer = io.StringIO()
    for words in figure.findobj(Text):  # names are no formulas, and commands of a terminal no words
        words.set_parse_math(False)
        words.set_text(_CONTROL.sub("�", words.get_text()))
    with matplotlib.rc_context({"svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a font that whoever shows the words need not have
        figure.savefig(buffer, format="svg")
    body = buffer.getvalue().partition("</metadata>")[2].replace("xlink:", "")
    root = ElementTree.fromstring(f"<svg>{body}")
    marks = {node.get("id"): node.get("d", "") for node in root.iter("path")}
    parts = "".join(_part(node, marks) for node in root.iter())
    width, height = 72 * figure.get_size_inches()
    name = "mrv2lab mrv2lab-wide" if width > _WIDE else "mrv2lab"
    return _ROOT.format(name, html.escape(_CONTROL.sub("�", alt)), width, height, width, height, parts)


def _part(node: ElementTree.Element, marks: dict[str | None, str]) -> str:
    """A shape or a line of words; of a mark, which has a name, nothing: it is drawn where it is used."""
    if node.tag not in ("path", "use", "text") or (node.tag == "path" and node.get("id")):
        return ""
    given = {name: _rounded(value) for name, value in node.items() if name in ("d", "x", "y", "transform")}
    if node.tag == "use":
        at = f"translate({given['x']} {given['y']})"
        given = {"d": _rounded(marks[node.attrib["href"][1:]]), "transform": at}
    given |= dict(pair.split(": ") for pair in node.get("style", "").split("; ") if pair)
    if "Mono" in given.pop("font-family", ""):
        given["font-family"] = "monospace"
    attributes = "".join(f' {name}="{value}"' for name, value in given.items() if "(-0 " not in value)
    words = html.escape(node.text or "")
    return f"<text{attributes}>{words}</text>" if node.tag == "text" else f"<path{attributes}/>"


def _rounded(numbers: str) -> str:
    rounded = re.sub(r"-?\d+\.\d+", lambda n: f"{float(n[0]):.1f}".removesuffix(".0"), numbers)
    return re.sub(r" ?([MLCz]) ?", r"\1", " ".join(rounded.split()))
