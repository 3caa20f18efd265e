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

FILE = RECORDS / "hunt-vllm.json"
COMMAND = (sys.executable, "-m", "mrv2lab.live.hunted")
BESIDES = ("upstream", "live.pp", "live.releases", "live.variants", "bench_engine")
AT_ONCE, EACH = 14, 6  # workers; and configurations of one
TIMEOUT_S, COMPILED_TIMEOUT_S, AUDIT_TIMEOUT_S = 150, 400, 400


class Feature(NamedTuple):
    """What an engine is asked for beside its graphs."""

    engine: dict[str, Any]  # arguments of `vllm.LLM`
    models: tuple[str, ...] = tuple(MODELS)
    modes: tuple[str, ...] = ("full",)  # beside which modes it is asked for unless somebody names it
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 64)  # that are captured
    adapters: int = 0


_GRAPHS = ("full", "full_decode_only", "breakable")
_LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}

MODES = {"full": Mode(0, "FULL"), "full_decode_only": Mode(0, "FULL_DECODE_ONLY")} | {
    name: TIMED[name] for name in ("breakable", "piecewise", "full_and_piecewise")
}

FEATURES = {
    "plain": Feature({}, modes=tuple(MODES)),
    "fp8_kv": Feature({"kv_cache_dtype": "fp8"}, modes=("full", "breakable")),
    "sync": Feature({"async_scheduling": False}),  # on by itself in all others
    "prefix": Feature({"enable_prefix_caching": True}, modes=("full", "breakable")),
    "chunked": Feature({"max_num_batched_tokens": 64}, modes=_GRAPHS),
    # More requests than seats: some end, others begin, and prompts stand beside decodes.
    "waves": Feature({"max_num_seqs": 4, "max_num_batched_tokens": 192}, modes=_GRAPHS),
    "odd": Feature({"max_num_seqs": 7}, sizes=(1, 3, 6, 10, 25), modes=("full", "full_decode_only")),
    "half": Feature({"dtype": "float16"}),
    "adapters": Feature(_LORA, WITH_ADAPTERS, ("full", "full_decode_only"), adapters=2),
    "adapters_keyed": Feature(_LORA | {"specialize_active_lora": True}, WITH_ADAPTERS, adapters=2),
    "flash_mla": Feature({"attention_backend": "FLASHMLA", "block_size": 64}, ("deepseek",)),
    "mtp": Feature({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, ("deepseek",)),
    "ngram": Feature(
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}},
        ("qwen3",),
    ),
}

COMPILED = ("llama", "qwen3_moe", "gemma3")
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
    return fits and (model in COMPILED or not MODES[mode].compilation)


def check() -> None:
    """BadInput: what this machine lacks."""
    release = ["vllm"] if installed() == "not installed" else []
    if lacks := release + missing_gpus(1):
        raise BadInput(f"this needs {' and '.join(lacks)}; --list shows what would be run")


# ---- running ----

Tell = Callable[[Outcome], object]


def run(configurations: Sequence[Configuration], to: Path, at_once: int, tell: Tell) -> Iterator[Outcome]:
    """Run what has no outcome yet, audit what is wrong, and yield all outcomes in order."""
    to.mkdir(parents=True, exist_ok=True)
    while missing := [one for one in configurations if not (to / one.file).exists()]:
        for ended in _ended(_jobs(missing, to), at_once, tell):
            _settle(ended, tell)
    wrong = [one for one in configurations if kept(one, to).verdict == "wrong"]
    unaudited = [one for one in wrong if not (to / one.file).with_suffix(".md").exists()]
    for ended in _ended([_job([one], to, audits=True) for one in unaudited], min(at_once, 5), tell):
        _account(ended)
    yield from (kept(one, to) for one in configurations)


def kept(one: Configuration, to: Path) -> Outcome:
    """The outcome in its file. RecordError: damaged."""
    return Outcome.read(to / one.file, "outcome", "remove it")


def _jobs(missing: Sequence[Configuration], to: Path) -> list[launch.Job]:
    """A worker has engines of one model; those with breakable graphs, which it learns at import, apart."""

    def together(one: Configuration) -> tuple[str, bool, bool]:
        return one.model, one.breaks, bool(MODES[one.mode].compilation)

    groups = [list(group) for _, group in groupby(sorted(missing, key=together), together)]
    parts = [group[at : at + EACH] for group in groups for at in range(0, len(group), EACH)]
    return [_job(part, to) for part in sorted(parts, key=lambda part: -sum(one.timeout_s for one in part))]


def _job(part: Sequence[Configuration], to: Path, audits: bool = False) -> launch.Job:
    env = ENVIRONMENT | {"VLLM_USE_BREAKABLE_CUDAGRAPH": str(int(part[0].breaks)), "OMP_NUM_THREADS": "2"}
    asked = [one.job_settings() | {"file": str((to / one.file).absolute())} for one in part]
    timeout_s = AUDIT_TIMEOUT_S if audits else 120 + sum(one.timeout_s for one in part)
    return launch.Job("hunt", part[0].name, env, {"asked": asked, "audits": audits}, timeout_s=timeout_s)


def _ended(jobs: list[launch.Job], at_once: int, tell: Tell) -> Iterator[launch.Ended]:
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


def failed(ended: launch.Ended, labels: dict[str, Any]) -> Outcome:
    """Of a worker that has died. Before it ends for its time, it prints where it stands."""
    crash = ended.crash or launch.Crash("no outcome", "no outcome", ())
    stacks = any("(most recent call first)" in line for line in crash.log_tail)  # as `faulthandler` has them
    hangs = crash.reason.startswith("timeout") or (crash.reason == "exit status 1" and stacks)
    return Outcome(
        **labels, verdict="hang" if hangs else "failed", message=f"{crash.reason}: {crash.message}",
        log_tail=crash.log_tail, seconds=round(ended.wall_s, 1),
    )  # fmt: skip


# ---- what was found ----


def _account(ended: launch.Ended) -> None:
    """Keep what the audit of a wrong one has said, and write the account of it."""
    file = Path(ended.job.settings["asked"][0]["file"])
    crash, document = ended.crash, ended.document or {}
    audit = [f"no audit: {crash.reason}: {crash.message}"] if crash else document["audit"]
    outcome = Outcome.read(file, "outcome", "remove it").model_copy(update={"audit": tuple(audit)})
    outcome.save(file)
    results.write(file.with_suffix(".md"), account(outcome, results.provenance(0, uses_gpu=True)))


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

First wrong step: {outcome.first or "none"}

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
    """How many of each verdict, by model and mode; the last row counts all."""
    rows = [["model", "mode", *get_args(Verdict)]]
    parts = dict.fromkeys((outcome.model, outcome.mode) for outcome in outcomes)
    for part in [*parts, ("all", "")]:
        of = [o.verdict for o in outcomes if part[0] == "all" or (o.model, o.mode) == part]
        rows.append([*part, *(str(of.count(verdict) or "") for verdict in get_args(Verdict))])
    return rows


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Each that is not right, in a line."""
    return [str(outcome) for outcome in outcomes if outcome.verdict != "correct"]
