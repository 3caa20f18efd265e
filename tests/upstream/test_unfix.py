"""An edited function runs in place of the original, as if its module had been written so."""

import asyncio
import importlib
import importlib.util
import inspect
import linecache
import sys
import textwrap
import traceback

import pytest

from mrv2lab.errors import BadInput, Mrv2labError
from mrv2lab.upstream.unfix import Edit, SourceChanged, diff, unfix

NAME = "unfix_toy"


def forget():
    """Drop the package from this process, and the edited sources with it."""
    for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[name]
    for name in [name for name in linecache.cache if name.startswith(f"<{NAME}/")]:
        del linecache.cache[name]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a package of version 1.2.0, importable while the test runs."""
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "__init__.py").write_text("__version__ = '1.2.0'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget()


@pytest.fixture
def toy(folder):
    """Write a module of the package and import it."""

    def write(source: str, name: str = "model"):
        (folder / NAME / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return importlib.import_module(f"{NAME}.{name}")

    return write


def edit(path: str, *args, **kwargs) -> Edit:
    return Edit(f"{NAME}.model:{path}", *args, **kwargs)


def without(*edits: Edit, versions: str = "==1.2.0"):
    return unfix(*edits, package=NAME, versions=versions)


# ---- the edited function runs as its module would run it ----


def test_a_fix_is_out_within_and_back_afterwards(toy):
    model = toy(
        """
        class Runner:
            def run(self, n):
                n = max(n, 0)  # the fix
                return n
        """
    )
    runner, original = model.Runner(), model.Runner.__dict__["run"]
    with without(edit("Runner.run", "n = max(n, 0)")):
        assert runner.run(-1) == -1
        assert model.Runner.__dict__["run"] is not original
    assert runner.run(-1) == 0
    assert model.Runner.__dict__["run"] is original


def test_the_original_is_back_after_an_exception(toy):
    model = toy("def run():\n    return 1\n")
    original = model.run
    with pytest.raises(ZeroDivisionError), without(edit("run", "return _", "return 1 / 0")):
        model.run()
    assert model.run is original and model.run() == 1


def test_it_uses_the_globals_of_its_module_and_leaves_no_name_there(toy):
    model = toy(
        """
        scale = 2
        class Runner:
            def run(self):
                global count
                count = scale
                return 0
        """
    )
    before = set(vars(model))
    with without(edit("Runner.run", "return 0", "return scale + 1")):
        model.scale = 5
        assert model.Runner().run() == 6
        assert model.Runner.run.__globals__ is vars(model)
    assert set(vars(model)) - before == {"count"} and model.count == 5
    assert isinstance(model.Runner, type)


def test_super_and_class_mean_the_real_class(toy):
    model = toy(
        """
        class Base:
            def run(self):
                return ["base"]

        class Runner(Base):
            def run(self):
                fixed = True
                return [*super().run(), __class__, fixed]
        """
    )
    with without(edit("Runner.run", "fixed = _", "fixed = False")):
        assert model.Runner().run() == ["base", model.Runner, False]
        assert type("Sub", (model.Runner,), {})().run() == ["base", model.Runner, False]


def test_private_names_are_renamed_as_in_the_class(toy):
    model = toy(
        """
        class _Runner:
            __step = 3

            def __init__(self):
                self.__count = 7

            def __run(self, step=__step):
                return 0

            def run(self):
                return self.__run()
        """
    )
    with without(edit("_Runner.__run", "return 0", "return self.__count + step")):
        assert model._Runner().run() == 10
    assert model._Runner().run() == 0


def test_a_class_within_a_class(toy):
    model = toy(
        """
        class Outer:
            size = 4

            class Base:
                def run(self):
                    return 1

            class Inner(Base):
                step = 2

                def run(self, step=step):
                    return 0
        """
    )
    with without(edit("Outer.Inner.run", "return 0", "return super().run() + step, __class__")):
        assert model.Outer.Inner().run() == (3, model.Outer.Inner)
        assert model.Outer.Inner.run.__qualname__ == "Outer.Inner.run"


def test_decorators_run_again_with_what_the_class_body_holds_above(toy):
    model = toy(
        """
        import functools

        def twice(function):
            @functools.wraps(function)
            def wrapper(*args):
                return 2 * function(*args)
            return wrapper

        class Runner:
            local = twice

            @twice
            @local
            def run(self):
                return 1

            @staticmethod
            def static(n):
                return n

            @classmethod
            def made(cls):
                return cls, 0

            @property
            def size(self):
                return 1

            @functools.cached_property
            def kept(self):
                return 1
        """
    )
    edits = [
        edit("Runner.run", "return 1", "return 3"),
        edit("Runner.static", "return n", "return -n"),
        edit("Runner.made", "return _", "return cls, 1"),
        edit("Runner.size", "return 1", "return 2"),
        edit("Runner.kept", "return 1", "return 3"),
    ]
    with without(*edits):
        runner = model.Runner()
        assert (runner.run(), runner.static(1), runner.size, runner.kept) == (12, -1, 2, 3)
        assert model.Runner.static(2) == -2 and model.Runner.made() == (model.Runner, 1)
    assert (model.Runner().run(), model.Runner.static(1), model.Runner().size) == (4, 1, 1)


def test_decorators_may_be_defined_or_imported_in_the_class(toy):
    model = toy(
        """
        class Runner:
            from functools import cache as kept, partial

            def twice(function):
                return lambda self: 2 * function()

            @twice
            @kept
            def run(step=partial(int, "3")):
                return step()
        """
    )
    with without(edit("Runner.run", "return _", "return step() + 1")):
        assert model.Runner().run() == 8


def test_neither_bases_nor_decorators_of_the_class_run_again(toy):
    model = toy(
        """
        seen = []

        def noted(cls):
            seen.append(cls)
            return cls

        @noted
        class Runner(noted(object)):
            def run(self):
                return 1
        """
    )
    with without(edit("Runner.run", "return 1", "return 2")):
        assert model.Runner().run() == 2
    assert model.seen == [object, model.Runner]


def test_methods_that_a_class_statement_makes_static_or_class_methods(toy):
    model = toy(
        """
        class Runner:
            def __new__(cls, n):
                return object.__new__(cls)

            def __init_subclass__(cls):
                cls.mark = 1

            def __class_getitem__(cls, n):
                return cls, n
        """
    )
    edits = [
        edit("Runner.__new__", "return _", "return n"),
        edit("Runner.__init_subclass__", "cls.mark = 1", "cls.mark = 2"),
        edit("Runner.__class_getitem__", "return _", "return cls, -n"),
    ]
    with without(*edits):
        assert model.Runner(5) == 5
        assert type("Sub", (model.Runner,), {}).mark == 2
        assert model.Runner[1] == (model.Runner, -1)
    assert isinstance(model.Runner(5), model.Runner)


def test_defaults_and_annotations_are_those_of_the_module(toy):
    model = toy(
        """
        SIZE = 3

        class Runner:
            SIZE = 4
            kind = list

            def run(self, a: SIZE, b=SIZE, *, c=SIZE + 1) -> list[int]:
                return 0

            def list(self) -> list[int]:
                return [0]
        """
    )
    with without(
        edit("Runner.run", "return 0", "return b, c"), edit("Runner.list", "return [0]", "return []")
    ):
        assert model.Runner().run(0) == (4, 5)
        assert model.Runner.run.__annotations__ == {"a": 4, "return": list[int]}
        # `list` is the method only below its definition; above it, it is the built-in type.
        assert model.Runner.list.__annotations__ == {"return": list[int]}


def test_annotations_stay_text_where_the_module_says_so(toy):
    model = toy(
        """
        from __future__ import annotations

        def run(a: Missing) -> Missing:
            return 0
        """
    )
    with without(edit("run", "return 0", "return a")):
        assert model.run(4) == 4
        assert model.run.__annotations__ == {"a": "Missing", "return": "Missing"}


def test_a_module_without_future_annotations_gets_none_from_here(toy):
    model = toy("def run(a: int):\n    return 0\n")
    with without(edit("run", "return 0", "return a")):
        assert model.run.__annotations__ == {"a": int}


def test_async_functions_and_nested_functions(toy):
    model = toy(
        """
        async def run(n):
            def inner(k):
                for _ in range(2):
                    k = k + 1
                return k
            return inner(n)
        """
    )
    with without(edit("run", "k = k + 1", "k = k + n")):
        assert asyncio.run(model.run(5)) == 15
    assert asyncio.run(model.run(5)) == 7


def test_a_function_imported_by_other_modules_is_edited_there_too(toy):
    model = toy("def run():\n    return 1\n")
    user = toy(f"from {NAME}.model import run as go\ndef use():\n    return go()\n", "user")
    with without(edit("run", "return 1", "return 2")):
        assert (model.run(), user.use()) == (2, 2)
    assert (model.run(), user.use()) == (1, 1)
    assert user.go is model.run


def test_edits_of_one_function_compose(toy):
    calls = "calls = []\n\n\n@lambda f: calls.append(f) or f\n"
    model = toy(f"{calls}def run(n):\n    n += 1\n    n *= 2\n    return n\n")
    with without(edit("run", "n *= 2"), edit("run", "n += 1", "n += 10")):
        assert model.run(1) == 11
        assert len(model.calls) == 2  # the original's and one more, for both edits
    assert model.run(1) == 4


def test_edits_of_two_modules(toy):
    model, other = toy("def run():\n    return 1\n"), toy("def run():\n    return 1\n", "other")
    second = Edit(f"{NAME}.other:run", "return 1", "return 3")
    with without(edit("run", "return 1", "return 2"), second):
        assert (model.run(), other.run()) == (2, 3)
    assert (model.run(), other.run()) == (1, 1)


def test_contexts_of_different_functions_nest(toy):
    model = toy("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    with without(edit("one", "return 1", "raise ValueError")):
        with without(edit("two", "return 2", "return 4")):
            assert model.two() == 4
            with pytest.raises(ValueError):
                model.one()
        assert model.two() == 2
    assert model.one() == 1


def test_the_same_unfix_works_again_after_it_has_ended(toy):
    model = toy("def run():\n    return 1\n")
    for _ in range(2):
        with without(edit("run", "return 1", "return 2")):
            assert model.run() == 2
    assert len([name for name in linecache.cache if name.startswith(f"<{NAME}/")]) == 1


# ---- what the reader sees ----

SOURCE = """\
class Runner:
    def run(self, n):
        # Keep it in range.
        if n < 0:
            n = 0
        return 10 / n
"""


def test_the_diff_names_files_relative_to_the_package(toy):
    toy(SOURCE)
    removed = edit("Runner.run", "if n < 0: ...")
    expected = f"""\
--- {NAME}/model.py
+++ {NAME}/model.py, edited
@@ -1,6 +1,5 @@
 class Runner:
     def run(self, n):
         # Keep it in range.
-        if n < 0:
-            n = 0
+        pass
         return 10 / n"""
    assert repr(diff(removed)) == expected
    with without(removed) as shown:
        assert shown == diff(removed)


def test_the_diff_of_two_modules_has_both(folder):
    (folder / NAME / "sub").mkdir()
    (folder / NAME / "sub" / "__init__.py").write_text("def run():\n    return 1\n")
    (folder / NAME / "model.py").write_text("def run():\n    return 1\n")
    lines = diff(edit("run", "return 1", "return 2"), Edit(f"{NAME}.sub:run", "return 1", "return 3")).lines
    assert [line for line in lines if line[:3] in ("---", "+++")] == [
        f"--- {NAME}/model.py",
        f"+++ {NAME}/model.py, edited",
        f"--- {NAME}/sub/__init__.py",
        f"+++ {NAME}/sub/__init__.py, edited",
    ]
    assert {"+    return 2", "+    return 3"} <= set(lines)


def test_the_diff_imports_nothing(folder):
    (folder / NAME / "__init__.py").write_text("raise ImportError('no GPU here')\n")
    (folder / NAME / "model.py").write_text("import absent\ndef run():\n    return 1\n")
    assert "-    return 1" in diff(edit("run", "return 1")).lines
    assert not [name for name in sys.modules if name.startswith(NAME)]


def test_a_put_of_what_was_found_is_no_difference(toy):
    toy(SOURCE)
    assert repr(diff(edit("Runner.run", "if n < 0: ...", "..."))) == "no difference"


def test_tracebacks_and_inspect_show_the_edited_text(toy):
    model = toy(SOURCE)
    with pytest.raises(ZeroDivisionError) as caught, without(edit("Runner.run", "if n < 0: ...")):
        shown = inspect.getsource(model.Runner.run)
        model.Runner().run(0)
    assert (
        shown == "    def run(self, n):\n        # Keep it in range.\n        pass\n        return 10 / n\n"
    )
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == (f"<{NAME}/model.py, edited>", 5, "return 10 / n")


def test_two_edited_texts_of_one_file_are_kept_apart(toy):
    model = toy("def one():\n    return 1\n\n\ndef two():\n    return 2\n")
    with (
        without(edit("one", "return 1", "a = 3\nreturn a")),
        without(edit("two", "return 2", "return 4")),
    ):
        assert inspect.getsource(model.one) == "def one():\n    a = 3\n    return a\n"
        assert inspect.getsource(model.two) == "def two():\n    return 4\n"
        assert model.two.__code__.co_filename == f"<{NAME}/model.py, edited 2>"


# ---- what is refused ----


def refusal(error: type[Exception], *edits: Edit, versions: str = "==1.2.0") -> str:
    with pytest.raises(error) as caught, without(*edits, versions=versions):
        pass
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_refusals_are_one_line_of_ours():
    assert issubclass(SourceChanged, BadInput) and issubclass(SourceChanged, Mrv2labError)


def test_another_version(toy):
    toy(SOURCE)
    assert refusal(SourceChanged, edit("Runner.run", "return _"), versions=">=1.3,<2") == (
        f"{NAME} 1.2.0 is installed; the edit of {NAME}.model:Runner.run is for >=1.3,<2"
    )


def test_a_version_of_a_candidate_or_a_local_build_is_a_version(folder, toy):
    model = toy("def run():\n    return 1\n")
    sys.modules[NAME].__version__ = "1.3.0rc1+cu129"
    with without(edit("run", "return 1", "return 2"), versions=">=1.2,<1.4"):
        assert model.run() == 2


def metadata(folder, version: str) -> None:
    info = folder / f"{NAME}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n")


def test_the_version_is_that_of_the_metadata_beside_the_package(folder, toy, monkeypatch):
    toy("def run():\n    return 1\n")
    metadata(folder / "elsewhere", "9.0")
    monkeypatch.syspath_prepend(folder / "elsewhere")
    assert f"{NAME} 1.2.0 is installed" in refusal(SourceChanged, edit("run", "return 1"), versions="==9.0")
    metadata(folder, "1.4")
    assert f"{NAME} 1.4 is installed" in refusal(SourceChanged, edit("run", "return 1"), versions="==9.0")


def test_no_version_at_all(toy):
    toy(SOURCE)
    del sys.modules[NAME].__version__
    message = refusal(SourceChanged, edit("Runner.run", "return _"))
    assert message == f"{NAME} has neither metadata beside it nor a __version__"


def test_a_malformed_specifier():
    message = refusal(BadInput, edit("run", "pass"), versions="1.2")
    assert message == "versions '1.2'; write for example '==0.23.0'"


def test_an_edit_of_another_package():
    message = refusal(BadInput, Edit("json:dumps", "pass"))
    assert message == f"json:dumps is not in the package {NAME}, whose version is checked"


def test_a_module_that_is_not_there(toy):
    toy(SOURCE)
    for where in (f"{NAME}.absent:run", f"{NAME}.absent.deeper:run", f"{NAME}.model.deeper:run"):
        assert refusal(SourceChanged, Edit(where, "pass")).startswith(f"there is no module {NAME}.")


def test_a_module_is_read_where_it_was_loaded_from(folder, toy):
    toy("def run():\n    return 1\n")
    (folder / "elsewhere.py").write_text("def run():\n    return 3\n")
    spec = importlib.util.spec_from_file_location(f"{NAME}.model", folder / "elsewhere.py")
    model = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    with without(edit("run", "return 3", "return 4")):
        assert model.run() == 4


def test_a_module_without_source(folder):
    import py_compile

    source = folder / NAME / "model.py"
    source.write_text("def run():\n    return 1\n")
    py_compile.compile(str(source), cfile=str(folder / NAME / "model.pyc"))
    source.unlink()
    message = refusal(SourceChanged, edit("run", "return 1"))
    assert message == f"looked for {NAME}.model:run: {NAME}.model has no Python source here"


def test_a_function_that_is_not_there(toy):
    toy(SOURCE)
    message = refusal(SourceChanged, edit("Runner.walk", "pass"))
    assert message == f"looked for Runner.walk in {NAME}/model.py: expected 1 definition, found 0"


def test_a_statement_that_has_changed(toy):
    model = toy(SOURCE)
    original = model.Runner.__dict__["run"]
    good = edit("Runner.run", "return _", "return 1")
    assert refusal(SourceChanged, good, edit("Runner.run", "if n <= 0: ...")) == (
        f"looked for `if n <= 0: ...` in {NAME}.model:Runner.run: expected 1, found 0; "
        "there are `if n < 0: n = 0` (line 4)"
    )
    assert model.Runner.__dict__["run"] is original


def test_a_class_that_runs_without_what_its_source_says(toy):
    toy("def emptied(cls):\n    del cls.run\n    return cls\n\n\n@emptied\n" + SOURCE)
    message = refusal(SourceChanged, edit("Runner.run", "return _"))
    assert message.startswith(f"{NAME}.model:Runner.run is in {NAME}/model.py, but <class")
    assert message.endswith("as it runs has no run")


def test_a_function_that_is_edited_already(toy):
    model = toy("def run():\n    a = 1\n    return a\n")
    with without(edit("run", "a = 1", "a = 2")):
        message = refusal(BadInput, edit("run", "return a"))
        assert message.startswith(f"{NAME}.model:run is edited by an unfix still open; give both")
        assert model.run() == 2
    assert model.run() == 1


def test_nothing_is_set_when_one_of_several_is_refused(toy):
    model = toy("def boom(f):\n    1 / 0\n\n\ndef one():\n    return 1\n")
    (other := toy("bad = lambda f: f\n\n\n@bad\ndef two():\n    return 2\n", "other")).bad = model.boom
    original = model.one
    with (
        pytest.raises(ZeroDivisionError),
        without(edit("one", "return 1"), Edit(f"{NAME}.other:two", "return 2")),
    ):
        pass
    assert model.one is original and other.two() == 2
    with without(edit("one", "return 1", "return 5")):  # and it is not left open
        assert model.one() == 5
