"""A hunt: engines whose CUDA graphs answer otherwise than the same engine without them.

A configuration is a small model, a way to capture, and a feature. Its outcome is a file, named after all that
it hangs on, so that a hunt goes on where it was; of what is wrong an audit and an account lie beside it.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from hashlib import sha256
from inspect import getsource
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from pydantic import Field

from mrv2lab import results, sources
from mrv2lab.bench_engine import MODES as TIMED
from mrv2lab.bench_engine import Mode
from mrv2lab.errors import BadInput, choose
from mrv2lab.live import launch
from mrv2lab.live.hunt_models import MODELS, WITH_ADAPTERS, draw
from mrv2lab.live.hunted import BATCHES, LENGTHS, Outcome, Verdict
from mrv2lab.live.models import spread_weights
from mrv2lab.live.releases import installed
from mrv2lab.live.rung import ENVIRONMENT, missing_gpus
from mrv2lab.results import RECORDS, Kept, Strict
from mrv2lab.upstream.releases import TARGET

FILE = RECORDS / "hunt-vllm.json"
COMMAND = (sys.executable, "-m", "mrv2lab.live.hunted")
BESIDES = ("upstream", "live.pp", "live.releases", "live.variants", "bench_engine")
EACH = 12  # configurations of one worker at most: its first engine takes five times as long as the others
TIMEOUT_S, COMPILED_TIMEOUT_S, AUDIT_TIMEOUT_S = 150, 400, 400


class Feature(NamedTuple):
    """What an engine is asked for beside its graphs."""

    engine: dict[str, Any]  # arguments of `vllm.LLM`
    models: tuple[str, ...] = tuple(MODELS)
    modes: tuple[str, ...] = ("full_decode_only",)  # in which it is asked for unless somebody names one
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 64)  # that are captured
    adapters: int = 0


_BREAKS = ("full_decode_only", "breakable")
_LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}

MODES = {"full": Mode(0, "FULL"), "full_decode_only": Mode(0, "FULL_DECODE_ONLY")} | {
    name: TIMED[name] for name in ("breakable", "full_and_piecewise", "piecewise")
}

FEATURES = {
    "plain": Feature({}, modes=(*_BREAKS, "full", "full_and_piecewise")),
    "fp8_kv": Feature({"kv_cache_dtype": "fp8"}, modes=_BREAKS),
    "sync": Feature({"async_scheduling": False}),  # on by itself in all others
    "prefix": Feature({"enable_prefix_caching": True}, modes=_BREAKS),
    "chunked": Feature({"max_num_batched_tokens": 64}, modes=_BREAKS),
    # More requests than seats: some end, others begin, and prompts stand beside decodes.
    "waves": Feature(
        {"max_num_seqs": 4, "max_num_batched_tokens": 192}, modes=(*_BREAKS, "full_and_piecewise")
    ),
    "odd": Feature({"max_num_seqs": 7}, sizes=(1, 3, 6, 10, 25)),
    "half": Feature({"dtype": "float16"}),
    "adapters": Feature(_LORA, WITH_ADAPTERS, adapters=2),
    "adapters_keyed": Feature(_LORA | {"specialize_active_lora": True}, WITH_ADAPTERS, adapters=2),
    "flash_mla": Feature({"attention_backend": "FLASHMLA", "block_size": 64}, ("deepseek",)),
    "mtp": Feature({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, ("deepseek",)),
    "ngram": Feature(
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
        ("qwen3",),
    ),
}

COMPILED = ("llama", "qwen3_moe", "gemma3", "gpt_oss")
"""The models that are compiled unless somebody names others: that is what takes longest."""


class Configuration(Strict):
    """What one engine is."""

    model: str
    mode: str
    feature: str

    @property
    def file(self) -> str:
        """Its outcome's name: what it is, the release, and the code of this package."""
        whole = [self.job_settings(), *_stack()]
        return f"{self.name.replace(' ', '-')}-{sha256(json.dumps(whole).encode()).hexdigest()[:12]}.json"

    @property
    def name(self) -> str:
        return f"{self.model} {self.mode} {self.feature}"

    @property
    def breaks(self) -> bool:
        return MODES[self.mode].breaks

    @property
    def timeout_s(self) -> int:
        return COMPILED_TIMEOUT_S if MODES[self.mode].compilation else TIMEOUT_S

    def job_settings(self) -> dict[str, Any]:
        """What its worker has to know, `live.hunted.Asked`."""
        mode, feature = MODES[self.mode], FEATURES[self.feature]
        return {
            "labels": self.model_dump(), "config": MODELS[self.model], "compilation": mode.compilation,
            "graphs": mode.graphs, "sizes": feature.sizes, "engine": feature.engine,
            "adapters": feature.adapters, "timeout_s": self.timeout_s,
        }  # fmt: skip


@cache
def _stack() -> list[Any]:
    versions = [results.version_or_none(name) for name in ("vllm", "torch", "triton", "transformers")]
    return [sources.of("vllm", "live.hunted", "hunt", besides=BESIDES), versions]


class Hunted(Kept):
    """What a hunt has found on one machine."""

    outcomes: list[Outcome] = Field(min_length=1)


def load(path: Path = FILE) -> Hunted:
    """Read a record. RecordError: not there, damaged, or something else."""
    return Hunted.read(path, "hunt", "make one with mrv2lab hunt vllm --save")


def asked(models: Sequence[str], modes: Sequence[str], features: Sequence[str]) -> list[Configuration]:
    """The usual ones of these names, empty for all; where each kind is named, every combination.

    Raises:
        BadInput: there is none of that name.
    """
    known = {"model": (models, list(MODELS)), "mode": (modes, list(MODES))}
    known["feature"] = (features, list(FEATURES))
    for kind, (names, possible) in known.items():
        for name in names:
            choose(kind, name, possible)
    return [
        Configuration(model=model, mode=mode, feature=feature)
        for model in models or MODELS
        for mode in modes or MODES
        for feature in features or FEATURES
        if (models and modes and features) or _is_usual(model, mode, feature)
    ]


def _is_usual(model: str, mode: str, feature: str) -> bool:
    fits = model in FEATURES[feature].models and mode in FEATURES[feature].modes
    # In 0.23.0 graphs break at latent attention only: all others are wrong, case `breakable_graph`.
    known = mode == "breakable" and feature != "plain" and installed() == TARGET
    return fits and not known and (model in COMPILED or not MODES[mode].compilation)


def check() -> None:
    """BadInput: what this machine lacks."""
    release = ["vllm"] if installed() == "not installed" else []
    if lacks := release + missing_gpus(1):
        raise BadInput(f"this needs {' and '.join(lacks)}; --list shows what would be run")


# ---- running ----

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
    """The outcome in its file. RecordError: damaged."""
    return Outcome.read(to / one.file, "outcome", "remove it")


def _is_unsure(outcome: Outcome) -> bool:
    return outcome.verdict in ("failed", "hang") and not outcome.seen_again


def _see_again(unsure: Sequence[Configuration], to: Path, at_once: int) -> None:
    """A failure counts if it comes again in a process of its own, and does not without graphs.

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
            alone.save(to / group[0].file)
            continue
        told: dict[str, Any] = {"seen_again": True}
        if off.verdict not in ("correct", "eager"):
            told |= {"verdict": "left out", "message": f"without graphs too: {off.message}"}
        for one in group:
            kept(one, to).model_copy(update=told).save(to / one.file)


def _audit(wrong: Sequence[Configuration], to: Path, at_once: int, audits: int) -> None:
    """Audit one of those that look alike, and write an account of each; what nothing explains comes first."""
    alike: dict[tuple[str, str, bool], list[Configuration]] = {}
    for one in wrong:
        alike.setdefault((one.mode, one.feature, kept(one, to).begins_at_prompt), []).append(one)
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


# ---- what was found ----


EXPLAINED: tuple[tuple[str, Callable[[Outcome], bool]], ...] = (
    ("docs/findings/full_mixed.md", lambda of: of.graphs == "FULL" and of.begins_at_prompt),
    ("docs/findings/lora_frozen_grid.md", lambda of: of.feature == "adapters_keyed"),
    ("case breakable_graph", lambda of: of.mode == "breakable" and of.release == TARGET),
)
"""What is known of the releases that were read, and which wrong outcomes it may explain. It may hide another
cause behind it: of what is explained one is audited too."""


def explained(outcome: Outcome) -> str:
    """The page or case that explains a wrong outcome; empty: it is open."""
    return next((page for page, fits in EXPLAINED if outcome.verdict == "wrong" and fits(outcome)), "")


def account(outcome: Outcome, made: results.Provenance) -> str:
    """What to tell of an outcome, in Markdown: settings, what was seen, how it is seen again."""
    one = Configuration(model=outcome.model, mode=outcome.mode, feature=outcome.feature)
    settings = {key: one.job_settings()[key] for key in ("compilation", "graphs", "sizes", "engine")}
    settings["env"] = {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_USE_BREAKABLE_CUDAGRAPH": str(int(one.breaks))}
    again = " ".join(f"--{kind} {value}" for kind, value in one.model_dump().items())
    return f"""# {one.name}: {outcome.verdict}

{made.machine}, driver {made.driver}, commit {made.commit}

Relative error of logits, graphs against none: {_number(outcome.error)} at most, 90th percentile
{_number(outcome.usual)}. Without graphs, batches halved: {_number(outcome.natural)} and
{_number(outcome.natural_usual)}. A graph was replayed in {outcome.replayed} of {outcome.steps} steps, mode
{outcome.graphs or "unknown"}.

First wrong step: {outcome.first or "none"}. Explained by: {explained(outcome) or "nothing yet, it is open"}

```
{chr(10).join(outcome.audit or [outcome.message])}
```

Again: `mrv2lab hunt vllm --to FOLDER {again}`

Settings: `{json.dumps(settings)}`

Without mrv2lab, tokens and log-probabilities; no request has an adapter here:

```python
{script(one)}```
"""


def script(one: Configuration) -> str:
    """The engine alone, for vLLM's maintainers: it answers with graphs, and with any argument without."""
    asked = one.job_settings()
    engine = {"max_num_seqs": 16, "max_model_len": 1024, "kv_cache_memory_bytes": 512 << 20} | asked["engine"]
    env = {
        name: str(int(on)) for name, on in (("V2_MODEL_RUNNER", True), ("BREAKABLE_CUDAGRAPH", one.breaks))
    }
    compilation = {"mode": asked["compilation"], "cudagraph_mode": asked["graphs"]}
    compilation["cudagraph_capture_sizes"] = list(asked["sizes"])
    return f"""import json, os, sys, tempfile
import torch
os.environ |= {{"VLLM_USE_" + name: on for name, on in {env}.items()}}
os.environ |= {{"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"}}
from vllm import LLM, SamplingParams
from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

{getsource(spread_weights)}
{getsource(draw)}
DummyModelLoader.load_weights = lambda self, model, model_config: draw(model)
folder = tempfile.mkdtemp()
json.dump({MODELS[one.model]}, open(folder + "/config.json", "w"))
compilation = {compilation}
if len(sys.argv) > 1:
    compilation["cudagraph_mode"] = "NONE"
llm = LLM(folder, load_format="dummy", skip_tokenizer_init=True, compilation_config=compilation, **{engine})
prompts = [{{"prompt_token_ids": [(7 * i + 3 * n) % 2000 for i in range(n)]}} for n in {LENGTHS}]
params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False, logprobs=1)
for number in {BATCHES}:
    for request, output in enumerate(llm.generate(prompts[:number], params, use_tqdm=False)):
        given = [(token, round(step[token].logprob, 3)) for token, step in zip(
            output.outputs[0].token_ids, output.outputs[0].logprobs)]
        print(number, request, *given)
"""


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def table(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """How many of each verdict, by model and mode, and how many are open; the last row counts all."""
    rows = [["model", "mode", *get_args(Verdict), "open"]]
    parts = dict.fromkeys((outcome.model, outcome.mode) for outcome in outcomes)
    for part in [*parts, ("all", "")]:
        of = [o for o in outcomes if part[0] == "all" or (o.model, o.mode) == part]
        counts = [sum(o.verdict == verdict for o in of) for verdict in get_args(Verdict)]
        counts.append(sum(o.verdict == "wrong" and not explained(o) for o in of))
        rows.append([*part, *(str(count or "") for count in counts)])
    return rows


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Each that is not right, in a line: open ones last."""
    pages = [(explained(outcome), outcome) for outcome in outcomes if outcome.verdict != "correct"]
    told = [f"{outcome}" + (f"; explained by {page}" if page else "") for page, outcome in pages]
    return sorted(told, key=lambda line: "; explained by " not in line and ": wrong; " in line)
