"""The exercises as assignments for otter-grader: for each case a notebook, and its tests in the OK format.

`make assignments` writes them below out/assignments. Format of otter-grader 7, https://otter-grader.readthedocs.io
(Test Files, OK Format). What a student has written is judged by the case, as in the workbook, and otter shows
what the case says of it. A function of this package is no answer.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from pprint import pformat
from typing import Any

from links import pages

_CHECK = re.compile(r"case\.(?P<check>check\w*)\((?P<name>my_\w+)\)")
_LOCAL_LINK = re.compile(r"\[([^\]]+)\]\((?!https)[^)]*\)")
_TEST = """\
>>> from mrv2lab.cases import get
>>> checked = get("{case}").{check}({name})
>>> None if checked.solved else checked
>>> {name}.__module__.startswith("mrv2lab")
False
"""


def write(folder: Path) -> Iterator[Path]:
    """Write them, a folder for each case, from the workbook's own pages. Yields each notebook's path."""
    for page in (page for page in pages() if re.match(r"1\d_.*ipynb", page.name)):
        case, notebook = page.stem[3:], json.loads(page.read_text())
        (folder / case / "tests").mkdir(parents=True, exist_ok=True)
        title, *cells = notebook["cells"]
        shown = [title, next(cell for cell in cells if "case = get(" in "".join(cell["source"]))]
        shown.append(_code(f'import otter\n\ngrader = otter.Notebook("{case}.ipynb")'))
        for check in filter(None, (_CHECK.fullmatch("".join(cell["source"])) for cell in cells)):
            name = check["name"]
            stub = next(n for n, cell in enumerate(cells) if cell["source"][0].startswith(f"def {name}("))
            first = max(n for n, cell in enumerate(cells[:stub]) if cell["source"][0].startswith("## "))
            section = [_printed(cell) for cell in cells[first:stub]]
            shown += [*section, cells[stub], _code(f'grader.check("{name}")')]
            code = _TEST.format(case=case, **check.groupdict())
            suite = {"cases": [{"code": code, "hidden": False, "locked": False}], "type": "doctest"}
            test = pformat({"name": name, "points": 1, "suites": [suite]}, sort_dicts=False)
            (folder / case / "tests" / f"{name}.py").write_text(f"OK_FORMAT = True\n\ntest = {test}\n")
        notebook["cells"] = [_bare(cell) for cell in shown]
        path = folder / case / f"{case}.ipynb"
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        yield path


def _code(source: str) -> dict[str, Any]:
    return {"cell_type": "code", "id": re.sub(r"\W+", "-", source)[:60], "source": source.splitlines(True)}


def _printed(cell: dict[str, Any]) -> dict[str, Any]:
    """Code of a section as what it has printed: what it needs stands elsewhere on the page."""
    if cell["cell_type"] != "code":
        return cell
    texts = [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]]
    shown = "\n".join("".join(lines).rstrip() for lines in texts)
    return {"cell_type": "markdown", "id": cell["id"], "metadata": {}, "source": f"```\n{shown}\n```"}


def _bare(cell: dict[str, Any]) -> dict[str, Any]:
    """Without outputs, and without links to pages that are not handed out."""
    if cell["cell_type"] == "code":
        return cell | {"metadata": {}, "outputs": [], "execution_count": None}
    return cell | {"source": _LOCAL_LINK.sub(r"\1", "".join(cell["source"])).splitlines(True)}


if __name__ == "__main__":
    for path in write(Path(sys.argv[1])):
        print(f"wrote {path}")
