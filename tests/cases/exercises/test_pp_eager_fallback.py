"""Repairs that people would try on #35162, and what each is told."""

from types import SimpleNamespace

import pytest
import torch

from mrv2lab.cases import get
from mrv2lab.cases.exercises.pp_eager_fallback import (
    Stage,
    StageWatch,
    Step,
    mistakes,
    rows_right,
)
from mrv2lab.cases.exercises.watch import Trouble
from mrv2lab.runner import ModelRunner, RunnerConfig
from mrv2lab.runner.pp_utils import PPGroup
from mrv2lab.runner.sequence import IntermediateTensors

CASE = get("pp_eager_fallback")
SMALL = {"batch_size": 2, "num_steps": 9}


def give_buffers(stage, rows=None):
    if not stage.pp_group.is_first_rank:
        rows = rows or stage.config.max_num_tokens
        stage.intermediate_tensors = stage.make_empty_intermediate_tensors(rows)


def stub(stage):
    raise NotImplementedError("write the repair")


def nothing(stage):
    pass


def strike_out_the_return(stage):
    stage.capture_model()


def keep_what_arrived(stage):
    def keep(buffers, received):
        for name, tensor in received.items():
            buffers.tensors[name] = tensor

    stage.copy_received = keep
    give_buffers(stage)
    stage.capture_model()


def clone_what_arrived(stage):
    def clone(buffers, received):
        for name, tensor in received.items():
            buffers.tensors[name] = tensor.clone()

    stage.copy_received = clone
    give_buffers(stage)
    stage.capture_model()


def replace_the_buffers(stage):
    def take_over(buffers, received):
        stage.intermediate_tensors = received

    stage.copy_received = take_over
    give_buffers(stage)
    stage.capture_model()


def copy_the_first_row(stage):
    def copy(buffers, received):
        for name, tensor in received.items():
            buffers[name][:1].copy_(tensor[:1])

    stage.copy_received = copy
    give_buffers(stage)
    stage.capture_model()


def forget_the_residual(stage):
    def copy(buffers, received):
        tensor = received["hidden_states"]
        buffers["hidden_states"][: len(tensor)].copy_(tensor)

    stage.copy_received = copy
    give_buffers(stage)
    stage.capture_model()


def copy_nothing(stage):
    stage.copy_received = lambda buffers, received: None
    give_buffers(stage)
    stage.capture_model()


def for_the_largest_graph(stage):
    give_buffers(stage, rows=max(stage.config.cudagraph_capture_sizes))
    stage.capture_model()


def buffers_afterwards(stage):
    stage.capture_model()
    give_buffers(stage)


def on_the_first_stage(stage):
    if stage.pp_group.is_first_rank:
        stage.intermediate_tensors = stage.make_empty_intermediate_tensors(stage.config.max_num_tokens)
    stage.capture_model()


def last_stage_only(stage):
    give_buffers(stage)
    if stage.pp_group.is_last_rank:
        stage.capture_model()


WRONG = [
    (nothing, "eager stages", "eager"),
    (strike_out_the_return, "moving addresses", "wrong"),
    (keep_what_arrived, "keeps a reference", "wrong"),
    (clone_what_arrived, "clones", "wrong"),
    (replace_the_buffers, "buffers replaced", "wrong"),
    (copy_the_first_row, "some rows", "wrong"),
    (forget_the_residual, "tensor left out", "wrong"),
    (copy_nothing, "nothing copied", "wrong"),
    (for_the_largest_graph, "too small", "failed"),
    (buffers_afterwards, "captured too early", "wrong"),
    (on_the_first_stage, "buffers on the wrong stage", "wrong"),
    (last_stage_only, "eager stages", "eager"),
]


@pytest.mark.parametrize(("fn", "name", "verdict"), WRONG, ids=[fn.__name__ for fn, *_ in WRONG])
def test_a_wrong_repair_is_recognised_by_what_it_did(fn, name, verdict, backend):
    check = CASE.check(fn, rung=backend, **SMALL)

    assert (check.status, check.run.rung) == ("not solved yet", backend)
    assert (check.run.verdict, check.explanation and check.explanation.name) == (verdict, name)


# ---- what a stage notes, and what is made of it ----


def of_rows(*rows, names=("hidden_states", "residual")):
    """Tensors with a number in each row."""
    return IntermediateTensors({name: torch.tensor(rows, dtype=torch.float32)[:, None] for name in names})


def test_rows_are_right_up_to_the_first_that_is_not_and_in_what_is_missing_none():
    handed = of_rows(1, 2, 0, 4, 0, names=["hidden_states"])
    assert rows_right(handed, of_rows(1, 2, 3, 4)) == {"hidden_states": 2, "residual": 0}
    assert rows_right(of_rows(1, 2, 0), of_rows(1, 2)) == {"hidden_states": 2, "residual": 2}


@pytest.mark.parametrize(
    ("fn", "rebound"),
    [
        (keep_what_arrived, {"what arrived"}),
        (clone_what_arrived, {"new memory"}),
        (copy_the_first_row, set()),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_put_where_a_buffer_was_is_told_by_its_address(fn, rebound):
    watch, group = StageWatch(fn), PPGroup(rank_in_group=1, world_size=2)
    config = RunnerConfig(hidden_size=32, cudagraph_capture_sizes=(2,))
    group.recv_tensor_dict = lambda: IntermediateTensors(
        {name: torch.ones(2, config.hidden_size) for name in ("hidden_states", "residual")}
    )
    stage = ModelRunner(config, "emulated", pp_group=group, capture_stage=watch)
    stage.warm_up_and_capture()
    stage.receive(2)
    watch.collect()
    assert set(watch.seen.rebound.values()) == rebound
    assert watch.seen.num_arrived == 2


def evidence_of(*stages):
    return None, SimpleNamespace(stages={stage.rank: stage for stage in stages})


def test_the_stage_that_receives_is_the_one_whose_copies_count():
    right, wrong = Step(4, {"residual": 4}), Step(4, {"residual": 1})
    seen = evidence_of(Stage(0, rows=64, steps=[wrong]), Stage(1, rows=64, steps=[right, wrong, wrong]))
    assert [name for name, _ in mistakes(*seen)] == ["some_rows", "nothing_copied"]
    assert not list(
        mistakes(*evidence_of(Stage(0, rows=64, steps=[wrong]), Stage(1, rows=64, steps=[right])))
    )


def test_nothing_is_held_against_a_stage_that_never_wrote_a_word():
    seen = evidence_of(Stage(0, rows=64))
    assert not [*CASE.exercise.mistakes(*seen), *CASE.exercise.even_if_right(*seen)]


def test_buffers_are_too_small_only_where_that_was_in_the_way():
    trouble = Trouble("RuntimeError", "The size of tensor a (8) must match the size of tensor b (40)")
    stage = Stage(1, rows=8, num_arrived=40, trouble=trouble)
    seen = {"room": "8 tokens", "arrived": 40}
    assert list(mistakes(*evidence_of(stage))) == [("too_small", seen)]
    assert not list(mistakes(*evidence_of(Stage(1, rows=8, num_arrived=40))))  # it ran on, whatever it did
    assert not list(mistakes(*evidence_of(Stage(1, rows=64, num_arrived=40, trouble=trouble))))


# ---- what is right ----


def buffers_of_its_own(stage):
    if not stage.pp_group.is_first_rank:
        zeros = stage.hidden_states.new_zeros
        shape = stage.config.max_num_tokens, stage.config.hidden_size
        stage.intermediate_tensors = IntermediateTensors(
            {name: zeros(shape) for name in ("hidden_states", "residual")}
        )
    stage.capture_model()


RIGHT = [*(CASE.variant(name).fn for name in ("persistent_buffers", "full_graphs")), buffers_of_its_own]


@pytest.mark.parametrize("fn", RIGHT, ids=lambda fn: fn.__name__)
def test_a_right_repair_is_solved(fn, backend):
    check = CASE.check(fn, rung=backend, **SMALL)
    assert check.solved, check


def test_the_stub_is_not_solved_yet(backend):
    check = CASE.check(stub, rung=backend, **SMALL)
    assert repr(check).startswith("not solved yet: stub is still the stub\nrung: ")
    assert check.explanation is None
