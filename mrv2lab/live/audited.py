"""Audits of the real engine, each in a process of its own, and the file that keeps what they found.

`python -m mrv2lab.live.audited SPEC.json` is that process.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mrv2lab.audit import AuditReport
from mrv2lab.errors import AuditError, BadInput, choose
from mrv2lab.live import launch, lora, mla, scenarios
from mrv2lab.live.audit import FIRST, Steps, attached, without_places
from mrv2lab.live.engine import make_engine
from mrv2lab.live.models import make_adapter, make_qwen3
from mrv2lab.live.protocol import claim_stdout, die_with_parent, read_job, tell_progress, tell_result
from mrv2lab.live.ranks import EXTENSION, Workers
from mrv2lab.live.releases import installed
from mrv2lab.live.rung import ENVIRONMENT, check
from mrv2lab.results import RECORDS, Kept, Strict
from mrv2lab.upstream.probes.breakable_graph import UNROUTED
from mrv2lab.upstream.probes.flashmla_lazy_init import ONE_STATE
from mrv2lab.upstream.probes.lora_short_circuit import WITHOUT_FLAGS
from mrv2lab.upstream.releases import TARGET
from mrv2lab.upstream.unfix import Edit, unfix

FILE = RECORDS / "audit-vllm.json"
MODEL_TIMEOUT_S = 1800  # each size of each scenario is a step that is run six times
WORKER = (sys.executable, "-m", "mrv2lab.live.audited")


class EngineAuditFailed(BadInput):
    """The engine that was to be audited did not serve."""


# ---- engines that can be audited ----


Started = tuple[Any, Sequence[Any]]  # an engine, and the adapters that it is to be asked with


@dataclass(frozen=True)
class Audited:
    """An engine that can be audited."""

    start: Callable[[Path], Started]  # over files in a folder
    edits: tuple[Edit, ...] = ()  # what is taken out of vLLM for it
    env: dict[str, str] = field(default_factory=dict)  # what its process must find in its environment
    scenario: str = FIRST  # what is served, of `scenarios.SCENARIOS`


def _start(folder: Path, start: Callable[..., Any] = mla.start, **options: str) -> Started:
    return start(folder, **options), ()


def _start_adapters(folder: Path, specialize_active_lora: bool = True) -> Started:
    model = make_qwen3(folder / "model")
    adapters = [str(make_adapter(folder / f"adapter-{seed}", model, seed=seed)) for seed in (1, 2)]
    more = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 16}
    llm = make_engine(str(model), "FULL", (1, 2, 4), specialize_active_lora=specialize_active_lora, **more)
    return llm, _requests(adapters)


def _requests(folders: Sequence[str]) -> list[Any]:
    """What requests bring along to be served with adapters."""
    from vllm.lora.request import LoRARequest

    return [LoRARequest(folder, number, folder) for number, folder in enumerate(folders, 1)]


def _start_lora(folder: Path) -> Started:
    llm, adapter = lora.start(folder)
    return llm, [adapter]


_start_piecewise = partial(_start, cudagraph_mode="PIECEWISE")
_start_plain = partial(_start, start=mla.start_plain)
_start_unspecialized = partial(_start_adapters, specialize_active_lora=False)

AUDITED: dict[str, dict[str, Audited]] = {
    "lora_short_circuit": {
        "zero_mapping": Audited(_start_lora, (WITHOUT_FLAGS,)),
        "forced_launch": Audited(_start_lora),
    },
    "breakable_graph": {
        "unrouted": Audited(_start_piecewise, (UNROUTED,), mla.BREAKABLE),
        "whole_graph": Audited(_start_plain, env=mla.BREAKABLE),
        "breakable": Audited(_start_piecewise, env=mla.BREAKABLE),
    },
    "flashmla_lazy_init": {
        "shared_state": Audited(_start, (ONE_STATE,)),
        "state_pair": Audited(_start),
    },
    "lora_frozen_grid": {
        "one_slot": Audited(_start_adapters, scenario="adapters"),
        "default_setting": Audited(_start_unspecialized, scenario="adapters"),
    },
}


# ---- asking for audits ----


def run(jobs: Sequence[launch.Job], *, at_once: int, on_progress: launch.OnProgress) -> list["EngineAudited"]:
    """Audit engines, each in a process of its own.

    Raises:
        EngineAuditFailed: one ended without reports; with its own error line.
    """
    found = []
    for ended in launch.run_all(jobs, at_once=at_once, command=WORKER, on_progress=on_progress):
        if ended.crash is not None:
            what = f"{ended.job.case} {ended.job.variant}".strip()
            raise EngineAuditFailed(f"{what}: {ended.crash.reason}: {ended.crash.message}")
        assert ended.document is not None  # a run that did not crash has one
        found.append(EngineAudited(case=ended.job.case, variant=ended.job.variant, **ended.document))
    return found


def jobs_of(case: str) -> list[launch.Job]:
    """One for each variant of a case that can be audited in the engine.

    Raises:
        BadInput: none can, or this machine cannot run the engine.
    """
    choose("case", case, list(AUDITED))
    check(case)
    return [launch.Job(case, name, ENVIRONMENT | audited.env) for name, audited in AUDITED[case].items()]


def job_of_model(
    model: str, adapters: Sequence[str], options: Sequence[str], scenario: Sequence[str] = ()
) -> launch.Job:
    """The audit of a checkpoint.

    Args:
        adapters: folders of PEFT adapters; requests take them in turn.
        options: `name=value`, the value as JSON or, if it is none, as text.
        scenario: names of `scenarios.SCENARIOS`, or `all`.

    Raises:
        BadInput: an option without a value, an unknown scenario, or this machine cannot run the engine.
    """
    names = scenarios.chosen(scenario or [FIRST])
    values = values_of(options, "vllm.LLM")
    check("lora_short_circuit", installed() or TARGET)  # one GPU, and vLLM of any release
    settings = {"model": model, "adapters": list(adapters), "options": values, "scenarios": names}
    # what the caller has set otherwise counts: a runner, for example
    environment = {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
    return launch.Job("vllm", model, environment, settings, timeout_s=MODEL_TIMEOUT_S)


def values_of(options: Sequence[str], owner: str) -> dict[str, Any]:
    """What `name=value` says of arguments of an owner: JSON, or else a text. BadInput: there is no value."""
    values: dict[str, Any] = {}
    for option in options:
        name, found, text = option.partition("=")
        if not found:
            raise BadInput(f"--engine {option}: possible: name=value, an argument of {owner}")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


# ---- the process of one audit ----


Told = dict[str, Any]
"""What an audited engine has shown: its `reports`, which scenarios are `left_out`, with the reason, and where
ranks are `apart`."""


def audit_variant(case: str, variant: str, folder: Path) -> Told:
    """Audit the engine that a case starts on the rung `vllm`."""
    audited = AUDITED[case][variant]
    edited = unfix(*audited.edits, versions=f"=={TARGET}") if audited.edits else nullcontext()
    with attached() as steps, edited:
        llm, adapters = audited.start(folder)
        return _serve(llm, steps, adapters, [audited.scenario])


def audit_model(
    model: str, adapters: Sequence[str], options: dict[str, Any], scenarios: Sequence[str]
) -> Told:
    """Audit the engine of a checkpoint.

    Args:
        adapters: folders of PEFT adapters that requests are served with.
        options: arguments of `vllm.LLM` beside the model. Unless they say otherwise, three small sizes are
            captured as FULL graphs of code that is not compiled, and the KV cache, which is copied before
            and after each pass, has 1 GiB; sequences are as long as fits in.
        scenarios: names of `scenarios.SCENARIOS`.

    Raises:
        BadInput: the engine supports none of the scenarios.
        AuditError: a step cannot be audited, or none replayed a graph.
    """
    sizes = ("tensor_parallel_size", "pipeline_parallel_size")
    has_workers = any(options.get(name, 1) > 1 for name in sizes)
    has_workers |= options.get("distributed_executor_backend", "uni") != "uni"
    # Workers are processes of their own; what they inherited would watch each step a second time.
    with nullcontext() if has_workers else attached() as steps:
        from vllm import LLM

        defaults: dict[str, Any] = {"skip_tokenizer_init": True}
        defaults |= {"kv_cache_memory_bytes": 1 << 30, "max_model_len": -1}
        defaults |= {"enable_lora": True, "max_loras": len(adapters)} if adapters else {}
        compilation = {"mode": 0, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2, 4]}
        compilation |= options.get("compilation_config", {})
        defaults |= {"worker_extension_cls": EXTENSION} if has_workers else {}
        llm = LLM(model=model, **defaults | options | {"compilation_config": compilation})
        return _serve(llm, steps or Workers(llm), _requests(adapters), scenarios)


def _serve(llm: Any, steps: Steps | Workers, adapters: Sequence[Any], names: Sequence[str]) -> Told:
    captured = steps.captured()
    engine = scenarios.Engine(
        llm,
        num_reqs=sorted({desc.num_reqs or desc.num_tokens for desc in captured}),
        num_tokens=sorted({desc.num_tokens for desc in captured}),
        adapters=adapters,
        longest=llm.llm_engine.model_config.max_model_len - scenarios.NUM_TOKENS,
    )

    def begins(name: str | None) -> None:
        tell_progress(0.8, f"auditing: {name}" if name else "serving what an audit needs")
        steps.scenario = name

    left_out = scenarios.run(engine, names, begins)
    if failed := steps.failed:
        raise AuditError(failed[0])
    if not (made := steps.reports):
        raise AuditError(f"no step of this engine was audited: {steps.why_none()}")
    reports = [json.loads(without_places(report).to_json()) for report in made.values()]
    return {"reports": reports, "left_out": left_out + steps.left_out(), "apart": steps.apart()}


def main(spec: str) -> None:
    """Audit what the job in a file asks for, and report."""
    die_with_parent()
    stdout, job = claim_stdout(), read_job(Path(spec))
    tell_progress(0.05, "importing vLLM")
    with tempfile.TemporaryDirectory() as folder:
        if "model" in job.settings:
            told = audit_model(**job.settings)
        else:
            told = audit_variant(job.case, job.variant, Path(folder))
    tell_result(told, stdout)


# ---- records ----


class EngineAudited(Strict):
    """One engine: a case with a variant, or `vllm` with a model; a report for each size."""

    case: str
    variant: str
    reports: list[dict[str, Any]]
    left_out: tuple[str, ...] = ()  # scenarios that it does not support, and why
    apart: tuple[str, ...] = ()  # where its ranks have not picked the same key

    def read(self) -> list[AuditReport]:
        return [AuditReport.of(document) for document in self.reports]


class EngineAudits(Kept):
    """Engines audited by one command on one machine."""

    audits: list[EngineAudited]


def load(path: Path = FILE) -> EngineAudits:
    """Read recorded audits of the engine. RecordError: not there, damaged, or something else."""
    return EngineAudits.read(path, "audits of the engine", "make them with mrv2lab audit vllm")


if __name__ == "__main__":
    main(sys.argv[1])
