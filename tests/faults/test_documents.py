"""Files that are cut off, foreign, hostile or huge: a line for the reader, and no trace of them elsewhere."""

import json
import time
from functools import partial

import pytest
from typer.testing import CliRunner

from mrv2lab import results
from mrv2lab.cases import matrix
from mrv2lab.cli import app

FILES = {  # what each command reads
    "report": results.DATA / "stale_view" / "source-cpu.json",
    "record": results.DATA / "stale_view" / "source-cpu.json",
    "audit": results.RECORDS / "audit.json",
}
GRID = 'case = ["stale_view"]\nvariant = ["eager"]\n[shape]\nbatch_size = [1]\n'
JOURNAL = json.dumps({"solved": {}, "seed": 0})
READERS = {
    "report": (
        "report",
        "results/stale_view/source-cpu.json",
        "--output",
        "out/a.html",
        "--figures",
        "out/b",
    ),
    "record": ("record", "--plan", "--data", "."),
    "audit": ("audit", "recorded"),
    "class": ("class", "export.jsonl"),
    "sweep": ("sweep", "grid.toml", "--to", "out"),
    "progress": ("progress",),
}
PLACES = ("results/stale_view/source-cpu.json", "audit.json", "export.jsonl", "grid.toml", "progress.json")


def changed(**run):
    def change(text):
        document = json.loads(text)
        return json.dumps(document | {"runs": [document.get("runs", [{}])[0] | run]})

    return change


def told_elsewhere(text):
    """By keys, by where it was made, and by what it names as sources."""
    document = json.loads(text)
    made = document.get("provenance", {}) | {"gpu": OWNED, "sources": {OWNED: "0", "[/nope]": "0"}}
    cells = [cell | {"variant": OWNED, "unseen": OWNED} for cell in document.get("cells", [])]
    return json.dumps(document | {"provenance": made} | ({"cells": cells} if cells else {}))


OWNED = "\x1b]0;owned\x07\nmrv2lab: all is well"
DAMAGE = {
    "that is empty": lambda text: "",
    "that is cut off": lambda text: text[: len(text) // 2],
    "that holds everything twice": lambda text: text + text,
    "of another program": lambda text: json.dumps({"results": [], "version": 2}),
    "that holds a list": lambda text: "[1, 2]",
    "of 100,000 brackets": lambda text: "x = " * text.startswith("case") + "[" * 100_000 + "]" * 100_000,
    "of 100,000 keys": lambda text: json.dumps(dict.fromkeys(map(str, range(100_000)))),
    "of one word of 10 MB": lambda text: json.dumps("x" * 10_000_000),
    "that is not UTF-8": lambda text: b"\xff\xfe\x00" + text.encode("utf-16"),
    "with NUL in a key": lambda text: text.replace('"s', '"s\x00').replace("case", "ca\x00se"),
    "with NaN for a number": lambda text: text.replace('"seed": ', '"seed": NaN, "was": '),
    "with a number of 10,000 digits": lambda text: text.replace('": ', f'": {"9" * 10_000}, "was": ', 1),
    "with commands of a terminal": changed(case="\x1b[2J\x1b]0;owned\x07", variant="\x1b[31m"),
    "with commands of a terminal where it was made": told_elsewhere,
    "with commands of a terminal for a key": lambda text: json.dumps({OWNED: 1} | json.loads(text)),
    "with a path for a name": changed(case="../../owned", variant="../../owned"),
    "with a page's code": changed(case="<script>owned()</script>", message="</pre><script>owned()</script>"),
    "with half a formula, and letters that a font may lack": changed(variant=r"$\frac{$ 結"),
    "with a template": changed(variant="{{ 7 * 191 }}{% include '/etc/passwd' %}"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_is_one_line(faults, reader, damage, monkeypatch):
    text = FILES[reader].read_text() if reader in FILES else GRID if reader == "sweep" else JOURNAL
    if "with" in damage and "{" not in text:
        pytest.skip("no JSON")
    wrong = DAMAGE[damage](text)
    wrong = wrong if isinstance(wrong, bytes) else wrong.encode()
    for name in PLACES:
        (faults.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (faults.folder / name).write_bytes(wrong)
    monkeypatch.setenv("MRV2LAB_PROGRESS", str(faults.folder / "progress.json"))
    monkeypatch.setattr(results, "RECORDS", faults.folder)
    monkeypatch.setattr(matrix, "load", partial(matrix.load, faults.folder / "audit.json"))
    monkeypatch.chdir(faults.folder)
    before = places(faults)

    start = time.monotonic()
    ended = CliRunner().invoke(app, READERS[reader])
    last = (ended.stderr.strip() or ended.stdout.strip()).rpartition("\n")[2]
    faults.row(
        f"mrv2lab {reader}: a file {damage}", last, status=ended.exit_code, seconds=time.monotonic() - start
    )

    assert ended.exception is None or isinstance(ended.exception, SystemExit)
    assert ended.exit_code in (0, 2) and "\x1b" not in ended.output
    assert "mrv2lab: all is well" not in ended.output.splitlines()
    assert ended.exit_code == 0 or last.startswith("mrv2lab: ")
    assert places(faults) - before <= {
        faults.folder / "progress.json.damaged-1"
    }  # nothing is written elsewhere
    for page in (faults.folder / "out").rglob("*.*"):
        assert "<script>owned" not in page.read_text() and "1337" not in page.read_text()
        assert "root:x:" not in page.read_text()


def places(faults):
    """All that lies around, but for where results are to go."""
    out = faults.folder / "out"
    inside = {path for path in faults.folder.rglob("*") if out not in (path, *path.parents)}
    return inside | {*faults.folder.parent.iterdir()}
