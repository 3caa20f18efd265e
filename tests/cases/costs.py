"""What a run does, counted: a speed that depends on no clock."""

from contextlib import contextmanager
from unittest.mock import patch

from triton.runtime.interpreter import InterpretedFunction

from mrv2lab.graphs.base import CaptureObserver, observed
from mrv2lab.graphs.guard import is_view, makes_tensors
from mrv2lab.graphs.memory import is_host
from mrv2lab.graphs.mode import DispatchMode
from mrv2lab.graphs.nested import tensors_in
from mrv2lab.graphs.work import moves
from mrv2lab.runner.model_runner import ModelRunner

STEP = ("replays", "nodes", "ops", "launches", "allocations", "bytes", "moved", "host reads")


class Costs(CaptureObserver, DispatchMode):
    """What captures hold, and what a runner's last step does that does anything: a decode, when all is warm.

    Attributes:
        held: number of `graphs` that were captured, and of `nodes` in them.
        step: `replays` and the `nodes` in them; and what is issued beside them: `ops` that compute,
            `launches` of Triton kernels, `allocations` (tensors that are made) and their `bytes`, bytes that
            copies `moved`, `host reads` of what lies on the device. Empty where no step was run. `cpu()` and
            `to(device)` are nothing on a CPU, and are not seen; nor is `tolist()`.
    """

    def __init__(self):
        super().__init__()
        self._outside = 1  # of a step, or within a capture or a replay
        self.held, self.step = {"graphs": 0, "nodes": 0}, {}

    def begin(self):
        self._outside += 1

    def end(self):
        self._outside -= 1

    def captured(self, graph):
        self.held["graphs"] += 1
        self.held["nodes"] += len(graph.nodes)

    @contextmanager
    def replaying(self, graph):
        self._note("replays", 1)
        self._note("nodes", len(graph.nodes))
        self.begin()
        try:
            yield
        finally:
            self.end()

    def _note(self, name, number):
        if not self._outside:
            self._now[name] += number

    def stepped(self, step):
        def stepped(*args):
            self._now = dict.fromkeys(STEP, 0)
            self.end()
            try:
                return step(*args)
            finally:
                self.begin()
                self.step = self._now if any(self._now.values()) else self.step

        return stepped

    def launched(self, run):
        def launched(kernel, *args, **kwargs):
            self._note("launches", 1)
            return run(kernel, *args, **kwargs)

        return launched

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not self._outside:
            self._count(func, tensors_in(args, kwargs), tensors_in(result))
        return result

    def _count(self, func, given, made):
        name = func._schema.name.removeprefix("aten::")
        size = sum(tensor.nbytes for tensor in made)
        if name == "_local_scalar_dense" or (name in ("copy_", "_to_copy") and is_host(made[0])):
            self._note("host reads", not is_host(given[-1]))
        if name in ("copy_", "_to_copy", "clone"):
            self._note("moved", size)
        if is_view(func) or not makes_tensors(func) or name == "detach":
            return
        self._note("ops", not moves(name))
        if not {tensor.untyped_storage()._cdata for tensor in made} <= {
            tensor.untyped_storage()._cdata for tensor in given
        }:
            self._note("allocations", len(made))
            self._note("bytes", size)


@contextmanager
def counted():
    """What `Costs` counts inside: a dictionary, filled at the end."""
    seen = {}
    costs = Costs()
    launched = patch.object(InterpretedFunction, "run", costs.launched(InterpretedFunction.run))
    stepped = patch.object(ModelRunner, "execute_model", costs.stepped(ModelRunner.execute_model))
    with launched, stepped, observed(costs), costs:
        yield seen
    seen |= {"captured": costs.held, "step": costs.step}
