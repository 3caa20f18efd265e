"""Numbers of records in the text are the records'."""

import re

import pytest
import quoted

from mrv2lab.errors import BadInput
from mrv2lab.results import recorded


@pytest.mark.parametrize("path", quoted.pages(), ids=lambda path: path.stem)
def test_every_quoted_number_is_the_recorded_one(path):
    """`make links` sets them."""
    assert path.read_text() == quoted.quoted(path.read_text())


def test_milliseconds_and_ratios_of_records_are_quoted():
    """In the walkthroughs and on the page of records no such number is typed."""
    typed = []
    for path in quoted.pages():
        if path.parent.name == "walkthroughs" or path.name == "records.md":
            text = quoted.QUOTE.sub("", path.read_text())
            typed += re.findall(r"\d[\d.]* (?:ms\b|times\b|requests a second)", text)
    assert not typed


def test_a_number_is_set_with_the_digits_it_had():
    note = "<!-- cuda lora_short_circuit@8: eager.ms -->"
    run = next(
        run
        for run in recorded("lora_short_circuit", "cuda")
        if run.variant == "eager" and run.shape["batch_size"] == 8
    )
    assert quoted.quoted(f"took 1{note} ms") == f"took {run.latency_ms.median:.0f}{note} ms"
    assert quoted.quoted(f"took 1.00{note} ms") == f"took {run.latency_ms.median:.2f}{note} ms"
    ratio = "1.0<!-- cuda lora_short_circuit@8: eager.ms / eager.ms -->"
    assert quoted.quoted(ratio.replace("1.0<", "7.0<")) == ratio


def test_what_no_record_holds_is_refused():
    with pytest.raises(BadInput, match=r"no record holds eager\.speed"):
        quoted.quoted("1<!-- cuda lora_short_circuit: eager.speed -->")
    with pytest.raises(BadInput, match=r"no record holds zero_mapping\.ms"):  # wrong answers have none
        quoted.quoted("1<!-- cuda lora_short_circuit: zero_mapping.ms -->")
