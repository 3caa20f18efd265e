"""Programs, most by writers who had not seen the audit: what it says is held against what they expected.

It has been mended by them since, so they guard what it can do and do not measure what it finds elsewhere.

A program has `make()`, which returns step, vary and reset; EXPECT, the kinds (or AuditError) that are an
answer; SUBJECTS, words of which one should stand in the subject; and `# HERE` at lines that may be named.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from mrv2lab.audit import AuditError, audit, lines

# Named by other words than the writer thought of: a parameter for the state behind it, an effect, or better.
OTHER_WORDS = {
    "attrgetter", "batch_without_graph", "chainmap_overlay", "descriptor_in_slots", "event_queue",
    "exec_template", "flash_decode_splits", "fresh_plan_each_batch", "frozen_parameter",
    "graph_dropped_by_feature", "hook_list_swapped", "layout_of_same_memory", "longer_tensor",
    "mask_cache_by_length", "match_on_request", "memo_reset", "memoised_coefficient",
    "parametrized_later", "runner_falls_back_on_logprobs", "staging_from_numpy_temporary", "star_args",
    "steering_hook_registered_late", "torch_optim_lr",
}  # fmt: skip
# By another line: where the value comes from, the branch, the first work of a step that ran eagerly.
OTHER_LINES = {
    "batch_without_graph", "cached_property_metadata", "forward_context", "fresh_plan_each_batch",
    "graph_dropped_by_feature", "mask_cache_by_length", "memo_reset",
    "module_in_temp_dir", "nested_descriptor", "numpy_metadata", "persistent_tiles", "previous_hidden_states",
    "tolist_loop",
}  # fmt: skip
CORPUS = Path(__file__).with_name("corpus")


def programs(folder):
    return [pytest.param(file, id=file.stem) for file in sorted((CORPUS / folder).glob("*.py"))]


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    monkeypatch.setattr(lines, "MAX_WAIT_S", 0.2)
    environment, modules = dict(os.environ), set(sys.modules)
    yield
    os.environ.clear()
    os.environ.update(environment)
    for name in set(sys.modules) - modules:
        if name.startswith("corpus_"):
            del sys.modules[name]


def look_at(file, backend):
    """The program, and what the audit says of it."""
    spec = importlib.util.spec_from_file_location(f"corpus_{file.stem}", file)
    program = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    made = program.make()
    return program, audit(**made, backend=backend)


@pytest.mark.parametrize("file", programs("wrong"))
def test_what_is_wrong_is_found(file, backend):
    program, report = look_at(file, backend)
    assert report.findings and report.findings[0].kind in program.EXPECT, str(report)
    if backend == "cuda":  # other ops may say it there
        return
    first = report.findings[0]
    named = any(word.casefold() in first.subject.casefold() for word in program.SUBJECTS)
    source = file.read_text().splitlines()
    here = first.where is not None and source[first.where.line - 1].endswith("# HERE")
    assert (named, here) == (file.stem not in OTHER_WORDS, file.stem not in OTHER_LINES), str(report)


@pytest.mark.parametrize("file", programs("right"))
def test_what_is_right_is_left_alone(file, backend):
    _, report = look_at(file, backend)
    assert not report.findings, str(report)


@pytest.mark.parametrize("file", programs("bad_input"))
def test_what_cannot_be_audited_is_said_to_be_so(file, backend):
    try:
        program, report = look_at(file, backend)
    except AuditError as error:
        assert "AuditError" in sys.modules[f"corpus_{file.stem}"].EXPECT, str(error)
        return
    assert report.findings and report.findings[0].kind in program.EXPECT, str(report)
