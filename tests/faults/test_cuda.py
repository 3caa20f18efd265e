"""Faults of a GPU and of processes that use one: what comes after is right, and the memory is back."""

import multiprocessing.connection
import time

import pytest
import torch

from mrv2lab import forks

pytestmark = pytest.mark.gpu

REPLAY = "mrv2lab.graphs.cuda:CudaGraph._replay"
CAPTURE = "mrv2lab.graphs.cuda:CudaSession.__enter__"
CRASHES = ("run", "lora_device_assert", "--rung", "cuda")
HOLDS = (*CRASHES, "--variant", "zero_mapping")
RIGHT = ("run", "stale_view", "--variant", "fresh_inputs", "--rung", "cuda", "--set", "num_layers=2")
SPIN = "import torch; torch.cuda._sleep(10**13); torch.cuda.synchronize()"
HOG = """
import pathlib, time, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - {left}, dtype=torch.uint8, device="cuda")
pathlib.Path("{ready}").touch()
time.sleep(6000)
"""
STEP = """
import torch
x, index = torch.ones(8, device="cuda"), torch.zeros(8, dtype=torch.long, device="cuda")
def step():
    return {step}
def vary():
    index.add_({by})
"""


@pytest.fixture(autouse=True)
def memory_is_back():
    """Of the device, as all processes on it use it; those of other tests are none."""
    before = _used()
    yield
    end = time.monotonic() + 30
    while _used() > before + 2**20 and time.monotonic() < end:
        time.sleep(0.1)
    assert _used() <= before + 2**20, "device memory is held"


def _used():
    free, total = torch.cuda.mem_get_info()
    return total - free


def still_right(faults):
    after = faults.run(None, *RIGHT)
    assert after.status == 0 and after.left == [], after.out + after.err


@pytest.mark.parametrize("function, phase", [("dummy_run", "its dummy run"), ("execute_model", "a step")])
@pytest.mark.parametrize("what", ["kill", "grow"])
def test_a_variant_whose_process_dies(faults, function, phase, what):
    at = f"mrv2lab.runner.model_runner:ModelRunner.{function}"
    told = faults.run(f"a variant in {phase}: {what}", *HOLDS, at=at, what=what, MRV2LAB_MEMORY_GIB="8")
    assert told.status == 1 and told.left == [] and "failed" in told.out, told.out + told.err
    assert ("GiB of host memory, and may have 8.0" in told.out) == (what == "grow")


def test_variants_that_assert_on_the_device(faults):
    told = faults.run("a device-side assert in one of three variants, as stated", *CRASHES)
    assert told.status == 0 and told.out.count(" crash ") == 1 and told.left == []
    still_right(faults)


@pytest.mark.parametrize("at, phase", [(CAPTURE, "a capture"), (REPLAY, "a replay")])
@pytest.mark.parametrize("what", ["kill", "term"])
def test_a_variant_whose_process_is_ended_at(faults, at, phase, what):
    told = faults.run(f"a variant at {phase}: SIG{what.upper()}", *RIGHT, at=at, what=what, tells="failed: ")
    assert told.status == 1 and "and not a word" in told.out and told.left == []
    if what == "kill":
        still_right(faults)


@pytest.mark.parametrize("what", ["kill", "term", "interrupt"])
def test_whoever_waits_for_a_variant_dies(faults, what):
    status = {"kill": -9, "term": -15, "interrupt": -2}[what]
    told = faults.run(
        f"the process that waits for a variant: {what}", *HOLDS, at="mrv2lab.cases.isolated:wait", what=what
    )
    assert told.status == status and told.left == []


def test_a_kernel_that_never_ends(faults):
    start = time.monotonic()
    with pytest.raises(TimeoutError) as told:
        forks.apart(exec, SPIN, limit_s=15)
    faults.row("a kernel that never ends", str(told.value), seconds=time.monotonic() - start - 15)
    still_right(faults)


def test_an_assert_on_the_device_in_a_fork(faults):
    with pytest.raises(Exception, match="device-side assert") as told:
        forks.apart(
            exec, "import torch; torch.ones(2, device='cuda')[torch.tensor([9], device='cuda')].tolist()"
        )
    faults.row("a device-side assert in a process apart", str(told.value).splitlines()[0])
    still_right(faults)


@pytest.mark.parametrize("left_gib", [0.1, 1.2])
def test_a_device_without_memory(faults, left_gib):
    ready = faults.folder / "ready"
    code = HOG.format(left=int(left_gib * 2**30), ready=ready)
    hog = forks.Fork(exec, code, log=faults.folder / "hog")
    try:
        while not ready.exists():
            assert hog.status is None, (faults.folder / "hog").read_text()
            time.sleep(0.05)
        told = faults.run(f"{left_gib} GiB of device memory are left", *RIGHT, tells="out of memory")
        assert told.status in (0, 1, 2) and told.left == []
        assert told.status == 0 or "out of memory" in told.out + told.err
    finally:
        hog.end()
    still_right(faults)


@pytest.mark.parametrize(
    "fault, step, by",
    [
        ("a device-side assert in a step that is audited", "x[index]", 10**6),
        (
            "a step that asks for more memory than there is",
            "x[index] + torch.empty(10**13, device='cuda')[:8]",
            0,
        ),
    ],
)
def test_a_step_that_crashes_while_it_is_audited(faults, fault, step, by):
    (faults.folder / "program.py").write_text(STEP.format(step=step, by=by))
    told = faults.run(fault, "audit", "program.py:step")
    assert told.status in (1, 2) and told.left == [] and "Traceback" not in told.err
    still_right(faults)


def test_two_commands_on_one_gpu(faults):
    log = faults.folder / "log"
    code = f"import sys; sys.argv = {['mrv2lab', *HOLDS]!r}; from mrv2lab.cli import app; app()"
    both = [forks.Fork(exec, code, log=log) for _ in "ab"]
    while any(one.status is None for one in both):
        multiprocessing.connection.wait([one.sentinel for one in both if one.status is None])
    assert [one.status for one in both] == [0, 0], log.read_text()
    faults.row("two commands at once on one GPU", "both as stated")
