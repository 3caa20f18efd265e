"""The command line: what it prints where, and its exit status."""

import io
import json

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from mrv2lab.cli import app
from mrv2lab.results import Record, Run

FAST = ["--variant", "zero_mapping", "--rung", "emulated", "--batch-size", "1"]


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def test_doctor_says_what_is_here_and_what_is_missing():
    result = invoke("doctor")
    assert result.exit_code == 0
    assert torch.__version__.split("+")[0] in result.stdout and "CUDA GPU" in result.stdout


def test_list_names_every_variant_and_its_verdict():
    result = invoke("list")
    for word in (
        "lora_short_circuit",
        "zero_mapping",
        "forced_launch",
        "eager",
        "wrong",
        "correct",
        "#43314",
    ):
        assert word in result.stdout


def test_run_prints_verdicts_that_fit_a_terminal():
    result = invoke("run", "lora_short_circuit", *FAST)
    assert result.exit_code == 0
    row = next(line for line in result.stdout.splitlines() if "zero_mapping" in line)
    assert "wrong" in row and "yes" in row and "rung: emulated" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_verdict_table_has_room_for_speeds_and_long_names():
    from mrv2lab.cli import verdict_table

    fields = {"case": "flashmla_lazy_init", "role": "workaround", "rung": "cuda", "shape": {"batch_size": 8}}
    latency = {"median": 12.345, "p20": 1, "p80": 20}
    run = Run(
        **fields, variant="persistent_buffers", verdict="correct", expected="correct",
        errors=[0.0], step_modes=["graph"], latency_ms=latency,
    )  # fmt: skip
    console = Console(width=80, file=io.StringIO())
    console.print(verdict_table([run]))
    text = console.file.getvalue()
    assert "persistent_buffers" in text and "workaround" in text and "12.345" in text


def test_json_is_one_document_and_nothing_else():
    result = invoke("run", "lora_short_circuit", *FAST, "--batch-size", "2", "--json")
    record = Record.model_validate(json.loads(result.stdout))
    assert [run.shape["batch_size"] for run in record.runs] == [1, 2]
    assert record.provenance.gpu is None


def test_save_and_report_write_files(tmp_path):
    result = invoke(
        "run", "lora_short_circuit", *FAST, "--save", "--data", tmp_path, "--report", tmp_path / "r.html"
    )
    assert result.exit_code == 0
    kept = tmp_path / "lora_short_circuit" / "emulated-cpu.json"
    assert kept.exists() and "zero_mapping" in (tmp_path / "r.html").read_text()
    again = invoke("report", kept, "--output", tmp_path / "again.html", "--figures", tmp_path / "png")
    assert again.exit_code == 0
    assert "recorded" in (tmp_path / "again.html").read_text()
    assert [path.name for path in (tmp_path / "png").iterdir()] == ["lora_short_circuit-emulated-errors.png"]


def test_a_verdict_other_than_the_stated_one_is_status_1(monkeypatch):
    from mrv2lab.cases import lora_short_circuit

    monkeypatch.setattr(
        lora_short_circuit.zero_mapping, "__code__", lora_short_circuit.forced_launch.__code__
    )
    result = invoke("run", "lora_short_circuit", *FAST)
    assert result.exit_code == 1
    assert "NO: wrong" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "lora"], "unknown case 'lora'; possible: lora_device_assert, lora_short_circuit"),
        (["run"], "name one case or give --all"),
        (["run", "lora_short_circuit", "--variant", "x"], "unknown variant of lora_short_circuit 'x'"),
        (["run", "--all", "--rung", "gpu"], "unknown rung 'gpu'; possible: auto, emulated, cuda"),
        (["run", "--all", "--batch-size", "0"], "batch_size=0 is out of range; possible: 1 to 8"),
        (["run", "--all", "--set", "num_layers=two"], "--set num_layers=two: possible: name=value"),
        (["run", "--all", "--set", "width=2"], "unknown shape of lora_device_assert 'width'"),
        (["run", "--all", "--rank", "33"], "rank=33 is out of range; possible: 1 to 32"),
        (["report", "no-such-file.json"], "no-such-file.json: cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_status_2(args, message, tmp_path):
    extra = ["--report", tmp_path / "r.html", "--save", "--data", tmp_path] if args[0] == "run" else []
    result = invoke(*args, *extra)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"mrv2lab: {message}") and result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_rung_cuda_without_a_gpu_says_so():
    result = invoke("run", "--all", "--rung", "cuda")
    assert result.exit_code == 2
    assert (
        result.stderr
        == "mrv2lab: 'cuda' needs an NVIDIA GPU and there is none here; use 'emulated', or 'auto'\n"
    )


def test_a_shape_that_is_set_twice_is_run_twice():
    from mrv2lab.cli import _parse_shapes

    assert _parse_shapes(["a=1", "b=2", "a=3"]) == [{"a": 1, "b": 2}, {"a": 3, "b": 2}]
    assert _parse_shapes([]) == [{}]
