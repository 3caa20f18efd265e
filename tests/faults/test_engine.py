"""Faults of vLLM's engine on a GPU: it is told how it ended, nothing is left, what comes after is right."""

import pytest

from tests.faults.test_cuda import memory_is_back, still_right

__all__ = ["memory_is_back"]  # after each test

pytest.importorskip("vllm")
pytestmark = pytest.mark.gpu

RUNG = "vllm"
ENGINE = ("run", "lora_short_circuit", "--rung", "vllm", "--variant", "forced_launch")
WORKER = "vllm.v1.worker.gpu_worker:Worker."


@pytest.fixture(autouse=True)
def engines(faults):
    """What libraries of the engine leave in the folder for temporary files is theirs."""
    faults.others += ("tmp", "mrv2lab-live-", "torchinductor_", "tvm-", "cache")


@pytest.mark.parametrize(
    "what, function, phase",
    [
        ("kill", "load_model", "its model is loaded"),
        ("kill", "compile_or_warm_up_model", "its graphs are captured"),
        ("kill", "execute_model", "it serves"),
        ("term", "execute_model", "it serves"),
        ("memory", "execute_model", "it serves"),
    ],
)
def test_an_engine_that_ends_while(faults, what, function, phase):
    lost = faults.run(
        f"an engine while {phase}: {what}", *ENGINE, at=WORKER + function, what=what, tells="failed: "
    )
    assert lost.status == 1 and "failed: " in lost.out and lost.left == [], lost.out + lost.err
    if (what, function) == ("kill", "execute_model"):
        still_right(faults)


def test_whoever_waits_for_an_engine_takes_it_along(faults):
    at = "mrv2lab.live.attend:read_progress"
    lost = faults.run("the process that waits for an engine: kill", *ENGINE, at=at, what="kill")
    assert lost.status == -9 and lost.left == [], lost.out + lost.err
