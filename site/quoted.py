"""Numbers of recorded runs in the text of a page: set from the records, so that none is typed.

A number with a comment behind it, which no viewer shows, is quoted. The comment says rung and case, and
what of which variant: `3.15<!-- vllm breakable_graph: piecewise.ms -->`. After the case may come a batch
size, `lora_short_circuit@8`. A ratio of one record is `full_graph.ms / eager.ms`. `ms` is the median latency,
`graphs` and the like are metrics. As many digits stand behind the point as stood there before.

`make links` sets all numbers anew; a test holds that nothing would change.
"""

import re
from pathlib import Path

from mrv2lab.errors import BadInput
from mrv2lab.results import Run, recorded

ROOT = Path(__file__).resolve().parent.parent

QUOTE = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)"
    r"<!-- (?P<rung>\w+) (?P<case>\w+)(?:@(?P<size>\d+))?: (?P<value>\w+\.\w+)(?: / (?P<base>\w+\.\w+))? -->"
)


def pages() -> list[Path]:
    """The pages that may quote: the README, the plans for groups and all below `docs`."""
    return [ROOT / "README.md", ROOT / "notebooks/onboarding.md", *sorted((ROOT / "docs").rglob("*.md"))]


def quoted(text: str) -> str:
    """The text of a page with the numbers that the records hold.

    Raises:
        BadInput: a comment names what no record holds.
    """
    return QUOTE.sub(_set, text)


def _set(match: re.Match[str]) -> str:
    runs = recorded(match["case"], match["rung"])  # type: ignore[arg-type]
    if match["size"]:
        runs = [run for run in runs if run.shape.get("batch_size") == int(match["size"])]
    number = _value(match, runs, match["value"])
    if match["base"]:
        number /= _value(match, runs, match["base"])
    digits = len(match["number"].partition(".")[2])
    return f"{number:.{digits}f}{match[0][len(match['number']) :]}"


def _value(match: re.Match[str], runs: list[Run], name: str) -> float:
    variant, _, what = name.partition(".")
    for run in runs:
        if run.variant == variant and what == "ms" and run.latency_ms:
            return run.latency_ms.median
        if run.variant == variant and what in run.metrics:
            return run.metrics[what]
    raise BadInput(f"{match[0]}: no record holds {name}")


def main() -> None:
    """Set the numbers of all pages anew and name the files that changed."""
    for path in pages():
        if (text := quoted(path.read_text())) != path.read_text():
            path.write_text(text)
            print(f"quoted {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
