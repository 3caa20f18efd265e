"""The exercise of `pp_eager_fallback`: an address that stays, in every stage that receives."""

import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab import prose
from mrv2lab.cases.exercises.base import Exercise, Observed
from mrv2lab.cases.exercises.watch import Trouble, Watch
from mrv2lab.errors import counted
from mrv2lab.graphs.work import Work
from mrv2lab.limits import time_limit
from mrv2lab.results import Run
from mrv2lab.runner import ModelRunner
from mrv2lab.runner.sequence import IntermediateTensors

CPU_S = 20.0  # for which the function may run in a stage, less than the stage itself


@dataclass
class Step:
    """One step of a stage that receives."""

    num_rows: int  # tokens that arrived and are to be used
    rows_right: dict[str, int]  # by tensor, leading rows of what the model was handed that had arrived
    num_replays: int = 0  # graphs that ran
    in_graph: bool = True  # every tensor that was handed over lies at an address that those graphs hold


@dataclass
class Stage:
    """One stage, as the function has left it and as it then served."""

    rank: int
    rows: int | None = None  # of the stage's own buffers; None without any
    rows_at_capture: list[int | None] = field(default_factory=list)  # the same at each `capture_model`
    num_arrived: int = 0  # tokens of the last message
    rebound: dict[str, str] = field(default_factory=dict)  # what `copy_received` put in a buffer's place
    replaced: int = 0  # steps in which `intermediate_tensors` became another object
    steps: list[Step] = field(default_factory=list)  # only those of a stage that receives
    num_replays: int = 0  # of all its steps
    trouble: Trouble | None = None


class StageWatch(Watch):
    """Travels into the process of each stage, and leaves its notes in a folder."""

    def __init__(self, fn: Callable[..., Any]):
        super().__init__(fn)
        self.folder, self.cpu_s = tempfile.mkdtemp(prefix="mrv2lab-exercise-"), CPU_S
        self.stages: dict[int, Stage] = {}  # by rank, when all is over

    def __call__(self, *args: Any) -> Any:
        stage: ModelRunner = args[0]
        self.seen = Stage(stage.pp_group.rank_in_group)
        self._count_captures(stage)
        # No clock of its own: whoever started the stage has one.
        with self._keeping_errors(), time_limit(self.cpu_s, self.__name__, wall_s=inf):
            result = super().__call__(*args)
        self.seen.rows = rows_of(stage.intermediate_tensors)
        self._watch_steps(stage)
        self._keep()
        return result

    def collect(self) -> None:
        stages = (pickle.loads(path.read_bytes()) for path in sorted(Path(self.folder).glob("*.pkl")))
        self.stages = {stage.rank: stage for stage in stages}
        shutil.rmtree(self.folder)
        self.trouble = next((s.trouble for s in self.stages.values() if s.trouble), self.trouble)

    @contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.note(error)
            self.seen.trouble = self.trouble
            self._keep()
            raise

    def _keep(self) -> None:
        path = Path(self.folder, f"{self.seen.rank}.tmp")
        path.write_bytes(pickle.dumps(self.seen))
        path.replace(path.with_suffix(".pkl"))

    def _count_captures(self, stage: ModelRunner) -> None:
        capture_model = stage.capture_model

        def noted() -> None:
            self.seen.rows_at_capture.append(rows_of(stage.intermediate_tensors))
            capture_model()

        stage.capture_model = noted  # type: ignore[method-assign]

    def _watch_steps(self, stage: ModelRunner) -> None:
        receive, recv_tensor_dict = stage.receive, stage.pp_group.recv_tensor_dict
        run_model, copy_received = stage.run_model, stage.copy_received
        arrived: list[IntermediateTensors] = []

        def noted_recv() -> IntermediateTensors:
            arrived[:] = [recv_tensor_dict()]
            self.seen.num_arrived = rows_of(arrived[0]) or 0
            return arrived[0]

        def noted_copy(buffers: IntermediateTensors, received: IntermediateTensors) -> None:
            before = {name: tensor.data_ptr() for name, tensor in buffers.items()}
            copy_received(buffers, received)
            for name, tensor in buffers.items():
                if tensor.data_ptr() != before.get(name):
                    is_it = tensor.data_ptr() == received.tensors[name].data_ptr()
                    self.seen.rebound[name] = "what arrived" if is_it else "new memory"

        def noted_receive(num_tokens: int) -> IntermediateTensors | None:
            before = stage.intermediate_tensors
            with self._keeping_errors():
                handed = receive(num_tokens)
            self.seen.replaced += stage.intermediate_tensors is not before
            if handed is not None and arrived:
                with _disable_current_modes():  # what we look at is no work of the step
                    rows = rows_right(handed, arrived[0][:num_tokens])
                self.seen.steps.append(Step(rows_of(arrived[0][:num_tokens]) or 0, rows))
            return handed

        def noted_run(batch_desc: Any, input_batch: Any, received: IntermediateTensors | None = None) -> Work:
            with self._keeping_errors():
                work = run_model(batch_desc, input_batch, received)
            self.seen.num_replays += len(work.graphs)
            if work.graphs and received is not None and self.seen.steps:
                nodes = [node for graph in work.graphs for node in graph.nodes]
                held = {address for node in nodes for address in node.addresses}
                step, handed = self.seen.steps[-1], {tensor.data_ptr() for _, tensor in received.items()}
                step.num_replays, step.in_graph = len(work.graphs), handed <= held
            self._keep()
            return work

        stage.receive, stage.run_model = noted_receive, noted_run  # type: ignore[method-assign]
        stage.copy_received = noted_copy
        stage.pp_group.recv_tensor_dict = noted_recv  # type: ignore[method-assign]


def rows_of(tensors: IntermediateTensors | None) -> int | None:
    return None if tensors is None else min(map(len, tensors.tensors.values()))


def rows_right(handed: IntermediateTensors, arrived: IntermediateTensors) -> dict[str, int]:
    """By tensor that arrived: how many leading rows of what was handed over are equal to it."""
    counts = {}
    for name, tensor in arrived.items():
        mine = handed.tensors.get(name, tensor[:0])[: len(tensor)]
        equal = (mine == tensor[: len(mine)]).all(dim=1).tolist()
        counts[name] = equal.index(False) if False in equal else len(equal)
    return counts


def mistakes(run: Run, watch: StageWatch) -> Observed:
    for stage in watch.stages.values():
        if stage.trouble and stage.rows is not None and stage.rows < stage.num_arrived:
            yield "too_small", {"room": counted(stage.rows, "token"), "arrived": stage.num_arrived}
    if (last := watch.stages.get(1)) is None:  # the stage that receives
        return
    wrong = (step for step in last.steps if any(n < step.num_rows for n in step.rows_right.values()))
    bad = None if last.rows is None else next(wrong, None)  # its buffers did not hold what had arrived
    for name, kind in (("keeps_a_reference", "what arrived"), ("clones", "new memory")):
        tensors = " and ".join(sorted(tensor for tensor, put in last.rebound.items() if put == kind))
        if bad and tensors:
            yield name, {"tensors": tensors}
    replays = [step for step in last.steps if step.num_replays]
    elsewhere = f"in {sum(not step.in_graph for step in replays)} of {len(replays)} replayed steps"
    has_moved = any(not step.in_graph for step in last.steps)
    if has_moved and last.replaced:
        yield "buffers_replaced", {"steps": counted(last.replaced, "step"), "elsewhere": elsewhere}
    if bad:
        yield from bad_copy(bad)
    if has_moved:
        yield from moved(last, watch.stages.get(0), elsewhere)


def bad_copy(step: Step) -> Observed:
    missing = [name for name, rows in step.rows_right.items() if not rows]
    said: dict[str, object] = {"arrived": counted(step.num_rows, "token"), "missing": " and ".join(missing)}
    if set(step.rows_right.values()) == {0, step.num_rows}:
        yield "tensor_left_out", said
    if rows := min(step.rows_right.values()):
        yield "some_rows", said | {"rows": rows}
    yield "nothing_copied", said


def moved(last: Stage, first: Stage | None, elsewhere: str) -> Observed:
    """The graphs of the stage that receives do not hold the addresses that a step is handed."""
    if last.rows is not None:
        if None in last.rows_at_capture:
            yield "captured_too_early", {"rows": last.rows, "elsewhere": elsewhere}
        return
    if first and first.rows is not None:
        yield "buffers_on_the_wrong_stage", {"elsewhere": elsewhere}
    yield "moving_addresses", {"elsewhere": elsewhere}


def eager_stages(run: Run, watch: StageWatch) -> Observed:
    stages = watch.stages
    ranks = [rank for rank, stage in stages.items() if not stage.num_replays]
    if ranks and len(stages) >= 2 and run.verdict in ("eager", "correct"):
        who = "No stage" if len(ranks) == len(stages) else f"No step of stage {ranks[0]}"
        captured = [bool(stages[rank].rows_at_capture) for rank in ranks]
        how = "" if all(captured) else ", and capture_model was not called there"
        yield "eager_stages", {"who": who, "how": how}


EXERCISE = Exercise(**prose.beside(__file__), watch=StageWatch, mistakes=mistakes, even_if_right=eager_stages)
