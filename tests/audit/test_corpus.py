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
import torch

from mrv2lab.audit import AuditError, audit, lines
from mrv2lab.errors import StaleCapture
from mrv2lab.graphs import capture, replayed
from mrv2lab.guard import guard

# Named by other words than the writer thought of: a parameter for the state behind it, an effect, or better.
OTHER_WORDS = {
    "attrgetter", "batch_without_graph", "chainmap_overlay", "descriptor_in_slots", "event_queue",
    "exec_template", "flash_decode_splits", "fresh_plan_each_batch", "frozen_parameter",
    "graph_dropped_by_feature", "hook_list_swapped", "longer_tensor",
    "mask_cache_by_length", "match_on_request", "memo_reset", "memoised_coefficient",
    "parametrized_later", "python_random", "runner_falls_back_on_logprobs", "staging_from_numpy_temporary",
    "star_args", "torch_optim_lr",
}  # fmt: skip
# By another line: where the value comes from, the branch, the first work of a step that ran eagerly.
OTHER_LINES = {
    "batch_without_graph", "cached_property_metadata", "forward_context", "fresh_plan_each_batch",
    "graph_dropped_by_feature", "mask_cache_by_length", "memo_reset",
    "module_in_temp_dir", "nested_descriptor", "numpy_metadata", "persistent_tiles", "previous_hidden_states",
    "tolist_loop",
}  # fmt: skip
# What a guard does not tell of, though a frozen host value or a moved address is an answer: torch or a
# call reads it, or the step itself changes it. Told by other words; and told, though all is right.
UNGUARDED = {
    "attrgetter", "batch_norm_momentum", "chainmap_overlay", "default_argument", "descriptor_in_slots",
    "except_keyerror_default", "exec_template", "frozen_parameter",
    "match_on_request", "memoised_coefficient", "negative_slope", "noise_by_a_host_counter",
    "partial_state", "position_written_from_host", "python_random", "rearmed_only_eagerly",
    "recurrent_state_rebound",
    "scale_renewed_every_second_call", "schedule_index", "steering_hook_registered_late",
    "torch_optim_lr", "weak_mask_cache", "weakref_owner",
}  # fmt: skip
GUARDED_BY_OTHER_WORDS = {
    "config_overlay_getattr", "fresh_plan_each_batch", "memo_reset", "staging_from_numpy_temporary",
}  # fmt: skip
GUARDED_IN_VAIN = {
    "block_size_without_effect", "bounds_same_verdict", "commutative_swap", "constants_let_go_by_reset",
    "context_object_same_tensors", "deepcopied_options", "double_staging_outside", "dummy_bias_pointer",
    "enum_same_launches", "environment_same_value", "equal_number_of_other_type", "flag_bit_elsewhere",
    "flag_same_work", "generator_with_send", "host_item_same_grid", "int8_custom_op_in_place", "lambdas",
    "last_hidden_kept_for_debugging", "memo_refilled_in_step", "metadata_replaced_same_buffers",
    "moe_counts_for_logs_only", "names_of_one_kernel", "padded_bucket", "persistent_device_count",
    "position_refilled_by_vary", "profiler_context_managers", "queue_refilled_by_reset",
    "reset_of_bookkeeping", "rotary_cache_grown_once", "same_bucket", "skip_is_an_optimisation",
    "swap_in_place", "warps_heuristic",
}  # fmt: skip
CORPUS = Path(__file__).with_name("corpus")


def programs(folder):
    return [pytest.param(file, id=file.stem) for file in sorted((CORPUS / folder).glob("*.py"))]


@pytest.fixture(autouse=True)
def as_it_was():
    environment, modules = dict(os.environ), set(sys.modules)
    yield
    os.environ.clear()
    os.environ.update(environment)
    for name in set(sys.modules) - modules:
        if name.startswith("corpus_"):
            del sys.modules[name]


def load(file):
    spec = importlib.util.spec_from_file_location(f"corpus_{file.stem}", file)
    program = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def look_at(file, backend):
    """The program, and what the audit says of it."""
    program = load(file)
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
def test_what_cannot_be_audited_is_said_to_be_so(file, backend, monkeypatch):
    monkeypatch.setattr(lines, "MAX_WAIT_S", 0.2)  # some do not end
    try:
        program, report = look_at(file, backend)
    except AuditError as error:
        assert "AuditError" in sys.modules[f"corpus_{file.stem}"].EXPECT, str(error)
        return
    assert report.findings and report.findings[0].kind in program.EXPECT, str(report)


# ---- a guard, of the same programs ----

ON_A_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="counted on the emulator")
ALONE = pytest.mark.usefixtures("nothing_before")


def guarded(file):
    """The program, and what a guard says before the replay of the next step."""
    with guard("refuse"), replayed() as own:
        program = load(file)
        made = program.make()
        step, vary, reset = (made.get(name) or (lambda: None) for name in ("step", "vary", "reset"))
        reset()
        step()
        run = step if own else capture(step, backend="emulated").replay
    vary()
    reset()
    try:
        run()
    except StaleCapture as stale:
        return program, str(stale).splitlines()
    return program, []


@ON_A_CPU
@ALONE
@pytest.mark.parametrize("file", programs("wrong"))
def test_what_a_guard_tells_of_what_is_wrong(file):
    program, told = guarded(file)
    if not {"frozen-host-value", "moved-address"} & {*program.EXPECT}:
        return  # it may be told by what it changes: memory that is freed, say
    subjects = [text.partition(" was ")[0].casefold() for text in told]
    named = any(word.casefold() in subject for word in program.SUBJECTS for subject in subjects)
    assert bool(told) == (file.stem not in UNGUARDED), told
    assert named == (file.stem not in UNGUARDED | GUARDED_BY_OTHER_WORDS), told


@ON_A_CPU
@ALONE
@pytest.mark.parametrize("file", programs("right"))
def test_what_a_guard_tells_of_what_is_right(file):
    _, told = guarded(file)
    assert bool(told) == (file.stem in GUARDED_IN_VAIN), told


def test_the_page_says_how_much_a_guard_tells():
    kinds = '"frozen-host-value"', '"moved-address"'
    wrong = [file.read_text().partition("EXPECT = ")[2].splitlines()[0] for file in CORPUS.glob("wrong/*.py")]
    meant = sum(any(kind in expected for kind in kinds) for expected in wrong)
    told, right = meant - len(UNGUARDED), len(list(CORPUS.glob("right/*.py")))
    page = " ".join((CORPUS.parents[2] / "docs" / "guard.md").read_text().split())
    # In words, which one program more does not change.
    assert "names more than four in five, nearly all of them by a name" in page
    assert told / meant > 0.8 and len(GUARDED_BY_OTHER_WORDS) / told < 0.05
    assert "warns on about a quarter of the right ones" in page
    assert 0.2 < len(GUARDED_IN_VAIN) / right < 0.3
