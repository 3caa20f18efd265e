"""Guards what a server replays, while it serves. `mrv2lab_vllm` attaches this to a worker of vLLM.

It hears of all captures of the warm-up, whole graphs and pieces, of either model runner. What has changed is
a line of the log, once for each value. Whatever fails in here is one as well, and the server goes on.
"""

import gc
import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mrv2lab.errors import StaleCapture, counted
from mrv2lab.guard import Checks, Guard
from mrv2lab.reads import Series, Watch, Way

LOG = logging.getLogger("vllm.mrv2lab")
SHARE = 1 / 500  # of the time that goes by, in which a guard that only warns may ask


class ServerGuard(Guard):
    """The guard of a worker, which warms up and captures in its context, and from `serve` on serves."""

    def __init__(self, mode: str, worker: Any):
        from cuda.bindings import driver  # noqa: F401 - what reads graphs, asked for before one is captured

        super().__init__(mode, ())
        parallel = getattr(getattr(worker, "vllm_config", None), "parallel_config", None)
        if getattr(parallel, "use_ubatching", False):
            told = "microbatches (enable_dbo) run in threads of their own, whose lines are not seen"
            LOG.warning("guard: %s: of their graphs addresses are watched, and no values", told)
        self._series = Series({"model": worker.model_runner.model})
        self.is_serving = False
        self.asking_s = 0.0  # to ask all graphs once, of those that were asked
        self.num: Counter[str] = Counter()  # `checks` made, and how long they took, in `us`
        self.told: set[str] = set()  # names of what has changed

    def _new(self, ways: dict[str, list[Way]], watches: list[Watch]) -> Checks:
        return Paced(ways, watches, self)

    def _hides(self, watch: Watch) -> bool:
        return False  # the server is a library

    # ---- captures ----

    def begin(self) -> None:
        with self._or_off():
            if self._series is not None:
                super().begin()

    def end(self) -> None:
        with self._or_off():
            super().end()

    def _addresses(self) -> list[int] | None:
        found = None
        with self._or_off():
            found = super()._addresses()
        return found

    def _watch(self, graph: Any, addresses: list[int]) -> None:
        with self._or_off():
            if self._reads is not None:  # else its end has failed
                super()._watch(graph, addresses)

    @contextmanager
    def _or_off(self) -> Iterator[None]:
        """What fails in here stops no capture; from then on no graph more is guarded."""
        try:
            yield
        except Exception as error:
            reads, self._reads, self._series = self._reads, None, None
            if reads is not None and not reads.is_over:
                with suppress(Exception):
                    reads.__exit__()
            LOG.warning("no further graph is guarded: %s: %s", type(error).__name__, error)

    # ---- replays ----

    def serve(self) -> None:
        """From now on the server serves, and replays are asked."""
        try:
            if self._series is not None:
                self._series = None
                gc.unfreeze()  # it was frozen for captures
                gc.collect()
                gc.freeze()  # as vLLM leaves the heap of a worker that is warm
            for checks in list(self._graphs):
                self._settle(checks)
            values, graphs = counted(self.checks, "value"), counted(len(self._graphs), "graph")
            why = Counter(self.left_out.values())
            left_out = "".join(f", {number} left out ({reason})" for reason, number in why.items())
            LOG.info("guard (%s): %s of %s are watched%s", self.mode, values, graphs, left_out)
            LOG.debug("%s", self.report())
            self.is_serving = True
        except Exception as error:
            LOG.warning("nothing is guarded: %s: %s", type(error).__name__, error)

    def _settle(self, checks: Checks) -> None:
        """Leave out what the warm-up alone had, as the context of a forward pass; not memory that is used."""
        self.left_out |= checks.let_go()
        changed = [watch for watch in checks.watches if watch.root and checks.is_changed(watch)]
        checks.drop(changed)
        checks.watches += [watch.of_memory() for watch in changed if watch.memory is not None]
        checks.drop([])
        self.left_out |= {one.name: "changed by the warm-up" for one in changed if one.memory is None}

    def tell(self, checks: Checks) -> None:
        """A line of the log for each value. StaleCapture: this guard refuses, and the server ends."""
        changed, texts = checks.watches, dict[str, str]()
        try:
            self.left_out |= checks.let_go()
            changed = [watch for watch in checks.watches if checks.is_changed(watch)]
            texts = {watch.name: checks.told(watch) for watch in changed}
            for name in [name for name in texts if name not in self.told]:
                LOG.warning("guard: %s", texts[name])
            self.told |= texts.keys()
        except Exception as error:
            LOG.warning("a graph is not guarded any more: %s: %s", type(error).__name__, error)
        if self.mode == "refuse" and texts:
            raise StaleCapture("\n".join(texts.values()))
        checks.drop(changed)


class Paced(Checks):
    """The checks of a graph: each replay is asked by a guard that refuses, else as many as `SHARE` allows."""

    def __init__(self, ways: dict[str, list[Way]], watches: list[Watch], guard: ServerGuard):
        super().__init__(ways, watches)
        self._guard, self._next_at, self._took_s = guard, 0.0, 0.0

    def drop(self, watches: list[Watch]) -> None:
        super().drop(watches)
        self._ask_all, self.is_stale = self.is_stale, self._is_stale_if_due

    def _is_stale_if_due(self) -> bool:
        guard, begin = self._guard, time.perf_counter()
        if not guard.is_serving or begin < self._next_at:
            return False
        is_stale = bool(self._ask_all())
        if guard.mode == "warn":
            end = time.perf_counter()
            guard.num += Counter(checks=1, us=max(1, int(1e6 * (end - begin))))
            guard.asking_s += end - begin - self._took_s
            self._took_s = end - begin
            self._next_at = end + guard.asking_s / SHARE
        return is_stale
