"""Who lets the model run eagerly is told so, however many graphs are replayed beside it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from mrv2lab import journal
from mrv2lab.cases import get
from mrv2lab.cases.base import Variant, judged_as
from mrv2lab.cases.flashmla_lazy_init import SERVING
from mrv2lab.cases.serving import reference
from mrv2lab.graphs import capture
from mrv2lab.graphs.breakable import eager_break_during_capture
from mrv2lab.graphs.work import Amount
from mrv2lab.runner import AttentionStatePair, CUDAGraphMode, RunnerConfig
from mrv2lab.runner.forward_context import get_forward_context, set_forward_context
from mrv2lab.runner.model import rms_norm
from mrv2lab.runner.piecewise import PiecewiseDecoder
from mrv2lab.runner.speculator import Speculator


def of_unrelated_nodes(number, model, manager):
    """A graph that has nothing to do with the model."""
    counter = torch.zeros(1, device=next(model.buffers()).device)
    return capture(lambda: [counter.add_(1) for _ in range(number)], backend=manager.backend)


def many_unrelated_nodes(model, manager, number=300):
    """Replay a graph of as many nodes as the model has ops, then call the plain model."""
    graph = of_unrelated_nodes(number, model, manager)

    def run(input_ids, positions):
        graph.replay()
        return model(input_ids, positions)

    return run


def unrelated_graph(model, manager):
    """The same with a graph of one addition."""
    return many_unrelated_nodes(model, manager, 1)


def only_size_two(model, manager):
    """Capture one size of four, breaking at attention as it should be."""
    manager.capture_descs = [desc for desc in manager.capture_descs if desc.num_tokens == 2]
    return broken_at_attention(model, manager)


def broken_at_attention(model, manager):
    manager.use_breakable_cg = True
    for index in range(len(model.layers)):
        attn = model.layer(index).attn
        attn.op = eager_break_during_capture(attn.op)
    return model


def work_beside_a_replay(model, manager):
    """Graphs of the whole model, broken at attention; and the model once more, outside of them."""
    broken_at_attention(model, manager)
    run_pw_graph = manager.run_pw_graph

    def both(model, model_inputs):
        replayed = run_pw_graph(model, model_inputs)
        right = model(**model_inputs)
        return right if manager._graphs_captured else replayed

    manager.run_pw_graph = both
    return model


def work_in_a_thread(model, manager):
    """Replay as many nodes as the model has, and let another thread run the model, where nobody counts."""
    graph = of_unrelated_nodes(300, model, manager)

    def run(input_ids, positions):
        graph.replay()
        work = partial(model, input_ids, positions)
        with ThreadPoolExecutor(1) as pool:  # a context of its own, without the one that counts
            return pool.submit(torch.inference_mode()(within), get_forward_context(), work).result()

    return run


def within(meta, work):
    with set_forward_context(meta):
        return work()


def work_with_modes_off(model, manager):
    """Run the model where no mode of torch's sees it, and let the result hang on a node of a graph."""
    ready = torch.zeros(1, device=next(model.buffers()).device)
    graph = capture(lambda: [ready.add_(1) for _ in range(300)], backend=manager.backend)

    def run(input_ids, positions):
        with _disable_current_modes():
            ready.fill_(-299)
            graph.replay()
            return model(input_ids, positions) * ready

    return run


def work_in_an_op(model, manager):
    """Hide the model in an op of Python's, and hand its result through a graph that computes nothing."""
    name = f"mrv2lab_eager_{id(manager)}"
    fragment = torch.library.Library(name, "FRAGMENT")
    fragment.define("whole(Tensor input_ids, Tensor positions) -> Tensor")
    fragment.impl("whole", lambda ids, positions: model(ids, positions), "CompositeExplicitAutograd")
    graphs = {}

    def run(input_ids, positions):
        result = getattr(torch.ops, name).whole(input_ids, positions)
        if len(result) not in graphs:
            held = result.clone()
            idle = capture(lambda: times_one(held), backend=manager.backend, pool=manager.pool)
            graphs[len(result)] = held, idle, fragment
        held, graph, _ = graphs[len(result)]
        held.copy_(result)
        graph.replay()
        return graph.outputs

    return run


def times_one(x):
    for _ in range(300):
        x = x * 1.0
    return x


def last_piece_eagerly(model, manager):
    """Piecewise graphs of all pieces but the last."""
    pieces = PiecewiseDecoder(model, backend=manager.backend, pool=manager.pool)
    last = model.layer(len(model.layers) - 1)

    def tail(x, context, positions):
        with ThreadPoolExecutor(1) as pool:
            work = partial(within, get_forward_context(), lambda: rms_norm(last.behind_attention(x, context)))
            return pool.submit(torch.inference_mode()(work)).result()

    pieces.pieces[len(model.layers)] = tail
    return pieces


FEW = {"num_steps": 9}
CHEATS = [
    last_piece_eagerly,
    work_in_an_op,
    unrelated_graph,
    many_unrelated_nodes,
    only_size_two,
    work_beside_a_replay,
    work_in_a_thread,
    work_with_modes_off,
]


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda fn: fn.__name__)
def test_graphs_that_do_not_do_the_models_work_are_no_repair(cheat, backend):
    check = get("breakable_graph").check(cheat, rung=backend, **FEW)
    assert check.run.verdict == "eager", check
    least = 0.1 if cheat is last_piece_eagerly else 0.9
    assert check.run.eager_share > least and max(check.run.errors) < 1e-3
    assert not check.solved and not journal.load().solved


def test_nor_are_they_as_a_variant(backend):
    """Nobody watches it: all others are told apart by what the runner counts, so one shows it."""
    case, variant = get("breakable_graph"), Variant(work_in_an_op, "fixed", "correct")
    ran = case._run(variant, "fixed", backend, case.complete(FEW))
    assert (ran.verdict, ran.as_expected) == ("eager", False)


def served_twice(idle_logits):
    """Two steps of one size as their graphs did them, and once more with replays that did nothing."""
    work = {"target": Amount(nodes=5), "step": Amount(nodes=5)}
    step = SimpleNamespace(req_ids=["a"], num_tokens=1, logits=torch.ones(1, 2), work=work)
    wanted = SimpleNamespace(**vars(step) | {"work": {"target": Amount(ops=5), "step": Amount(ops=5)}})
    idle = SimpleNamespace(**vars(step) | {"logits": idle_logits})
    runs = {"steps": [step] * 2, "reference": [wanted] * 2, "idle": [idle] * 2}
    return SimpleNamespace(**runs, config=RunnerConfig())


def test_a_step_that_is_right_without_its_replays_is_eager_whatever_was_counted():
    assert judged_as(served_twice(torch.ones(1, 2)))[:2] == ("eager", 1.0)
    assert judged_as(served_twice(torch.zeros(1, 2)))[:2] == ("correct", 0.0)


def state_pair(build):
    pair = AttentionStatePair(warmup=build(), captured=build())
    return pair, pair


def propose_eagerly(self, input_batch, next_token_ids, num_rejected, batch_desc):
    """A speculator that asks for no graph."""
    eagerly = replace(batch_desc, cg_mode=CUDAGraphMode.NONE)
    return PROPOSE(self, input_batch, next_token_ids, num_rejected, eagerly)


PROPOSE = Speculator.propose


def test_a_speculator_that_never_replays_is_eager(backend, monkeypatch, few_sizes):
    case = get("flashmla_lazy_init")
    shape = case.complete({"batch_size": 2})
    reference(SERVING, backend, *shape.items())
    monkeypatch.setattr(Speculator, "propose", propose_eagerly)
    seen = case.observe(Variant(state_pair, "fixed", "correct"), backend, shape)
    assert sum(step.num_replays for step in seen.steps) > 10  # the target's graphs
    assert judged_as(seen)[:2] == ("eager", 1.0)


def first_stage_only(stage):
    """Capture on the first of two stages."""
    if stage.pp_group.is_first_rank:
        stage.capture_model()


def test_a_stage_that_replays_nothing_is_eager(backend):
    case, shape = get("pp_eager_fallback"), {"batch_size": 2, "num_steps": 9}
    run = case._run(Variant(first_stage_only, "fixed", "correct"), "fixed", backend, case.complete(shape))
    assert (run.verdict, run.eager_share) == ("eager", 1.0), run.message
    assert run.metrics["replayed_steps_first_stage"] > 5 and not run.metrics["replayed_steps_last_stage"]
    check = case.check(first_stage_only, rung=backend, **shape)
    assert check.run.verdict == "eager" and not check.solved
