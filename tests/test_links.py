"""The pages lead to each other: terms to the glossary, each page to the next, nothing to nowhere."""

import json
import re
import shutil

import links
import pytest
from links import GLOSSARY, NOTEBOOKS, Linker, Term

from mrv2lab.errors import BadInput

PAGES = links.pages()
TERMS = links.terms("\n\n".join(links.read(NOTEBOOKS / GLOSSARY)))
AFTER_THE_START = [path for path in PAGES if "10" <= path.name[:2] <= "30"]


def by_name(path):
    return path.name


# ---- what is stored ----


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_every_link_is_set_where_it_belongs(path):
    """The first use of each term, and the way to the neighbours. `make links` sets them."""
    assert path.read_text() == links.linked(path, TERMS, PAGES)


def test_no_term_of_the_glossary_is_unused():
    text = "\n".join("\n".join(links.read(path)) for path in PAGES if path.name != GLOSSARY)
    assert [term.name for term in TERMS if f"]({GLOSSARY}#{term.anchor} " not in text] == []


def test_an_entry_names_the_pages_that_lead_to_it():
    for entry in links.read(NOTEBOOKS / GLOSSARY):
        for term in links.terms(entry):
            told = re.findall(r"\(([^)]*)\)", entry.split("\n\nUsed in ")[1])
            anchor = f"]({GLOSSARY}#{term.anchor} "
            assert told == [path.name for path in PAGES if anchor in "\n".join(links.read(path))], term.name


def test_the_glossary_has_the_words_of_the_workbook():
    from mrv2lab.cases import CASES

    known = {form.strip("`").lower() for term in TERMS for form in term.forms}
    roles = {variant.role for case in CASES.values() for variant in case.variants}
    text = "\n".join(links.read(NOTEBOOKS / GLOSSARY))
    assert {"rung", "role", "verdict", "variant", "seam", "finding", "poison"} <= known
    assert all(f"`{word}`" in text for word in {"correct", "wrong", "crash", "failed", "eager", *roles})


def anchors(path):
    """Anchors that every viewer makes for a page's headings: only those without capitals are the same."""
    text = re.sub(r"^```.*?^```", "", "\n\n".join(links.read(path)), flags=re.MULTILINE | re.DOTALL)
    return {
        heading.replace("`", "").replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def targets(path):
    text = re.sub(r"^```.*?^```", "", "\n\n".join(links.read(path)), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r'\]\(([^)\s]+)(?: "[^"]*")?\)', text)


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_every_link_inside_the_workbook_leads_somewhere(path):
    found = [target.partition("#") for target in targets(path) if not target.startswith("https://")]
    for name, _, anchor in found:
        page = NOTEBOOKS / (name or path.name)
        assert page.is_file(), name
        assert not anchor or anchor in anchors(page) or anchor in {a.lower() for a in anchors(page)}, anchor
    assert found


def test_reading_on_visits_every_page_once():
    ways = {path.name: links.read(path)[-1].splitlines()[-1] for path in PAGES}
    onward = {name: re.search(r"\]\(([^)]*)\) →", way) for name, way in ways.items()}
    seen, name = [], links.START
    while name not in seen:
        seen.append(name)
        name = onward[name][1] if onward[name] else name
    assert seen == [path.name for path in PAGES]


@pytest.mark.parametrize("path", AFTER_THE_START, ids=by_name)
def test_each_bug_was_met_elsewhere(path):
    (box,) = (text for text in links.read(path) if "**Seen in the wild**" in text)
    sources = re.findall(r"\[([\w.-]+/[\w.-]+)#(\d+)\]\(https://github\.com/([^)]*)\)", box)
    assert sources and all(line.startswith(">") for line in box.splitlines())
    for repository, number, address in sources:
        assert address in (f"{repository}/pull/{number}", f"{repository}/issues/{number}")
    assert any(not repository.startswith("vllm-project/") for repository, _, _ in sources)


# ---- how a first use is found ----

POOL = Term("graph pool", ("graph pool", "pool", "pools"))
GRAPH = Term("graph", ("graph", "graphs", "`CUDAGraph`"))
TO_GRAPH, TO_POOL = f"{GLOSSARY}#graph", f"{GLOSSARY}#graph-pool"


@pytest.mark.parametrize(
    "before, after",
    [
        ("A Graph, a graph.", f"A [Graph]({TO_GRAPH}), a graph."),
        ("A graph pool, a graph.", f"A [graph pool]({TO_POOL}), a [graph]({TO_GRAPH})."),
        ("a graph\npool", f"a [graph\npool]({TO_POOL})"),
        ("**graphs**", f"**[graphs]({TO_GRAPH})**"),
        ("| graphs |", f"| [graphs]({TO_GRAPH}) |"),
        ("`CUDAGraph` and `graph`", f"[`CUDAGraph`]({TO_GRAPH}) and `graph`"),
        ("`CUDAGraph()`, a graph", f"`CUDAGraph()`, a [graph]({TO_GRAPH})"),
        ("# A graph\n\nNo heading: graph", f"# A graph\n\nNo heading: [graph]({TO_GRAPH})"),
        ("```\ngraph\n```\ngraph", f"```\ngraph\n```\n[graph]({TO_GRAPH})"),
        ("[a graph](x.ipynb) graph", f"[a graph](x.ipynb) [graph]({TO_GRAPH})"),
        ("<summary>graph</summary>\n\ngraph", f"<summary>graph</summary>\n\n[graph]({TO_GRAPH})"),
        ("paragraph, graph-like, graphics", "paragraph, graph-like, graphics"),
        (f"graph [graph]({TO_GRAPH})", f"[graph]({TO_GRAPH}) graph"),
        ("nothing [else](90_glossary.ipynb#gone) graph", f"nothing else [graph]({TO_GRAPH})"),
    ],
)
def test_the_first_use_is_linked(before, after):
    assert Linker([GRAPH, POOL]).link(before) == after
    assert Linker([GRAPH, POOL]).link(after) == after


def test_titles_of_sections_are_quoted_and_not_linked():
    plan = "[01](x.ipynb) *1. A graph*, *2. The [pool]({})* | a graph"
    assert Linker([GRAPH, POOL]).link(plan.format(TO_POOL)) == (
        f"[01](x.ipynb) *1. A graph*, *2. The pool* | a [graph]({TO_GRAPH})"
    )


def test_what_means_something_else_on_a_page_is_not_linked(monkeypatch):
    monkeypatch.setattr(links, "_OTHERWISE", {"swimming.md": ("pool", "pools")})
    swum = Linker([GRAPH, POOL], "swimming.md")
    assert swum.link("pool, graph pool, graph") == f"pool, [graph pool]({TO_POOL}), [graph]({TO_GRAPH})"
    assert Linker([GRAPH, POOL], "another.md").link("pool") == f"[pool]({TO_POOL})"


def test_a_break_in_a_plan_is_no_breakable_graph():
    plan = (NOTEBOOKS / "onboarding.md").read_text()
    linked = re.findall(rf"\[([^\]]+)\]\({GLOSSARY}#breakable-graph[^)]*\)", plan)
    assert "two breaks included" in plan and "| Break |" in plan and linked == ["breakable graphs"]


def test_a_link_says_what_the_term_means():
    """As its title, which JupyterLab, GitHub and the site show beside a resting pointer."""
    (term,) = links.terms('### graph\n*also: graphs*\n\nA "list" of [work](x.md), `launched`\nas one. More.')
    assert term.told == "A ”list” of work, launched as one."
    linked = Linker([term]).link("graphs")
    assert linked == f'[graphs]({TO_GRAPH} "A ”list” of work, launched as one.")'
    assert Linker([Term("graph", ("graph", "graphs"), "Other (words).")]).link(linked) == (
        f'[graphs]({TO_GRAPH} "Other (words).")'
    )
    assert all(re.fullmatch(r"[A-Z][^\"\n]{10,300}\.", term.told) for term in TERMS)


def test_a_page_is_one_text():
    linker = Linker([GRAPH, POOL])
    assert linker.link("graph") == f"[graph]({TO_GRAPH})" and linker.link("graph, pool").startswith(
        "graph, ["
    )


def test_entries_must_be_told_apart_and_have_one_anchor():
    assert [term.forms for term in links.terms("### a b\n*also: c, `D`*\n\nText\n\n### e\n\nText\n")] == [
        ("a b", "c", "`D`"),
        ("e",),
    ]
    for glossary in ("### a\n*also: b*\n\n### b\n", "### Graph\n", "### a (b)\n"):
        with pytest.raises(BadInput):
            links.terms(glossary)


def test_links_are_set_anew(tmp_path, monkeypatch, capsys):
    for path in PAGES:
        shutil.copy(path, tmp_path)
    page = tmp_path / "01_capture_and_replay.ipynb"
    stored = page.read_text()
    notebook = json.loads(stored)
    notebook["cells"] = notebook["cells"][:-1]
    page.write_text(json.dumps(notebook, indent=1, ensure_ascii=False).replace(f"]({GLOSSARY}#node ", "](x "))
    shutil.copy(NOTEBOOKS / "00_start_here.ipynb", tmp_path / "02_a_new_page.ipynb")
    monkeypatch.setattr(links, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(links.pages, "__defaults__", (tmp_path,))
    links.main()
    told = capsys.readouterr().out
    assert "linked 01" in told and "linked 02_a_new" in told and "linked 12" not in told
    assert "02_a_new_page.ipynb) →" in page.read_text()
