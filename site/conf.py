"""How Sphinx makes static pages of the README and the executed notebooks: `make site`.

No notebook is run, and nothing is asked of another host: no page needs a network.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from mrv2lab import looks

sys.path.insert(0, str(Path(__file__).parent))  # Sphinx runs this file, and does not look beside it
import links
import moves
from stored import VIEW

project = "mrv2lab"
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "notebooks/*.ipynb",
    "notebooks/*.md",
    "docs/*.md",
    "docs/*/*.md",
]
exclude_patterns = [".*", "out", "build"]
extensions = ["myst_nb"]
nb_execution_mode = "off"
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]

html_theme = "furo"
html_title = "mrv2lab"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "github-dark-high-contrast"

GROUPS = {
    "First": ["notebooks/0*.ipynb"],
    "Cases": ["notebooks/1*.ipynb"],
    "In vLLM, and in your code": ["notebooks/[234]*.ipynb"],
    "To look up": ["notebooks/90*.ipynb", "docs/*.md"],
    "For groups": ["notebooks/*.md", "docs/walkthroughs/*.md", "docs/findings/*.md"],
    "To change it": ["CONTRIBUTING.md"],
}
ROOT = Path(__file__).resolve().parent.parent
PICTURE = re.compile(r"(!\[[^\]]*\]\([^)]+\))")
MAIN = re.compile(r'<article role="main".*?</article>', re.DOTALL)
NO_WORDS = re.compile(
    r"<(svg|style|script)\b.*?</\1>|<a class=\"headerlink\".*?</a>|<img[^>]*>"
    r"| (?:class|style|href|title)=\"[^\"]*\"",
    re.DOTALL,
)
ENDS = re.compile(r"(?=</(?:p|li|td|th|summary|h\d|pre)>)")  # where one word ends and no space is


def as_shown(number: str, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Outputs as a page shows them: no widget, but what stands in for it, and no stylesheet of their own.

    A picture becomes a part of the page.
    """
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/svg+xml" in data:
            data["text/html"] = looks.part("".join(data.pop("image/svg+xml")))
        if "text/html" in data:
            data["text/html"] = moves.asked(number, data)
            data.pop(VIEW, None)  # of a page that was run since it was stored
    added = {"output_type": "display_data", "data": {"text/html": moves.behind(cell)}, "metadata": {}}
    return [*cell["outputs"], *([added] if added["data"]["text/html"] else [])]


def contents() -> str:
    """The list of pages beside each page, in groups. Notebooks go by number and title."""
    told = ""
    for group, patterns in GROUPS.items():
        pages = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        entries = "\n".join(
            f"{links.title(page)} <{page.relative_to(ROOT).with_suffix('').as_posix()}>" for page in pages
        )
        told += f"\n\n```{{toctree}}\n:hidden:\n:caption: {group}\n\n{entries}\n```\n"
    return told


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Change what is about to be read: outputs of notebooks, pictures in text, links of the README."""
    if app.env.doc2path(docname).suffix == ".md":
        source[0] = PICTURE.sub(r"\1{.mrv2lab}", source[0])  # the stylesheet turns it dark
        # Records and scripts are shown by the repository, not by the site: their names stay, unlinked.
        source[0] = re.sub(r"\[([^\]]+)\]\([^):]+\.(?:json|py)\)", r"`\1`", source[0])
    if docname == root_doc:
        source[0] += contents()
    elif app.env.doc2path(docname).suffix == ".ipynb":
        notebook = json.loads(source[0])
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = as_shown(Path(docname).name[:2], cell)
        source[0] = json.dumps(notebook)


def add_scripts(app: Sphinx, page: str, _template: str, _context: dict[str, Any], _doctree: Any) -> None:
    """What quotes from pages, to the page of search results alone: it is large."""
    if page == "search":
        app.add_js_file("words.js")


def finish(app: Sphinx, error: Exception | None) -> None:
    """The front page again under the name that a browser opens first, and what a search quotes from."""
    if error is not None:
        return
    site = Path(app.outdir)
    main = {path.relative_to(site).as_posix(): MAIN.search(path.read_text()) for path in site.rglob("*.html")}
    words = {page: ENDS.sub(" ", NO_WORDS.sub(" ", found[0])) for page, found in main.items() if found}
    script = (Path(app.confdir) / "search.js").read_text()
    (site / "_static/words.js").write_text(f"const WORDS = {json.dumps(words)};\n{script}")
    shutil.copy(site / f"{root_doc}.html", site / "index.html")


def write_stylesheets(app: Sphinx) -> None:
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mrv2lab.css").write_text(looks.stylesheet())
    shutil.copy(Path(app.confdir) / "site.css", folder)


def setup(app: Sphinx) -> None:
    app.connect("source-read", prepare)
    app.connect("builder-inited", write_stylesheets)
    app.connect("html-page-context", add_scripts)
    app.connect("build-finished", finish)
    for name in ("mrv2lab.css", "site.css"):
        app.add_css_file(name)
