"""The exercises as otter-grader takes them. It is not needed here: it runs such a test as a doctest."""

import doctest
import re
import runpy

import assignments
import nbformat
import pytest

from mrv2lab.cases import CASES

STUB = 'def my_repair(adapter_manager, input_batch):\n    raise NotImplementedError("write the repair here")'
RIGHT = """
from mrv2lab.runner import LoRAMapping

def my_repair(adapter_manager, input_batch):
    tokens, requests = input_batch.num_tokens_after_padding, input_batch.num_reqs
    adapter_manager.set_adapter_mapping(LoRAMapping((0,) * tokens, (0,) * requests))
"""
OURS = "from mrv2lab.cases.lora_device_assert import zero_mapping as my_repair"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Notebook by case."""
    return {path.stem: path for path in assignments.write(tmp_path_factory.mktemp("assignments"))}


def test_of(path, name):
    """A test file, as otter reads it."""
    found = runpy.run_path(str(path.parent / "tests" / f"{name}.py"))
    assert found["OK_FORMAT"] is True and found["test"]["name"] == name
    (suite,) = found["test"]["suites"]
    assert suite["type"] == "doctest" and not suite["cases"][0]["hidden"]
    return suite["cases"][0]["code"]


test_of.__test__ = False


@pytest.mark.parametrize("case", CASES)
def test_a_notebook_asks_for_what_its_tests_judge(written, case):
    notebook = nbformat.read(written[case], 4)
    nbformat.validate(notebook)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert f'case = get("{case}")' in code[0] and f'otter.Notebook("{case}.ipynb")' in code[1]
    asked = re.findall(r"^def (my_\w+)", "\n".join(code), re.MULTILINE)
    assert asked == re.findall(r'grader\.check\("(\w+)"\)', "\n".join(code)) and asked[0] == "my_repair"
    assert sorted(asked) == sorted(path.stem for path in (written[case].parent / "tests").iterdir())
    assert all(f"({name})" in test_of(written[case], name) for name in asked)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert len(re.findall("^## ", text, re.MULTILINE)) == len(asked) and not re.search(r"\]\((?!https)", text)
    assert all(cell.source.strip("`\n") for cell in notebook.cells)
    assert not any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.parametrize(
    ("answer", "told"),
    [(RIGHT, ""), (STUB, "is still the stub"), (OURS, "Got:\n    True")],
    ids=["right", "stub", "ours"],
)
def test_an_answer_is_judged_by_the_case(written, answer, told):
    code = test_of(written["lora_device_assert"], "my_repair")
    environment, said = {"__name__": "__main__"}, []
    exec(answer, environment)
    found = doctest.DocTestParser().get_doctest(code, environment, "my_repair", None, None)
    failed, _ = doctest.DocTestRunner().run(found, out=said.append)
    assert bool(failed) == bool(told) and told in "".join(said)
