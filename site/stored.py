"""Notebooks as they are stored: of a widget what stands in for it, and no view.

A view needs a model, and models live in a kernel: JupyterLab would show an error until the cell is run.
"""

from pathlib import Path

import nbformat

VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET = "mrv2lab_widget"  # in an output's metadata: here was one


def without_views(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The same notebook, without views."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", {}) and output.data.pop(VIEW, None) is not None:
                output.metadata[WIDGET] = True
    return notebook


if __name__ == "__main__":
    for path in sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb")):
        nbformat.write(without_views(nbformat.read(path, 4)), path)
