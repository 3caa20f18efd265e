"""Writes docs/reliability.md of what was recorded: `python tests/faults/page.py`."""

import json
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
TEXT = Path(__file__).with_suffix(".md").read_text()
DAMAGED = ": a file "


def page():
    parts = [json.loads(file.read_text()) for file in sorted((ROOT / "data").glob("faults-*.json"))]
    rows = [row for part in parts for row in part["rows"]]
    read = [row for row in rows if DAMAGED in row["fault"]]
    return TEXT.format(
        summary="\n".join(map(_summary, parts)),
        rows="\n".join(_row(row) for row in sorted(rows, key=_by_rung) if row not in read),
        damages=", ".join(dict.fromkeys(row["fault"].partition(DAMAGED)[2] for row in read)),
        readers="\n".join(_readers(read)),
        soak="\n".join(_soak()),
        programs="\n".join(_programs()),
    )


def _summary(part):
    made, rows = part["provenance"], part["rows"]
    longest = max((row["seconds"] or 0 for row in rows), default=0)
    left = sum(len(row["left"]) for row in rows)
    contained = sum(row["contained"] for row in rows)
    machine = f"{_where(part)}, torch {made['torch']}, Python {made['python']}"
    machine += f", {made['date'][:10]}, commit {made['commit'][:7]}"
    return (
        f"* {machine}: {len(rows)} faults, "
        f"{contained} contained, {left} processes or files left, {part['lost']} records lost; "
        f"longest time to report {longest:.1f} s."
    )


def _where(part):
    return part["provenance"]["gpu"] or "CPU"


def _row(row):
    seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
    told = _cell(row["told"]) + ("" if row["contained"] else " **not contained**")
    return f"| {_cell(row['fault'])} | {row['rung']} | {_cell(row['status'])} | {seconds} | {told} |"


def _by_rung(row):
    return row["rung"], row["fault"].partition(":")[0].removeprefix("a "), row["fault"]


def _cell(value):
    text = "" if value is None else textwrap.shorten(str(value), 240, placeholder=" ...")
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _readers(read):
    for name in dict.fromkeys(row["fault"].partition(DAMAGED)[0] for row in read):
        rows = [row for row in read if row["fault"].startswith(name + DAMAGED)]
        longest = max(row["seconds"] for row in rows)
        told = next((row["told"] for row in rows if row["status"] == 2), rows[0]["told"])
        yield f"| `{name}` | {len(rows)} | {longest:.1f} | {_cell(told)} |"


def _soak():
    for file in sorted((ROOT / "data").glob("soak-*.json")):
        part = json.loads(file.read_text())
        for row in part["rows"]:
            memory = ", ".join(f"{name} {growth:+.1%}" for name, growth in row["growth"].items())
            left = "none more" if max(row["left"].values()) <= 0 else _cell(row["left"])
            yield f"| {_cell(row['work'])} | {row['times']} | {_on(part)} | {memory} | {left} |"


def _programs():
    for file in sorted((ROOT / "data").glob("fuzz-*.json")):
        part = json.loads(file.read_text())
        for row in part["rows"]:
            ended = ", ".join(f"{number:,} {how}" for how, number in sorted(row["ended"].items()))
            yield f"| {row['work']} | {row['times']:,} | {_on(part)} | {ended} |"


def _on(part):
    made = part["provenance"]
    return f"{_where(part)}, {made['date'][:10]}, commit {made['commit'][:7]}"


if __name__ == "__main__":
    PAGE.write_text(page())
