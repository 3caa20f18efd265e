"""The watch itself: a page that does what none may do is complained about."""

import pytest

pytestmark = pytest.mark.browser

BAD = """<h1>Bad</h1><img alt="x" src="http://a.test/x.png">
<script>console.error("said"); throw new Error("thrown")</script>"""


def test_errors_and_requests_off_the_machine_are_heard(browser, watch, tmp_path):
    (tmp_path / "bad.html").write_text(BAD)
    watched = watch(browser.new_page())
    watched.page.goto((tmp_path / "bad.html").as_uri())
    told = "\n".join(watched.complaints)
    assert "a request off the machine: http://a.test/x.png" in told
    assert "net::ERR_NAME_NOT_RESOLVED" in told  # and nothing answered
    assert "console: said" in told and "exception: thrown" in told
    watched.page.close()


def test_a_good_page_is_not_complained_about(browser, watch, tmp_path):
    (tmp_path / "good.html").write_text('<h1>Good</h1><script>console.log("said")</script>')
    watched = watch(browser.new_page())
    watched.page.goto((tmp_path / "good.html").as_uri())
    assert watched.complaints == []
    watched.page.close()
