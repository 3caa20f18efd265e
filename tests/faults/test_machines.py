"""Machines that are not here: what each command says there. What torch reports of a GPU, and vLLM, stand in.

The engine's process is the real one. What it says, vLLM 0.23.0 says on such machines.
"""

import json
import re

import pytest

RUNG = "vllm"
HOPPER = {"name": "NVIDIA H100 80GB HBM3", "capability": [9, 0]}
AMPERE = {"name": "NVIDIA A100-SXM4-40GB", "capability": [8, 0]}
CASE = "lora_short_circuit"
ENGINE = ("run", CASE, "--rung", "vllm", "--variant", "forced_launch")
WORKER = "mrv2lab.live.run:run"


@pytest.fixture
def run(faults):
    """`faults.run` on a machine with this GPU and this release of vLLM, or without."""

    def run(fault, *words, gpu=None, vllm=None, **options):
        machine = {"path": [str(packages(faults.folder / "packages", vllm))]} if vllm else {}
        machine |= {"gpu": gpu} if gpu else {}
        return faults.run(fault, *words, MRV2LAB_MACHINE=json.dumps(machine), **options)

    return run


def packages(folder, version):
    """A folder in which vLLM is installed, as far as Python's lists go."""
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return folder


MACHINES = {  # what it has, the command that doctor names for the engine, what the engine lacks
    "a GPU without vLLM": (
        {"gpu": HOPPER},
        "make reproduce STACK=gpu",
        "vllm 0.23.0 (here: not installed)",
    ),
    "vLLM without a GPU": (
        {"vllm": "0.23.0"},
        "make reproduce STACK=gpu on a GPU host",
        "an NVIDIA GPU",
    ),
    "a GPU and another release of vLLM": (
        {"gpu": HOPPER, "vllm": "0.99.0"},
        "make reproduce STACK=gpu",
        "vllm 0.23.0 (here: 0.99.0)",
    ),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_a_machine_lacks_is_said_by_each_command(run, name):
    machine, command, lacks = MACHINES[name]
    told = run(f"{name}: mrv2lab doctor", "doctor", tells="the real engine (rung vllm)", **machine)
    assert told.status == 0 and told.left == []
    assert re.search(rf"the real engine \(rung vllm\) +{re.escape(command)} *$", told.out, re.M), told.out
    assert run(None, "list", **machine).out == run(None, "list").out
    told = run(f"{name}: mrv2lab run --rung vllm", *ENGINE, **machine)
    assert (told.status, told.last) == (2, f"mrv2lab: rung vllm needs {lacks}; recorded runs: mrv2lab live")
    told = run(f"{name}: mrv2lab live", "live", CASE, tells="lacks", **machine)
    said = " ".join(told.err.split())
    assert told.status == 0 and f"{CASE}: this machine lacks {lacks}; recorded runs instead" in said
    assert "recorded: NVIDIA H200" in told.out and told.left == []


def test_vllm_without_a_gpu_runs_what_needs_none(run, faults):
    told = run("vLLM without a GPU: mrv2lab run", *faults.one, vllm="0.23.0")
    assert told.status == 0 and "rung: emulated" in told.out and told.left == [], told.out + told.err


@pytest.mark.parametrize(
    "machine, gpu, case, variant, refusal",
    [
        (
            "less device memory than an engine wants",
            HOPPER,
            *(CASE, "forced_launch"),
            # vllm/v1/worker/utils.py, `request_memory`
            "Free memory on device cuda:0 (1.2/79.1 GiB) on startup is less than desired GPU memory "
            "utilization (0.15, 11.87 GiB). Decrease GPU memory utilization or reduce GPU memory used by "
            "other processes.",
        ),
        (
            "a GPU that is no Hopper, where a case wants FlashMLA",
            AMPERE,
            *("flashmla_lazy_init", "eager"),
            # vllm/platforms/cuda.py, `get_attn_backend_cls`; v1/attention/backend.py; its ops/flashmla.py
            # refuses a Blackwell too
            "Selected backend AttentionBackendEnum.FLASHMLA is not valid for this configuration. Reason: "
            "['compute capability not supported', 'FlashMLA Dense is only supported on Hopper devices.']",
        ),
    ],
)
def test_what_the_engine_refuses_is_told_in_its_words(run, machine, gpu, case, variant, refusal):
    words = ("run", case, "--rung", "vllm", "--variant", variant)
    told = run(machine, *words, at=WORKER, what="refuse", tells="failed: ", gpu=gpu, vllm="0.23.0",
               MRV2LAB_REFUSAL=refusal)  # fmt: skip
    assert told.status == 1 and told.left == [] and f"exit status 1: ValueError: {refusal}\n" in told.out


@pytest.fixture
def engines(faults):
    """Those that are ended from outside leave the folders that they were given, and what lies in them."""
    faults.others += ("tmp", "mrv2lab-live-")


@pytest.mark.parametrize(
    "what, told",
    [
        ("kill", "ended by SIGKILL (often by the system, for lack of memory), and not a word"),
        ("term", "ended by SIGTERM, and not a word"),
        ("exit", "exit status 0 without a result, and not a word"),
        ("memory", "exit status 1: MemoryError"),
    ],
)
def test_an_engine_whose_process_dies_is_told(run, engines, what, told):
    machine = {"gpu": HOPPER, "vllm": "0.23.0"}
    lost = run(f"an engine: {what}", *ENGINE, at=WORKER, what=what, tells="failed: ", **machine)
    assert lost.status == 1 and f"failed: {told}" in lost.out and lost.left == [], lost.out + lost.err


@pytest.mark.parametrize("what, status", [("kill", -9), ("term", -15), ("interrupt", -2)])
def test_whoever_waits_for_an_engine_takes_it_along(run, engines, what, status):
    """Once the engine's process has said its first word."""
    fault, at = f"the process that waits for an engine: {what}", "mrv2lab.live.attend:read_progress"
    lost = run(fault, *ENGINE, at=at, what=what, gpu=HOPPER, vllm="0.23.0")
    assert lost.status == status and lost.left == [], lost
