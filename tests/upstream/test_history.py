"""A bug's history: every cell where it belongs, and turns found as a scan of all releases finds them."""

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from mrv2lab.results import provenance
from mrv2lab.upstream import history, process
from mrv2lab.upstream.history import History, Observed, Turn, bisect, here_or_recorded, observe
from mrv2lab.upstream.outcome import Cell
from mrv2lab.upstream.process import LibraryMissing, ProbeFailed

CASE = "flashmla_lazy_init"


def cell(word, row="", observation="seen"):
    return Cell(row=row, word=word, observation=observation)


def observed(word="fixed", release="0.23.0", row=""):
    return Observed(case=CASE, release=release, **dict(cell(word, row)))


@pytest.fixture
def tell(monkeypatch):
    """Let this function answer for releases."""
    return lambda fn: monkeypatch.setattr(process, "tell_rows", fn)


# ---- every case on every release ----


def test_cells_stand_in_the_order_asked_for_whatever_ends_first(tell, monkeypatch):
    last_has_ended, names = threading.Event(), []

    def rows(case, release):
        if (case, release) == ("a", "1"):
            assert last_has_ended.wait(20)
        if (case, release) == ("b", "2"):
            last_has_ended.set()
        return [cell("fixed", row, f"{case} {release}") for row in ("x", "y")]

    tell(rows)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    cells = observe(["a", "b"], ["1", "2"], done=names.append)
    wanted = [(case, release, row) for case in "ab" for release in "12" for row in "xy"]
    assert [(c.case, c.release, c.row) for c in cells] == wanted
    assert [c.observation for c in cells] == [f"{case} {release}" for case, release, _ in wanted]
    assert sorted(names) == ["a 1", "a 2", "b 1", "b 2"] and names[-1] == "a 1"


def test_one_core_runs_one_probe_at_a_time(tell, monkeypatch):
    running, most = set(), []

    def rows(case, release):
        running.add(release)
        most.append(len(running))
        threading.Event().wait(0.01)
        running.remove(release)
        return [cell("fixed")]

    tell(rows)
    monkeypatch.setattr("os.cpu_count", lambda: None)
    observe([CASE], ["1", "2", "3"])
    assert most == [1, 1, 1]


def test_a_probe_that_fails_is_no_empty_cell(tell):
    def rows(case, release):
        if release == "2":
            raise ProbeFailed("no result")
        return [cell("fixed")]

    tell(rows)
    with pytest.raises(ProbeFailed, match="no result"):
        observe([CASE], ["1", "2", "3"])


@pytest.fixture
def kept(monkeypatch):
    """What is recorded: a cell for each of two releases."""
    cells = [observed("buggy", "1"), observed("buggy", "2")]
    document = History(provenance=provenance(0, uses_gpu=False), cells=cells)
    monkeypatch.setattr(history, "load", lambda: document)
    return document


def raiser(error):
    def rows(case, release):
        raise error

    return rows


def test_releases_that_are_here_are_probed_here(tell, kept, monkeypatch):
    monkeypatch.setattr(history, "cached", lambda version: True)
    tell(lambda case, release: [cell("fixed")])
    cells, note = here_or_recorded(CASE, ["1"])
    assert [c.word for c in cells] == ["fixed"] and "run here" in note


@pytest.mark.parametrize("is_here", [True, False])
def test_without_release_or_library_the_record_is_shown_and_says_so(tell, kept, monkeypatch, is_here):
    monkeypatch.setattr(history, "cached", lambda version: is_here)
    tell(raiser(LibraryMissing("needs x")))
    cells, note = here_or_recorded(CASE, ["2"])
    assert [(c.word, c.release) for c in cells] == [("buggy", "2")] and note == kept.label


def test_a_probe_that_fails_here_is_not_covered_up_by_a_record(tell, kept, monkeypatch):
    monkeypatch.setattr(history, "cached", lambda version: True)
    tell(raiser(ProbeFailed("no result within 300 s")))
    with pytest.raises(ProbeFailed, match="300 s"):
        here_or_recorded(CASE, ["1"])


def test_lines_are_named_after_case_and_row():
    assert observed().line == CASE
    assert observed(row="target").line == f"{CASE}, target"


# ---- bisection ----

NAMES = [f"0.{n}.0" for n in range(40)]


def scan(line, words):
    """The turn of one line by looking at every release."""
    first = {word: next((NAMES[i] for i, w in enumerate(words) if w == word), None) for word in set(words)}
    good = [NAMES[i] for i, word in enumerate(words) if word in ("fixed", "replaced")]
    return Turn(line, first.get("buggy"), good[0] if good else None)


@st.composite
def lines(draw, rows):
    """For each row words that go from `not there` to `buggy` to good ones; all rows are as long."""
    length = draw(st.integers(1, 40))

    def words():
        bad, good = sorted(draw(st.tuples(*[st.integers(0, length)] * 2)))
        behind = draw(st.lists(st.sampled_from(["fixed", "replaced"]), min_size=length, max_size=length))
        return ["not there"] * bad + ["buggy"] * (good - bad) + behind[good:]

    return {row: words() for row in rows}


def bisected(words):
    """Turns, cells, and the releases probed for them."""
    probed, names = [], []

    def rows(case, release):
        probed.append(release)
        return [cell(line[NAMES.index(release)], row) for row, line in words.items()]

    length = len(next(iter(words.values())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "tell_rows", rows)
        turns, cells = bisect(CASE, NAMES[:length], done=names.append)
    assert names == [f"{CASE} {release}" for release in probed]
    return turns, cells, probed


@given(lines([""]))
def test_a_bisection_finds_what_a_scan_finds_with_few_probes(words):
    turns, cells, probed = bisected(words)
    assert turns == [scan(CASE, words[""])]
    assert len(probed) == len(set(probed)) <= 2 * math.log2(len(words[""])) + 2
    assert [c.release for c in cells] == sorted(probed, key=NAMES.index)
    assert [c.word for c in cells] == [words[""][NAMES.index(c.release)] for c in cells]


@given(lines(["target", "speculator"]))
def test_every_row_of_a_bug_is_bisected(words):
    turns, cells, probed = bisected(words)
    assert turns == [scan(f"{CASE}, {row}", line) for row, line in words.items()]
    assert len(probed) == len(set(probed)) == len(cells) / 2


@pytest.mark.parametrize(
    ("words", "turn"),
    [
        (["not there"] * 3 + ["fixed"] * 2, (None, "0.3.0")),
        (["buggy"] * 4, ("0.0.0", None)),
        (["not there"] * 4, (None, None)),
        (["replaced"] * 4, (None, "0.0.0")),
        (["not there", "buggy", "replaced", "fixed"], ("0.1.0", "0.2.0")),
        (["buggy"], ("0.0.0", None)),
    ],
)
def test_turns_by_example(words, turn):
    assert bisected({"": words})[0] == [Turn(CASE, *turn)]


def test_what_cannot_be_told_cannot_be_bisected():
    words = ["not there", "unreachable", "fixed", "fixed"]
    with pytest.raises(ProbeFailed, match=f"{CASE}, target on vllm 0.1.0: seen"):
        bisected({"target": words})


# ---- as a file ----


def document():
    cells = [observed("buggy", "0.21.0", "target"), observed("fixed", "0.23.0", "target")]
    return History(provenance=provenance(0, uses_gpu=False), cells=cells)


def test_a_history_is_kept_whole(tmp_path):
    path = tmp_path / "new" / "history.json"
    document_ = document()
    document_.save(path)
    kept = history.load(path)
    assert kept.cells == document_.cells and kept.provenance.command == document_.provenance.command
    assert path.read_text() == kept.to_json() and path.read_text().endswith("}\n")
    document_.save(path)  # over itself
    assert [file.name for file in path.parent.iterdir()] == ["history.json"]


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "history.json"
    path.write_text("old")
    monkeypatch.setattr(
        history.Path, "replace", lambda *args: (_ for _ in ()).throw(OSError(28, "disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        document().save(path)
    assert path.read_text() == "old"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"buggy"', '"perhaps"'),
        ('"release"', '"version"'),
        ('"cells"', '"rows"'),
        ('"observation": "seen"', '"observation": null'),
        ('{\n "provenance"', '{\n "more": 1,\n "provenance"'),
        ("]", ""),
    ],
)
def test_a_damaged_document_is_refused(old, new):
    text = document().to_json()
    assert old in text
    with pytest.raises(ValidationError):
        History.model_validate_json(text.replace(old, new))


def test_a_history_without_cells_is_none():
    with pytest.raises(ValidationError, match="at least 1"):
        History(provenance=provenance(0, uses_gpu=False), cells=[])
