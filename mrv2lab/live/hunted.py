"""The process of a hunt that serves configurations one after another.

`python -m mrv2lab.live.hunted SPEC.json`. Each is an engine with graphs. It serves the same batches with
forced tokens: without graphs, without graphs and in halves, which tells how far logits differ by nature, and
with graphs both ways.
"""

import faulthandler
import gc
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator

from mrv2lab.errors import counted
from mrv2lab.live import models
from mrv2lab.live.engine import VOCAB_SIZE, Graphs, close, make_engine, requests, runner_of, without_graphs
from mrv2lab.live.hunt_models import adapter_factors, draw
from mrv2lab.live.loads import Watched
from mrv2lab.live.protocol import (
    await_turn,
    claim_stdout,
    die_with_parent,
    read_job,
    tell_progress,
    tell_result,
)
from mrv2lab.live.releases import installed
from mrv2lab.results import Document

LENGTHS = (3, 400, 17, 64, 130, 5, 33, 258, 100, 7, 48, 210)  # tokens of each request's prompt
NUM_TOKENS = (12, 5, 9, 14, 3, 12, 7, 10, 14, 4, 8, 11)  # that it is given
BATCHES = (1, 2, 3, 5, 8, 12)  # requests that are handed over at once: the first so many

ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True, "enable_prefix_caching": False, "seed": 0, "max_num_seqs": 16,
    "max_model_len": 1024, "gpu_memory_utilization": 0.04, "kv_cache_memory_bytes": 512 << 20,
}  # fmt: skip
"""Arguments of `vllm.LLM` where a configuration names no others: all that are not vLLM's own defaults, beside
model and graphs. Accounts and reports tell them."""

TIMES_NATURAL = 3
FLOOR = 2e-2
"""A relative error up to here is right, also where the engine without graphs is closer to itself: a graph
pads its batch, so that other kernels round at other places. Wrong is what exceeds both limits."""

FAR = 0.5
"""A row that is off by more is excused by its own natural difference alone, not by that of another row."""

LEAST = 0.5
"""Part of the decode steps that fit a captured size in which each way with graphs replays one, if right."""

DRAFTED = 0.1
"""With drafts, the part of the answers that may be in one pass only: a draft that is taken leaves no row of
its own, and async scheduling may draft beyond the last token. Without drafts it is none."""


Verdict = Literal["correct", "wrong", "eager", "failed", "hang", "left out"]
FOUND = ("wrong", "failed", "hang")
_Error = Annotated[float, Field(ge=0)] | None


class Outcome(Document):
    """What became of a configuration.

    Attributes:
        error: the largest relative error of a request's logits in a step, graphs against none; `usual` is the
            90th percentile. `natural` and `natural_usual`: the same of the engine without graphs against
            itself, its batches halved.
        graphs: the `cudagraph_mode` that the engine came to.
        replayed: of so many `steps` a graph was replayed in.
        first: the first step that was wrong; `begins_at_prompt`: there were prompts in it.
        message: the error line, if it did not serve.
        seen_again: it failed again in a process of its own.
        once: the error line of a first try, if that did not come again.
    """

    model: str
    mode: str
    feature: str
    release: str = ""
    verdict: Verdict
    error: _Error = None
    usual: _Error = None
    natural: _Error = None
    natural_usual: _Error = None
    graphs: str = ""
    replayed: int = Field(default=0, ge=0)
    steps: int = Field(default=0, ge=0)
    first: str = ""
    begins_at_prompt: bool = False
    seen_again: bool = False
    message: str = ""
    once: str = ""
    log_tail: tuple[str, ...] = ()
    audit: tuple[str, ...] = ()
    seconds: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        figures = (self.error, self.usual, self.natural, self.natural_usual)
        error, usual, natural, natural_usual = (inf if it is None else it for it in figures)
        within = error <= _limit(natural) and usual <= _limit(natural_usual)
        right = within and max(natural, natural_usual) < inf and self.replayed > 0
        right &= usual <= error and natural_usual <= natural and _limit(natural_usual) < 1 and not self.first
        odd = {"correct": not right, "wrong": within and error <= FAR, "eager": not within}
        is_odd = odd.get(self.verdict, self.error is not None)  # what was not judged has no figures
        if is_odd or self.replayed > self.steps or (self.verdict in odd) is bool(self.message):
            raise ValueError(f"verdict {self.verdict!r}, which figures, steps or message contradict")
        return self

    def __str__(self) -> str:
        said = self.message
        if self.error is not None:
            said = f"error {self.error:.3g}, natural {self.natural or 0:.3g}"
            said += f"; first at {self.first}" if self.first else ""
        said += f"; once: {self.once}" if self.once else ""
        return f"{self.model} {self.mode} {self.feature}: {self.verdict}; {said}"


class Key(NamedTuple):
    """Of which token's logits: serving another way leaves it the same."""

    batch: int
    request: int
    position: int


class Row(NamedTuple):
    """A request's logits in a step."""

    logits: torch.Tensor  # [vocab_size], float32 on the CPU
    step: int
    num_reqs: int  # in that step
    num_tokens: int
    replays: int  # of graphs


@dataclass
class Pass:
    """What one way to serve has answered."""

    rows: dict[Key, Row] = field(default_factory=dict)
    steps: list[int] = field(default_factory=list)  # of each, how many graphs were replayed


# ---- serving ----


@contextmanager
def forced(
    runner: Any, graphs: Graphs, seen: Pass, request_of: Callable[[str], tuple[int, int]]
) -> Iterator[None]:
    """Inside, the first row of each request in a step is kept, and every token is given by its position."""
    compute_logits = runner.model.compute_logits

    def instead(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        logits: torch.Tensor = compute_logits(hidden_states, *args, **kwargs)
        batch = sys._getframe(1).f_locals["input_batch"]  # of `GPUModelRunner.sample`
        positions = batch.positions[batch.logits_indices]  # [num_logits]
        kept, places = logits.float().cpu(), positions.tolist()
        for req_id, row in zip(batch.req_ids, batch.cu_num_logits_np[:-1].tolist(), strict=True):
            key = Key(*request_of(req_id), places[row])
            size = len(batch.req_ids), batch.num_tokens
            seen.rows[key] = Row(kept[row], len(seen.steps), *size, graphs.num_replays)
        seen.steps.append(graphs.num_replays)
        graphs.num_replays = 0
        tokens = 31 * (positions + 1) % VOCAB_SIZE
        return torch.full_like(logits, -1e4).scatter_(1, tokens[:, None], 1e4)

    runner.model.compute_logits = instead
    try:
        yield
    finally:
        del runner.model.compute_logits


def serve(llm: Any, graphs: Graphs, asked: dict[str, Any], *, eager: bool, halved: bool) -> Pass:
    """Serve every batch, or one half after the other, the last requests first."""
    from vllm import SamplingParams

    seen, runner, lengths = Pass(), runner_of(llm), asked.get("lengths", LENGTHS)
    adapters = asked.get("requests", [None])
    llm.reset_prefix_cache()
    for batch, number in enumerate(asked.get("batches", BATCHES)):
        half = number // 2
        parts = [range(half, number)[::-1], range(half)[::-1]] if halved else [range(number)]
        for part in filter(len, parts):
            params = [
                SamplingParams(
                    max_tokens=NUM_TOKENS[i % 12], temperature=0, ignore_eos=True, detokenize=False
                )
                for i in part
            ]
            first, graphs.num_replays = llm.request_counter.counter, 0
            request_of = partial(_request_of, batch=batch, part=part, first=first)
            off = without_graphs(runner, drafts=True) if eager else nullcontext()
            more = {"lora_request": [adapters[i % len(adapters)] for i in part]} if any(adapters) else {}
            with off, forced(runner, graphs, seen, request_of):
                llm.generate(requests([lengths[i] for i in part]), params, use_tqdm=False, **more)
    return seen


def _request_of(req_id: str, batch: int, part: Sequence[int], first: int) -> tuple[int, int]:
    """vLLM counts requests, and since 0.15 puts something random behind the number."""
    return batch, part[int(req_id.split("-")[0]) - first]


# ---- judging ----


def errors(ours: Pass, right: Pass) -> dict[Key, float]:
    """The relative error of each row that both have; what is no number has an infinite one."""
    both = [key for key in right.rows if key in ours.rows]
    pairs = [(ours.rows[key].logits, right.rows[key].logits) for key in both]
    found = [float((a - b).norm() / b.norm().clamp_min(1e-9)) for a, b in pairs]
    return {key: error if error == error else inf for key, error in zip(both, found, strict=True)}


def usual(found: dict[Key, float]) -> float:
    """The 90th percentile."""
    return sorted(found.values())[int(0.9 * (len(found) - 1))]


def judged(eager: Pass, halved: Pass, with_graphs: Sequence[Pass], asked: dict[str, Any]) -> dict[str, Any]:
    """Figures and verdict, as fields of an `Outcome`."""
    lengths = asked.get("lengths", LENGTHS)
    if any(eager.steps + halved.steps):
        return {"verdict": "left out", "message": "graphs are replayed also where none should be"}
    # A chunk of a prompt may end anywhere; from a prompt's end on there is a row for each token.
    every = [eager, halved, *with_graphs]
    answers, *others = [{k for k in seen.rows if k.position >= lengths[k.request] - 1} for seen in every]
    allowed = DRAFTED * len(answers) if "speculative_config" in asked.get("engine", ()) else 0
    odd = [max(len(answers - other), len(other - answers)) for other in others]
    if not answers or odd[0] > allowed:
        return {"verdict": "left out", "message": "without graphs, in halves, it answers at other positions"}
    if max(odd) > allowed:
        said = f"by graphs {counted(max(odd), 'answer')} too few or too many, for {len(answers)}"
        return {"verdict": "failed", "message": f"{said}, or at other positions"}
    natural = errors(halved, eager)
    found = [(errors(seen, eager), seen) for seen in with_graphs]
    if not max(natural.values()) < inf:
        return {"verdict": "left out", "message": "without graphs its logits are no numbers"}
    if not any(row.logits.any() for row in eager.rows.values()):
        return {"verdict": "left out", "message": "without graphs its logits are all zero"}
    if _limit(usual(natural)) >= 1:  # answers of zeros are off by one
        return {"verdict": "left out", "message": "without graphs it is too far from itself to tell"}
    figures = {"natural": max(natural.values()), "natural_usual": usual(natural)}
    figures["error"] = max(max(rows.values()) for rows, _ in found)
    figures["usual"] = max(usual(rows) for rows, _ in found)

    def limit(key: Key) -> float:
        return max(_limit(natural.get(key, 0)), min(_limit(figures["natural"]), FAR))

    is_beyond = any(error > limit(key) for rows, _ in found for key, error in rows.items())
    often = _limit(figures["natural_usual"])
    wrong = is_beyond or figures["usual"] > often
    sizes = asked.get("sizes") or [inf]
    has_graphs = all(_has_graphs(seen, lengths, max(sizes)) for seen in with_graphs)
    verdict: Verdict = "wrong" if wrong else "correct" if has_graphs else "eager"
    steps = [number for seen in with_graphs for number in seen.steps]
    told = {"verdict": verdict, "replayed": sum(map(bool, steps)), "steps": len(steps)}
    return told | figures | (_first(found, limit if is_beyond else lambda key: often) if wrong else {})


def _limit(natural: float) -> float:
    return max(FLOOR, TIMES_NATURAL * natural)


def _has_graphs(seen: Pass, lengths: Sequence[int], size: float) -> bool:
    """They are replayed in enough of the steps that have no prompt and fit a captured size, and at all."""
    prompts = {row.step for key, row in seen.rows.items() if key.position < lengths[key.request]}
    fit = {row.step for row in seen.rows.values() if row.num_tokens <= size} - prompts
    return any(seen.steps) and sum(seen.steps[step] > 0 for step in fit) >= LEAST * len(fit)


def _first(found: Sequence[tuple[dict[Key, float], Pass]], limit: Callable[[Key], float]) -> dict[str, Any]:
    """The first step of which a request exceeds the limit: later ones read what it has left behind."""
    every = [([key for key, error in rows.items() if error > limit(key)], rows, seen) for rows, seen in found]
    beyond, rows, seen = next(each for each in every if each[0])
    key = min(beyond, key=lambda key: seen.rows[key].step)
    row = seen.rows[key]
    many = sum(seen.rows[other].step == row.step for other in beyond)
    place = f"step {row.step}, {counted(row.num_reqs, 'request')}, {counted(row.num_tokens, 'token')}"
    told = f"{many} wrong, request {key.request} at position {key.position} by {rows[key]:.3g}"
    told = f"{place}, {counted(row.replays, 'graph')}: {told}"
    return {"first": told, "begins_at_prompt": row.num_tokens > row.num_reqs}


# ---- one configuration ----


def start(asked: dict[str, Any], folder: Path) -> Any:
    """Its engine; adapters for its requests go into `asked`."""
    model = asked.get("folder") or str(folder / "model")
    options = dict(ENGINE)
    if "folder" not in asked:
        from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

        models.write_config(folder / "model", asked["config"])
        DummyModelLoader.load_weights = lambda self, model, model_config: draw(model)
        options["load_format"] = "dummy"
    if asked["adapters"]:
        from vllm.lora.request import LoRARequest

        names = [str(folder / f"adapter-{n}") for n in range(1, asked["adapters"] + 1)]
        for n, name in enumerate(names, 1):
            models.write_adapter(Path(name), Path(model), adapter_factors(asked["config"], n))
        asked["requests"] = [*(LoRARequest(name, n, name) for n, name in enumerate(names, 1)), None]
    options |= {"compilation_mode": asked["compilation"]} | asked["engine"]
    return make_engine(model, asked["graphs"], asked["sizes"], **options)


def settle(asked: dict[str, Any], graphs: Graphs) -> Outcome:
    """Start, serve, judge, keep, and end. What the engine raises is the outcome's message."""
    begin, told, llm = time.perf_counter(), dict[str, Any](), None
    faulthandler.dump_traceback_later(asked["timeout_s"], exit=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            llm = start(asked, Path(folder))
            told |= observed(llm, graphs, asked)
        except Exception as error:
            traceback.print_exc()
            told |= _raised(error, llm is None)
        told |= {"release": installed(), "seconds": round(time.perf_counter() - begin, 1)}
        found = Outcome(**asked["labels"], **told)
        found.save(Path(asked["file"]))  # whatever becomes of the engine now
        with suppress(Exception):
            _end(llm, graphs)
    faulthandler.cancel_dump_traceback_later()
    return found


def _end(llm: Any, graphs: Graphs) -> None:
    """Leave nothing of an engine, or of one that did not start, to the next one of this process."""
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.platforms import current_platform

    # Another pool: torch begins no capture in one of which memory is held, but no graph any more.
    type(current_platform)._global_graph_pool = None
    close(llm, graphs) if llm is not None else cleanup_dist_env_and_memory()


def observed(llm: Any, graphs: Graphs, asked: dict[str, Any]) -> dict[str, Any]:
    """Fields of an `Outcome`."""
    if (manager := getattr(runner_of(llm), "cudagraph_manager", None)) is None:
        return {"verdict": "left out", "message": "it takes another runner than Model Runner V2"}
    ways = [(True, False), (True, True), (False, False), (False, True)]
    eager, halved, *rest = [serve(llm, graphs, asked, eager=e, halved=h) for e, h in ways]
    return {"graphs": manager.cudagraph_mode.name} | judged(eager, halved, rest, asked)


def _raised(error: Exception, starting: bool) -> dict[str, Any]:
    """A failure, unless the engine did not come to capture or serve: then it is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    served = not starting or any(frame.name == "capture_model" for frame in frames)
    places = [f"{short(frame.filename)}:{frame.lineno} in {frame.name}" for frame in frames[-3:]]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # pydantic's own first line says nothing
    said = next((line for line in lines if "error" in line.lower() and " validation error" not in line), "")
    message = f"{type(error).__name__}: {said or next(iter(lines), '')}"[:400]
    verdict = "failed" if served else "left out"
    return {"verdict": verdict, "message": f"{message} ({places[-1]})", "log_tail": places}


def short(file: str) -> str:
    """A path inside vLLM, or the last two names of another."""
    return "vllm/" + file.split("/vllm/")[-1] if "/vllm/" in file else "/".join(file.split("/")[-2:])


def audit(asked: dict[str, Any]) -> list[str]:
    """The first report of each cause that the audit finds in this engine."""
    from mrv2lab.audit import AuditReport
    from mrv2lab.live.audit import attached
    from mrv2lab.live.audited import _serve

    with tempfile.TemporaryDirectory() as folder, attached() as steps:
        llm = start(asked, Path(folder))
        adapters = list(filter(None, asked.get("requests", ())))
        names = ["lengths", "adapters"] if adapters else ["lengths", "shrinking", "prefill"]
        reports = [AuditReport.of(document) for document in _serve(llm, steps, adapters, names)["reports"]]
    causes = {(report.findings[0].kind, report.findings[0].subject): report for report in reversed(reports)
              if report.findings}  # fmt: skip
    found = [line for report in reversed(causes.values()) for line in str(report).splitlines()]
    return found[:60] or [f"nothing found in {len(reports)} steps"]


def main(spec: str) -> None:
    """Serve what the job in a file asks for, each outcome into a file of its own."""
    die_with_parent()
    stdout, job = claim_stdout(), read_job(Path(spec))
    tell_progress(0.05, "importing vLLM")
    if job.settings["audits"]:
        tell_result({"audit": audit(job.settings["asked"][0])}, stdout)
        return
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    watched = Watched()
    watched.watch(GPUModelRunner)
    await_turn()
    for asked in job.settings["asked"]:
        found = settle(asked, watched.graphs)
        gc.collect()
        tell_progress(0.9, found.model_copy(update={"log_tail": ()}).model_dump_json())
        if re.search("CUDA|Triton|memory", found.message) or torch.distributed.is_initialized():
            break  # what such an engine leaves behind would be held against the next one
    tell_result({"done": True}, stdout)


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # an engine that crashes as its process ends says nothing of the next configuration
