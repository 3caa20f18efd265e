"""Makes recorded runs again: what each takes, which fit into a budget, and a process of its own for each."""

import json
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import inf
from pathlib import Path

from mrv2lab import forks, prose
from mrv2lab.cases import CASES, matrix
from mrv2lab.errors import RecordError
from mrv2lab.live.audited import AUDITED
from mrv2lab.live.releases import ENGINES
from mrv2lab.live.rung import missing_gpus, missing_vllm
from mrv2lab.live.variants import NUM_GPUS
from mrv2lab.locks import held
from mrv2lab.results import RECORDS, Document, Rung, provenance_of, since, write

COMMAND = (sys.executable, "-P", "-m", "mrv2lab")  # -P: of the folder we are in nothing is imported
LOCK_S = 60.0  # others hold it while they write a file
GUESS_S = 120.0  # for what was never timed
TARGET = ENGINES[0]
FIGURED = ("results/*/cuda-*.json", "bench-*.json", "timed-*.json")  # of these there are figures
VERDICT = r'"(?:verdict|word)": "(.*?)"'


@dataclass(frozen=True)
class Recipe:
    """How a file below `data` is made."""

    file: str  # a star stands for the name of the GPU
    command: str  # of mrv2lab, without where it saves
    rung: Rung
    gpus: int = 0
    tool: str = ""  # a program that it needs beside what the rung does
    release: str = TARGET  # on rung `vllm`, whose engine
    case: str = ""  # the one whose rows are made; the others in the file stay as they are

    def words(self, data: Path) -> list[str]:
        is_run = self.file.startswith("results/")
        where = ["--data", str(data / "results")] if is_run else [str(data / self.file)]
        return [*self.command.split(), "--save", *where]

    def kept(self, data: Path) -> list[Path]:
        return sorted(data.glob(self.file))

    def lacks(self) -> list[str]:
        lacks = missing_gpus(self.gpus) + (missing_vllm(self.release) if self.rung == "vllm" else [])
        if self.rung == "source" and find_spec("xgrammar") is None:
            lacks.append("what vLLM's Python imports (make source)")
        return lacks + ([self.tool] if self.tool and shutil.which(self.tool) is None else [])


def _in_engine(case: str, gpus: int, release: str) -> Recipe:
    """Engines whose speeds are shown have the GPU for themselves."""
    alone = " --at-once 1" if case in ("breakable_graph", "pp_eager_fallback") else ""
    files, other = ("[!0-9]*", "") if release == TARGET else (f"{release}-*", f" --release {release}")
    file, command = f"results/{case}/vllm-{files}.json", f"live {case}{alone}{other}"
    return Recipe(file, command, "vllm", gpus, release=release)


_TOLD = prose.beside(__file__)
RECIPES: tuple[Recipe, ...] = (
    *(_in_engine(case, gpus, release) for release in ENGINES for case, gpus in NUM_GPUS.items()),
    Recipe("audit-vllm.json", " ".join(["audit vllm", *AUDITED]), "vllm", 1),
    *(Recipe(**told) for told in _TOLD["on_gpu"]),
    *(Recipe(f"results/{case.name}/source-cpu.json", f"run {case.name} --rung source", "source")
      for case in CASES.values() if "source" in case.rungs),
    *(Recipe(**told) for told in _TOLD["anywhere"]),
)  # fmt: skip


def of_case(name: str) -> list[Recipe]:
    """What a case needs that can be made without the others: its runs, and its rows of both matrices."""
    own = [recipe for recipe in RECIPES if recipe.file.startswith(f"results/{name}/")]
    of_all = [r for r in RECIPES if "audit matrix" in r.command and r.rung in CASES[name].rungs]
    return [*own, *(replace(r, command=f"{r.command} {name}", case=name) for r in of_all)]


@dataclass(frozen=True)
class Step:
    recipe: Recipe
    since: str  # as `since`, of what was made by it last
    seconds: float  # what it took then, or a guess
    lacks: str  # what this machine has not got for it; empty if nothing
    fits: bool = False  # whether it can be made here and there is time for it

    def __str__(self) -> str:
        what = "make" if self.fits else "not here" if self.lacks else "no time"
        needs = f"; needs {self.lacks}" if self.lacks else ""
        state = self.since or "made by the code as it is"
        return f"{what:<8} {self.seconds:>5.0f} s  {self.recipe.file}: {state}{needs}"


def plan(
    recipes: Sequence[Recipe], data: Path, budget_s: float = inf, *, only_stale: bool = False
) -> list[Step]:
    """What to make, stale records first, each if it fits into what is then left of the budget.

    Of records not yet in the folder where they are written the repository's say how things are.
    """
    steps, left = [], budget_s
    for step in sorted((_step(recipe, data) for recipe in recipes), key=lambda step: not step.since):
        if only_stale and not step.since:
            continue
        fits = not step.lacks and step.seconds <= left
        steps.append(replace(step, fits=fits))
        left -= step.seconds * fits
    return steps


def _step(recipe: Recipe, data: Path) -> Step:
    last = [*recipe.kept(data), *recipe.kept(RECORDS), data / recipe.file][0]
    try:
        seconds = provenance_of(last, recipe.case)[0].seconds or GUESS_S
    except RecordError:
        seconds = GUESS_S
    return Step(recipe, since(last, recipe.case), seconds, " and ".join(recipe.lacks()))


def follow(steps: Sequence[Step], data: Path, budget_s: float = inf) -> Iterator[tuple[str, "Made"]]:
    """Make what this machine can, as long as there is time; also what did not fit, where time was won.

    Yields names and what became of them; last, where records that have figures were made, these.
    """
    left, draws = budget_s, False
    for step in steps:
        if not step.lacks and step.seconds <= left:
            made = make(step.recipe, data, left)
            left -= made.seconds
            draws |= any(path.match(kind) for path in step.recipe.kept(data) for kind in FIGURED)
            yield step.recipe.file, made
        elif step.fits:
            yield step.recipe.file, Made(0.0, "not made: no time was left for it", False)
    if draws:
        yield "figures", make_figures(data)


@dataclass(frozen=True)
class Made:
    """What became of a recipe: how long it took, what to tell, and whether all is as stated."""

    seconds: float
    told: str
    is_well: bool


def make(recipe: Recipe, data: Path, limit_s: float = inf) -> Made:
    """Follow a recipe in a process that ends at the limit. A file comes below `data` whole, or not at all."""
    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), time.monotonic()
        status, last = _run(recipe.words(folder), folder, limit_s)
        seconds = time.monotonic() - start
        made = recipe.kept(folder)
        if status is None or any(map(_is_cut_off, made)):
            return Made(seconds, f"not made: {last}", False)
        if any(_has_more_failed(path, data / path.relative_to(folder)) for path in made):
            return Made(seconds, f"not made, for more of it has failed than before: {last}", False)
        for path in made:
            target = data / path.relative_to(folder)
            data.mkdir(parents=True, exist_ok=True)
            with held(data / ".lock", LOCK_S):  # rows of another case may come from another process
                if recipe.case and target.exists():
                    merged = matrix.load(target).with_rows_of(matrix.load(path))
                    Document.save(merged, target)  # which took no longer than it says
                else:
                    write(target, path.read_text("utf-8"))
        if not made:
            return Made(seconds, f"not made: {last}", False)
        # Every verdict in a document, and every word of a history.
        seen = Counter(word for path in made for word in _verdicts(path))
    words = ", ".join(f"{number} {verdict}" for verdict, number in sorted(seen.items()))
    told = "made" if status == 0 else "made, NOT as stated"
    return Made(seconds, f"{told}: {words}" if words else told, status == 0)


def _is_cut_off(path: Path) -> bool:
    """Whether a file was kept on the way, row by row, and what makes it has ended before its end."""
    made_with = json.loads(path.read_text("utf-8")).get("provenance") or {}
    return "seconds" in made_with and made_with["seconds"] is None


def _verdicts(path: Path) -> list[str]:
    return re.findall(VERDICT, path.read_text("utf-8"))


def _has_more_failed(made: Path, target: Path) -> bool:
    """Whether more of it could not be run than of what is there: that says nothing of what is recorded."""
    return target.exists() and _verdicts(made).count("failed") > _verdicts(target).count("failed")


def make_figures(data: Path) -> Made:
    """The figures, from the records below a folder."""
    files = [str(path) for kind in FIGURED for path in sorted(data.glob(kind))]
    with tempfile.TemporaryDirectory() as name:
        start = time.monotonic()
        report = ["--output", f"{name}/report.html", "--figures", str(data / "figures")]
        status, last = _run(["report", *files, *report], Path(name))
    return Made(time.monotonic() - start, f"not made: {last}" if status else "made", status == 0)


def _run(words: Sequence[str], folder: Path, limit_s: float = inf) -> tuple[int | None, str]:
    """Run mrv2lab. Returns its exit status and the last line that it said."""
    try:
        return forks.command([*COMMAND, *words], folder, {}, None if limit_s == inf else limit_s)
    except TimeoutError:
        return None, "ended, for the budget was spent"
