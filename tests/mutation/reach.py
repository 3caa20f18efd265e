"""Which test reaches which line: files of tests are run on modules with a note before each statement."""

import ast
import builtins
import importlib.machinery
import json
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from changes import digest, package

TESTS = "graphs kernels runner cases audit live mystery timeline upstream/test_probe.py"
TESTS += " test_cli.py test_results.py test_show.py test_widgets.py test_journal.py test_looks.py"
"""Tests that may notice; the others need a network, a browser, vLLM, or look at files only."""


def of_tests():
    """The files of those tests."""
    for path in (Path("tests") / name for name in TESTS.split()):
        yield from map(str, sorted(path.rglob("test_*.py")) if path.is_dir() else [path])


def lines_of(file, known, told, say):
    """The tests of a file with their CPU time and the lines that they run.

    Args:
        known: what was found of it before; it holds if neither the file nor the package has changed.
        told: runs a function in a child, and returns the child's last words.
    """
    sources = digest(*(path.read_bytes() for path in sorted(Path("mrv2lab").rglob("*.py"))))
    key = f"{sources} {digest(Path(file).read_bytes())}"
    if known.get("key") == key:
        return known
    said = told(lambda: _run(file))
    say(f"{file}: {said}")
    return json.loads(Path("reached").read_text()) | {"key": key}


def tests_for(change, reach, budget_s):
    """Two rounds of tests: those that reach the line, then the rest of their files; near and quick first.

    Yields the tests of a round, and how many seconds they take.
    """
    file, line = change["file"], _statement_of(change["file"], change["line"])
    near = {
        test_file: (not _named_after(test_file, file), not _lies_near(test_file, file)) for test_file in reach
    }

    def has(lines):
        return int(lines.get(file, "0"), 16) >> line & 1

    reaching, rest = {}, {}
    for test_file, entry in reach.items():
        found = {name: test for name, test in entry["tests"].items() if has(test[1]) or has(entry["shared"])}
        if found:
            reaching[test_file] = found
            rest[test_file] = {name: test for name, test in entry["tests"].items() if name not in found}
    if not reaching:  # in a process of its own, perhaps
        reaching = {name: reach[name]["tests"] for name, far in near.items() if far != (True, True)}
    for tests in (reaching, rest):
        yield _within(
            budget_s, sorted(tests, key=lambda name: (near[name], reach[name]["all_s"])), tests, reach
        )


def _within(budget_s, files, tests, reach):
    chosen, left = [], budget_s
    for file in files:
        left -= reach[file]["rest_s"]
        for name, (seconds, _) in sorted(tests[file].items(), key=lambda item: item[1][0]):
            if seconds <= left:
                chosen.append(name)
                left -= seconds
    return chosen, budget_s - left


def _named_after(test_file, file):
    return Path(test_file).stem.removeprefix("test_") == Path(file).stem


def _lies_near(test_file, file):
    return test_file.startswith(f"tests/{package(file).removesuffix('.py')}")


def _statement_of(file, line):
    """The first line of the innermost statement around a line; of a decorator that of its function."""

    def first(statement):
        return min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])

    statements = [n for n in ast.walk(ast.parse(Path(file).read_text())) if isinstance(n, ast.stmt)]
    around = [n for n in statements if first(n) <= line <= n.end_lineno]
    return max(around, key=first).lineno if around else line


# ---- in a child: run a file of tests and note lines ----


def _run(test_file):
    noting = Noting()
    status = pytest.main(["-q", "-p", "no:cacheprovider", "--no-header", test_file], [noting])
    tests = {name: (seconds, _masks(lines)) for name, (seconds, lines) in noting.tests.items()}
    all_s = cpu_s()
    found = {
        "all_s": all_s,
        "rest_s": all_s - sum(seconds for seconds, _ in tests.values()),  # imports and fixtures
        "shared": _masks(noting.shared | noting.lines),
        "tests": tests,
    }
    Path("reached").write_text(json.dumps(found))
    return status


class Noting:
    """A plugin of pytest. What an import or a fixture runs counts for every test of the file."""

    def __init__(self):
        self.lines, self.shared, self.tests = set(), set(), {}
        builtins.__reached__ = self.lines.add  # of C: no tracer of Python's calls sees it
        folder, make = f"{os.getcwd()}/mrv2lab", importlib.machinery.FileFinder.path_hook((Loader, [".py"]))

        def finder(path):
            if not path.startswith(folder):
                raise ImportError
            return make(path)

        sys.path_hooks.insert(0, finder)
        sys.path_importer_cache.clear()

    def _taken(self):
        lines = set(self.lines)
        self.lines.clear()
        return lines

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        self.shared |= self._taken()
        began = cpu_s()
        result = yield
        self.tests[item.nodeid] = (cpu_s() - began, self._taken())
        return result


class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        path = self.get_filename(name)
        tree = ast.parse(self.get_data(path), path)
        for node in list(ast.walk(tree)):
            for part in ("body", "orelse", "finalbody"):
                if isinstance(body := getattr(node, part, None), list):
                    noted = [
                        inner for statement in body for inner in _noted(statement, os.path.relpath(path))
                    ]
                    setattr(node, part, noted)
        return compile(tree, path, "exec")


def _noted(statement, file):
    """A statement with a note before it, on its line."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    if is_text or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
        return [statement]
    line = ast.Constant((file, statement.lineno))
    note = ast.Expr(ast.Call(ast.Name("__reached__", ast.Load()), [line], []))
    for part in ast.walk(note):
        part.lineno = part.end_lineno = statement.lineno
        part.col_offset = part.end_col_offset = statement.col_offset
    return [note, statement]


def _masks(lines):
    """A number for each file, with a bit for each line."""
    found = defaultdict(int)
    for file, line in lines:
        found[file] |= 1 << line
    return {file: hex(bits) for file, bits in found.items()}


def cpu_s():
    """CPU time of this process and of children that have ended."""
    return sum(os.times()[:4])
