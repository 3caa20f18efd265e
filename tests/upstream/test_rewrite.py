"""Statements are found by their syntax and replaced as text: what matches, what is refused, what stays."""

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrv2lab.errors import BadInput
from mrv2lab.upstream.rewrite import Edit, SourceChanged, rewrite


def edited(body: str, *edits: tuple) -> str:
    """The body of a function after edits, each a find, or a find with put and matches."""
    header = "def f():\n"
    source = header + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    after = rewrite(source, [Edit("m:f", *edit) for edit in edits], "m.py")
    assert after.startswith(header)
    return textwrap.dedent(after[len(header) :]).strip("\n")


def matches(find: str, statement: str) -> bool:
    """Whether a function of this one statement has a match, at its top or nested."""
    try:
        edited(statement, (find,))
    except SourceChanged:
        return False
    return True


# ---- what matches ----


@pytest.mark.parametrize(
    ("find", "statement"),
    [
        ("x = g(1)", "x  =  g( 1 )  # layout and comments do not count"),
        ("x = 'a'", 'x = "a"'),
        ("x = u'a'", "x = 'a'"),
        ("x = 1", "x = 1  # type: int"),
        ("x = _", "x = {k: v for k, v in d.items()}"),
        ("_ = 1", "x.y[0] = 1"),
        ("_, y = g(_)", "x, y = g(a + b)"),
        ("g(_)", "g(*args)"),
        ("return f'{_}'", "return f'{a}'"),
        ("if x: ...", "if x:\n    a\n    b"),
        ("if x: ...\nelse: ...", "if x:\n    a\nelse:\n    b"),
        ("if x: ...\nelse: ...", "if x:\n    a"),
        ("if x: ...\nelse: ...", "if x:\n    a\nelif y:\n    b"),
        ("if x:\n    a\n    ...", "if x:\n    a"),
        ("if x:\n    ...\n    b\n    ...", "if x:\n    a\n    b\n    c"),
        ("if x:\n    ...\n    a\n    ...\n    a", "if x:\n    a\n    b\n    a"),
        ("for x in _: ...", "for x in range(3): pass"),
        ("with _ as x: ...", "with g() as x:\n    a"),
        ("try: ...\nfinally: ...", "try:\n    a\nfinally:\n    b"),
        ("def g(x: _) -> _: ...", "def g(x: int) -> str:\n    a"),
        ("@_\ndef g(): ...", "@a.b(1)\ndef g():\n    a"),
        ("async with _: ...", "async def g():\n    async with x:\n        a"),
        ("x = 1", "for i in y:\n    def g():\n        x = 1"),
        ("class C: ...", "class C:\n    x = 1"),
    ],
)
def test_a_pattern_finds(find, statement):
    assert matches(find, statement)


@pytest.mark.parametrize(
    ("find", "statement"),
    [
        ("x = _", "x: int = 1"),
        ("x = _", "x += 1"),
        ("x = _", "y = 1"),
        ("x = _", "x = y = 1"),
        ("x = 1", "x = True"),
        ("x = 1", "x = 1.0"),
        ("g(_)", "g()"),
        ("g(_)", "g(a, b)"),
        ("return _", "return"),
        ("if x: ...", "if x:\n    a\nelse:\n    b"),
        ("if x:\n    a", "if x:\n    a\n    b"),
        ("if x:\n    ...\n    a", "if x:\n    a\n    b"),
        ("if x:\n    ...\n    b\n    a\n    ...", "if x:\n    a\n    b"),
        ("with _: ...", "with g() as x:\n    a"),
        ("def g(): ...", "@a\ndef g():\n    a"),
        ("def g(): ...", "async def g():\n    a"),
        ("import a", "import a as b"),
    ],
)
def test_a_pattern_does_not_find(find, statement):
    assert not matches(find, statement)


def test_a_name_that_holds_an_underscore_is_no_wildcard():
    assert edited("_x = 1\ny = 1", ("_x = 1",)) == "pass\ny = 1"


def test_other_functions_and_classes_are_not_searched():
    source = "def g():\n    x = 1\n\n\nclass C:\n    def f(self):\n        x = 1\n\n\ndef f():\n    x = 1\n"
    after = rewrite(source, [Edit("m:f", "x = 1", "x = 2")])
    assert after == source[: source.rindex("x = 1")] + "x = 2\n"
    after = rewrite(source, [Edit("m:C.f", "x = 1", "x = 2")])
    assert after == source.replace("        x = 1", "        x = 2")


def test_the_function_itself_is_no_statement_of_it():
    with pytest.raises(SourceChanged, match="expected 1, found 0"):
        rewrite("def f(): ...\n", [Edit("m:f", "def f(): ...")])


def test_a_function_defined_under_a_condition_is_found():
    source = "if a:\n    def f():\n        x = 1\n"
    assert rewrite(source, [Edit("m:f", "x = 1")]).endswith("        pass\n")


# ---- what is put there ----


def test_removed():
    assert edited("a = 1\nb = 2\nc = 3", ("b = 2",)) == "a = 1\npass\nc = 3"


def test_replaced_by_several_statements_at_the_column_of_the_statement():
    before = "for i in x:\n    a = 1\n    b = 2"
    after = "for i in x:\n    if y:\n        a = 2\n    c = 3\n    b = 2"
    assert edited(before, ("a = 1", "if y:\n    a = 2\nc = 3")) == after


def test_wrapped_with_layout_and_comments_kept():
    before = """
    a = {  # why
        1: 2,

        3: 4,
    }  # and so
    """
    after = """
    if x:
        a = {  # why
            1: 2,

            3: 4,
        }  # and so
    else:
        a = {}
    """
    wrapped = edited(before, ("a = _", "if x:\n    ...\nelse:\n    a = {}"))
    assert wrapped == textwrap.dedent(after).strip("\n")


def test_blank_lines_and_lines_further_left_stay_as_they_are():
    before = "class C:\n    def f():\n        if x:\n  # left\n            a()\n\n            b()\n"
    wrapped = "        if y:\n            if x:\n  # left\n                a()\n\n                b()\n"
    after = rewrite(before, [Edit("m:C.f", "if x: ...", "if y:\n    ...")])
    assert after == "class C:\n    def f():\n" + wrapped
    moved = rewrite("def f():\n    a(\n\n  1)\n", [Edit("m:f", "a(_)", "...\n\nb()")])
    assert moved == "def f():\n    a(\n\n  1)\n\n    b()\n"


def test_a_gap_on_the_line_of_its_header_gets_lines_of_its_own():
    assert edited("a = (\n    1\n)", ("a = _", "if x: ...")) == "if x:\n    a = (\n        1\n    )"


def test_a_gap_may_stand_twice():
    assert edited("a(\n    1\n)", ("a(_)", "...\nb()\n...")) == "a(\n    1\n)\nb()\na(\n    1\n)"


def test_comments_above_and_below_stay():
    before = "# above\nif x:\n    a()\n    # at the end of the body\n# below\nb()"
    assert edited(before, ("if x: ...",)) == "# above\npass\n    # at the end of the body\n# below\nb()"


def test_the_comment_on_the_line_goes_with_its_statement():
    assert edited("a()  # why\nb()", ("a()",)) == "pass\nb()"


def test_decorators_belong_to_the_statement():
    before = "a()\n@x\n@(\n    y\n)\ndef g():\n    b()\nc()"
    assert edited(before, ("@x\n@y\ndef g(): ...",)) == "a()\npass\nc()"
    only = "a()\n@(\n    y\n)\ndef g():\n    b()\nc()"
    assert edited(only, ("@_\ndef g(): ...",)) == "a()\npass\nc()"


@pytest.mark.parametrize("quoted", ['"""one\n  two\n    three"""', 'f"""one\n  {x}\n    three"""'])
def test_the_inside_of_a_string_is_never_moved(quoted):
    after = rewrite(f"def f():\n    a({quoted}, (\n    1))\n", [Edit("m:f", "a(_, _)", "if y:\n    ...")])
    assert after == f"def f():\n    if y:\n        a({quoted}, (\n        1))\n"


def test_a_string_in_put_is_never_moved():
    after = rewrite("def f():\n    a()\n", [Edit("m:f", "a()", 'b("""one\ntwo""")')])
    assert after == 'def f():\n    b("""one\ntwo""")\n'


def test_letters_of_several_bytes_do_not_shift_columns():
    assert edited("a = 'äöü'  # äöü\nb()", ("a = _", "if x:\n    ...")) == "if x:\n    a = 'äöü'  # äöü\nb()"


def test_a_form_feed_does_not_shift_lines():
    assert rewrite("x = 1\n\f\ndef f():\n    a()\n", [Edit("m:f", "a()")]).endswith(
        "\f\ndef f():\n    pass\n"
    )


def test_tabs_stay_tabs():
    after = rewrite("def f():\n\tif x:\n\t\ta()\n", [Edit("m:f", "a()", "if y:\n\t...")])
    assert after == "def f():\n\tif x:\n\t\tif y:\n\t\t\ta()\n"


def test_all_matches_are_replaced_when_their_number_is_stated():
    assert edited("a(1)\nb()\na(2)", ("a(_)", "c()\n...", 2)) == "c()\na(1)\nb()\nc()\na(2)"


def test_edits_compose_and_all_are_found_in_the_original():
    # The second edit puts what the first one looks for, and is above it.
    assert edited("a()\nb()", ("b()", "x()\ny()"), ("a()", "b()\nb()")) == "b()\nb()\nx()\ny()"


# ---- what is refused ----


def refusal(error: type[Exception], body: str, *edits: tuple) -> str:
    with pytest.raises(error) as caught:
        edited(body, *edits)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_no_match_says_what_is_there():
    assert refusal(SourceChanged, "x: int = 1\ny = 2\nz = 3\ng()", ("x = _",)) == (
        "looked for `x = _` in m:f: expected 1, found 0; there are `y = 2` (line 3), `z = 3` (line 4)"
    )


def test_nothing_of_the_kind_is_said_too():
    message = refusal(SourceChanged, "x = 1", ("for _ in _:\n    ...",))
    assert message == "looked for `for _ in _: ...` in m:f: expected 1, found 0; there is no For statement"


def test_too_many_matches_are_listed_with_their_lines():
    assert refusal(SourceChanged, "a(1)\nb()\na(2)\na(3)", ("a(_)", "pass", 2)) == (
        "looked for `a(_)` in m:f: expected 2, found 3; "
        "there are `a(1)` (line 2), `a(2)` (line 4), `a(3)` (line 5)"
    )


def test_at_most_five_are_listed_the_likest_first():
    body = "\n".join(f"{name} = {name}" for name in ["aa", "bb", "cc", "dd", "ee", "needles"])
    message = refusal(SourceChanged, body, ("needle = needles",))
    assert "there are `needles = needles` (line 7), `" in message
    assert message.count("(line") == 5 and message.endswith(", and 1 more")


def test_long_statements_are_shortened():
    message = refusal(SourceChanged, f"x = [{'1, ' * 200}]", ("y = _",))
    assert len(message) < 250 and "[...]" in message


@pytest.mark.parametrize("where", ["m:h", "m:C.f", "m:C", "m:f.g", "m:f.f"])
def test_a_function_that_is_not_there(where):
    with pytest.raises(SourceChanged) as caught:
        rewrite("def f():\n    def g(): pass\n\nclass C: pass\n", [Edit(where, "pass")], "m.py")
    assert str(caught.value) == f"looked for {where[2:]} in m.py: expected 1 definition, found 0"


def test_a_function_defined_twice():
    with pytest.raises(SourceChanged, match=r"looked for f in m.py: expected 1 definition, found 2"):
        rewrite("def f(): pass\ndef f(): pass\n", [Edit("m:f", "pass")], "m.py")


@pytest.mark.parametrize("body", ["a(); b()", "b(); a()", "if x: a()", "try: a()\nfinally: b()", "a();"])
def test_a_statement_that_shares_its_line(body):
    message = refusal(BadInput, body, ("a()",))
    assert message == "`a()` does not have line 2 of m.py to itself; find the statement around it"


def test_an_elif_shares_its_if():
    message = refusal(BadInput, "if x:\n    a()\nelif y:\n    b()", ("if y: ...",))
    assert "does not have line 4 of m.py to itself" in message


def test_a_whole_line_of_two_statements_is_one_if():
    assert edited("if x: a()\nb()", ("if x: ...",)) == "pass\nb()"


@pytest.mark.parametrize(
    "edits", [[("if x: ...",), ("a()",)], [("a()",), ("if x: ...",)], [("a()",), ("a()", "b()")]]
)
def test_edits_that_overlap(edits):
    assert "edits overlap at line" in refusal(BadInput, "if x:\n    a()\nb()", *edits)


def test_matches_that_hold_each_other():
    message = refusal(BadInput, "if x:\n    if y:\n        a()", ("if _: ...", "pass", 2))
    assert message == "edits overlap at line 3 of m.py: `if _: ...` and `if _: ...`"


def test_a_result_that_is_no_python():
    message = refusal(BadInput, "a()", ("a()", "break"))
    assert message == "the edited m.py does not compile, line 2: 'break' outside loop"


@pytest.mark.parametrize("where", ["m", "m.f", ":f", "m:", "m:f:g", "m:f.", "m :f", "m/n:f"])
def test_a_malformed_where(where):
    with pytest.raises(BadInput, match=r"where .* write 'package.module:Class.method'"):
        Edit(where, "pass")


@pytest.mark.parametrize("find", ["", "# nothing", "a()\nb()", "...", "if x:"])
def test_a_malformed_find(find):
    with pytest.raises(BadInput, match=r"find .*(give one statement|is not Python)"):
        Edit("m:f", find)


def test_a_malformed_number_of_matches():
    with pytest.raises(BadInput, match="matches=0; give one statement, 1 match or more"):
        Edit("m:f", "a()", matches=0)


@pytest.mark.parametrize("put", ["", "# nothing", "if x:"])
def test_a_malformed_put(put):
    with pytest.raises(BadInput, match=r"put .*(holds no statement|is not Python)"):
        Edit("m:f", "a()", put)


# ---- for functions of any shape ----

HEADERS = ["if c(N):", "for i in c(N):", "while c(N):", "with c(N):", "def g_N():", "@c(N)\nclass C_N:"]
SIMPLE = [
    "a(N)",
    "b = N  # why",
    "c = [  # open\n  N,\n\n      2,\n]",
    'd = """N\n  two\n"""',
    "e: int = N",
    "# apart\nf(N)",
    "é = f'''{N}\n'''",
    "g = N + \\\n  1",
]


def block(statements: list[str]) -> str:
    return "\n".join(statements)


def compound(bodies: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    nested = st.builds(lambda head, body: f"{head}\n{indented(body)}", st.sampled_from(HEADERS), bodies)
    branches = st.builds(
        lambda one, two: f"if c(N):\n{indented(one)}\nelse:\n{indented(two)}", bodies, bodies
    )
    return st.lists(st.one_of(st.sampled_from(SIMPLE), nested, branches), min_size=1, max_size=4).map(block)


def indented(body: str) -> str:
    """One level deeper; what is in a string moves too, which is right as long as nothing moves afterwards."""
    return textwrap.indent(body, "    ")


def numbered(body: str) -> str:
    """A function in a class, with a number of its own for each N, so that no two statements are equal."""
    source = "class A:\n    def f(self):\n" + textwrap.indent(body, "        ") + "\n\n    x = 1\n"
    first, *parts = source.split("N")
    return first + "".join(f"{number}{part}" for number, part in enumerate(parts))


sources = st.recursive(
    st.lists(st.sampled_from(SIMPLE), min_size=1, max_size=3).map(block), compound, max_leaves=8
).map(numbered)


def statements(source: str) -> list[ast.stmt]:
    function = ast.parse(source).body[0].body[0]
    return [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]


@given(sources, st.data())
def test_a_statement_put_back_as_it_was_changes_nothing(source, data):
    node = data.draw(st.sampled_from(statements(source)))
    assert rewrite(source, [Edit("m:A.f", ast.unparse(node), "...")]) == source


@given(sources, st.data())
def test_a_statement_found_by_its_own_source_is_all_that_goes(source, data):
    place = data.draw(st.sampled_from(range(len(statements(source)))))
    after = rewrite(source, [Edit("m:A.f", ast.unparse(statements(source)[place]))])
    assert ast.dump(ast.parse(after)) == ast.dump(replaced(source, place, lambda node: ast.Pass()))


@given(sources, st.data())
def test_a_wrapped_statement_keeps_its_meaning(source, data):
    place = data.draw(st.sampled_from(range(len(statements(source)))))
    edit = Edit("m:A.f", ast.unparse(statements(source)[place]), "if wrapped:\n    x = 0\n    ...")
    head = ast.parse("if wrapped:\n    x = 0").body[0]

    def wrap(node: ast.stmt) -> ast.stmt:
        return ast.If(head.test, [*head.body, node], [])

    assert ast.dump(ast.parse(rewrite(source, [edit]))) == ast.dump(replaced(source, place, wrap))


def replaced(source: str, place: int, make) -> ast.Module:
    """The tree of a source whose statement at a place is another: what an edit must come to."""
    tree = ast.parse(source)
    function = tree.body[0].body[0]
    target = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function][place]

    class Replace(ast.NodeTransformer):
        def visit(self, node):
            return make(node) if node is target else self.generic_visit(node)

    return Replace().visit(tree)
