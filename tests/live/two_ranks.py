"""One of two ranks that are inside the same step: `python -m tests.live.two_ranks WHAT RANK FOLDER`.

The runner is that of `test_plugin`; each of its passes adds up over ranks. Prints what this rank answered,
and what was told of it, as JSON.
"""

import json
import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import distributed
from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab.errors import AuditError
from mrv2lab.live import plugin, ranks, v2
from tests.live import test_plugin

STEPS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [1.0, 2.0, 3.0, 4.0], [7.0, 8.0], [9.0, 1.0]]


def together(name: str) -> None:
    """A pass ends in a collective, which waits for the other rank; that must be in the same kind of pass."""
    alone = getattr(v2.Step, name)

    def summed(step: v2.Step) -> torch.Tensor:
        result = alone(step)
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            names: list[str] = ["", ""]
            distributed.all_gather_object(names, name)
            assert names == [name, name], names
            total = result.clone()
            distributed.all_reduce(total)
        return total

    setattr(v2.Step, name, summed)


def main(what: str, rank: int, folder: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    ranks.Ranks.of = lambda config: ranks.Ranks(distributed.group.WORLD)
    sys.modules["vllm.config"] = SimpleNamespace(CUDAGraphMode=SimpleNamespace(NONE="NONE"))
    sys.modules["cuda.bindings"] = SimpleNamespace(driver=None)
    sys.modules["vllm.platforms"] = SimpleNamespace(current_platform=test_plugin.Platform())
    v2.Step._context = lambda self, mode: nullcontext()
    for name in ("run", "eager"):
        together(name)
    made = test_plugin.worker(rank=rank)
    made.vllm_config.parallel_config.world_size = 2
    if what == "refuses" and rank == 1:
        plugin.lifeline.free = lambda: 0  # host memory
    try:
        runner, served = made.model_runner, plugin.Served.of(made, every=2)
    except AuditError as error:
        return print(json.dumps(str(error)))
    served.backend = "emulated"
    with served.capturing():
        runner.capture_model()
    if what == "begin raises" and rank == 1:
        served.left_out = raising
    served.begin()
    if what == "frozen" and rank == 1:
        runner.model.scale = 3.0  # its graphs keep the number that it was
    elif what == "raises" and rank == 1:
        served._audit.step = raising
    elif what == "check raises" and rank == 1:
        plugin.is_off = raising
    elif what == "put back raises" and rank == 1:
        check = served._check

        def check_and_raise(step: v2.Step) -> None:
            calls = iter([step.put_back, step.put_back, raising])  # two passes begin by it
            step.put_back = lambda: next(calls)()
            check(step)

        served._check = check_and_raise
    elif what == "making raises" and rank == 1:  # of the second one, which is to be checked
        make, made_so_far = v2.Step.__init__, []

        def make_or_raise(step: v2.Step, *args: object) -> None:
            made_so_far.append(step)
            make(step, *args) if len(made_so_far) != 2 else raising()

        v2.Step.__init__ = make_or_raise
    elif what == "nothing written" and rank == 1:
        served.changed = Forgetful()
    elif what == "apart" and rank == 1:  # it takes the same graph, by another key
        captured = runner.cudagraph_manager._capture_descs["FULL"]
        captured[0] = captured[0]._replace(num_reqs=1)
        runner.cudagraph_manager.graphs[captured[0]] = next(iter(runner.cudagraph_manager.graphs.values()))
    answers = [runner.execute_model(values).tolist() for values in STEPS]
    told = [json.loads(line) for line in served.file.read_text().splitlines()] if served.file.exists() else []
    print(json.dumps({"answers": answers, "told": told, "totals": served.totals()}))


class Forgetful(dict):
    """Of what a step has changed nothing is known, as behind an audit that had to stop."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


def raising(*args: object) -> None:
    raise RuntimeError("not on this rank")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
