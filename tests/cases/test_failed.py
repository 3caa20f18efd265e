"""What says nothing about a bug is never its verdict: faults planted in runs of the mini runner.

The other rungs: `upstream/test_probe`, `upstream/test_source`, `live/test_rung`.
"""

from dataclasses import replace

import pytest
import torch
from triton.runtime.errors import OutOfResources
from typer.testing import CliRunner

from mrv2lab.cases import CASES, get, isolated
from mrv2lab.cases import base as cases_base
from mrv2lab.cli import app
from mrv2lab.errors import CaptureError, CutOff
from mrv2lab.graphs import capture

FAULTS = {
    "a typo": NameError("name 'RunnerConfg' is not defined"),
    "an index that no device looked up": IndexError("list index out of range"),
    "host memory": MemoryError(),
    "GPU memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    "GPU memory, by CUDA itself": torch.AcceleratorError("CUDA error: out of memory"),
    "a kernel's resources": OutOfResources(300_000, 232_448, "shared memory"),
    "no GPU": RuntimeError("No CUDA GPUs are available"),
    "an old driver": RuntimeError("CUDA driver version is insufficient for CUDA runtime version"),
    "no compiler": RuntimeError("CUDA_HOME not set"),
    "a library": ModuleNotFoundError("No module named 'vllm_flash_attn'", name="vllm_flash_attn"),
    "a time-out": TimeoutError("no answer"),
    "a refused capture": CaptureError("CUDA refused the capture: operation not permitted"),
}
CRASHING = {"lora_device_assert": "unwritten", "flashmla_lazy_init": "captured_reused"}

each_fault = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
each_crash = pytest.mark.parametrize(("name", "variant"), CRASHING.items())


def planted(name, fault):
    """The case, in which nothing runs but this fault."""

    def observe(*args):
        raise fault

    return replace(get(name), observe=observe)


@pytest.fixture(params=["emulated", "cuda"])
def rung(request, monkeypatch):
    """Both executors; no work gets as far as a GPU."""
    monkeypatch.setattr(cases_base, "best_rung", lambda rung: request.param)
    monkeypatch.setattr(isolated, "in_child", lambda: True)
    made_with = cases_base.provenance(0, uses_gpu=False)
    monkeypatch.setattr(cases_base, "provenance", lambda seed, **kwargs: made_with)
    return request.param


@each_crash
@each_fault
def test_a_fault_is_not_the_crash_that_a_variant_states(name, variant, fault, rung):
    run = planted(name, fault).run(variant)
    assert (run.verdict, run.expected, run.rung) == ("failed", "crash", rung)
    assert not run.as_expected and run.message.startswith(type(fault).__name__)
    assert run.log_tail[0] == "Traceback (most recent call last):"
    assert any(", in observe" in line for line in run.log_tail)


@each_crash
@pytest.mark.parametrize("error", [isolated.Died("killed\n a line"), CutOff("no result after 900 s")])
def test_a_process_that_ends_without_a_record_shows_no_bug(name, variant, error, rung, monkeypatch):
    def run(*args):
        raise error

    monkeypatch.setattr(isolated, "in_child", lambda: False)
    monkeypatch.setattr(isolated, "run", run)
    seen = planted(name, error).run(variant)
    assert (seen.verdict, seen.as_expected, seen.where) == ("failed", False, None)
    assert seen.message == f"{type(error).__name__}: {error}".splitlines()[0]


@each_fault
def test_a_command_with_a_fault_ends_with_status_1_and_shows_the_traceback(fault, monkeypatch):
    monkeypatch.setitem(CASES, "lora_device_assert", planted("lora_device_assert", fault))
    result = CliRunner().invoke(app, ["run", "lora_device_assert", "--rung", "emulated"])
    assert result.exit_code == 1
    said = result.stdout.splitlines()
    told = next(i for i, line in enumerate(said) if line.startswith("unwritten failed: "))
    assert said[told].startswith(f"unwritten failed: {type(fault).__name__}")
    assert said[told + 1] == "Traceback (most recent call last):"
    assert "yes" not in result.stdout


@each_crash
def test_a_name_that_is_not_there_is_no_crash_of_a_variant(name, variant, monkeypatch):
    def config(*args, **fields):
        return RunnerConfg()  # noqa: F821

    makes = {"lora_device_assert": "config_of", "flashmla_lazy_init": "drafting"}
    monkeypatch.setattr(f"mrv2lab.cases.{name}.{makes[name]}", config)
    for run in get(name).run_all(rung="emulated", num_layers=1):
        assert (run.verdict, run.message) == ("failed", "NameError: name 'RunnerConfg' is not defined")
        assert not run.as_expected


@each_crash
def test_the_words_of_a_crash_at_another_place_are_not_it(name, variant):
    run = get(name).run(variant, rung="emulated")
    kind, words = run.message.split(": ", 1)
    assert run.as_expected
    error = {"IndexError": IndexError}.get(kind) or getattr(__import__("mrv2lab.errors").errors, kind)
    elsewhere = planted(name, error(words)).run(variant, rung="emulated")
    assert (elsewhere.verdict, elsewhere.message) == ("failed", run.message)


def test_what_only_the_emulator_cannot_do_is_no_crash():
    sparse = torch.eye(2).to_sparse()

    def observe(*args):
        capture(lambda: sparse + sparse, backend="emulated")

    run = replace(get("flashmla_lazy_init"), observe=observe).run("captured_reused", rung="emulated")
    assert (run.verdict, run.as_expected) == ("failed", False)
    assert run.message.startswith("EmulatorLimit: aten.add.Tensor has a tensor that is torch.sparse_coo")
