"""Pairs of data/wild: what they state is so, on the emulator."""

import re
import tomllib

import pytest
import torch

from mrv2lab import wild
from mrv2lab.errors import StaleCapture
from mrv2lab.guard import guard

FAMILIES = {
    "frozen-host-value", "lost-kernel", "frozen-grid", "moved-address", "unwritten-read", "host-sync",
    "silent-eager", "not-rearmed", "overwritten-output", "left-behind", "cross-capture", "stale-input",
    "padding-leak", "missing-edge", "liveness", "pointer-table", "incomplete-key", "rng", "frozen-speed",
}  # fmt: skip
# What a guard is meant for; where it says nothing all the same, and where it does though all is right.
GUARDED = {"frozen-host-value", "moved-address", "liveness", "frozen-grid"}
UNGUARDED = {
    "aidotnet_tensors_549", "dion_108", "newton_1019", "onnxruntime_genai_2070", "torchtitan_3776",
    "transformers_29221", "unsloth_10537",
}  # fmt: skip
GUARDED_IN_VAIN = {
    "aiter_5393", "burn_5779", "candle_3352", "comfyui_16428", "fastdeploy_3223", "imp_950", "nntrainer_4317",
    "onnxruntime_32121", "onnxruntime_32239", "pytorch_84967", "stable_fast_53", "tensorrt_llm_17033",
}  # fmt: skip
LINK = r"https://github\.com/([\w.-]+/[\w.-]+)/(issues|pull)/(\d+)"


def loaded(name):
    """A pair that can be served here."""
    pair = wild.load(name)
    if "emulated" not in pair.EXECUTORS:
        pytest.skip("shows on a GPU only")
    return pair


@pytest.mark.parametrize("name", wild.NAMES)
def test_what_a_pair_says_of_itself_is_well_formed(name):
    pair = wild.load(name)
    source = (wild.FOLDER / f"{name}.py").read_text()
    assert [line.strip() for line in source.splitlines()].count(pair.LINE) == 1
    assert source.count(pair.CAUSE) > 1  # beside the place that states it
    number = re.fullmatch(LINK, pair.LINK)[3]
    assert name.endswith(f"_{number}")
    assert pair.MECHANISM in FAMILIES
    assert pair.__doc__.count(".") >= 3
    assert set(pair.EXECUTORS) <= {"emulated", "cuda"} and "cuda" in pair.EXECUTORS


@pytest.mark.parametrize("name", wild.NAMES)
def test_the_buggy_program_shows_the_symptom_and_the_fixed_one_does_not(name):
    pair = loaded(name)
    symptom = {"slow"} if getattr(pair, "SYMPTOM", "") == "speed" else {"wrong", "crash"}
    assert wild.said(name, "buggy", "truth", "cpu") in symptom
    assert wild.said(name, "fixed", "truth", "cpu") == "right"


@pytest.mark.parametrize("name", wild.NAMES)
def test_requests_differ_and_are_the_same_for_each_fresh_program(name):
    pair, cpu = loaded(name), torch.device("cpu")
    one, other = (wild.Server(pair, True, cpu, captured=False) for _ in range(2))
    served = one.requests()
    assert wild.agree(served, other.requests())
    assert not all(wild.agree([served[0]], [again]) for again in served[1:])


def told(pair, fixed):
    """What a guard says while three requests are served."""
    try:
        with guard("refuse"):
            server = wild.Server(pair, fixed, torch.device("cpu"))
        for _ in range(3):
            server.prepare()
            server.step()
    except StaleCapture as stale:
        return str(stale)
    return ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="counted on the emulator")
@pytest.mark.usefixtures("nothing_before")
@pytest.mark.parametrize("name", wild.NAMES)
def test_what_a_guard_tells(name):
    pair = loaded(name)
    assert bool(told(pair, fixed=True)) == (name in GUARDED_IN_VAIN)
    if pair.MECHANISM in GUARDED:
        assert bool(told(pair, fixed=False)) == (name not in UNGUARDED)


def test_the_page_counts_what_a_guard_tells():
    pairs = [pair for pair in map(wild.load, wild.NAMES) if "emulated" in pair.EXECUTORS]
    meant = sum(pair.MECHANISM in GUARDED for pair in pairs)
    page = " ".join((wild.RECORDS.parent / "docs/guard.md").read_text().split())
    assert f"it warns of {meant - len(UNGUARDED)} of the {meant} wrong programs" in page
    assert f"and on {len(GUARDED_IN_VAIN)} of the {len(pairs)} right ones" in page


def test_attempts_that_failed_are_kept_with_a_reason():
    files = list(wild.FOLDER.glob("attempted*.toml"))
    attempted = [each for file in files for each in tomllib.loads(file.read_text())["attempted"]]
    assert attempted
    assert all(re.fullmatch(LINK, each["link"]) and each["project"] and each["why"] for each in attempted)


def test_the_page_holds_what_was_counted():
    counted = wild.Wild.read(wild.RECORDS / "wild.json", "wild pairs", "make them with mrv2lab wild").rows
    second, third, fourth = (
        (wild.FOLDER / f"{file}.txt").read_text().split()
        for file in ("second_half", "third_part", "fourth_part")
    )
    assert {*second, *third, *fourth} < set(wild.NAMES) == {row["pair"] for row in counted}
    assert len({*second, *third, *fourth}) == len(second) + len(third) + len(fourth)
    page = (wild.RECORDS.parent / "docs/audit_evidence.md").read_text()
    first = {*wild.NAMES} - {*second, *third, *fourth}
    parts = {"first": first, "second": second, "third": third, "fourth": fourth}
    num_pairs = num_found = 0
    for part, names in parts.items():
        mine = [row for row in counted if row["pair"] in names]
        served = [row for row in mine if not row["truth"].startswith("n/a")]
        buggy = [row["audited"] for row in served if row["variant"] == "buggy"]
        fixed = [row["audited"] for row in served if row["variant"] == "fixed"]
        of_buggy = [
            sum(word in said for said in buggy) for word in ("detects", "cause first", "line named", "n/a")
        ]
        accused, refused = (sum(said.startswith(word) for said in fixed) for word in ("accuses", "n/a"))
        by_inputs = sum(row["changed_inputs"] == "detects" for row in served)
        off = [row["audited"] for row in served if row["variant"] == "buggy" and row["graphs_off"] == "right"]
        of_graphs = [len(off), sum("detects" in said for said in off)]
        told = [part, len(buggy), *of_buggy, accused, refused, by_inputs, *of_graphs]
        line = f"| {' | '.join(map(str, told))} |"
        assert line in page, line
        num_pairs, num_found = num_pairs + len(buggy), num_found + of_buggy[0]
    assert f"of {num_pairs} public bugs it finds {num_found}," in page
    assert f"the {num_pairs} pairs that run without a GPU (of {len(wild.NAMES)})" in page


def test_the_page_holds_what_was_counted_on_a_gpu():
    _, *rows = (wild.RECORDS / "wild-cuda.txt").read_text().splitlines()[3:]
    second = (wild.FOLDER / "second_half.txt").read_text().split()
    words = r"detects[a-z, ]*?(?= {2}|$)|\S+"
    told = [(line[:24].strip(), line[24:30].strip(), re.findall(words, line[30:])) for line in rows]
    page = (wild.RECORDS.parent / "docs/audit_evidence.md").read_text()
    for is_second, half in enumerate(("first", "second")):
        mine = [(variant, cells) for name, variant, cells in told if (name in second) == is_second]
        wrong = [cells for variant, cells in mine if variant == "buggy" and cells[0] != "right"]
        right = [cells for variant, cells in mine if variant == "fixed"]
        found = [sum(cells[i].startswith("detects") for cells in wrong) for i in range(9)]
        accused = [sum(cells[i] == "accuses" for cells in right) for i in range(9)]
        said = [f"{found[i]} ({accused[i]})" for i in (5, 2, 1, 3, 6, 7, 8)]
        audited = [sum(word in cells[5] for cells in wrong) for word in ("cause first", "line named", "n/a")]
        line = f"| {' | '.join(map(str, [half, len(wrong), said[0], *audited, *said[1:]]))} |"
        assert line in page, line


def test_the_page_holds_what_was_counted_on_a_gpu_later():
    rows = (wild.RECORDS / "wild-cuda-later.txt").read_text().splitlines()[4:]
    fourth = (wild.FOLDER / "fourth_part.txt").read_text().split()
    counts = []
    for is_fourth in (True, False):
        mine = [row for row in rows if (row[:22].strip() in fourth) == is_fourth]
        # Before the audit stand six columns, of 16 letters each.
        said = {v: [row[125:] for row in mine if row[22:28].strip() == v] for v in ("buggy", "fixed")}
        found = sum(text.startswith("detects") for text in said["buggy"])
        counts += [found, len(said["buggy"]), sum(text.startswith("accuses") for text in said["fixed"])]
    assert counts == [15, 16, 0, 28, 29, 1]
    page = " ".join((wild.RECORDS.parent / "docs/audit_evidence.md").read_text().split())
    assert "of the fourth 15 of 16 were found and none accused, of the third 28 of 29 and one right" in page
