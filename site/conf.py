"""How Sphinx makes static pages of the README and the executed notebooks: `make site`.

Nothing is run, and nothing is asked of another host: no page needs a network.
"""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from mrv2lab import looks

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

CONTENTS = "\n\n```{toctree}\n:hidden:\n:glob:\n\nnotebooks/*\ndocs/*\ndocs/*/*\nCONTRIBUTING\n```\n"
PICTURE = re.compile(r"(!\[[^\]]*\]\([^)]+\))")
VIEW = "application/vnd.jupyter.widget-view+json"


def without_what_only_a_kernel_can_show(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Outputs as a page shows them: no widget, but what stands in for it, and no stylesheet of their own.

    A picture becomes a part of the page.
    """
    for output in outputs:
        data = output.get("data", {})
        if "image/svg+xml" in data:
            data["text/html"] = looks.part("".join(data.pop("image/svg+xml")))
        if "text/html" in data:
            data["text/html"] = looks.bare("".join(data["text/html"]))
            data.pop(VIEW, None)
    return outputs


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Change what is about to be read: outputs of notebooks, pictures in text, links of the README."""
    if app.env.doc2path(docname).suffix == ".md":
        source[0] = PICTURE.sub(r"\1{.mrv2lab}", source[0])  # the stylesheet turns it dark
        # Records and scripts are shown by the repository, not by the site: their names stay, unlinked.
        source[0] = re.sub(r"\[([^\]]+)\]\([^):]+\.(?:json|py)\)", r"`\1`", source[0])
    if docname == root_doc:
        source[0] += CONTENTS
    elif app.env.doc2path(docname).suffix == ".ipynb":
        notebook = json.loads(source[0])
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = without_what_only_a_kernel_can_show(cell["outputs"])
        source[0] = json.dumps(notebook)


def finish(app: Sphinx, error: Exception | None) -> None:
    """The front page again under the name that a browser opens first."""
    if error is None:
        shutil.copy(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def write_stylesheets(app: Sphinx) -> None:
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mrv2lab.css").write_text(looks.stylesheet())
    shutil.copy(Path(app.confdir) / "site.css", folder)


def setup(app: Sphinx) -> None:
    app.connect("source-read", prepare)
    app.connect("builder-inited", write_stylesheets)
    app.connect("build-finished", finish)
    for name in ("mrv2lab.css", "site.css"):
        app.add_css_file(name)
