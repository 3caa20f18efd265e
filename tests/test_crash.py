"""What counts as a bug's crash: the stated words, at the stated place."""

import pytest
import torch

from mrv2lab.cases import CASES, get
from mrv2lab.crash import WILD_POINTER, Crash, ending, of_cuda, verdict_of, without_places
from mrv2lab.live.variants import VARIANTS
from mrv2lab.mystery.faults import FAULTS
from mrv2lab.results import DATA, Run, load, recorded
from mrv2lab.upstream import probes

STATED = [(c.name, v.name) for c in CASES.values() for v in c.variants if v.expected == "crash"]
RUNS = [run for path in sorted(DATA.glob("*/*.json")) for run in load(path).runs if run.verdict == "crash"]


def crash_of(case, variant, rung):
    """What is stated where the rung runs the variant."""
    if rung == "vllm":
        return VARIANTS[case][variant].crash
    return probes.get(case).variants[variant].crash if rung == "source" else get(case).variant(variant).crash


def rungs_of(case, variant):
    """Where a variant runs."""
    places = {
        "emulated": True,
        "source": "source" in get(case).rungs,
        "vllm": variant in VARIANTS.get(case, ()),
    }
    return [rung for rung, is_there in places.items() if is_there]


# ---- what is stated ----


def test_a_variant_states_a_crash_where_that_is_its_verdict_and_only_there():
    assert [
        ("lora_device_assert", "unwritten"),
        ("flashmla_lazy_init", "captured_reused"),
        *(("stale_view", name) for name in ("one_state", "kept_pairs", "zeroed_buffers")),
    ] == STATED
    for case in CASES.values():
        for variant in case.variants:
            for rung in rungs_of(case.name, variant.name):
                stated = crash_of(case.name, variant.name, rung)
                assert (stated is not None) == (variant.expected == "crash"), (variant.name, rung)
    assert all((fault.crash is not None) == (fault.verdict == "crash") for fault in FAULTS)


@pytest.mark.parametrize(
    ("case", "variant", "rung"), [(*both, rung) for both in STATED for rung in rungs_of(*both)]
)
def test_a_statement_names_types_words_and_a_function(case, variant, rung):
    stated = crash_of(case, variant, rung)
    assert stated.within.split(" in ")[0].endswith(".py") and " in " in stated.within
    for said in stated.said:
        kind, words = said.split(": ", 1)
        assert kind.isidentifier() and len(words.split()) > 2


def test_a_variant_cannot_state_that_it_fails():
    fields = {"case": "c", "variant": "v", "role": None, "rung": "emulated", "errors": [], "step_modes": []}
    assert not Run(**fields, verdict="failed", expected="crash").as_expected
    with pytest.raises(ValueError, match="expected"):
        Run(**fields, verdict="failed", expected="failed")


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.variant}-{run.rung}")
def test_every_recorded_crash_is_the_one_that_its_variant_states(run):
    stated = crash_of(run.case, run.variant, run.rung)
    file, _, function = (run.where or "").partition(" in ")
    innermost = f'File "{file.partition(":")[0]}", line 1, in {function}'
    if run.rung == "cuda" and not run.log_tail:  # recorded before stacks were: at the next launch, or wait
        assert run.where.endswith((" in lora_expand", " in __enter__", " in forward"))
        stated = Crash(stated.said)
    assert run.as_expected and stated.is_shown_by(run.message, [*run.log_tail, innermost])


def test_crashes_are_recorded_on_every_rung_that_is_kept():
    assert {(run.variant, run.rung) for run in RUNS} == {
        (variant, rung.replace("emulated", "cuda"))
        for case, variant in STATED
        for rung in rungs_of(case, variant)
        if rung != "vllm" or recorded(case, rung)  # tests/live/test_rung.py asks for the others
    }


# ---- what is recognised ----

HERE = ['  File "a/b/model.py", line 3, in forward', "    y = embed(x)"]
STATES = Crash(("IndexError: index out of range in self", *WILD_POINTER), within="b/model.py in forward")


@pytest.mark.parametrize(
    ("message", "stack", "verdict"),
    [
        ("IndexError: index out of range in self", HERE, "crash"),
        ("torch.AcceleratorError: CUDA error: unspecified launch failure", HERE, "crash"),
        ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", HERE, "crash"),
        ("torch.AcceleratorError: CUDA error: misaligned address", HERE, "crash"),
        ("torch.AcceleratorError: CUDA error: an illegal instruction was encountered", HERE, "crash"),
        ("IndexError: list index out of range", HERE, "failed"),
        ("RuntimeError: index out of range in self", HERE, "failed"),
        ("ValueError: IndexError: index out of range in self", HERE, "failed"),
        ("torch.AcceleratorError: CUDA error: out of memory", HERE, "failed"),
        ("IndexError: index out of range in self", [], "failed"),
        ("IndexError: index out of range in self", ['File "bb/model.py", line 3, in forward'], "failed"),
        ("IndexError: index out of range in self", ['File "b/model.py", line 3, in forward_all'], "failed"),
        (
            "IndexError: index out of range in self",
            ['File "<b/model.py, edited 2>", line 3, in forward'],
            "crash",
        ),
        (
            "IndexError: index out of range in self",
            ['[rank0]:  File "b/model.py", line 3, in forward'],
            "crash",
        ),
    ],
)
def test_words_type_and_place_must_all_be_there(message, stack, verdict):
    assert verdict_of(message, stack, STATES) == verdict
    assert verdict_of(message, stack, None) == "failed"


def test_all_speakers_of_cuda_are_heard():
    speakers = (
        "AcceleratorError: CUDA error",
        "RuntimeError: CUDA error",
        "RuntimeError: Triton Error [CUDA]",
    )
    assert of_cuda("x") == tuple(f"{speaker}: x" for speaker in speakers)


def look_up():
    torch.nn.functional.embedding(torch.tensor([9]), torch.zeros(2, 2))


def caught(fn):
    with pytest.raises(Exception) as info:
        fn()
    return info.value


def test_an_exception_gives_its_verdict_its_words_and_its_traceback():
    ended = ending(caught(look_up), Crash(("IndexError: index",), within="tests/test_crash.py in look_up"))
    assert (ended["verdict"], ended["message"]) == ("crash", "IndexError: index out of range in self")
    first, *_, last = ended["log_tail"]
    assert (first, last) == ("Traceback (most recent call last):", ended["message"])
    assert any("nn/functional.py" in line for line in ended["log_tail"])
    assert not any(line.strip(" ~^") == "" for line in ended["log_tail"])


def test_a_traceback_tells_nothing_of_the_machine_and_has_an_end():
    def deep(levels):
        return deeper(levels - 1) if levels else 1 / 0

    def deeper(levels):  # Python leaves out lines that repeat
        return deep(levels - 1)

    ended = ending(
        caught(lambda: deep(90)), Crash(("ZeroDivisionError",), within="test_crash.py in <lambda>")
    )
    assert ended["verdict"] == "crash"  # the whole stack counts
    assert len(ended["log_tail"]) == 60 and ended["log_tail"][-1] == "ZeroDivisionError: division by zero"
    assert not any('File "/' in line for line in ended["log_tail"])


# ---- and on the emulator ----


@pytest.mark.parametrize(("case", "variant"), STATED)
def test_crashes_here_are_the_stated_ones_and_keep_their_stack(case, variant):
    run, stated = get(case).run(variant, rung="emulated"), get(case).variant(variant).crash
    assert (run.verdict, run.as_expected) == ("crash", True)
    assert run.message.startswith(stated.said) and run.log_tail[-1].endswith(run.message)
    assert run.where.split(":")[0] in "\n".join(run.log_tail)


# ---- nothing of the machine ----


@pytest.mark.parametrize(
    "line, public",
    [
        (
            'File "/a/b/site-packages/vllm/v1/worker/gpu/runner.py", line 3',
            'File "worker/gpu/runner.py", line 3',
        ),
        ("no path: 3 / 4, and/or, 1.5/2", "no path: 3 / 4, and/or, 1.5/2"),
        ("/a", "a"),
        ("at tcp://10.1.22.3:4711 now", "at tcp://<address> now"),
        ("version 580.159.04 of 2026-11-21", "version 580.159.04 of 2026-11-21"),
        ("see https://docs.nvidia.com/cuda/api.html", "see https://docs.nvidia.com/cuda/api.html"),
    ],
)
def test_what_tells_of_the_machine_is_left_out(line, public):
    assert without_places(line) == public
