"""The engine of other releases: every edit is found in that release's source, and what is gone is gone."""

import ast
import sys
from functools import cache
from importlib import import_module

import pytest
from typer.testing import CliRunner

from mrv2lab.cases import CASES
from mrv2lab.cli import app
from mrv2lab.errors import BadInput
from mrv2lab.live import releases, rung
from mrv2lab.live.variants import VARIANTS
from mrv2lab.upstream import probes
from mrv2lab.upstream.process import environment
from mrv2lab.upstream.releases import TARGET, fetch
from mrv2lab.upstream.rewrite import Edit, SourceChanged, rewrite

fetch = cache(fetch)  # which reads the whole release

OTHERS = [(release, case) for release in releases.CHANGED for case in VARIANTS]
LORA_UTILS = "vllm/v1/worker/gpu/lora_utils.py"
KEYED = {"keyed_short", "keyed_last", "keyed_full"}
GONE = [
    (*pair, name)
    for pair in OTHERS
    for name in releases.gone(*reversed(pair))
    if pair[1] not in ("lora_frozen_grid", "breakable_graph")  # their variants are no edits: see below
]

# A variant that is the target release as published is gone where what its buggy twin takes out is gone.
TWIN = {
    "zero_mapping": "unwritten", "forced_launch": "zero_mapping", "state_pair": "captured_reused",
    "kept_pairs": "one_state", "zeroed_buffers": "one_state",
}  # fmt: skip


def rewritten(release: str, edit: Edit) -> str:
    source = (fetch(release).path / f"{edit.module.replace('.', '/')}.py").read_text()
    return rewrite(source, [edit])


def edits(release: str, case: str) -> list[Edit]:
    """Of all variants there. With several GPUs the workers take theirs from the probe."""
    known, of_probe = releases.variants(case, release), probes.get(case).variants
    on_workers = case == "pp_eager_fallback"
    return [edit for name in known for edit in (of_probe if on_workers else known)[name].edits]


@pytest.mark.parametrize(("release", "case"), OTHERS)
def test_every_variant_of_a_case_is_run_or_said_to_be_gone(release, case):
    names = {variant.name for variant in CASES[case].variants}
    runs, gone = set(releases.variants(case, release)), set(releases.gone(case, release))
    assert runs | gone == names
    assert not runs & gone


def test_the_target_release_is_run_as_it_was():
    assert all(releases.variants(case, TARGET) == VARIANTS[case] for case in VARIANTS)
    assert {name for case in VARIANTS for name in releases.gone(case, TARGET)} == KEYED


def test_a_variant_without_a_place_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(rung, "missing", lambda case, release: [])
    with pytest.raises(BadInput, match=r"state_pair cannot be run in vllm 0\.26\.0: .*AttentionStatePair"):
        list(rung.run_variants("flashmla_lazy_init", ["state_pair"], rung.Options(release="0.26.0")))


def test_an_engine_that_nobody_has_looked_at_is_refused():
    refused = CliRunner().invoke(app, ["live", "--all", "--release", "0.33.0"])
    assert refused.exit_code == 2 and "possible: 0.23.0, 0.26.0" in refused.stderr


@pytest.mark.source
@pytest.mark.parametrize(("release", "case"), OTHERS)
def test_every_edit_is_found_in_the_source_of_the_release(release, case):
    for edit in edits(release, case):
        assert rewritten(release, edit)


@pytest.mark.source
@pytest.mark.parametrize(("release", "case", "name"), GONE)
def test_what_is_said_to_be_gone_is_not_found(release, case, name):
    buggy = TWIN.get(name, name)
    [edit] = probes.get("lora_short_circuit" if name == "forced_launch" else case).variants[buggy].edits
    assert rewritten(TARGET, edit)
    with pytest.raises(SourceChanged):
        rewritten(release, edit)


@pytest.mark.source
@pytest.mark.parametrize("release", releases.CHANGED)
def test_graphs_are_keyed_by_adapters_where_it_is_said(release):
    is_keyed = "def create_lora_capture_hook" in (fetch(release).path / LORA_UTILS).read_text()
    assert set(releases.gone("lora_frozen_grid", release)) == ({"one_slot"} if is_keyed else KEYED)


@pytest.mark.source
@pytest.mark.parametrize("release", [TARGET, *releases.CHANGED])
def test_plain_attention_breaks_where_it_is_said_that_nothing_freezes_it(release):
    source = (fetch(release).path / "vllm/model_executor/layers/attention/attention.py").read_text()
    [op] = [n for n in ast.parse(source).body if getattr(n, "name", "") == "unified_attention_with_output"]
    breaks = "eager_break_during_capture" in map(ast.unparse, op.decorator_list)
    assert ("whole_graph" in releases.gone("breakable_graph", release)) == breaks


SHOWN = """
import sys
from functools import cache
from importlib import import_module
from mrv2lab.upstream import platform
platform.apply()
from mrv2lab.live import releases
from mrv2lab.upstream.probe import outcome
from mrv2lab.upstream.unfix import unfix
case, edit = sys.argv[1:]
probe = import_module(f"mrv2lab.upstream.probes.{case}")
with unfix(getattr(releases, edit, None) or getattr(probe, edit), versions="==0.26.0"):
    shown = [vars(probe)[name] for name in ("captured", "as_engines_start", "observe") if name in vars(probe)]
    seen = outcome(shown[0], crash=getattr(probe, "CRASH", None))
print(seen.verdict, seen.message, seen.where)
"""


@pytest.mark.source
@pytest.mark.parametrize(
    ("case", "edit", "verdict"),
    [
        ("lora_device_assert", "WITHOUT_ADAPTERS", "crash"),
        ("lora_short_circuit", "CAPTURED_WITHOUT_ADAPTERS", "wrong"),
        ("flashmla_lazy_init", "ONE_FORWARD", "wrong"),
        ("pp_eager_fallback", "RETURN_EARLY", "eager"),
        ("pp_eager_fallback", "NOT_COPIED", "wrong"),
    ],
)
def test_an_edit_shows_the_bug_on_the_classes_of_the_release(warm_releases, case, edit, verdict):
    homes = ("mrv2lab.live.releases", f"mrv2lab.upstream.probes.{case}")
    assert any(hasattr(import_module(home), edit) for home in homes)
    command = [sys.executable, "-P", "-c", SHOWN, case, edit]
    done = warm_releases.run(command, environment("0.26.0"))
    assert done.stdout.split(maxsplit=1)[:1] == [verdict], done.stdout + done.stderr[-2000:]
