"""The process of one audit of the engine: `python -m mrv2lab.live.audit_worker SPEC.json`."""

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from mrv2lab.audit import AuditReport, Finding
from mrv2lab.live import lora, mla
from mrv2lab.live.audit import Steps, attached
from mrv2lab.live.engine import requests
from mrv2lab.live.protocol import claim_stdout, die_with_parent, read_job, tell_progress, tell_result
from mrv2lab.upstream.probes.breakable_graph import UNROUTED
from mrv2lab.upstream.probes.flashmla_lazy_init import ONE_STATE
from mrv2lab.upstream.probes.lora_short_circuit import WITHOUT_FLAGS
from mrv2lab.upstream.releases import TARGET
from mrv2lab.upstream.unfix import Edit, unfix


@dataclass(frozen=True)
class Audited:
    """An engine that can be audited.

    Attributes:
        start: starts it over files in a folder; returns it, and with what adapter it is to be asked.
    """

    start: Callable[[Path], tuple[Any, Any]]
    edits: tuple[Edit, ...] = ()  # what is taken out of vLLM for it
    env: dict[str, str] = field(default_factory=dict)  # what its process must find in its environment


def _start_mla(folder: Path, cudagraph_mode: str = "FULL", **options: Any) -> tuple[Any, Any]:
    return mla.start(folder, cudagraph_mode, **options), None


def _start_plain(folder: Path) -> tuple[Any, Any]:
    return mla.start_plain(folder), None


_start_piecewise = partial(_start_mla, cudagraph_mode="PIECEWISE")

AUDITED: dict[str, dict[str, Audited]] = {
    "lora_short_circuit": {
        "zero_mapping": Audited(lora.start, (WITHOUT_FLAGS,)),
        "forced_launch": Audited(lora.start),
    },
    "breakable_graph": {
        "unrouted": Audited(_start_piecewise, (UNROUTED,), mla.BREAKABLE),
        "whole_graph": Audited(_start_plain, env=mla.BREAKABLE),
        "breakable": Audited(_start_piecewise, env=mla.BREAKABLE),
    },
    "flashmla_lazy_init": {
        "shared_state": Audited(_start_mla, (ONE_STATE,)),
        "state_pair": Audited(_start_mla),
    },
}

NUM_TOKENS = 4
PROMPT_LENGTHS = (5, 130, 700, 1400)


def audit_variant(case: str, variant: str, folder: Path) -> list[AuditReport]:
    """Audit the engine that a case starts on the rung `vllm`."""
    audited = AUDITED[case][variant]
    with ExitStack() as stack:
        steps = stack.enter_context(attached())
        if audited.edits:
            stack.enter_context(unfix(*audited.edits, versions=f"=={TARGET}"))
        llm, lora_request = audited.start(folder)
        return _serve(llm, steps, lora_request)


def audit_model(model: str, adapter: str | None, options: dict[str, Any]) -> list[AuditReport]:
    """Audit the engine of a checkpoint.

    Args:
        adapter: folder of a PEFT adapter that every request is served with.
        options: arguments of `vllm.LLM` beside the model. Graphs are FULL and nothing is compiled, unless
            `compilation_config` says otherwise; of compiled code an audit sees nothing. The KV cache, which
            is copied before and after each pass, has 1 GiB, and sequences are as long as fits in.
    """
    with attached() as steps:
        from vllm import LLM

        compilation = {"mode": 0, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": [1, 2, 4]}
        defaults: dict[str, Any] = {"compilation_config": compilation, "skip_tokenizer_init": True}
        defaults |= {"kv_cache_memory_bytes": 1 << 30, "max_model_len": -1}
        defaults |= {"enable_lora": True} if adapter else {}
        llm = LLM(model=model, **defaults | options)
        return _serve(llm, steps, lora.adapter_request(Path(adapter)) if adapter else None)


def _serve(llm: Any, steps: Steps, lora_request: Any) -> list[AuditReport]:
    from vllm import SamplingParams

    tell_progress(0.8, "auditing")
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    steps.is_serving = True
    longest = llm.llm_engine.model_config.max_model_len - NUM_TOKENS
    for num_reqs in steps.sizes():
        lengths = [min(PROMPT_LENGTHS[i % len(PROMPT_LENGTHS)], longest) for i in range(num_reqs)]
        llm.generate(requests(lengths), params, use_tqdm=False, lora_request=lora_request)
    return [without_places(report) for report in steps.reports.values()]


def without_places(report: AuditReport) -> AuditReport:
    """The report with paths that begin at the package, not at where it is installed."""

    def short(finding: Finding) -> Finding:
        if finding.where is None or "/vllm/" not in finding.where.file:
            return finding
        inside = "vllm/" + finding.where.file.split("/vllm/", 1)[1]
        return replace(finding, where=replace(finding.where, file=inside))

    return replace(report, findings=tuple(map(short, report.findings)))


def main(spec: str) -> None:
    """Audit what the job in a file asks for, and report."""
    die_with_parent()
    stdout, job = claim_stdout(), read_job(Path(spec))
    tell_progress(0.05, "importing vLLM")
    with tempfile.TemporaryDirectory() as folder:
        if "model" in job.settings:
            settings = job.settings
            reports = audit_model(settings["model"], settings["adapter"], settings["options"])
        else:
            reports = audit_variant(job.case, job.variant, Path(folder))
    tell_result({"reports": [json.loads(report.to_json()) for report in reports]}, stdout)


if __name__ == "__main__":
    main(sys.argv[1])
