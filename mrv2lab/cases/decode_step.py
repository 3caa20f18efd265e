"""How cases are audited: a runner makes itself ready and serves a decode step, beside an eager pass of it."""

from collections.abc import Callable
from typing import Any

import torch

from mrv2lab import audit
from mrv2lab.cases.base import Variant
from mrv2lab.cases.workload import forced
from mrv2lab.runner import CUDAGraphMode, Engine, ModelRunner, Request
from mrv2lab.runner.scheduler import SchedulerOutput

NUM_PREFILLED = 3  # decode steps that are served before the audited one, so that lengths are not the dummy's


def requests(batch_size: int, seed: int, *, adapters: bool) -> list[Request]:
    """Prompts of unequal length, some longer than a page; adapters 1, 2, none, 3. All tokens are forced."""
    generator, lora_ids = torch.Generator().manual_seed(seed), (1, 2, 0, 3) if adapters else (0,) * 4
    lengths = [(6, 13, 20, 11)[(i + seed) % 4] for i in range(batch_size)]
    return [
        forced(generator, f"audited-{i}", length, NUM_PREFILLED + 2, lora_ids[i % 4])
        for i, length in enumerate(lengths)
    ]


def audit_decode_step(
    runner: ModelRunner,
    variant: Variant,
    shape: dict[str, int],
    seed: int,
    *,
    adapters: bool = False,
    of_draft: bool = False,  # of the speculator, behind a step of the target
) -> audit.AuditReport:
    """Audit the graphs that a runner captures, on a decode step of a full batch. The eager pass gets the
    metadata that a capture in the same mode gets: under FULL graphs the worst case.
    """
    step = (_DraftStep if of_draft else DecodeStep)(runner, shape["batch_size"], seed, adapters)
    name, capture = f"{step.name}, {variant.name}", runner.warm_up_and_capture
    return step.audit(name, capture, replays=variant.uses_graphs)


class DecodeStep:
    """One decode step, ready to be run both ways: as the runner runs it, and without a graph."""

    name = "ModelRunner.run_model"

    def __init__(self, runner: ModelRunner, batch_size: int, seed: int, adapters: bool):
        self.runner, self.batch_size, self.seed, self.adapters = runner, batch_size, seed, adapters
        self.model: Any = runner.model

    def audit(self, name: str, capture: Callable[[], Any], **options: Any) -> audit.AuditReport:
        """Audit it under a name, with the graphs that `capture` makes; `options` as of `audit.Engine`."""
        engine = audit.Engine(
            name=name, capture=capture, vary=self.prepare, run=self.run, eager=self.eager,
            anchor=type(self.model).forward, roots={"runner": self.runner}, **options,
        )  # fmt: skip
        return audit.audit_engine(engine, backend=self.runner.backend)

    @torch.inference_mode()
    def prepare(self) -> None:
        """Serve all steps before it, then write its inputs into the buffers."""
        scheduler_output = self._scheduled()
        self.desc = self.runner.dispatch(scheduler_output)
        self.batch = self.runner.prepare_inputs(scheduler_output, self.desc)
        self.received = self.runner.receive(self.desc.num_tokens)

    def _scheduled(self) -> SchedulerOutput:
        """What the scheduler asks for behind prefill and a few tokens."""
        engine = Engine(self.runner)
        for request in requests(self.batch_size, self.seed, adapters=self.adapters):
            engine.add_request(request)
        for _ in range(NUM_PREFILLED):
            engine.step()
        return engine.scheduler.schedule()

    @torch.inference_mode()
    def run(self) -> Any:
        self.runner.run_model(self.desc, self.batch, self.received)
        return self._result()

    @torch.inference_mode()
    def eager(self) -> Any:
        is_full = self.desc.cg_mode is CUDAGraphMode.FULL
        attn_metadata = self.runner.prepare_attn(self.batch, for_capture=is_full)
        self.runner._forward(self.batch, attn_metadata, CUDAGraphMode.NONE, self.received)
        return self._result()

    def _result(self) -> torch.Tensor:
        """The rows of requests; rows of padding hold whatever they hold."""
        return self.runner.hidden_states[: self.batch.num_reqs]


class _DraftStep(DecodeStep):
    """The speculator's step, behind one of the target."""

    name = "Speculator.run_model"

    def __init__(self, runner: ModelRunner, *args: Any):
        super().__init__(runner, *args)
        assert runner.speculator is not None
        self.speculator, self.model = runner.speculator, runner.speculator.model

    @torch.inference_mode()
    def prepare(self) -> None:
        super().prepare()
        self.runner.run_model(self.desc, self.batch, self.received)
        self.speculator.input_ids.fill_(1)
        is_full = self.desc.cg_mode is CUDAGraphMode.FULL
        self.attn_metadata = self.runner.prepare_attn(self.batch)
        self.eager_metadata = self.runner.prepare_attn(self.batch, for_capture=is_full)

    @torch.inference_mode()
    def run(self) -> Any:
        self.speculator.run_model(self.desc, self.attn_metadata)
        return self._result()

    @torch.inference_mode()
    def eager(self) -> Any:
        self.speculator._prefill(self.desc.num_tokens, self.eager_metadata, CUDAGraphMode.NONE)
        return self._result()

    def _result(self) -> torch.Tensor:
        return self.speculator.hidden_states[: self.batch.num_reqs]
