"""The page of a profile, in a real browser."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from genai_server.profiles.profile_files import read_profile
from genai_server.profiles.report import analyse
from genai_server.profiles.report_formats import as_page
from tests.profiles.browser import OpenPage, launched
from tests.profiles.files import DOWN, event, kernel, write, write_session
from tests.running_server import wait_until


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


def shown(browser: Browser, folder: Path) -> OpenPage:
    """The page of the profile in a folder."""
    path = folder / "page.html"
    path.write_text(as_page(analyse(read_profile(folder))), encoding="utf-8")
    return OpenPage(browser, path)


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> OpenPage:
    """A session of a prompt and 20 tokens, of which the 13th is slow in one node."""
    folder = tmp_path_factory.mktemp("page")
    write_session(folder, decodes=20, slow={13: 4300})
    return shown(browser, folder)


def titles(opened: OpenPage, svg: str) -> list[str]:
    """The titles of the boxes of a drawing."""
    found: list[str] = opened.page.locator(f"#{svg} rect title").all_text_contents()
    return found


def test_report_loads_nothing_else_and_opens_at_the_slow_token_with_its_node(opened: OpenPage) -> None:
    assert ([request[:5] for request in opened.requests], opened.errors) == (["file:"], [])
    assert opened.page.title() == "mine_1700000000"
    assert "model demo on cpu, 2 threads on 2 cores" in opened.page.locator("#about").inner_text()
    assert opened.page.locator("#timeline-title").inner_text() == "Timeline of token 13 of req-1 (decode): 4.70 ms"
    bars = opened.page.locator("#passes rect")
    assert bars.count() == 20
    assert opened.page.locator("#passes rect.slow").count() == 1
    assert DOWN in titles(opened, "passes")[12]
    assert DOWN in opened.page.locator("#slow-tokens").inner_text()
    assert "the slowest token, token 13 of req-1, took 6.7 times" in opened.page.locator("#findings").inner_text()


def test_bars_are_as_high_as_their_passes_took_long_and_have_an_axis(opened: OpenPage) -> None:
    boxes = [bar.bounding_box() for bar in opened.page.locator("#passes rect").all()]
    heights = [box["height"] for box in boxes if box]
    assert heights.index(max(heights)) == 12
    assert max(heights) / min(heights) == pytest.approx(4700 / 700, rel=0.1)
    texts = opened.page.locator("#passes text").all_text_contents()
    assert {"0 ms", "1 ms", "2 ms", "3 ms", "4 ms"} <= set(texts)
    assert "median of decode 0.70 ms" in texts
    assert "slow above 1.05 ms (1.5 times the median)" in texts
    median, limit = (opened.page.locator(f"#passes line.{kind}").bounding_box() for kind in ("median", "limit"))
    assert median is not None
    assert limit is not None
    assert limit["y"] < median["y"]


def test_timeline_has_kernels_below_their_layers_and_explains_boxes_and_gaps(opened: OpenPage) -> None:
    found = titles(opened, "timeline")
    assert [text.split(":")[0] for text in found[1:3]] == ["layer 0", "layer 1"]
    assert found[-1] == f"{DOWN} (MatMulNBits, CPUExecutionProvider): 4.30 ms, from 0.35 ms on"
    last, before = (opened.page.locator("#timeline rect").nth(number).bounding_box() for number in (-1, -2))
    assert last is not None
    assert before is not None
    assert last["x"] >= before["x"] + before["width"] - 1
    assert last["width"] > 10 * before["width"]
    gaps = opened.page.locator("#timeline path title").all_text_contents()
    assert gaps
    assert all(text.startswith("no kernel runs: ") for text in gaps)
    assert "no kernel runs" in opened.page.locator("#idle").inner_text()
    opened.page.locator("#timeline rect").nth(-1).hover()
    assert opened.page.locator("#told").inner_text().startswith(DOWN)


def test_a_click_on_a_bar_or_another_phase_is_shown(opened: OpenPage) -> None:
    opened.page.locator("#passes rect").nth(4).click()
    assert opened.page.locator("#timeline-title").inner_text().startswith("Timeline of token 5 of req-1")
    opened.page.locator("#slow-tokens tr.link").click()
    assert "token 13" in opened.page.locator("#timeline-title").inner_text()
    opened.page.select_option("#phase", "prefill")
    assert opened.page.locator("#passes rect").count() == 1
    assert opened.page.locator("#timeline-title").inner_text().startswith("Timeline of prompt of req-1")
    opened.page.select_option("#phase", "all")
    assert opened.page.locator("#passes rect").count() == 21
    opened.page.select_option("#phase", "decode")


def test_tiles_show_rate_median_percentile_and_overhead(opened: OpenPage) -> None:
    tiles = [tile.inner_text().split("\n") for tile in opened.page.locator("#tiles div").all()]
    assert tiles[:3] == [
        ["1111.1", "tokens/s in decode, profiled"],
        ["0.70 ms", "median of a decode pass"],
        ["0.70 ms", "95th percentile of a decode pass"],
    ]
    assert tiles[3][0].endswith(" %")
    assert tiles[3][1] == "of all time outside kernels"


def test_operator_has_one_colour_in_all_diagrams(opened: OpenPage) -> None:
    legend = opened.page.locator("#operators-legend li")
    names = [text.rsplit(" ", 2)[0] for text in legend.all_text_contents()]
    assert "MatMulNBits" in names
    colours = [circle.get_attribute("fill") for circle in opened.page.locator("#operators-legend circle").all()]
    assert len(set(colours)) == len(names)
    own = colours[names.index("MatMulNBits")]
    for svg, word in (("timeline", "(MatMulNBits, "), ("flame", "MatMulNBits: ")):
        boxes = opened.page.locator(f"#{svg} rect").filter(has_text=word)
        assert {box.get_attribute("fill") for box in boxes.all()} == {own}


def test_the_flame_has_layers_in_order_and_shows_a_box_whole_on_a_click(opened: OpenPage) -> None:
    layers = [text.split(":")[0] for text in titles(opened, "flame") if text.startswith("layer ")]
    assert layers == sorted(layers, key=lambda name: int(name.split()[1]))
    assert len(layers) > 1
    everything = titles(opened, "flame")
    assert everything[0] == "decode: 18.00 ms, 100.0 % of the phase"
    opened.page.locator("#flame rect").filter(has_text="layer 0").first.click()
    assert titles(opened, "flame")[0] == "back to decode"
    assert not any("layer 1" in text for text in titles(opened, "flame"))
    opened.page.locator("#flame rect").first.click()
    assert titles(opened, "flame") == everything


def test_long_request_ids_are_shortened_uniquely(browser: Browser, tmp_path: Path) -> None:
    name = "req-0123456789abcdef01234567"
    write_session(tmp_path, request=name)
    title = shown(browser, tmp_path).page.locator("#timeline-title")
    assert " of req-01234567… (decode)" in title.inner_text()
    assert title.get_attribute("title") == name


def test_report_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    write_session(tmp_path, decodes=20, slow={13: 4300})
    opened = shown(browser, tmp_path)
    opened.page.set_viewport_size({"width": 360, "height": 740})
    # The page's policy allows no `eval`, by which wait_for_function polls.
    wait_until(lambda: opened.page.evaluate("document.querySelector('#passes').viewBox.baseVal.width") < 360)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert opened.errors == []


def test_names_that_look_like_html_stay_names(browser: Browser, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    write(tmp_path / "a.json", [kernel(evil, evil, 0, 60), event("model_run", 0, 100)])
    opened = shown(browser, tmp_path)
    assert evil in opened.page.locator("#operators").inner_text()
    assert opened.page.locator("img").count() == 0
    assert opened.errors == []
