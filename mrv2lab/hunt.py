"""A hunt: engines whose CUDA graphs answer otherwise than the same engine without them.

A configuration is a small model, a way to capture, and a feature. Its outcome is a file, named after all that
it hangs on, so that a hunt goes on where it was; of what is wrong an audit and an account lie beside it.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from mrv2lab import results
from mrv2lab.errors import BadInput, RecordError
from mrv2lab.hunt_grid import MODES, Configuration
from mrv2lab.hunt_told import account, explained, hunted_releases
from mrv2lab.live import launch
from mrv2lab.live.hunted import Outcome
from mrv2lab.live.releases import installed
from mrv2lab.live.rung import ENVIRONMENT, missing_gpus

COMMAND = (sys.executable, "-m", "mrv2lab.live.hunted")
EACH = 12  # configurations of one worker at most: its first engine takes five times as long as the others
AUDIT_TIMEOUT_S = 400


def check(who: str = "this", remedy: str = "--list shows what would be run") -> None:
    """BadInput: what this machine lacks. Of a release that no hunt was tried with there is a warning."""
    release = installed()
    if lacks := missing_gpus(1) + ["vLLM"] * (release == "not installed"):
        raise BadInput(f"{who} needs {' and '.join(lacks)}; {remedy}")
    if release not in (tried := hunted_releases()):
        warnings.warn(f"hunts were tried with vllm {', '.join(tried)}; this is {release}", stacklevel=2)


Tell = Callable[[Outcome], object]


def run(
    configurations: Sequence[Configuration], to: Path, at_once: int, tell: Tell, audits: int = 6
) -> Iterator[Outcome]:
    """Run what has no outcome yet, see again what has failed, audit what is wrong; all outcomes in order.

    Args:
        audits: how many there are at most.
    """
    to.mkdir(parents=True, exist_ok=True)
    while missing := [one for one in configurations if not (to / one.file).exists()]:
        for ended in _ended(_jobs(missing, to), at_once, tell):
            _settle(ended, tell)
    while unsure := [one for one in configurations if _is_unsure(kept(one, to))]:
        _see_again(unsure, to, at_once)
    _audit([one for one in configurations if kept(one, to).verdict == "wrong"], to, at_once, audits)
    yield from (kept(one, to) for one in configurations)


def kept(one: Configuration, to: Path) -> Outcome:
    """The outcome in its file. RecordError: damaged, or of another configuration or release."""
    outcome = Outcome.read(to / one.file, "outcome", "remove it")
    labels = {"release": installed()} | one.model_dump()
    if other := [name for name, label in labels.items() if getattr(outcome, name) != label]:
        raise RecordError(f"{to / one.file}: an outcome of another {other[0]}; remove it")
    return outcome


def _is_unsure(outcome: Outcome) -> bool:
    return outcome.verdict in ("failed", "hang") and not outcome.seen_again


def _see_again(unsure: Sequence[Configuration], to: Path, at_once: int) -> None:
    """A failure counts if it comes again in a process of its own, and without graphs not in these words.

    Of those of a model and mode that said the same, one is asked for all.
    """
    alike: dict[tuple[str, str, str], list[Configuration]] = {}
    for one in unsure:
        alike.setdefault((one.model, one.mode, kept(one, to).message), []).append(one)
    groups = list(alike.values())
    jobs = [_job(group[:1], to, graphs=graphs) for group in groups for graphs in (None, "NONE")]
    outcomes = [outcome_of(ended) for ended in _ended(jobs, at_once)]
    for group, alone, off in zip(groups, outcomes[::2], outcomes[1::2], strict=True):
        if alone.verdict not in ("failed", "hang"):  # it was ours; the others are seen again for themselves
            alone.model_copy(update={"once": kept(group[0], to).message}).save(to / group[0].file)
            continue
        for one in group:
            outcome = kept(one, to)
            told: dict[str, Any] = {"seen_again": True}
            if _words(off) == _words(alone):
                told |= {"verdict": "left out", "message": f"without graphs too: {off.message}"}
            elif off.verdict not in ("correct", "eager"):
                told["message"] = f"{outcome.message}; without graphs {off.verdict} {off.message}".rstrip()
            outcome.model_copy(update=told).save(to / one.file)


def _words(outcome: Outcome) -> str:
    """Of a failure: its error line without numbers and without the place; one hang is like another."""
    said = re.sub(r"\d+| \([^()]+ in \S+\)$", "", outcome.message)
    return outcome.verdict if outcome.verdict == "hang" else said


def _audit(wrong: Sequence[Configuration], to: Path, at_once: int, audits: int) -> None:
    """Audit one of those that look alike, and write an account of each; what nothing explains comes first."""
    alike: dict[tuple[str, str, bool, str], list[Configuration]] = {}
    for one in wrong:
        outcome = kept(one, to)
        look = one.mode, one.feature, outcome.begins_at_prompt, explained(outcome)
        alike.setdefault(look, []).append(one)
    waiting = [group[0] for group in alike.values() if not kept(group[0], to).audit]
    waiting.sort(key=lambda one: bool(explained(kept(one, to))))
    jobs = [_job([one], to, audits=True) for one in waiting[:audits]]
    for ended in _ended(jobs, min(at_once, 6)):
        file, crash = Path(ended.job.settings["asked"][0]["file"]), ended.crash
        told = [f"no audit: {crash.reason}: {crash.message}"] if crash else (ended.document or {})["audit"]
        Outcome.read(file, "outcome", "remove it").model_copy(update={"audit": tuple(told)}).save(file)
    if wrong:
        made = results.provenance(0, uses_gpu=True)
    for first, *others in alike.values():
        audit = kept(first, to).audit and (f"as {first.name}, which looks alike", *kept(first, to).audit)
        for one in (first, *others):
            outcome = kept(one, to)
            outcome = outcome.model_copy(update={"audit": outcome.audit or audit})
            outcome.save(to / one.file)
            results.write((to / one.file).with_suffix(".md"), account(outcome, made))


def _jobs(missing: Sequence[Configuration], to: Path) -> list[launch.Job]:
    """A worker has engines of one model; those with breakable graphs, which it learns at import, apart."""

    def together(one: Configuration) -> tuple[str, bool, bool]:
        return one.model, one.breaks, bool(MODES[one.mode].compilation)

    groups = [list(group) for _, group in groupby(sorted(missing, key=together), together)]
    parts = [group[at : at + EACH] for group in groups for at in range(0, len(group), EACH)]
    return [_job(part, to) for part in sorted(parts, key=lambda part: -sum(one.timeout_s for one in part))]


def _job(
    part: Sequence[Configuration], to: Path, *, audits: bool = False, graphs: str | None = ""
) -> launch.Job:
    """A worker's job. With `graphs`, None for its own, the outcome is for `outcome_of` alone."""
    env = ENVIRONMENT | {"VLLM_USE_BREAKABLE_CUDAGRAPH": str(int(part[0].breaks)), "OMP_NUM_THREADS": "2"}
    asked = [one.job_settings() | {"file": str((to / one.file).absolute())} for one in part]
    if graphs != "":
        asked[0] |= {"graphs": graphs or asked[0]["graphs"], "file": f"{asked[0]['file']}.{graphs}"}
    timeout_s = AUDIT_TIMEOUT_S if audits else 120 + sum(one.timeout_s for one in part)
    return launch.Job("hunt", part[0].name, env, {"asked": asked, "audits": audits}, timeout_s=timeout_s)


def _ended(jobs: list[launch.Job], at_once: int, tell: Tell = id) -> Iterator[launch.Ended]:
    def hear(job: launch.Job, share: float, doing: str) -> None:
        if doing.startswith("{"):  # a worker tells an outcome as its progress
            tell(Outcome.model_validate_json(doing))

    all_ended = launch.run_all(jobs, at_once=at_once, ahead=2, command=COMMAND, on_progress=hear)
    with closing(cast("Any", all_ended)):
        yield from all_ended


def _settle(ended: launch.Ended, tell: Tell) -> None:
    """Of a worker that has died, or has done nothing, the first that it left undone is what it was at."""
    undone = [one for one in ended.job.settings["asked"] if not Path(one["file"]).exists()]
    if undone and (ended.crash or len(undone) == len(ended.job.settings["asked"])):
        outcome = failed(ended, undone[0]["labels"])
        outcome.save(Path(undone[0]["file"]))
        tell(outcome)


def outcome_of(ended: launch.Ended) -> Outcome:
    """That of a worker with one configuration, whose file goes."""
    [asked] = ended.job.settings["asked"]
    if not (file := Path(asked["file"])).exists():
        return failed(ended, asked["labels"])
    outcome = Outcome.read(file, "outcome", "remove it")
    file.unlink()
    return outcome


def failed(ended: launch.Ended, labels: dict[str, Any]) -> Outcome:
    """Of a worker that has died. Before it ends for its time, it prints where it stands."""
    crash = ended.crash or launch.Crash("no outcome", "no outcome", ())
    stacks = any("(most recent call first)" in line for line in crash.log_tail)  # as `faulthandler` has them
    hangs = crash.reason.startswith("timeout") or (crash.reason == "exit status 1" and stacks)
    return Outcome(
        **labels,
        release=installed(),
        verdict="hang" if hangs else "failed",
        message=f"{crash.reason}: {crash.message}",
        log_tail=crash.log_tail,
        seconds=round(ended.wall_s, 1),
    )
