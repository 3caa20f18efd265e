"""Asks Model Runner V2 of a release of vLLM which graph a batch is given, and what would give it more of one.

`python -m mrv2lab.upstream.dispatch VERSION QUESTION RESULTS`, started by `process`. Configs, capture sizes,
mode, graph manager and answers are the release's own; no graph is captured, the manager is told that all are.
Why a batch gets no more is found by experiment: one thing is changed, and dispatch is asked again.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from enum import Enum
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from mrv2lab.errors import BadInput, choose
from mrv2lab.results import Document, Strict
from mrv2lab.upstream import child, process
from mrv2lab.upstream.model_runner import Setup, cudagraph_mode, known, make_manager, make_model_config


class Question(Strict):
    """What is served, as vLLM's configs name it. None: what the release takes by itself."""

    cudagraph_mode: str = "FULL_AND_PIECEWISE"
    capture_sizes: tuple[int, ...] | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int | None = None  # no capture size is larger
    num_speculative_tokens: int = 0
    max_loras: int = 0
    specialize_active_lora: bool = False
    attention_support: str = "ALWAYS"  # of `AttentionCGSupport`
    batches: tuple[tuple[int, int], ...] | None = None  # requests and tokens; None: as `_usual`

    @property
    def decode_query_len(self) -> int:
        return 1 + self.num_speculative_tokens


class Row(Strict):
    """A batch, and the graph that it is given."""

    batch: Literal["decode", "mixed"]
    num_reqs: int
    num_tokens: int
    num_active_loras: int
    mode: str  # at run time: FULL, PIECEWISE or NONE, which is eager
    padded_tokens: int
    padded_reqs: int | None  # None: requests are not padded
    key: dict[str, int | str | None]  # the release's descriptor
    more: tuple[str, ...]  # changes, each alone, with which it would run as more of a graph


class Dispatched(Document):
    """What a release answers."""

    release: str
    asked: Question
    mode: str  # that it makes of the one that was asked for
    said: tuple[str, ...]  # warnings of the release about that
    capture_sizes: tuple[int, ...]
    max_num_batched_tokens: int
    knows_loras: bool  # whether dispatch is told how many adapters a batch has
    batches: tuple[Row, ...]


def ask(release: str, question: Question) -> Dispatched:
    """Ask in a process of its own. BadInput: the release refuses, or as `process.lines`."""
    (line,) = process.lines("dispatch", release, question.model_dump_json(), what="dispatch")
    if "refused" in line:
        raise BadInput(f"vllm {release}: {line['refused']}")
    return Dispatched.model_validate(line)


# ---- in the process of a release ----


class _Engine(NamedTuple):
    manager: Any
    mode: Any
    said: tuple[str, ...]
    sizes: tuple[int, ...]
    max_num_batched_tokens: int

    def dispatch(self, batch: "_Batch") -> Any:
        """The release's descriptor."""
        ask = self.manager.dispatch
        told = known(ask, num_active_loras=batch.num_active_loras, max_query_len=batch.max_query_len)
        return ask(batch.num_reqs, batch.num_tokens, batch.uniform_token_count, **told)


class _Batch(NamedTuple):
    num_reqs: int
    num_tokens: int
    decode_query_len: int
    num_active_loras: int = 0

    @property
    def is_decode(self) -> bool:
        return self.num_tokens == self.num_reqs * self.decode_query_len

    @property
    def max_query_len(self) -> int:
        """Of a mixed batch all requests but one have one token."""
        return self.decode_query_len if self.is_decode else self.num_tokens - self.num_reqs + 1

    @property
    def uniform_token_count(self) -> Any:
        """The release's own answer. Before 0.28 it looks at lengths alone, so that a prefill may be a decode.
        Since then none may; since 0.31 one with a single new token over context may, which is not asked here.
        """
        counted = self.num_reqs, self.num_tokens, self.max_query_len
        utils = import_module("vllm.v1.worker.gpu.cudagraph_utils")
        if hasattr(utils, "get_uniform_token_count"):
            return utils.get_uniform_token_count(*counted)
        ask = import_module("vllm.v1.worker.utils").get_uniform_decode_token_count
        told = known(ask, decode_graph_eligible=self.is_decode, has_prefill=not self.is_decode)
        return ask(*counted, **told)


def _engine(question: Question) -> _Engine:
    """Configs and a manager as the release makes them."""
    config, query_len = import_module("vllm.config"), question.decode_query_len
    made = config.VllmConfig(device_config=config.DeviceConfig(device="cpu"))
    made.scheduler_config.max_num_seqs = question.max_num_seqs
    if question.max_num_batched_tokens:
        made.scheduler_config.max_num_batched_tokens = question.max_num_batched_tokens
    made.model_config = make_model_config(enforce_eager=False)
    if number := question.num_speculative_tokens:  # of the config only this is read; ngram needs no model
        drafts = config.SpeculativeConfig(method="ngram", prompt_lookup_max=1, num_speculative_tokens=number)
        made.speculative_config = drafts
    if question.max_loras:
        names = ("max_loras", "specialize_active_lora")
        made.lora_config = config.LoRAConfig(**{name: getattr(question, name) for name in names})
    support = import_module("vllm.v1.attention.backend").AttentionCGSupport
    compilation = made.compilation_config
    compilation.cudagraph_mode = cudagraph_mode(_named(config.CUDAGraphMode, question.cudagraph_mode))
    compilation.cudagraph_capture_sizes = question.capture_sizes and list(question.capture_sizes)
    with _heard() as said:
        made._set_cudagraph_sizes()
        resolve = compilation.resolve_cudagraph_mode_and_sizes
        level = support[_named(support, question.attention_support)]
        mode = resolve(level, "attention", query_len, **known(resolve, use_v2_model_runner=True))
    setup = Setup(mode.name, (), question.max_num_seqs, query_len)
    runner = SimpleNamespace(vllm_config=made, lora_config=made.lora_config)
    utils = import_module("vllm.v1.worker.gpu.cudagraph_utils")
    manager = make_manager(utils.CudaGraphManager, runner, setup)
    manager._graphs_captured = True
    sizes, most = compilation.cudagraph_capture_sizes or (), made.scheduler_config.max_num_batched_tokens
    return _Engine(manager, mode, tuple(said), tuple(sizes), most)


def _named(kind: type[Enum], name: str) -> str:
    return choose(kind.__name__, name, [member.name for member in kind])


@contextmanager
def _heard() -> Iterator[list[str]]:
    """What vLLM warns of meanwhile."""
    logger, said = logging.getLogger("vllm"), list[str]()
    handler, level = logging.Handler(logging.WARNING), logger.level
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def answer(release: str, question: Question) -> Dispatched:
    """Dispatch all batches. Raises what the release raises of what it does not take."""
    engine, query_len = _engine(question), question.decode_query_len
    knows_loras = bool(known(engine.manager.dispatch, num_active_loras=0))
    shapes = question.batches or _usual(question, engine.sizes)
    loras = range(question.max_loras + 1 if knows_loras else 1)
    numbered = ((shape, number) for number in loras for shape in shapes if number <= shape[0])
    batches = [_Batch(*shape, query_len, number) for shape, number in numbered]
    others = _changed(question, engine, batches)
    return Dispatched(
        release=release, asked=question, mode=engine.mode.name, said=engine.said, capture_sizes=engine.sizes,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        knows_loras=knows_loras, batches=tuple(_row(engine, others, batch) for batch in batches),
    )  # fmt: skip


def _usual(question: Question, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """Every decode with all drafts, then a prefill, beside another request where there may be two, until one
    token too many.
    """
    query_len, num_reqs = question.decode_query_len, min(2, question.max_num_seqs)
    decodes = [(number, number * query_len) for number in range(1, question.max_num_seqs + 1)]
    mixed = [(num_reqs, num_tokens) for num_tokens in range(num_reqs + 1, max(sizes, default=2) + 2)]
    return decodes + [shape for shape in mixed if shape[1] != num_reqs * query_len]


def _changed(question: Question, engine: _Engine, batches: list[_Batch]) -> dict[str, _Engine]:
    """The same engine with one thing changed, by what that is. What the release refuses is left out."""
    sizes = engine.sizes or question.capture_sizes or ()  # as they are: by default they hang on the rest
    own = tuple(sorted({*sizes, *(batch.num_tokens for batch in batches)}))
    changes: dict[str, dict[str, Any]] = {"a capture size of its own": {"capture_sizes": own}}
    if (more := max((*(batch.num_reqs for batch in batches), *sizes))) > question.max_num_seqs:
        changes[f"max_num_seqs {more}"] = {"max_num_seqs": more}
    modes = [mode.name for mode in type(engine.mode) if mode.name != question.cudagraph_mode]
    changes |= {f"cudagraph_mode {name}": {"cudagraph_mode": name} for name in modes}
    changes["attention support ALWAYS"] = {"attention_support": "ALWAYS"}
    found = {}
    for what, change in changes.items():
        with suppress(ValueError, AssertionError):
            found[what] = _engine(question.model_copy(update={"capture_sizes": sizes or None} | change))
    return found


def _row(engine: _Engine, others: dict[str, _Engine], batch: _Batch) -> Row:
    given = engine.dispatch(batch)
    tried = [(f"with {what}", other.dispatch(batch)) for what, other in others.items()]
    if batch.num_active_loras:
        tried.append(("without adapters", engine.dispatch(batch._replace(num_active_loras=0))))
    if not batch.is_decode:
        num_reqs = -(-batch.num_tokens // batch.decode_query_len)
        decode = batch._replace(num_reqs=num_reqs, num_tokens=num_reqs * batch.decode_query_len)
        tried.append(("as uniform decodes", engine.dispatch(decode)))
    better = [(how, desc.cg_mode) for how, desc in tried if desc.cg_mode.value > given.cg_mode.value]
    return Row(
        batch="decode" if batch.is_decode else "mixed",
        num_reqs=batch.num_reqs, num_tokens=batch.num_tokens, num_active_loras=batch.num_active_loras,
        mode=given.cg_mode.name, padded_tokens=given.num_tokens, padded_reqs=given.num_reqs,
        key={name: getattr(value, "name", value) for name, value in asdict(given).items()},
        more=tuple(f"{mode.name} {how}" for how, mode in better),
    )  # fmt: skip


def _answered(version: str, asked: str) -> list[str]:
    """The answer, or why there is none, as a line of JSON."""
    try:
        return [answer(version, Question.model_validate_json(asked)).model_dump_json()]
    except (BadInput, ValueError, AssertionError) as error:
        why, _, _ = " ".join(str(error).split()).partition(" [type=")  # behind it pydantic talks of itself
        return [json.dumps({"refused": why or type(error).__name__})]


if __name__ == "__main__":
    child.main(_answered)
