"""The table of docs/bench.md that tells what users wait for: `python tests/speed/page.py` prints it."""

import json
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "data" / "speed" / "two-cores"
TIME, MEMORY, IMPORT = "waits.Commands.time_command", "waits.Commands.track_memory", "waits.timeraw_import"


def table():
    """Seconds (median, and from where to where the middle half of five runs lies) and MiB, by commit."""
    runs = [json.loads(file.read_text()) for file in RESULTS.glob("*-*.json")]
    runs.sort(key=lambda run: run["date"])
    told = {}
    for run in runs:
        commit = f"{run['commit_hash'][:7]}, {datetime.fromtimestamp(run['date'] / 1e3, UTC):%Y-%m-%d}"
        columns = run["result_columns"]
        found = {name: dict(zip(columns, one, strict=False)) for name, one in run["results"].items()}
        told["import mrv2lab", commit] = _seconds(found[IMPORT], 0)
        for number, (name,) in enumerate(product(*found[TIME]["params"])):
            mib = f", {found[MEMORY]['result'][number]:.0f} MiB"
            told[f"mrv2lab {name.strip(chr(39))}", commit] = _seconds(found[TIME], number) + mib
    whats, commits = (list(dict.fromkeys(key)) for key in zip(*told, strict=True))
    lines = [["", *commits], ["---"] * (len(commits) + 1)]
    lines += [[what, *(told.get((what, commit), "-") for commit in commits)] for what in whats]
    return [f"| {' | '.join(line)} |" for line in lines]


def _seconds(found, number):
    median, low, high = (found[name][number] for name in ("result", "stats_q_25", "stats_q_75"))
    return f"{median:.2f} s ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    print("\n".join(table()))
