"""The process of the one engine that `bench_server` times: `python -m mrv2lab.live.in_turn SPEC.json`.

It has a guard and audits, and of them only what a turn asks for is in use. `stock` and `stock, again` are two
more engines on that GPU, in processes of their own with nothing attached: what attaching leaves in an engine
for good, those do not have, and how far they are apart is what processes alone differ by. In a round all
decode the same requests, a few steps in each turn: so all ways see the same graphs, and a GPU and a host that
are as warm and as busy. The time of a turn is held against that of the turn of `off` beside it.

In the first rounds this engine has turns of `off` alone, as many as each of the others has, which are ended
then; its ways are timed in the rounds behind these. Between turns of other engines a check was seen to take
more than twice as long (2026-11-28, an H100).

A check takes as long as some replays of a guard, or many of `every=1000`, and most turns have none: a median
of turns would hide it. So its time, by its own clock, is taken out of the turn that it falls into, and the
mean check is spread over the steps that lay between two: of `every=1000` those of the engine, about a
thousand, of a guard those that it was there for. What else a check leaves behind for the rest of its turn is
told apart (`after`), as the mean of turns with a check less that of those without, and is added as well,
where it is more than nothing. What lasts longer, the next turns have, of whatever way: nobody sees that.
"""

import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage
from statistics import StatisticsError, correlation, fmean, median, quantiles
from subprocess import PIPE, Popen
from typing import Any, TextIO

import torch

import mrv2lab_vllm
from mrv2lab.guard import _guarded
from mrv2lab.live.engine import Graphs, make_engine, runner_of
from mrv2lab.live.loads import PROMPT_TOKENS, TOLERANCE, forced, prompts, worst
from mrv2lab.live.models import use_spread_weights
from mrv2lab.live.protocol import claim_stdout, die_with_parent, read_job, tell_progress, tell_result
from mrv2lab.timed import RUNS, Row, latency

LOG = logging.getLogger("vllm.mrv2lab")
LOADS = (1, 8, 32)  # requests at once
OURS, STOCK = ("off", "guard", "every=1000"), ("stock", "stock, again")
WAYS = OURS + STOCK
ROUNDS, PARTS = 32, 24  # and so many turns of this engine in a round
BESIDE = 5  # rounds before them, with the engines of other processes: those slow its checks
STEPS, AWAKE = 10, 2  # of a turn: timed, and before that; those that were under way belong to another one
NUM_TOKENS = PARTS * (STEPS + AWAKE) + 8  # of an answer; the last few are nobody's
FEWEST = 6  # ratios, and checks
EVERY, EARLY = 1000, 8  # a check is made at each so many replays; before it counts, more often
# Replays of this way: others lie between them, so that as many steps of the engine lie between two checks as
# in a server, and more time. It is prime, so that checks come at any step of a turn.
APART = 331
# Times that turns, with their checks, are drawn again, so many in a row, as in five rounds: for bounds.
DRAWN, BLOCK = 2000, 40
REPLAYS = 50  # of a graph alone, one behind the other


@dataclass
class Turns:
    """Those of one way and load."""

    error: float = 0.0  # of logits with forced tokens
    ms: list[float] = field(default_factory=list)  # a token, in each turn, without checks
    answers: set[tuple[int, ...]] = field(default_factory=set)  # all that there were
    checks: list[list[float]] = field(default_factory=list)  # milliseconds of each, by turn
    every: int = 0  # so many steps of the engine are meant to lie between two checks; 0: of this way
    graph_ms: list[float] = field(default_factory=list)  # on the device: a replay of the graph alone


class Stock:
    """The engine of another process, in which nothing is attached. It is asked in JSON, a line for each turn.

    Raises:
        RuntimeError: it has ended.
    """

    def __init__(self, folder: str):
        env = {name: value for name, value in os.environ.items() if not name.startswith("MRV2LAB_")}
        command = [sys.executable, "-m", "mrv2lab.live.in_turn", "--stock", folder]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=env)
        self._is_up = False  # it starts while others do

    def _told(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the engine without anything attached has ended: {self._process.wait()}")
        return json.loads(line)

    def ask(self, name: str, number: int = 0) -> Any:
        """`forced`: logits of so many requests, by step. `begin`: those requests. `steps`: a turn.
        `finish`: all tokens. `graph`: as `graph_ms`."""
        assert self._process.stdin is not None
        if not self._is_up:
            self._is_up = self._told() == {}
        print(json.dumps([name, number]), file=self._process.stdin, flush=True)
        return self._told()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def stock(folder: str, told: TextIO) -> None:
    """That process, until its parent has ended."""
    llm = start(folder)
    print("{}", file=told, flush=True)
    known: dict[str, Callable[[int], Any]] = {
        "forced": lambda load: [step.tolist() for step in forced(llm, Graphs(), load).logits],
        "begin": lambda load: begin(llm, load),
        "steps": lambda _: steps(llm, AWAKE, STEPS),
        "finish": lambda _: finish(llm),
        "graph": lambda load: graph_ms(runner_of(llm).cudagraph_manager, load),
    }
    for line in sys.stdin:
        name, number = json.loads(line)
        print(json.dumps(known[name](number)), file=told, flush=True)


class Attached:
    """What a worker has attached; `use` says what of it is in use.

    Raises:
        RuntimeError: it has not both.
    """

    def __init__(self, worker: Any):
        self.guard: Any = getattr(worker, "mrv2lab_guard", None)
        self.audit: Any = getattr(worker, "mrv2lab_audit", None)
        self.manager = worker.model_runner.cudagraph_manager
        # Of whole decodes: prompts are longer than any graph, so pieces are never replayed.
        self.graphs = list(self.manager.graphs.values())
        own: Any = torch.cuda.CUDAGraph
        audited: Any = type(self.graphs[0]).__base__
        self.wrappers = {n: vars(self.manager).get(n) for n in ("run_fullgraph", "run_pw_graph")}
        are_both = audited is not own and issubclass(audited, own)
        if not are_both or None in (self.guard, self.audit, *self.wrappers.values()):
            raise RuntimeError("the engine's graphs are not both guarded and audited")
        self.kinds: dict[str, Any] = {"off": own, "guard": _guarded(own), "every=1000": audited}
        self.way, self._left = "guard", time.perf_counter()

    def values(self, load: int) -> int:
        """How many a guard compares before a replay of the graph of so many decodes."""
        return sum(len(checks.watches) for _, checks in graph_of(self.manager, load)._guards)

    def done(self, way: str) -> Counter[str]:
        """How many `checks` a way has made, and how long they took, in `us`."""
        return Counter({"guard": self.guard.num, "every=1000": self.audit.num}.get(way, {}))

    def use(self, way: str) -> None:
        """Graphs get the class that they have with this way alone, and their manager its own methods unless
        it is audited. The time in which a guard is not used does not count for it."""
        way = "off" if way in STOCK else way  # that one is asked, and this one waits
        now = time.perf_counter()
        if self.way == "guard":
            self._left = now
        if way == "guard":
            for checks in self.guard._graphs:
                checks._next_at += now - self._left
        for graph in self.graphs:
            graph.__class__ = self.kinds[way]
        for name, wrapper in self.wrappers.items():
            vars(self.manager).pop(name, None)
            if way == "every=1000":
                setattr(self.manager, name, wrapper)
        self.way = way


def order(number: int, ways: Iterable[str]) -> list[str]:
    """Ways in turns beside each other: in as many as there are orders each of them once."""
    orders = list(permutations(ways))
    return list(orders[number % len(orders)])


def measured(settings: dict[str, Any]) -> dict[str, Any]:
    """Start the engine, judge each way and load, and time them in turn.

    Returns:
        Rows, and what was logged.

    Raises:
        RuntimeError: a guard or audits could not be attached, and why.
    """
    log = list[str]()
    others = {way: Stock(settings["folder"]) for way in STOCK}
    try:
        return _measured(settings, others, log)
    finally:
        for other in others.values():
            other.end()


def _measured(settings: dict[str, Any], others: dict[str, Stock], log: list[str]) -> dict[str, Any]:
    mrv2lab_vllm.attach()  # also where it is not installed as a plugin
    handler = logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
    LOG.addHandler(handler)  # not before vLLM is imported: its own settings take handlers away
    llm = start(settings["folder"])
    try:
        attached = Attached(llm.llm_engine.model_executor.driver_worker.worker)
    except RuntimeError as error:
        raise RuntimeError("; ".join([str(error), *log])) from None
    every = {"every=1000": EVERY}
    turns = {(way, load): Turns(every=every.get(way, 0)) for load in LOADS for way in WAYS}
    attached.audit.every = EARLY
    for load in LOADS:
        attached.use("off")
        right = forced(llm, Graphs(), load).logits
        for way in WAYS:  # in `every=1000` the first step is audited
            attached.use(way)
            if way in STOCK:
                logits = [torch.tensor(step) for step in others[way].ask("forced", load)]
            else:
                logits = forced(llm, Graphs(), load).logits
            turns[way, load].error = worst(logits, right)
        turns["off", load].answers |= {answer(llm, load, attached) for _ in range(2)}
    # The answers of all rounds go into one set.
    alone = {(way, load): replace(turns[way, load], ms=[], checks=[]) for way in OURS for load in LOADS}
    for number in range(1 + BESIDE):
        tell_progress(0.75 + 0.1 * number / BESIDE, f"round {number}, with other engines")
        for load in LOADS:
            ways = {way: turns[way, load] for way in ("off", *STOCK)}
            take(llm, others, attached, ways, load, number)
    for way, load in ((way, load) for way in STOCK for load in LOADS):
        turns[way, load].graph_ms = others[way].ask("graph", load)
    for other in others.values():
        other.end()
    for number in range(1 + ROUNDS):
        tell_progress(0.85 + 0.15 * number / ROUNDS, f"round {number}")
        for load in LOADS:
            take(llm, {}, attached, {way: alone[way, load] for way in OURS}, load, number)
        attached.audit.every = APART
    attached.use("off")
    for load in LOADS:
        alone["off", load].graph_ms = graph_ms(attached.manager, load)
    of_way = dict.fromkeys(OURS, alone) | dict.fromkeys(STOCK, turns)
    rows = [row(of, way, load, attached) for way, of in of_way.items() for load in LOADS]
    return {"rows": [made.model_dump(mode="json") for made in rows], "log": log}


def graph_of(manager: Any, load: int) -> Any:
    """The graph of so many decodes."""
    return next(graph for desc, graph in manager.graphs.items() if desc.num_tokens == load)


def graph_ms(manager: Any, load: int) -> list[float]:
    """How long the device takes for a replay of the graph of so many decodes, `RUNS` times: of each the mean
    of `REPLAYS`. They write again what the last step of that graph wrote, so no request may be under way."""
    graph = graph_of(manager, load)
    found = list[float]()
    for _ in range(RUNS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / REPLAYS)
    return found[1:]


def start(model: str) -> Any:
    """vLLM's `LLM` as it is installed, but for sizes and weights (all are told in `docs/bench.md`); with what
    the environment asks for."""
    use_spread_weights()
    llm = make_engine(
        model, "FULL_AND_PIECEWISE", LOADS, compilation_mode=3, load_format="dummy",
        max_num_seqs=max(LOADS), max_num_batched_tokens=PROMPT_TOKENS * max(LOADS),
        gpu_memory_utilization=0.25, kv_cache_memory_bytes=3 << 29, disable_log_stats=False,
    )  # fmt: skip
    llm.llm_engine.logger_manager = None
    return llm


def take(
    llm: Any, others: dict[str, Stock], attached: Attached, turns: dict[str, Turns], load: int, number: int
) -> None:
    """A round of some ways. Its turns' time counts, and that of their checks, if `number` is not 0."""
    attached.use("off")
    begin(llm, load)
    for other in others.values():
        other.ask("begin", load)
    parts = PARTS // sum(way in OURS for way in turns)
    for part in range(parts):
        for way in order(parts * number + part, turns):
            attached.use(way)
            if way in STOCK:
                ms, checks = others[way].ask("steps"), list[float]()
            else:
                begun, had = attached.done(way), _spent()
                steps(llm, AWAKE, 0)
                before = attached.done(way)
                ms = steps(llm, 0, STEPS)
                ended = attached.done(way)
                ms -= 1e-3 * (ended["us"] - before["us"])
                new = ended - begun
                checks = [1e-3 * new["us"] / (new["checks"] or 1)] * new["checks"]
                if checks and way == "every=1000":  # what one that took long has waited for
                    spent = ", ".join(f"{now - had[name]:.0f} {name}" for name, now in _spent().items())
                    LOG.info("turn with a check of %.1f ms, %d requests: %s", checks[0], load, spent)
            if number:
                turns[way].ms.append(ms / STEPS)
                turns[way].checks.append(checks)
    attached.use("off")
    ours = finish(llm)
    told = {way: tuple(other.ask("finish")) for way, other in others.items()}
    for way, made in turns.items():
        if way != "off":  # that one's are known
            made.answers.add(told.get(way, ours))


def _spent() -> dict[str, float]:
    """By this thread and process so far."""
    used, memory = getrusage(RUSAGE_SELF), torch.cuda.memory_stats()
    told = {"ms of the CPU": 1e3 * time.thread_time(), "faults": used.ru_minflt, "waits": used.ru_nvcsw}
    return told | {"allocations of the driver": memory.get("num_device_alloc", 0)}


def answer(llm: Any, load: int, attached: Attached) -> tuple[int, ...]:
    """All tokens of a round in which nothing is in use."""
    attached.use("off")
    begin(llm, load)
    return finish(llm)


def begin(llm: Any, load: int) -> None:
    """Have so many requests served, up to their first tokens."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    llm.enqueue(prompts(load), params, use_tqdm=False)
    for _ in range(3):
        llm.llm_engine.step()


def steps(llm: Any, awake: int, timed: int) -> float:
    """Milliseconds that so many steps take, between others."""
    for _ in range(awake):
        llm.llm_engine.step()
    start = time.perf_counter()
    for _ in range(timed):
        llm.llm_engine.step()
    return 1e3 * (time.perf_counter() - start)


def finish(llm: Any) -> tuple[int, ...]:
    """Let the requests end. All tokens, request by request."""
    outputs = llm.wait_for_completion(use_tqdm=False)
    return tuple(token for one in outputs for token in one.outputs[0].token_ids)


def row(turns: dict[tuple[str, int], Turns], way: str, load: int, attached: Attached) -> Row:
    """A way and load. *of off* is the median, over turns, of the ratio to the turn of `off` beside it, and of
    `off` to itself in its turn before; 95 % of those that come of turns drawn again, `BLOCK` in a row, with
    their checks, lie between `low` and `high`; `lag` is how one turn's ratio goes with that of the next one
    (-1 to 1). What is wrong has no ratios.

    Right is what has the logits of `off` with forced tokens, and has the answers of a round of `off` alone,
    where that gives the same ones each time; has done what was asked of it, for `FEWEST` ratios or more; and
    has found nothing. `stock` may answer otherwise: another process tunes kernels anew, and rounds otherwise.
    """
    ours, off, guard, audit = turns[way, load], turns["off", load], attached.guard, attached.audit
    checks, did = [one for some in ours.checks for one in some], True
    counts: dict[str, float] = {"off ms": median(off.ms)}
    counts |= {"answers": len(ours.answers | off.answers), "error": ours.error}
    if way == "guard":
        values = attached.values(load)
        counts |= {"values": values, "graphs": len(guard._graphs), "told": len(guard.told)}
        did = values > 0 and len(checks) >= FEWEST and not guard.told
    elif way == "every=1000":
        findings = sum(sum(numbers) for numbers in audit.found.values())
        off_by, failed = audit.num["apart"], audit.num["failed"]
        counts |= {"audited": len(audit.found), "findings": findings, "apart": off_by, "given up": failed}
        did = len(checks) >= FEWEST and not (findings or off_by or failed)
    if checks:
        counts |= {"checks": len(checks), "check ms": fmean(checks), "longest": max(checks)}
        counts |= {} if (behind := after(ours)) is None else {"after": behind}
    # `off` has no turn before its first one
    before = dict(enumerate(off.ms, start=way == "off"))
    numbers = [number for number in range(len(ours.ms)) if number in before]
    has_same = way in STOCK or len(off.answers) > 1 or ours.answers == off.answers
    is_right = did and len(numbers) >= FEWEST and has_same and ours.error <= TOLERANCE
    if is_right:
        again = (ratio(ours, before, drawn(numbers, Random(seed))) for seed in range(DRAWN))
        low, *_, high = quantiles(again, n=40)
        counts |= {"of off": ratio(ours, before, numbers), "low": low, "high": high}
        each = [ours.ms[number] / before[number] for number in numbers]
        with suppress(StatisticsError):  # each is the same
            counts["lag"] = correlation(each[:-1], each[1:])
    ms = {"token": latency([one + price(ours) for one in ours.ms])}
    return Row(
        labels={"attached": way, "requests": load},
        verdict="correct" if is_right else "wrong",
        ms=ms | ({"graph": latency(ours.graph_ms)} if ours.graph_ms else {}),
        counts=counts,
    )


def drawn(numbers: Sequence[int], draw: Random) -> list[int]:
    """As many turns, `BLOCK` in a row: those that lie near each other may be alike."""
    many = len(numbers)
    begins = draw.choices(range(many), k=-(-many // BLOCK))
    return [numbers[(begin + i) % many] for begin in begins for i in range(BLOCK)][:many]


def ratio(turns: Turns, before: Mapping[int, float], numbers: Sequence[int]) -> float:
    """The median of some turns, which may be there several times, to what a token took before them."""
    more = price(turns, numbers)
    return median((turns.ms[number] + more) / before[number] for number in numbers)


def price(turns: Turns, numbers: Sequence[int] | None = None) -> float:
    """Milliseconds that checks add to a token, by those of some turns, or of all."""
    numbers = range(len(turns.ms)) if numbers is None else numbers
    checks = [one for number in numbers for one in turns.checks[number]]
    if not checks:
        return 0.0
    between = len(numbers) * (AWAKE + STEPS) / len(checks)
    between *= len(OURS) if turns.every else 1  # of the engine's: others lie between, as in a server
    return (fmean(checks) + max(0.0, after(turns, numbers) or 0.0)) / between


def after(turns: Turns, numbers: Sequence[int] | None = None) -> float | None:
    """Milliseconds by which turns take longer for a check in them, beside the check's own. None where each
    of them has one, or none has: then whatever it is stays in their times."""
    numbers = range(len(turns.ms)) if numbers is None else numbers
    each = [(turns.ms[number], len(turns.checks[number])) for number in numbers]
    with_some, without = ([ms for ms, num in each if bool(num) is has] for has in (True, False))
    if not with_some or not without:
        return None
    num_checks = sum(num for _, num in each)
    return (fmean(with_some) - fmean(without)) * STEPS * len(with_some) / num_checks


def main(spec: str) -> None:
    """Run the job in a file and report what it gave."""
    die_with_parent()
    stdout, job = claim_stdout(), read_job(Path(spec))
    tell_progress(0.05, "importing vLLM")
    tell_result(measured(job.settings), stdout)


if __name__ == "__main__":
    if sys.argv[1] == "--stock":
        stock(sys.argv[2], claim_stdout())
    else:
        main(sys.argv[1])
