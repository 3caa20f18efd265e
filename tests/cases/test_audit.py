"""The gate of the audit: every variant of every case, on both executors, and the matrix made of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mrv2lab.audit import AuditReport, Finding
from mrv2lab.cases import CASES, get, matrix
from mrv2lab.cli import app
from mrv2lab.errors import BadInput, RecordError
from mrv2lab.results import Provenance

VARIANTS = [(case, variant) for case in CASES.values() for variant in case.variants]


each_variant = pytest.mark.parametrize(("case", "variant"), VARIANTS, ids=lambda v: v.name)


@each_variant
def test_the_cause_is_found_first_and_nothing_where_nothing_is_wrong(audit_once, case, variant, backend):
    judge(variant, audit_once(case.name, variant.name, backend))


@pytest.mark.slow
@each_variant
def test_it_is_so_at_the_cases_own_shape(case, variant, backend):
    judge(variant, case.audit(variant.name, rung=backend, seed=3))


def judge(variant, report):
    assert matrix.found_as_stated(variant, report), str(report)
    holds_no_bug = variant.role in ("baseline", "fixed")
    assert bool(variant.finding) + bool(variant.unseen) == (not holds_no_bug)


def test_lost_kernels_come_with_their_cause(audit_once):
    report = audit_once("lora_short_circuit", "zero_mapping", "emulated")
    lost = {f.subject for f in report.findings if f.kind == "lost-kernel"}
    assert {"_lora_shrink_kernel", "_lora_expand_kernel"} <= lost
    assert "was True at capture, is False now" in report.findings[0].evidence
    planner = audit_once("flashmla_lazy_init", "shared_state", "emulated")
    assert "get_mla_metadata_kernel" in {f.subject for f in planner.findings if f.kind == "lost-kernel"}


def test_bad_input_of_a_case_audit():
    with pytest.raises(BadInput, match="unknown variant"):
        get("lora_short_circuit").audit("nothing")
    with pytest.raises(BadInput, match="batch_size=99 is out of range"):
        get("lora_short_circuit").audit("eager", batch_size=99)


# ---- the matrix ----


def reported(*findings):
    return AuditReport("step", "emulated", findings, 1)


def test_what_counts_as_stated():
    buggy, fixed = (
        get("lora_short_circuit").variant("zero_mapping"),
        get("lora_short_circuit").variant("eager"),
    )
    cause, other = Finding("frozen-host-value", "a.no_lora_flag_cpu", ""), Finding("lost-kernel", "k", "")
    assert matrix.found_as_stated(buggy, reported(cause, other))
    assert not matrix.found_as_stated(buggy, reported(other, cause))
    assert not matrix.found_as_stated(buggy, reported(replace(cause, subject="self.flag")))
    assert not matrix.found_as_stated(buggy, reported(replace(cause, kind="lost-kernel")))
    assert not matrix.found_as_stated(buggy, reported())
    assert matrix.found_as_stated(fixed, reported())
    assert not matrix.found_as_stated(fixed, reported(other))


@pytest.fixture(scope="module")
def small():
    """Of two variants with one request: the matrix asks each case for its own shape."""
    case = get("pp_eager_fallback")
    variants = (case.variant("moving_buffers"), case.variant("full_graphs"))
    limits = case.limits | {"batch_size": case.limits["batch_size"]._replace(default=1)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(CASES, case.name, replace(case, variants=variants, limits=limits))
        return matrix.make("emulated", [1, 2], cases=[case.name])


def test_the_matrix_counts_by_kind(small):
    cells = {cell.variant: cell for cell in small.cells}
    assert cells["moving_buffers"].found == {"moved-address": 2}
    assert list(cells) == ["moving_buffers", "full_graphs"]
    assert cells["full_graphs"].found == {} and cells["full_graphs"].num_seeds == 2
    assert small.is_clean


def test_the_matrix_shows_misses_and_false_alarms():
    variant = get("lora_short_circuit").variant("zero_mapping")
    assert matrix._cell("c", variant, [reported()]).missed == 1
    fixed = get("lora_short_circuit").variant("forced_launch")
    found = [reported(Finding("diverged", "k", ""))]
    cell = matrix._cell("c", fixed, found)
    assert (cell.missed, cell.false_alarms, cell.subject) == (0, 1, "k")
    unseen = replace(variant, finding=None, unseen="it hides")
    assert [matrix._cell("c", unseen, seen).missed for seen in ([reported()], found)] == [0, 1]


def test_the_matrix_says_what_nobody_sees_and_leaves_out_what_is_not_claimed(small, monkeypatch):
    hidden = small.model_copy(update={"cells": [small.cells[0].model_copy(update={"unseen": "it hides"})]})
    table = matrix.DetectionTable(hidden)
    assert table.rows()[2][1:3] == ["-", "0"]
    assert "- not seen: it hides\n* expected" in repr(table)
    assert "not seen" not in repr(matrix.DetectionTable(small))
    monkeypatch.setitem(CASES, "stale_view", replace(get("stale_view"), rungs=("emulated",)))
    assert matrix.make("source", [1], cases=["stale_view"]).cells == []


def test_the_matrix_is_kept_and_read(small, tmp_path):
    small.save(tmp_path / "audit.json")
    kept = matrix.load(tmp_path / "audit.json")
    assert kept.cells == small.cells
    assert {"audit/driver.py", "runner/model.py"} <= kept.provenance.sources.keys()
    with pytest.raises(RecordError, match="make it with mrv2lab audit matrix"):
        matrix.load(tmp_path / "other.json")


@pytest.mark.parametrize(("name", "rung"), [("audit.json", "emulated"), ("audit-cuda.json", "cuda")])
def test_the_recorded_matrix_is_clean_and_in_order(name, rung):
    made = matrix.load(matrix.FILE.parent / name)
    kept = [(cell.case, cell.variant) for cell in made.cells]
    assert kept == [
        pair for pair in ((c.name, v.name) for c, v in VARIANTS if rung in c.rungs) if pair in kept
    ]
    assert made.is_clean and {cell.num_seeds for cell in made.cells} == {20}


def test_the_command_prints_the_matrix(monkeypatch, small):
    monkeypatch.setattr(matrix, "make", lambda *args, **named: small)
    result = CliRunner().invoke(app, ["audit", "matrix", "--backend", "emulated"])
    assert result.exit_code == 0
    assert "moving_buffers" in result.stdout and "2*" in result.stdout
    assert all(len(line) <= 96 for line in result.stdout.splitlines())
    bad = small.model_copy(update={"cells": [small.cells[0].model_copy(update={"false_alarms": 1})]})
    monkeypatch.setattr(matrix, "make", lambda *args, **named: bad)
    assert CliRunner().invoke(app, ["audit", "matrix", "--backend", "emulated"]).exit_code == 1


def test_the_command_prints_the_recorded_matrix():
    result = CliRunner().invoke(app, ["audit", "recorded"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[-1] == f"* expected; recorded: emulated, {matrix.load().provenance.label}"
    assert CliRunner().invoke(app, ["audit", "recorded", "--json"]).stdout == matrix.load().to_json()


def test_the_page_holds_what_the_command_prints(monkeypatch):
    monkeypatch.setattr(Provenance, "since", "")  # it is of the day on which the record was made
    printed = CliRunner().invoke(app, ["audit", "recorded"]).stdout
    page = (Path(__file__).parents[2] / "docs/audit_evidence.md").read_text()
    assert f"```\n{printed}```" in page, (
        "paste what `mrv2lab audit recorded` prints into docs/audit_evidence.md"
    )
    table = [line for line in printed.splitlines() if not line.startswith(("- ", "* "))]
    assert len(table) <= 1 + len(CASES) + len(VARIANTS)


def test_on_a_page_variants_stand_below_their_case_and_not_like_one():
    page = matrix.DetectionTable(matrix.load())._repr_html_()
    assert "<td>lora_short_circuit</td>" in page and "<td>\u2003forced_launch</td>" in page
