"""One palette, legible on light and on dark pages and told apart by everybody; one stylesheet."""

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from mrv2lab import looks, plots
from mrv2lab.tables import band, plain_html

# Backgrounds of JupyterLab's and of the site's pages, the darker and the lighter end of each.
LIGHT, DARK = ["#ffffff", "#f8f9fb"], ["#111111", "#131416"]

# Machado, Oliveira and Fernandes (2009): what people without one kind of cone see, in linear RGB.
VISIONS = {
    "everybody": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def linear(colour):
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """The ratio of WCAG 2: 4.5 for words, 3 for marks."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(light):
    """CIELAB of linear RGB: distances in it are differences as seen, 2.3 the smallest that is noticed."""
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ]
    )
    xyz = to_xyz @ np.clip(light, 0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def variables(rule):
    return dict(re.findall(r"--mrv2lab-(\w+): ([^;]+);", rule))


def rules():
    """The variables for light pages, for dark ones by choice, and for dark ones by the system's setting."""
    light, chosen, system = re.findall(r"[^{}]*\{ (--mrv2lab[^}]*)\}", looks.stylesheet())
    return map(variables, (light, chosen, system))


@pytest.mark.parametrize("tone", ["good", "bad", "between", "quiet"])
def test_words_can_be_read_on_light_and_on_dark_pages(tone):
    light, chosen, system = rules()
    assert min(contrast(light[tone], page) for page in LIGHT) >= 4.5
    assert min(contrast(chosen[tone], page) for page in DARK) >= 4.5
    assert chosen == system


@pytest.mark.parametrize("role", plots.COLOURS)
def test_marks_stand_out_in_figures_light_and_dark(role):
    colour = plots.COLOURS[role]
    assert contrast(colour, "#ffffff") >= 3
    assert contrast(looks.DARK[colour], looks.DARK["#ffffff"]) >= 3


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("seen_as", [str, looks.DARK.get], ids=["light", "dark"])
def test_roles_are_told_apart_by_everybody(vision, seen_as):
    seen = {role: lab(VISIONS[vision] @ linear(seen_as(colour))) for role, colour in plots.COLOURS.items()}
    apart = {pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]]) for pair in itertools.combinations(seen, 2)}
    assert min(apart.values()) > 8, apart


def test_roles_have_marks_of_their_own_as_well():
    assert len(set(plots._MARKERS.values())) == len(plots.COLOURS) == len(plots._MARKERS)


def filtered(colour):
    """What the filter of figures makes of a colour: CSS `invert(93%) hue-rotate(180deg)`."""
    inverted = 0.93 + (1 - 2 * 0.93) * np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    # The matrix that the CSS standard (Filter Effects) gives for a turn of hues, at 180 degrees.
    turn = np.array([[-0.574, 1.430, 0.144], [0.426, 0.430, 0.144], [0.426, 1.430, -0.856]])
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in np.clip(turn @ inverted, 0, 1))


def test_dark_colours_are_those_that_the_filter_makes():
    assert {colour: filtered(colour) for colour in looks.PALETTE.values()} == looks.DARK
    assert "--mrv2lab-figure: invert(93%) hue-rotate(180deg);" in looks.stylesheet()


def test_dark_figures_lie_on_a_ground_like_the_page_and_black_becomes_light():
    assert looks.DARK["#ffffff"] == "#121212" and looks.DARK["#000000"] == "#ededed"
    assert contrast(looks.DARK[looks.PALETTE["grey"]], looks.DARK["#ffffff"]) >= 4.5


def test_a_figure_is_opaque_so_it_can_be_read_where_no_stylesheet_is():
    picture = plots.errors_per_step([]).svg()
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture).groups()
    ground = re.search(r"<path[^>]*>", picture)[0]
    corners = {tuple(map(float, corner.split())) for corner in re.findall(r"[\d.]+ [\d.]+", ground)}
    across, down = float(width), float(height)
    assert corners == {(0, 0), (across, 0), (0, down), (across, down)}
    assert 'fill="#ffffff"' in ground and "opacity" not in ground


def test_a_part_brings_the_stylesheet_and_a_page_takes_it_out():
    table = plain_html([["variant", "verdict"], ["a<b", "wrong"]], band(0.5))
    assert table.count(looks.stylesheet()) == 1
    assert looks.bare(table + table).startswith('<div class="mrv2lab mrv2lab-part"><table>')
    assert "<style" not in looks.bare(table + table)
    assert '<b class="bad">wrong</b>' in table and "a&lt;b" in table


def test_a_picture_is_shown_with_its_words_below(displayed):
    looks.show("<svg/>", "a <b>")
    (picture, metadata), (words, _) = displayed
    assert picture == {
        "image/svg+xml": "<svg/>",
        "text/plain": "a <b>",
    }  # and no HTML, which GitHub would prefer
    assert metadata == {"image/svg+xml": {"alt": "a <b>"}}
    assert words == {"text/html": looks.words("a <b>")} and ">a &lt;b&gt;<" in words["text/html"]


FIGURES = {
    "a plot": lambda: plots.flake_rates([1, 2], total=2),
    "a plot of nothing": lambda: plots.errors_per_step([]),
    "bars": lambda: plots.capture_costs([]),
    "marks": lambda: plots.errors_by_length({"a <b>": {"short": 0.1}}, "emulated"),
}


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_a_picture_needs_no_style_and_no_reference(make):
    """GitHub takes both away; and two pictures on one page must share no names."""
    picture = ElementTree.fromstring(make().svg())
    parts = {part.tag.removeprefix("{http://www.w3.org/2000/svg}") for part in picture.iter()}
    assert parts <= {"svg", "path", "text"} and {"path", "text"} <= parts
    attributes = {name for part in picture.iter() for name in part.attrib} - {"class"}  # of the root, for us
    assert not attributes & {"style", "id", "href"}
    assert not any("url(" in value for part in picture.iter() for value in part.attrib.values())


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_a_picture_drawn_twice_is_the_same_and_says_no_date(make):
    assert make().svg() == make().svg()
    assert "20" not in re.sub(r'="[^"]*"', "", make().svg())


def test_words_of_a_picture_are_words_and_large_enough_for_a_phone():
    picture = ElementTree.fromstring(plots.flake_rates([76, 90]).svg())
    words = [part for part in picture.iter() if part.text]
    assert {"76", "90", "share of runs that fail"} <= {part.text for part in words}
    scale = min(1, 358 / (float(picture.get("width").removesuffix("pt")) * 4 / 3))  # of 390 pixels
    smallest = min(float(part.get("font-size").removesuffix("px")) for part in words)
    assert smallest * 4 / 3 * scale >= 7.5


def test_alternative_text_is_escaped():
    picture = FIGURES["marks"]().svg()
    assert 'aria-label="Marks: relative error for short; variants a &lt;b&gt;."' in picture


def test_a_script_that_an_output_stores_has_no_comments_and_no_line_that_is_one():
    package = Path(looks.__file__).parent
    for path in package.rglob("*.js"):
        assert "//" not in path.read_text().replace("https://", "") and "*/" not in looks.on_one_line(path)


def test_colours_are_named_in_one_place_only():
    package = Path(looks.__file__).parent
    named = {
        path.name: re.findall(r"#[0-9a-f]{6}\b", path.read_text())
        for path in [*package.rglob("*.py"), *package.rglob("*.css")]
        if path.name != "looks.py"
    }
    assert {name: colours for name, colours in named.items() if colours} == {}
    assert not re.search(r"(?<!-)color: (?!var\(|inherit)", (package / "style.css").read_text())


def test_what_scrolls_sideways_has_a_cue():
    """A shadow that the page covers at the end: four backgrounds, two of which go along."""
    rules = re.findall(r"([^{}]+)\{([^{}]*)\}", looks.stylesheet())
    wide = {
        s.strip()
        for names, rule in rules
        if re.search(r"overflow(-x)?: auto", rule)
        for s in names.split(",")
    }
    (cued,) = ({s.strip() for s in names.split(",")} for names, rule in rules if rule.count(" local") == 2)
    assert wide and wide <= cued
    assert looks.stylesheet().count("--mrv2lab-page: ") == 3  # light, chosen dark, dark by the system
