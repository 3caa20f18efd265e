"""`mrv2lab dispatch vllm`: the table, and whether it is what releases say themselves.

    pytest -m source

asks three releases, each in a process that has imported it.
"""

import json
import random
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mrv2lab.cli import app
from mrv2lab.dispatch import DispatchTable
from mrv2lab.errors import BadInput
from mrv2lab.upstream import releases
from mrv2lab.upstream.dispatch import Dispatched, Question, Row, ask
from mrv2lab.upstream.process import environment
from mrv2lab.upstream.releases import RELEASES

BOTH = ["0.23.0", "0.26.0"]  # before and since graphs are keyed by adapters
FETCH = cache(releases.fetch)  # which reads the whole release
MODES = ["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]


@pytest.fixture
def in_release(warm_releases, monkeypatch):
    """`in_release(version, code, ...)`: what it prints as JSON. Whoever asks finds the release imported."""
    monkeypatch.setattr("mrv2lab.upstream.process.forks", warm_releases)
    monkeypatch.setattr(releases, "fetch", FETCH)

    def run(version, code, *arguments):
        command = [sys.executable, "-P", "-c", code, *arguments]
        done = warm_releases.run(command, env=environment(version))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


# ---- what releases say ----

BY_HAND = """
import json, sys
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from mrv2lab.upstream import platform, model_runner
platform.apply()
utils = import_module("vllm.v1.worker.gpu.cudagraph_utils")
found = []
for mode, sizes, reqs, query_len, loras, specialize, batches in json.loads(sys.argv[1]):
    setup = model_runner.Setup(mode, tuple(sizes), reqs, query_len)
    runner = SimpleNamespace(vllm_config=model_runner.make_vllm_config(setup), lora_config=None)
    if loras:
        runner.lora_config = SimpleNamespace(max_loras=loras, specialize_active_lora=specialize)
    manager = model_runner.make_manager(utils.CudaGraphManager, runner, setup)
    manager._graphs_captured = True
    knows_loras = "num_active_loras" in signature(manager.dispatch).parameters
    for active in range(loras + 1 if knows_loras else 1):
        for num_reqs, num_tokens in [each for each in batches if active <= each[0]]:
            uniform = query_len if num_tokens == num_reqs * query_len else None
            desc = manager.dispatch(num_reqs, num_tokens, uniform, *[active][:knows_loras])
            found.append([active, num_reqs, num_tokens, desc.cg_mode.name, desc.num_tokens, desc.num_reqs])
print(json.dumps(found))
"""


def drawn(seed):
    """A question, and batches with a prefill among them that no release takes for a decode."""
    draw = random.Random(seed)
    query_len, max_num_seqs = draw.choice([1, 1, 2, 3]), draw.randrange(1, 20)
    decodes = [(n, n * query_len) for n in draw.sample(range(1, max_num_seqs + 1), min(4, max_num_seqs))]
    mixed = [(n, n * query_len + draw.randrange(1, 20)) for n in draw.choices(range(2, 12), k=6)]
    return Question(
        cudagraph_mode=draw.choice(MODES),
        capture_sizes=tuple(sorted(draw.sample(range(1, 40), draw.randrange(1, 6)))),
        max_num_seqs=max_num_seqs,
        num_speculative_tokens=query_len - 1,
        max_loras=draw.choice([0, 1, 5]),
        specialize_active_lora=draw.random() < 0.5,
        batches=(*decodes, *mixed),
    )


@pytest.mark.source
@pytest.mark.parametrize("release", [*BOTH, "0.28.0", RELEASES[-1]])
def test_random_batches_are_given_what_the_release_gives_them(in_release, release):
    """The same managers made another way, from configs that are set field by field."""
    questions = [drawn(seed) for seed in range(4)]
    asked = [
        [q.cudagraph_mode, q.capture_sizes, q.max_num_seqs, q.decode_query_len, q.max_loras,
         q.specialize_active_lora, q.batches] for q in questions
    ]  # fmt: skip
    expected = in_release(release, BY_HAND, json.dumps(asked))
    rows = [row for question in questions for row in ask(release, question).batches]
    assert [
        [r.num_active_loras, r.num_reqs, r.num_tokens, r.mode, r.padded_tokens, r.padded_reqs] for r in rows
    ] == expected
    assert {row.mode for row in rows} == {"NONE", "PIECEWISE", "FULL"}


DOWNGRADED = Question(
    cudagraph_mode="FULL", attention_support="UNIFORM_BATCH", capture_sizes=(1, 2, 4, 8), max_num_seqs=6
)


CHANGED = {
    "a capture size of its": lambda own, rows: {
        "capture_sizes": tuple(sorted({*DOWNGRADED.capture_sizes, *(row.num_tokens for row in rows)}))
    },
    "max_num_seqs": lambda most, rows: {"max_num_seqs": int(most)},
    "attention support": lambda support, rows: {"attention_support": support},
}


@pytest.mark.source
@pytest.mark.parametrize("release", BOTH)
def test_what_would_be_more_of_a_graph_is_so_when_it_is_asked_for(in_release, release):
    answer, tried = ask(release, DOWNGRADED), set()
    for change in {change for row in answer.batches for change in row.more if " with " in change}:
        mode, what, value = re.fullmatch(r"(\w+) with (.+) (\w+)", change).groups()
        rows = [row for row in answer.batches if change in row.more]
        shapes = tuple((row.num_reqs, row.num_tokens) for row in rows)
        asked = DOWNGRADED.model_copy(update={**CHANGED[what](value, rows), "batches": shapes})
        assert {row.mode for row in ask(release, asked).batches} == {mode} != {row.mode for row in rows}
        tried.add(what)
    assert tried == {*CHANGED}


@pytest.mark.source
@pytest.mark.parametrize("release", BOTH)
def test_a_mode_that_attention_does_not_support_is_lowered_in_the_releases_words(in_release, release):
    found = ask(release, DOWNGRADED)
    assert found.mode == "FULL_AND_PIECEWISE" and len(found.said) == 1
    assert found.said[0].endswith("; setting cudagraph_mode=FULL_AND_PIECEWISE")
    assert ask(release, DOWNGRADED.model_copy(update={"attention_support": "ALWAYS"})).said == ()
    too_large = ask(release, Question(capture_sizes=(4, 1 << 20), max_num_seqs=4))
    assert too_large.capture_sizes == (4,) and "[4, 1048576] is overridden by config [4]" in too_large.said[0]


@pytest.mark.source
def test_what_a_release_does_not_take_is_refused_in_its_words(in_release):
    for asked, words in (
        ({"attention_support": "NEVER"}, "CUDAGraphMode.FULL is not supported with attention backend"),
        ({"attention_support": "SOME"}, "unknown AttentionCGSupport 'SOME'; possible: ALWAYS, "),
        ({"cudagraph_mode": "FUL"}, "unknown CUDAGraphMode 'FUL'; .*did you mean 'FULL'"),
        ({"max_loras": -1}, "1 validation error for LoRAConfig max_loras Input should be greater"),
    ):
        with pytest.raises(BadInput, match=f"^vllm 0.26.0: {words}"):
            ask("0.26.0", DOWNGRADED.model_copy(update=asked))


@pytest.mark.source
def test_adapters_are_part_of_the_key_since_a_release_knows_them(in_release):
    asked = Question(capture_sizes=(1, 2), max_loras=3, specialize_active_lora=True, batches=((3, 3),))
    keys = [row.key["num_active_loras"] for row in ask("0.26.0", asked).batches]
    assert keys == [0, 1, 2, 4]
    before = ask("0.23.0", asked)
    assert len(before.batches) == 1 and "is not told how many adapters" in repr(DispatchTable(before))


@pytest.mark.source
def test_as_a_command(in_release):
    command = "dispatch vllm --release 0.26.0 --capture-sizes 1,2,4 --max-num-seqs 4 --batch 3x3 --batch 2x9"
    shown = CliRunner().invoke(app, command.split())
    assert (
        shown.exit_code == 0
        and "Model Runner V2 of vllm 0.26.0, cudagraph_mode FULL_AND_PIECEWISE" in shown.stdout
    )
    assert re.search(r"decode +3 +3 +FULL +tokens 4, reqs 4, uniform 1", shown.stdout)
    assert re.search(r"mixed +2 +9 +eager +a\b", shown.stdout)
    assert "a: PIECEWISE with a capture size of its own" in shown.stdout
    as_json = CliRunner().invoke(app, [*command.split(), "--json"])
    assert [row["mode"] for row in json.loads(as_json.stdout)["batches"]] == ["FULL", "NONE"]


@pytest.mark.source
def test_the_page_holds_what_its_command_prints(in_release):
    page = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
    command = re.search(r"^mrv2lab (dispatch .*)$", page, re.MULTILINE)[1]
    shown = CliRunner().invoke(app, command.split()).stdout
    assert "\n".join(line.rstrip() for line in shown.splitlines()).strip("\n") in page


# ---- the table ----


def row(num_reqs, num_tokens, loras, mode, size, *more):
    key = {
        "cg_mode": mode,
        "num_tokens": size,
        "num_reqs": None,
        "num_active_loras": loras,
        "num_ubatches": 1,
    }
    return Row(
        batch="decode", num_reqs=num_reqs, num_tokens=num_tokens, num_active_loras=loras, mode=mode,
        padded_tokens=size, padded_reqs=None, key=key, more=more,
    )  # fmt: skip


@pytest.fixture
def answer():
    batches = [
        line
        for loras in (0, 1)
        for line in (
            row(1, 1, loras, "PIECEWISE", 1, "FULL with x"),
            *(row(n, n, loras, "PIECEWISE", 4, "FULL with x") for n in (2, 3, 4)),
            *(row(n, n, loras, "NONE", n, "FULL with y", "PIECEWISE with x") for n in (5, 6)),
        )
    ]
    return Dispatched(
        release="9.9.9", asked=Question(max_loras=1), mode="PIECEWISE", said=("so it is",),
        capture_sizes=(1, 4),
        max_num_batched_tokens=2048, knows_loras=True, batches=tuple(batches),
    )  # fmt: skip


def test_batches_that_are_given_the_same_graph_share_a_line(answer):
    table = DispatchTable(answer)
    assert table.rows()[1:] == [
        ["decode", "1", "1", "0", "PIECEWISE", "tokens 1", "a"],
        ["decode", "2-4", "2-4", "0", "PIECEWISE", "tokens 4", "a"],
        ["decode", "5-6", "5-6", "0-1", "eager", "", "b c"],
        ["decode", "1", "1", "1", "PIECEWISE", "tokens 1, loras 1", "a"],
        ["decode", "2-4", "2-4", "1", "PIECEWISE", "tokens 4, loras 1", "a"],
    ]
    note = [
        "more if: what, changed alone, would give the batch more of a graph",
        "a: FULL with x", "b: FULL with y", "c: PIECEWISE with x",
        "Model Runner V2 of vllm 9.9.9, cudagraph_mode PIECEWISE for FULL_AND_PIECEWISE, "
        "attention support ALWAYS (of several backends, the weakest)",
        "max_num_seqs 128, max_num_batched_tokens 2048, capture sizes 1, 4",
        "vllm says: so it is",
    ]  # fmt: skip
    assert repr(table).endswith("\n".join(note)) and "so it is" in table._repr_html_()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--batch 4x2", "'4x2' is not like 4x12: requests, and tokens of all together"),
        ("--batch 4", "'4' is not like 4x12: requests, and tokens of all together"),
        ("--capture-sizes 0,1", "'0,1' is not like 1,2,4: from 1 on, rising"),
        ("--capture-sizes=", "'' is not like 1,2,4: from 1 on, rising"),
        ("--batch 2x2 --batch 500x500", "--batch 500x500 has more requests than --max-num-seqs 128"),
        ("--specialize-active-lora", "--specialize-active-lora says nothing without --num-adapters"),
        ("--release 0.26", "'0.26' is no version of vLLM"),
    ],
)
def test_bad_input_is_one_line_and_status_2(words, line):
    result = CliRunner().invoke(app, ["dispatch", "vllm", *words.split()])
    assert result.exit_code == 2 and result.stderr.startswith(f"mrv2lab: {line}")
    assert result.stderr.count("\n") == 1
