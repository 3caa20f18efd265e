"""Links between the pages of `notebooks/`: to the glossary at a term's first use and back, and page to page.

The glossary, `90_glossary.ipynb`, is the only place that knows the terms: each is a heading of the third
level, and a line *also: ...* below it lists its other forms. A form in backticks, the heading too, stands for
that piece of code. `make links` sets all links anew; a test holds that nothing would change.

A term's first use on a page is the first time that one of its forms stands in the page's markdown, as
whole words and in whatever case, outside headings, links, code and HTML; a form in backticks is a whole
piece of inline code. Where two forms begin at the same place, the longer one is meant.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrv2lab.errors import BadInput

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
START, GLOSSARY = "00_start_here.ipynb", "90_glossary.ipynb"
NAV = "nav"  # id of the cell with the way to the neighbours

_TERM = re.compile(r"^### (?P<name>.+)\n\n?(?:\*also: (?P<also>.*)\*\n)?", re.MULTILINE)
_TO_GLOSSARY = re.compile(rf"\[([^\]]+)\]\({re.escape(GLOSSARY)}#[^)\s]*(?: \"[^\"]*\")?\)")
_SENTENCE = re.compile(r"\s*(.+?\.)(?=\s|\Z)", re.DOTALL)

_USED = re.compile(r"\n+Used in \[.*\Z")  # at the end of an entry
_WAY_ON = re.compile(r"\n+---\n\n(?:←.*|.*→)\n*\Z")  # at the end of a page that has no cells

# What holds no use of a term, in the order in which it is looked for. Behind a link stand titles of sections.
_NO_PROSE = r"^```.*?^```|^#+ .*?$|^<.*?$|</?\w[^>]*>|<!--.*?-->|!?\[[^\]]*\]\([^)]*\)(?:,? \*[^*\n]+\*)*"
_MARKUP = re.compile(r"\[([^\]]*)\]\([^)]*\)|[*`]")

# Words that are forms of a term, and on a page mean something else.
_OTHERWISE = {
    "onboarding.md": ("break", "breaks"),
    "12_lora_short_circuit.ipynb": ("slot", "slots"),  # of adapters
    "17_lora_frozen_grid.ipynb": ("slot", "slots"),
}


@dataclass(frozen=True)
class Term:
    """An entry of the glossary.

    Attributes:
        forms: what it goes by, the heading among them.
        told: its first sentence, without markup: what a viewer shows where a pointer rests on a link to it.
    """

    name: str
    forms: tuple[str, ...]
    told: str = ""

    @property
    def anchor(self) -> str:
        """The heading's anchor. Names are in lower case, so JupyterLab, GitHub and Sphinx make the same."""
        return self.name.strip("`").replace(" ", "-")


def terms(glossary: str) -> list[Term]:
    """The entries of a glossary, from its markdown.

    Raises:
        BadInput: two entries share a form, or a heading's anchor would differ from viewer to viewer.
    """
    found = []
    for match in _TERM.finditer(glossary):
        also = [form.strip() for form in (match["also"] or "").split(",") if form.strip()]
        sentence = _SENTENCE.match(glossary, match.end())
        told = _MARKUP.sub(r"\1", sentence[1]).replace('"', "”") if sentence else ""
        found.append(Term(match["name"], (match["name"], *also), " ".join(told.split())))
    forms = [form.lower() for term in found for form in term.forms]
    if twice := sorted({form for form in forms if forms.count(form) > 1}):
        raise BadInput(f"in the glossary more than once: {', '.join(twice)}")
    if odd := [term.name for term in found if not re.fullmatch(r"[a-z0-9_-]+", term.anchor)]:
        raise BadInput(f"no name that has one anchor everywhere: {', '.join(odd)}")
    return found


class Linker:
    """Links the first use of each term on one page. Give it the page's markdown in order."""

    def __init__(self, glossary: list[Term], page: str = ""):
        forms = {form.lower(): term for term in glossary for form in term.forms}
        self._term = {form: term for form, term in forms.items() if form not in _OTHERWISE.get(page, ())}
        prose = sorted((form for form in self._term if form[0] != "`"), key=len, reverse=True)
        words = "|".join(re.escape(form).replace(r"\ ", r"\s+") for form in prose)
        pattern = rf"(?P<none>{_NO_PROSE})|(?P<code>`+[^`]*`+)|(?<![\w-])(?P<words>{words})(?![\w-])"
        self._pattern = re.compile(pattern, re.IGNORECASE | re.MULTILINE | re.DOTALL)
        self.seen: set[str] = set()

    def link(self, markdown: str) -> str:
        """The markdown with links at first uses, and no others to the glossary's entries."""
        return self._pattern.sub(self._replace, _TO_GLOSSARY.sub(r"\1", markdown))

    def _replace(self, match: re.Match[str]) -> str:
        text = match[0]
        term = None if match["none"] else self._term.get(" ".join(text.lower().split()))
        if term is None or term.name in self.seen:
            return text
        self.seen.add(term.name)
        told = f' "{term.told}"' if term.told else ""
        return f"[{text}]({GLOSSARY}#{term.anchor}{told})"


# ---- pages ----


def pages(folder: Path = NOTEBOOKS) -> list[Path]:
    """Every page, in reading order: notebooks by number, then whatever else there is to read."""
    return sorted(folder.glob("*.ipynb")) + sorted(folder.glob("*.md"))


def read(path: Path) -> list[str]:
    """The markdown of a page, cell by cell."""
    if path.suffix == ".md":
        return [path.read_text()]
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]


def title(path: Path) -> str:
    """What links call a page: its number, if it has one, and its first heading."""
    heading = next(line for text in read(path) for line in text.splitlines() if line.startswith("# "))
    number = re.match(r"\d+", path.name)
    return f"{number[0]} {heading[2:].removeprefix(number[0]).strip()}" if number else heading[2:]


def nav(path: Path, among: list[Path]) -> str:
    """The line that leads from a page to the one before, to the start, the glossary, and the next one."""
    at = among.index(path)
    before, after = among[:at][-1:], among[at + 1 :][:1]
    near = {page.name for page in (*before, path, *after)}
    middle = [
        f"[{word}]({name})" for word, name in (("Start", START), ("Glossary", GLOSSARY)) if name not in near
    ]
    back = [f"← [{title(page)}]({page.name})" for page in before]
    on = [f"[{title(page)}]({page.name}) →" for page in after]
    return " · ".join([*back, *middle, *on])


def linked(path: Path, glossary: list[Term], among: list[Path]) -> str:
    """The page's file as it should be."""
    linker, way = Linker(glossary, path.name), nav(path, among)
    if path.suffix == ".md":
        body = _WAY_ON.sub("\n", path.read_text())
        return f"{linker.link(body).rstrip()}\n\n---\n\n{way}\n"
    notebook = json.loads(path.read_text())
    cells: list[dict[str, Any]] = [cell for cell in notebook["cells"] if cell.get("id") != NAV]
    used = uses(glossary, among) if path.name == GLOSSARY else None
    for cell in cells:
        if cell["cell_type"] == "markdown":
            text = "".join(cell["source"])
            text = linker.link(text) if used is None else _told_where(text, used)
            cell["source"] = text.splitlines(keepends=True)
    cells.append({"cell_type": "markdown", "id": NAV, "metadata": {}, "source": [way]})
    notebook["cells"] = cells
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def uses(glossary: list[Term], among: list[Path]) -> dict[str, list[Path]]:
    """For each term the pages that use it, in order."""
    found: dict[str, list[Path]] = {term.name: [] for term in glossary}
    for path in among:
        linker = Linker(glossary, path.name)
        for text in read(path) if path.name != GLOSSARY else []:
            linker.link(text)
        for name in linker.seen:
            found[name].append(path)
    return found


def _told_where(entry: str, used: dict[str, list[Path]]) -> str:
    """An entry of the glossary with the pages that use it below. Other cells of the glossary as they are."""
    if not (match := _TERM.match(entry)):
        return entry
    links = [
        f"[{path.name[:2] if path.name[0].isdigit() else title(path)}]({path.name})"
        for path in used[match["name"]]
    ]
    return f"{_USED.sub('', entry)}\n\nUsed in {', '.join(links)}."


def main() -> None:
    """Set the links of all pages anew and name the files that changed."""
    among = pages()
    glossary = terms("\n\n".join(read(NOTEBOOKS / GLOSSARY)))
    for path in among:
        if (text := linked(path, glossary, among)) != path.read_text():
            path.write_text(text)
            print(f"linked {path.name}")


if __name__ == "__main__":
    main()
