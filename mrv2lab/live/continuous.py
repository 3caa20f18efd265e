"""Audits of what transformers' continuous batching captures, inside the process that serves.

Its `ModelRunner` (`generation/continuous_batching/model_runner.py` of transformers 5.17.0 and 5.23.0) makes a
graph of a batch's forward pass and sampling, in a warm-up or when the first batch of a size comes. Batches of
that size replay it: the first of these is run both ways here before it is served.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import cycle, islice
from typing import Any
from unittest.mock import patch

import torch

from mrv2lab.audit import AuditReport, Engine, EngineAudit
from mrv2lab.audit.passes import nothing
from mrv2lab.errors import AuditError, BadInput
from mrv2lab.graphs.foreign import observable_graphs
from mrv2lab.live.audited import values_of
from mrv2lab.live.v2 import Repeated, lacking

RUNNER = "transformers.generation.continuous_batching.model_runner"
READ = {
    "compute_batch": {"model", "batch_data", "graph"},
    "_capture_graph": {"forward_fn", "compute_stream", "graph"},
    "_get_forward_fn": {"use_block_table"},
    "_forward_process_and_sample": {"output_ids"},
}
"""Methods of its `ModelRunner`, and their local variables, without which nothing is audited."""
PROMPT_LENGTHS = (5, 130, 33, 300, 64, 17, 200, 90)  # tokens
BATCHES = (1, 2, 4, 8)  # requests that are handed over at once
NUM_TOKENS = 4  # that each request is given
ROUNDS = 2  # of each batch: in the first its sizes are captured


@dataclass
class Batches:
    """The batches of a process, of which the first replay of each graph is audited.

    Attributes:
        reports: one of each graph that was replayed.
        failed: why graphs could not be audited.
    """

    backend: str = "cuda"
    reports: list[AuditReport] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _captured: dict[int, tuple[Any, EngineAudit]] = field(default_factory=dict)  # by graph, not replayed yet

    @property
    def num_left(self) -> int:
        """Graphs that nobody has replayed, so that nothing is known of them."""
        return len(self._captured)

    def capture_graph(self, original: Callable[..., None]) -> Callable[..., None]:
        """`_capture_graph`, watched."""

        @wraps(original)
        def capture_graph(runner: Any, forward_fn: Callable[..., None], stream: Any, *args: Any) -> None:
            capture = partial(original, runner, forward_fn, stream, *args)
            ended: list[Exception | None] = []  # how the runner's own capture did

            def watched() -> None:
                try:
                    capture()
                    ended.append(None)
                except Exception as error:
                    if not type(error).__module__.startswith("mrv2lab"):  # no audit's, which stops it
                        ended.append(error)
                    raise

            try:
                audit = EngineAudit(_engine(runner, "capture", watched), backend=self.backend)
                audit.capture()
            except Exception as error:
                if ended and ended[0] is not None:
                    raise ended[0] from None  # as without an audit
                self.failed.append(f"a capture: {error}")
                if not ended:
                    capture()
                return
            graph = runner.inputs_and_outputs.get_graph()
            self._captured[id(graph)] = graph, audit

        return capture_graph

    def compute_batch(self, original: Callable[..., None]) -> Callable[..., None]:
        """`compute_batch`, of which the first replay of each graph is audited."""

        @wraps(original)
        def compute_batch(runner: Any, model: Any, batch_data: dict[str, Any]) -> None:
            buffers = runner.inputs_and_outputs
            _, replays = runner._get_forward_fn(use_block_table=buffers.use_block_table)
            if replays and (graph := buffers.get_graph()) is not None:
                _, audit = self._captured.pop(id(graph), (None, None))
                if audit is not None:
                    self._audit(audit, runner, model, batch_data, graph)
            original(runner, model, batch_data)

        return compute_batch

    def _audit(
        self, audit: EngineAudit, runner: Any, model: Any, batch_data: dict[str, Any], graph: Any
    ) -> None:
        name = type(model).__name__
        try:
            buffers, given = runner.inputs_and_outputs, dict(batch_data)
            name += f", {given['input_ids'].numel()} tokens"
            name += "" if buffers.use_block_table else f", {given['read_index'][0].numel()} read"
            if runner.supports_logits_to_keep(model):
                given["logits_to_keep"] = given["logits_indices"]
            forward_fn, _ = runner._get_forward_fn(use_block_table=buffers.use_block_table)
            args = buffers.get_cb_kwargs()
            made, repeated = _made(buffers, args[-1]), Repeated(model)

            def run() -> Any:
                graph.replay()
                return made

            def eager() -> Any:
                forward_fn(model, dict(given), *args)
                return made

            engine = _engine(runner, name, nothing, run, eager, repeated.put_back)
            with _on(buffers.compute_stream):
                try:
                    self.reports.append(audit.step(engine))
                finally:
                    repeated.put_back()
        except Exception as error:  # the batch is served all the same
            self.failed.append(f"{name}: {error}")


def _made(buffers: Any, output_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """What is read of a batch: tokens, and log-probabilities where they are asked for, with their bits in a
    row of integers. Behind the requests that are real there is padding."""
    pairs = getattr(buffers, "io_pairs", None)  # of async batching
    io = buffers if pairs is None else pairs[buffers.current_pair].device_io
    made = dict(zip(("tokens", "logprobs"), output_ids[:, : io.num_request_in_batch], strict=False))
    return {name: row if name == "tokens" else row.view(torch.float32) for name, row in made.items()}


def _engine(
    runner: Any, name: str, capture: Any, run: Any = nothing, eager: Any = nothing, fresh: Any = nothing
) -> Engine:
    anchor, roots = type(runner)._forward_process_and_sample, {"runner": runner}
    return Engine(name, capture, run, eager, anchor=anchor, roots=roots, is_padded=True, fresh=fresh)


@contextmanager
def _on(stream: Any) -> Iterator[None]:
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


@contextmanager
def attached(backend: str = "cuda") -> Iterator[Batches]:
    """Batches that are served inside are audited.

    Raises:
        BadInput: transformers is not there, or this release cannot be read.
    """
    try:
        from importlib import import_module

        runner = import_module(RUNNER).ModelRunner
    except (ImportError, AttributeError) as error:
        raise BadInput(f"continuous batching of transformers is not here: {error}") from error
    if lost := lacking(runner, READ):
        raise BadInput(f"continuous batching of this transformers has no {lost}, which an audit reads")
    batches = Batches(backend)
    with observable_graphs(), ExitStack() as stack:
        for name, watched in (
            ("_capture_graph", batches.capture_graph),
            ("compute_batch", batches.compute_batch),
        ):
            stack.enter_context(patch.object(runner, name, watched(getattr(runner, name))))
        yield batches


def audit_checkpoint(folder: str, options: Sequence[str] = (), attention: str = "sdpa") -> Batches:
    """Serve prompts of several lengths with a checkpoint on a GPU, each batch twice, and audit the replays.

    Args:
        folder: of the checkpoint.
        options: `name=value`, of `ContinuousBatchingConfig`.
        attention: an attention implementation of transformers.

    Raises:
        BadInput: transformers is not there, or an option is none of its own.
        AuditError: no graph was replayed.
    """
    given = {"use_cuda_graph": True, "max_memory_percent": 0.1} | values_of(
        options, "ContinuousBatchingConfig"
    )
    with attached() as batches:
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

        if "auto_switch_to_flash" in ContinuousBatchingConfig.__dataclass_fields__:  # of later releases
            given = {"auto_switch_to_flash": False} | given
        try:
            config = ContinuousBatchingConfig(**given)
        except TypeError as error:
            raise BadInput(f"no option of ContinuousBatchingConfig: {error}") from error
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation=attention)
        model = model.to("cuda").eval()
        tokens = GenerationConfig(max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=-1)
        for number in BATCHES:
            for turn in range(ROUNDS):
                prompts = _prompts(number, turn, model.config.vocab_size)
                model.generate_batch(
                    prompts,
                    generation_config=tokens,
                    continuous_batching_config=config,
                    persistent_manager=True,
                )
    if not batches.reports and not batches.failed:
        raise AuditError(
            "no graph was replayed: is use_cuda_graph off, or did each batch have a size of its own?"
        )
    return batches


def _prompts(number: int, turn: int, vocab_size: int) -> list[list[int]]:
    drawn = torch.Generator().manual_seed(turn)
    lengths = islice(cycle(PROMPT_LENGTHS), number)
    return [torch.randint(3, vocab_size, (length,), generator=drawn).tolist() for length in lengths]
