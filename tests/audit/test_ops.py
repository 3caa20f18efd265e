"""Host code inside ops: what it decides is found, cause first, by its line; what is right is left alone."""

import sys

import pytest
from typer.testing import CliRunner

from mrv2lab.audit import audit
from mrv2lab.cli import app

programs = sys.modules["op_programs"]


def audited(make, device, backend):
    program = make(device)
    return audit(program.step, vary=program.vary, backend=backend)


@pytest.mark.parametrize("make", programs.WRONG, ids=lambda make: make.__name__)
def test_what_an_op_decides_is_found_first_and_named(make, device, backend):
    report = audited(make, device, backend)
    kind, subject, function = programs.WRONG[make]
    assert report.findings, "nothing found"
    first = report.findings[0]
    assert (first.kind, first.subject, first.where.function) == (kind, subject, function), str(report)
    assert first.where.file == programs.__file__


@pytest.mark.parametrize("make", programs.RIGHT, ids=lambda make: make.__name__)
def test_what_is_right_inside_an_op_is_left_alone(make, device, backend):
    report = audited(make, device, backend)
    assert report.findings == () and report.opaque == (), str(report)


# ---- a file of its own, from the command line ----

BY_CUSTOM_OP = """
import torch

x = torch.ones(4)
flag = {"no_lora": True}

@torch.library.custom_op("audited_files::add_lora", mutates_args=("y",))
def add_lora(y: torch.Tensor) -> None:
    if flag["no_lora"]:
        return
    y.add_(1)

def step():
    y = x * 2
    torch.ops.audited_files.add_lora(y)
    return y

def vary():
    flag["no_lora"] = not flag["no_lora"]
"""
BY_LIBRARY = BY_CUSTOM_OP.replace(
    '@torch.library.custom_op("audited_files::add_lora", mutates_args=("y",))',
    """
library = torch.library.Library("audited_files", "FRAGMENT")
library.define("add_lora_too(Tensor(a!) y) -> ()")

@torch.library.impl(library, "add_lora_too", "CPU")""",
).replace("audited_files.add_lora(", "audited_files.add_lora_too(")
ON_THE_DEVICE = (
    BY_CUSTOM_OP.replace('{"no_lora": True}', '{"no_lora": torch.ones(1)}')
    .replace(
        """    if flag["no_lora"]:
        return
    y.add_(1)
""",
        """    y.add_(1 - flag["no_lora"])
""",
    )
    .replace('flag["no_lora"] = not flag["no_lora"]', 'flag["no_lora"].fill_(0)')
)


def told(tmp_path, source):
    file = tmp_path / "lora.py"
    file.write_text(source)
    return CliRunner().invoke(app, ["audit", "step", f"{file}:step", "--backend", "emulated"])


@pytest.mark.parametrize("source", [BY_CUSTOM_OP, BY_LIBRARY], ids=["custom_op", "library"])
@pytest.mark.parametrize("no_lora", [True, False])
def test_the_flag_inside_an_op_is_found_in_a_plain_file(tmp_path, source, no_lora):
    source = source.replace("True}", f"{no_lora}}}").replace("add_lora_too", f"add_lora_if_{not no_lora}")
    result = told(tmp_path, source)
    assert result.exit_code == 1
    cause, _, place, *rest = result.stdout.splitlines()[1:]
    assert cause == "frozen-host-value: flag['no_lora']"
    assert place.endswith('in add_lora: if flag["no_lora"]:')
    lost = [line for line in rest if not line.startswith(" ")]
    assert lost == (["lost-kernel: aten.add_"] if no_lora else [])


def test_an_op_that_was_defined_again_is_looked_into_still(tmp_path):
    """When the first definition is collected, torch takes what it noted of the second one away as well."""
    told(tmp_path, BY_CUSTOM_OP)
    again = told(tmp_path, BY_CUSTOM_OP.replace("def step", "import gc\ngc.collect()\n\ndef step"))
    assert "frozen-host-value: flag['no_lora']" in again.stdout, again.stdout


def test_the_same_decided_on_the_device_is_right(tmp_path):
    result = told(tmp_path, ON_THE_DEVICE)
    assert (result.exit_code, "nothing found" in result.stdout) == (0, True), result.stdout
