"""`mrv2lab graph`: what a step captures, and what differs between two."""

import json
import random
import struct
from difflib import SequenceMatcher
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from typer.testing import CliRunner

from mrv2lab import described
from mrv2lab.audit import launches, nodes
from mrv2lab.audit.launches import Launch
from mrv2lab.audit.trace import Made
from mrv2lab.cli import app
from mrv2lab.described import Described, Node
from mrv2lab.errors import BadInput
from mrv2lab.graph_diff import align, describe, describe_target, diff

STEP = """
import torch
x, out = torch.ones(4, 4), torch.zeros(4, 4)
weights = [torch.ones(4, 4) for _ in range(3)]
state = {"scale": 2.0, "calls": 0}

def reset():
    state["calls"] = 0

def step():
    state["calls"] += 1
    y = x
    for weight in weights:
        y = (y @ weight).relu() * state["scale"]
    out.copy_(y + state["calls"])
    return out

def lost():
    y = x
    for i, weight in enumerate(weights):
        y = y @ weight
        if i != 1:
            y = y.relu()
        y = y * state["scale"]
    out.copy_(y + 1)
    return out

def frozen():
    state["scale"] = 3.0
    try:
        return step()
    finally:
        state["scale"] = 2.0

def other_buffer():
    weights.reverse()
    try:
        return step()
    finally:
        weights.reverse()

def copied_first():
    out.copy_(x)
    return out.relu() * 2.0

def copied_last():
    y = out.relu()
    out.copy_(x)
    return y * 2.0

def keeps():
    state["last"] = x * 2
    return state["last"] + 1

def reads():
    return x.sum().item()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("steps") / "step.py"
    path.write_text(STEP)
    return path


@pytest.fixture(scope="module")
def graph(file):
    """`graph(name)`: that of a step of the file, described once."""
    known = {}
    return lambda name: known.get(name) or known.setdefault(name, describe_target(f"{file}:{name}"))


def told(found):
    return [(one.kind, one.name, one.at, one.now, one.what, one.before, one.after) for one in found.changes]


# ---- what differs ----


def test_a_step_equals_itself_captured_anew(graph, file):
    again = describe_target(f"{file}:step")
    found = diff(graph("step"), again)
    assert len(again.nodes) == 3 * 3 + 2
    assert (
        not found
        and told(found) == []
        and str(found).splitlines()[-3].startswith("equal in what is compared: step, 11 nodes")
        and str(found).splitlines()[-1] == "not compared: dtypes, strides, contents"
    )


def test_a_lost_kernel_is_the_one_that_is_lost(graph):
    """The chain repeats itself: that of the second layer, and all others are the same."""
    assert told(diff(graph("step"), graph("lost"))) == [("lost", "aten.relu", 4, None, "", "", "")]
    assert told(diff(graph("lost"), graph("step"))) == [("new", "aten.relu", None, 4, "", "", "")]


def test_a_frozen_number_is_named_where_it_is_frozen(graph):
    found = diff(graph("step"), graph("frozen"))
    assert told(found) == [("changed", "aten.mul", at, at, "other", "2.0", "3.0") for at in (2, 5, 8)]
    (row,) = found.rows()[1:]
    assert row[1] == "2, 5, 8" and row[-1].endswith("step.py:14 in step")


def test_a_row_names_few_of_many_nodes(graph):
    step = graph("step")
    nodes = [node.model_copy(update={"numbers": {"n": "1"}}) for node in chain("a" * 9)]
    many = [step.model_copy(update={"nodes": tuple(made)}) for made in (chain("a" * 9), nodes, nodes[5:])]
    assert [row[1] for row in diff(*many[:2]).rows()[1:]] == ["0, 1, 2 and 6 more"]
    assert [row[1] for row in diff(many[2], many[0]).rows()[1:]] == ["0, 1, 2 and 2 more", "0, 1, 2, 3"]


def test_reset_makes_a_counter_that_of_a_fresh_step(graph):
    add = next(node for node in graph("step").nodes if node.name == "aten.add")
    assert add.numbers["other"] == "1"


def test_another_buffer_is_told_by_its_name(graph):
    found = diff(graph("step"), graph("other_buffer"))
    first, last = "weights[0] [4, 4]", "weights[2] [4, 4]"
    buffers = [("mat2", first, last), ("mat2", last, first)]
    assert [one[-3:] for one in told(found)] == buffers


def test_memory_of_the_pool_has_no_name(graph):
    """Also where the step can be asked for it: it lies elsewhere in the next capture."""
    assert [node.buffers for node in graph("keeps").nodes] == [
        {"self": "x [4, 4]"},
        {"self": "1 back [4, 4]"},
    ]


PAIRS = {  # steps that compute something else from the same memory
    "swapped": (lambda x: (x + 1) - x * 2, lambda x: torch.sub(*reversed((x + 1, x * 2)))),
    "another row": (lambda x: x[0] * 3, lambda x: x[1] * 3),
    "another row of the pool": (lambda x: (x + 1)[0] * 3, lambda x: (x + 1)[1] * 3),
    "fewer rows": (lambda x: x[:3] * 3, lambda x: x[:2] * 3),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_what_a_node_reads_is_compared(pair, backend, device):
    x = torch.ones(4, 4, device=device)
    before, after = (describe(partial(step, x), backend=backend) for step in PAIRS[pair])
    assert diff(before, after) and not diff(before, before)


def test_nothing_in_a_kept_file_commands_a_terminal(graph, tmp_path):
    step, file = graph("step"), tmp_path / "kept.json"
    step.model_copy(update={"step": "\x1b]0;owned\x07", "nodes": ()}).save(file)
    assert "\x1b" not in invoke("show", f"{file}").stdout + invoke("diff", f"{file}", f"{file}").stdout
    file.write_text(step.to_json().replace('"backend": "emulated"', '"backend": "quantum"'))
    assert invoke("diff", f"{file}", f"{file}").exit_code == 2


def test_what_is_elsewhere_has_moved(graph):
    found = diff(graph("copied_first"), graph("copied_last"))
    assert [one[:4] for one in told(found)] == [("moved", "aten.relu", 1, 0), ("changed", "aten.mul", 2, 2)]


@triton.jit
def _add(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def test_a_grid_and_a_number_of_a_triton_kernel(backend, device):
    x, size = torch.zeros(64, device=device), {"n": 64}

    def step():
        _add[(size["n"] // 16,)](x, size["n"], BLOCK=16)

    before = describe(step, backend=backend)
    size["n"] = 32
    found = diff(before, describe(step, backend=backend))
    assert {one[-3:] for one in told(found)} == {
        ("grid", "(4, 1, 1)", "(2, 1, 1)"),
        ("n", "64", "32"),
    }
    assert before.nodes[-1].buffers == {"x": "x [64]"}


def test_the_pools_bytes_are_a_difference_of_their_own(graph):
    step = graph("step")
    found = diff(step, step.model_copy(update={"pool_bytes": step.pool_bytes + 512}))
    assert found and not found.changes
    assert found.rows()[-1][2:6] == [
        "the pool",
        "bytes",
        f"{step.pool_bytes:,}",
        f"{step.pool_bytes + 512:,}",
    ]


def test_a_graph_of_a_gpu_is_not_compared_with_one_of_the_emulator(graph):
    step = graph("step")
    with pytest.raises(BadInput, match="emulated and step on cuda, which name their nodes otherwise"):
        diff(step, step.model_copy(update={"backend": "cuda"}))


def test_where_there_is_a_driver_it_is_asked(monkeypatch):
    """As on a GPU: nodes that no event of Python has become, launched by an op in C++."""
    x, params = torch.zeros(4), (struct.pack("<i", 7),)

    def read(graph):
        return [Launch(i, n.label, (2, 1, 1, 64, 1, 1, 16), params) for i, n in enumerate(graph.nodes)]

    for module in (launches, nodes):
        monkeypatch.setattr(module, "read", read)
    monkeypatch.setattr(described, "_events", lambda *watched: {})
    (node,) = describe(lambda: x + 1, backend="emulated").nodes
    assert node.launch == {"grid": "(2, 1, 1)", "block": "(64, 1, 1)", "shared memory": "16"}
    assert node.numbers == {"parameter 0": "7"} and node.buffers == {}


def test_the_words_of_a_kernel_in_cpp():
    """Words that are the same in both captures and no address; named memory; nothing that nobody has set."""
    x, y = torch.zeros(4), torch.zeros(4)
    spans = {name: range(t.data_ptr(), t.data_ptr() + 16) for name, t in (("x", x), ("y", y))}
    (ours, control) = (
        (struct.pack("<ifQI", 7, 0.5, x.data_ptr(), left), b"\2\0\0\0", struct.pack("<Q", other.data_ptr()))
        for left, other in ((3, x), (4, y))
    )
    numbers = {"parameter 0, byte 0": "7", "parameter 0, byte 4": "0.5", "parameter 1": "2"}
    memory = described._Memory(spans, SimpleNamespace(made={}))
    found = described._words(ours, control, memory, Spaces([x, y]))
    assert found == (numbers, {"parameter 0, byte 8": "x"})


def test_memory_is_told_by_its_last_writer_and_as_far_as_that_wrote():
    made = {0: [Made(None, 100, (2,), (1,))], 1: [Made(None, 108, (2,), (1,))]}
    memory = described._Memory({}, SimpleNamespace(made=made))
    events = [SimpleNamespace(key=key, tensors=()) for key in made]
    memory.note(events[:1])
    memory.note(events[:1])  # another node of the same line
    assert memory.place(100) == "1 back" and memory.place(99) is None
    memory.note(events)
    assert memory.place(108) == "1 back" and memory.place(104) == "2 back + 4 bytes"
    assert memory.place(108 + 2 * described._WIDEST) is None


class Spaces:
    """Of the process's memory nothing but these tensors."""

    def __init__(self, tensors):
        self.addresses = [tensor.data_ptr() for tensor in tensors]

    def _hold(self, data, begin):
        return int.from_bytes(data[begin : begin + 8], "little") in self.addresses


# ---- alignment ----


def chain(names):
    return [Node(name=name, launch={}, numbers={}, buffers={}, line="") for name in names]


@pytest.mark.parametrize("seed", range(20))
def test_a_repeated_chain_that_lost_nodes_has_lost_those_and_no_more(seed):
    draw = random.Random(seed)
    before = ["norm", "qkv", "rope", "attn", "out", "up", "down"] * 20
    gone = {*draw.sample(range(len(before)), 5)}
    after = [name for i, name in enumerate(before) if i not in gone]
    pairs = align(chain(before), chain(after))
    assert [before[i] for i, _ in pairs] == [after[j] for _, j in pairs] == after
    assert pairs == sorted(pairs) and len({i for i, _ in pairs}) == len(after)


def test_of_nodes_of_one_name_those_are_paired_that_are_alike():
    """Both ends are cut off before: what is in between shows it."""
    before = [node.model_copy(update={"numbers": {"n": str(n)}}) for n, node in enumerate(chain("aaaaa"))]
    assert align(before, [before[n] for n in (0, 2, 4)]) == [(0, 0), (2, 1), (4, 2)]


def test_difflib_loses_more():
    """Why the alignment is not the standard library's; once it is, ours can go."""
    before = ["norm", "qkv", "rope", "attn", "out", "up", "down"] * 64
    after = [name for i, name in enumerate(before) if i not in (20, 100, 250, 400)]
    matched = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    assert sum(block.size for block in matched) < len(after) == len(align(chain(before), chain(after)))


@pytest.mark.parametrize("seed", range(20))
def test_as_many_pairs_as_there_can_be(seed):
    draw = random.Random(seed)
    both = [[draw.choice("abc") for _ in range(draw.randrange(12))] for _ in range(2)]
    pairs = align(*map(chain, both))
    assert pairs == sorted(pairs) and all(both[0][i] == both[1][j] for i, j in pairs)
    assert len(pairs) == longest(*both)


def longest(ours, theirs):
    if not ours or not theirs:
        return 0
    if ours[-1] == theirs[-1]:
        return 1 + longest(ours[:-1], theirs[:-1])
    return max(longest(ours[:-1], theirs), longest(ours, theirs[:-1]))


# ---- as a command ----


def invoke(*args):
    return CliRunner().invoke(app, ["graph", *map(str, args)])


def test_a_kept_graph_is_compared_later(graph, file, tmp_path):
    kept = tmp_path / "before.json"
    shown = invoke("show", f"{file}:step", "--save", kept)
    assert shown.exit_code == 0 and "aten.relu" in shown.stdout
    assert Described.load(kept).nodes == graph("step").nodes
    assert invoke("diff", kept, kept).exit_code == 0
    found = invoke("diff", kept, f"{file}:lost", "--json")
    assert found.exit_code == 1 and json.loads(found.stdout)["changes"][0]["kind"] == "lost"
    as_text = invoke("diff", f"{file}:step", kept)
    assert as_text.exit_code == 0 and as_text.stdout.startswith("equal in what is compared: step, 11 nodes")


def test_two_commits_may_each_import_a_file_of_the_same_name(tmp_path):
    for number in (1, 2):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / "size_of_step.py").write_text(f"SIZE = {number}.0")
        (folder / "step.py").write_text(
            "import torch\nfrom size_of_step import SIZE\nx = torch.ones(2)\ndef step(): return x * SIZE"
        )
    found = invoke("diff", f"{tmp_path}/1/step.py:step", f"{tmp_path}/2/step.py:step", "--json")
    assert [(c["before"], c["after"]) for c in json.loads(found.stdout)["changes"]] == [("1.0", "2.0")]


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (
            "before.json",
            "before.json: no such file; make one with mrv2lab graph show",
        ),
        ("step.py:step", "step.py: no such file; give FILE.py:FUNCTION"),
        ("{file}", "name a function of it, {file}:FUNCTION"),
        ("{file}.json", "no captured graph: invalid JSON"),
        ("{file}:stop", "no function 'stop'; possible: reset, step"),
        ("{file}:reads", "reads cannot be captured: "),
    ],
)
def test_bad_input_is_one_line_and_status_2(file, target, line):
    file.with_name(f"{file.name}.json").write_text("no JSON")
    line = line.format(file=file)
    result = invoke("diff", f"{file}:step", target.format(file=file))
    assert result.exit_code == 2 and result.stderr.count("\n") == 1 and line in result.stderr


def test_a_graph_takes_the_place_of_a_graph_alone(file):
    kept = file.with_name("kept.json")
    kept.write_text("[shape]")
    told = invoke("show", f"{file}:step", "--save", kept)
    assert (
        told.exit_code == 2 and kept.read_text() == "[shape]" and str(kept) not in told.stderr.split(";")[1]
    )
    kept.unlink()
    for _ in range(2):
        told = invoke("show", f"{file}:step", "--save", kept)
        assert told.exit_code == 0 and f"wrote {kept}" in told.stderr
