"""What pictures, tables and panels look like: one palette and one stylesheet, for light pages and dark ones.

A colour is stated once, as it is on a light page. On a dark page a figure is inverted, its hues turned back,
by a CSS filter, so a picture is made and stored once; words get the colour that the filter makes of theirs.

Pieces of HTML bring the stylesheet along. A notebook may show any one of them alone, and JupyterLab offers no
other place for it. A page made of many pieces takes the copies out (`bare`) and holds the sheet once.

A notebook is also read on GitHub, which takes styles, scripts and embedded pictures out of HTML, runs no
widget, and shows HTML where an output has it. So a picture is an output of its own (`show`), as SVG without
styles; its words and what steps through it are the next one. And words say what they say without a colour.
"""

import html
import re
from functools import cache
from pathlib import Path
from typing import Any

from mrv2lab import prose

_TOLD = prose.beside(__file__)
PALETTE: dict[str, str] = _TOLD["palette"]
DARK = {PALETTE[name]: colour for name, colour in _TOLD["filtered"].items()}

_PICTURE = Path(__file__).with_name("picture.js")
_HIDE = "(picture, words, output) => { output.style.display = 'none'; }"
_STYLE = re.compile(r"<style data-mrv2lab>.*?</style>", re.DOTALL)


@cache
def stylesheet() -> str:
    """The stylesheet, on one line, with the palette's variables in front of it."""
    light = {name: PALETTE[colour] for name, colour in _TOLD["variables"].items()}
    page = "var(--jp-layout-color0, var(--vscode-editor-background, var(--pst-color-background, {})))"
    light |= {"line": "#cccccc", "figure": "none", "page": page.format(PALETTE["white"])}
    nocturnal = {name: DARK[PALETTE[colour]] for name, colour in _TOLD["variables"].items()}
    nocturnal |= {"line": "#444444", "figure": "invert(93%) hue-rotate(180deg)"}
    nocturnal["page"] = page.format(DARK[PALETTE["white"]])
    # Pages that let the reader choose say so on an element above; others follow the reader's system.
    chosen = '[data-jp-theme-light="false"] .mrv2lab, [data-theme="dark"] .mrv2lab, .vscode-dark .mrv2lab'
    unless = 'body:not([data-jp-theme-light], [data-theme="light"], .vscode-light) .mrv2lab'
    rules = on_one_line(Path(__file__).with_name("style.css"))
    dark = f"@media (prefers-color-scheme: dark) {{ {_rule(unless, nocturnal)} }}"
    return f"{_rule('.mrv2lab', light)} {_rule(chosen, nocturnal)} {dark} {rules}"


@cache
def on_one_line(path: Path) -> str:
    """A stylesheet or a script as an output stores it: without comments."""
    return " ".join(re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL).split())


def _rule(selector: str, variables: dict[str, str]) -> str:
    return f"{selector} {{ {' '.join(f'--mrv2lab-{name}: {value};' for name, value in variables.items())} }}"


def style() -> str:
    return f"<style data-mrv2lab>{stylesheet()}</style>"


def part(body: str) -> str:
    """HTML that looks right wherever it is shown alone."""
    return f'{style()}<div class="mrv2lab mrv2lab-part">{body}</div>'


def bare(page: str) -> str:
    """HTML without the stylesheets that its parts have brought along."""
    return _STYLE.sub("", page)


def words(alt: str, then: str = _HIDE) -> str:
    """The words of a picture that is the output above, as HTML: a line below it, where no script runs. Else
    `then`, a function of JavaScript, is called with the picture, the line, and its output.
    """
    line = f'<p class="quiet mrv2lab-words"><small>{html.escape(alt)}</small></p>'
    return part(f"{line}<script>({on_one_line(_PICTURE)})({then})</script>")


def show(svg: str, alt: str, then: str = _HIDE) -> None:
    """Show a picture in the notebook, in two outputs: the picture, and its words."""
    from IPython.display import display

    data = {"image/svg+xml": svg, "text/plain": alt}
    display(data, raw=True, metadata={"image/svg+xml": {"alt": alt}})
    display({"text/html": words(alt, then)}, raw=True)


@cache
def _pieces() -> Any:
    from jinja2 import Environment

    environment = Environment()
    environment.filters |= {"e": html.escape, "marked": marked}
    environment.globals |= {"tone": tone, "tones": _TOLD["tones"]}
    source = Path(__file__).with_suffix(".html").read_text("utf-8")
    return environment.from_string(re.sub(r"\n\s*", "", source)).module


def piece(name: str, *given: object) -> str:
    """HTML by a macro of the file beside this one."""
    return str(getattr(_pieces(), name)(*given))


def marked(text: str) -> str:
    """Text as HTML, what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def tone(is_right: bool) -> str:
    """The class of what went right, or wrong."""
    return "good" if is_right else "bad"
