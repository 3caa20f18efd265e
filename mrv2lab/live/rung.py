"""The rung `vllm`: variants of a case in the real engine, several at a time on one GPU."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch

from mrv2lab.crash import verdict_of, without_places
from mrv2lab.errors import BadInput, choose
from mrv2lab.live import launch
from mrv2lab.live.pp import EXECUTOR
from mrv2lab.live.releases import gone, installed, variants
from mrv2lab.live.variants import NOT_ASKED_OF_V1, NUM_GPUS, V1, V1_RUNNER
from mrv2lab.upstream.outcome import Outcome
from mrv2lab.upstream.releases import TARGET

Executor = Literal["mp", "ray"]
"""vLLM's way to run workers: processes of this host, or Ray's on one or several."""

OnProgress = Callable[[str, float, str], object]
"""Called with a variant, how far it is (0 to 1) and what it does now."""

AT_ONCE = 5
"""Engines on one GPU: each takes about 15 GiB of its memory, and two to three CPU cores while it starts."""


@dataclass(frozen=True)
class Options:
    """How engines are run."""

    at_once: int = AT_ONCE  # how many share the GPU. For speeds, 1
    executor: Executor = "mp"  # where an engine has several workers, what starts them
    release: str = TARGET  # whose engine it is; it must be the one that is installed
    on_progress: OnProgress = lambda variant, share, doing: None  # called in the caller's thread


ENVIRONMENT = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in the worker's own process, where fixes come out
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # not everybody has FlashInfer, and tokens are forced anyway
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def missing(case: str, release: str = TARGET) -> list[str]:
    """What this machine lacks for the rung with this case; empty if nothing.

    Raises:
        BadInput: nobody has said how the engine runs the case.
    """
    if case not in NUM_GPUS:
        raise BadInput(f"rung vllm of {case} needs its variants in mrv2lab/live/variants.py")
    return missing_vllm(release) + missing_gpus(NUM_GPUS[case])


def missing_vllm(release: str = TARGET) -> list[str]:
    """The engine, if it is not here or of another release."""
    found = installed()
    return [] if found == release else [f"vllm {release} (here: {found})"]


def missing_gpus(number: int) -> list[str]:
    """So many GPUs, if there are fewer."""
    wanted = "an NVIDIA GPU" if number == 1 else f"{number} NVIDIA GPUs"
    return [] if torch.cuda.device_count() >= number else [wanted]


def check(case: str, release: str = TARGET) -> None:
    """See that the rung can run this case here, with the engine of this release.

    Raises:
        BadInput: it cannot, and why.
    """
    if lacks := missing(case, release):
        raise BadInput(f"rung vllm needs {' and '.join(lacks)}; recorded runs: mrv2lab live")


def checked_executor(name: str) -> Executor:
    """The executor of this name. BadInput: there is none, or the library it needs is not installed."""
    choose("executor", name, ["mp", "ray"])
    if name == "ray" and find_spec("ray") is None:
        raise BadInput("executor ray needs the library ray: pip install ray")
    return "ray" if name == "ray" else "mp"


def run_variants(case: str, names: Sequence[str], options: Options) -> Iterator[Outcome]:
    """Run variants, in processes of their own, and yield their outcomes in order.

    Where there are several, the V1 runner is asked as well, and the metric `equal_to_v1` is the share of next
    tokens, over all steps and requests, that are also its choice. Rounding alone costs some.

    Raises:
        BadInput: the machine lacks something, or the release has no place for a variant.
    """
    check(case, options.release)
    if absent := sorted(gone(case, options.release).keys() & set(names)):
        why = gone(case, options.release)[absent[0]]
        raise BadInput(f"{case} {absent[0]} cannot be run in vllm {options.release}: {why}")
    known = variants(case, options.release)
    asked = {V1: V1_RUNNER[case]} if case in V1_RUNNER and len(names) > 1 else {}
    jobs_of = asked | {name: known[name] for name in names}
    settings = {"engines_at_once": min(options.at_once, len(jobs_of))}
    environment = ENVIRONMENT | {EXECUTOR: options.executor}
    jobs = [launch.Job(case, name, environment | job.env, settings) for name, job in jobs_of.items()]

    def tell(job: launch.Job, share: float, doing: str) -> None:
        if job.variant != V1:
            options.on_progress(job.variant, share, doing)

    shares_gpu = settings["engines_at_once"] > 1  # then a step has no speed of its own
    all_ended = iter(launch.run_all(jobs, at_once=options.at_once, ahead=1, on_progress=tell))
    v1 = answers(next(all_ended)) if asked else []
    for ended in all_ended:
        found = outcome(ended, options.release)
        share = {} if (case, ended.job.variant) in NOT_ASKED_OF_V1 else equal_to_v1(found.tokens, v1)
        found = found.model_copy(update={"metrics": found.metrics | share})
        yield found.model_copy(update={"latency_ms": None}) if shares_gpu else found


def answers(ended: launch.Ended) -> list[list[int]]:
    """The tokens that a run of the V1 runner chose; none, and a warning, if it failed."""
    if ended.crash is None:
        return Outcome.model_validate(ended.document).tokens
    said = f"{ended.crash.reason}: {ended.crash.message}"
    warnings.warn(f"{ended.job.case}: the V1 runner has no answers ({said})", stacklevel=2)
    return []


def equal_to_v1(tokens: list[list[int]], v1: list[list[int]]) -> dict[str, float]:
    """The metric; nothing if one of them chose none, or they took other steps."""
    if not tokens or list(map(len, tokens)) != list(map(len, v1)):
        return {}
    pairs = [pair for steps in zip(tokens, v1, strict=True) for pair in zip(*steps, strict=True)]
    return {"equal_to_v1": sum(token == wanted for token, wanted in pairs) / len(pairs)}


def outcome(ended: launch.Ended, release: str = TARGET) -> Outcome:
    """What a run showed: its own report, the crash that the variant states, or that it failed."""
    if ended.crash is None:
        return Outcome.model_validate(ended.document)
    crash, job = ended.crash, ended.job
    log_tail = [without_places(line) for line in crash.log_tail]
    # A worker that was ended, for its time or its memory, may have said anything before.
    known = variants(job.case, release)[job.variant]
    stated = known.crash if crash.reason.startswith("exit status") else None
    verdict = verdict_of(crash.message, log_tail, stated)
    message = crash.message if verdict == "crash" else f"{crash.reason}: {crash.message}"
    return Outcome(verdict=verdict, message=message, log_tail=log_tail)
