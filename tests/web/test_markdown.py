"""Answers as Markdown on the page: code, formulas, tables and lists, without a script, an image or an inline style."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.running_server import RunningServer
from tests.web.browser import ask, expect, opened, picture, violations


@pytest.fixture
def page(browser: Browser, own_scripted: RunningServer) -> Iterator[Page]:
    with opened(browser, own_scripted) as page:
        yield page


MARKDOWN = (
    "say # Heading⏎⏎<script>alert(1)</script> <img src=x onerror=alert(1)>⏎⏎| a | b |⏎|---|---|⏎| 1 | **2** |⏎⏎"
    "```python⏎print('<b>')⏎```⏎⏎![seen](https://evil.example/x.png) [link](javascript:alert(1)) \\(a_1 * b_1\\)"
)


@pytest.mark.smoke
def test_markdown_is_formatted_and_html_in_an_answer_stays_text(page: Page) -> None:
    ask(page, MARKDOWN)
    shown = page.locator(".assistant .markdown")
    expect(shown.get_by_role("heading", name="Heading")).to_be_visible()
    expect(shown.locator("td strong")).to_have_text("2")
    expect(shown.locator("pre code")).to_have_text("print('<b>')\n")
    expect(shown.get_by_role("math", name="\\(a_1 * b_1\\)").locator(".katex")).to_be_visible()
    expect(shown).to_contain_text("<script>alert(1)</script> <img src=x onerror=alert(1)>")
    assert shown.locator("script, img").count() == 0
    assert shown.locator("a").evaluate_all("links => links.map(link => link.protocol)") == ["https:"]


def test_a_code_block_is_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "say ```⏎first⏎second⏎```")
    page.locator(".copy-code").click()
    expect(page.locator(".copy-code")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "first\nsecond\n"


def test_code_is_coloured_by_its_language(page: Page) -> None:
    ask(page, 'say ```python⏎def f(x): return "<b>"⏎```⏎⏎```nonsense⏎def f⏎```⏎⏎```⏎def f⏎```')
    blocks = page.locator(".markdown pre code")
    expect(blocks.first.locator(".hljs-keyword").first).to_have_text("def")
    expect(blocks.first.locator(".hljs-string")).to_have_text('"<b>"')
    expect(blocks).to_have_text(['def f(x): return "<b>"\n', "def f\n", "def f\n"])
    assert blocks.nth(1).locator("span").count() == blocks.nth(2).locator("span").count() == 0


FORMULAS = (
    "say The sum $\\sum_{i=1}^n i$ and \\(\\boxed{x_1}\\):⏎⏎$$⏎\\frac{a}{b}⏎=⏎- c⏎$$⏎⏎"
    "- It costs $5 and $6.⏎- \\[ \\pmb{x}^2 \\]⏎⏎Wrong: $\\nothing{$ and $unclosed"
)


def test_formulas_are_set_and_wrong_ones_stay_as_written(page: Page, tmp_path: Path) -> None:
    ask(page, FORMULAS)
    formulas = page.get_by_role("math")
    expect(formulas).to_have_count(4)
    expect(page.locator(".formula.display .katex-display")).to_have_count(2)
    shown = page.locator(".markdown")
    expect(shown).to_contain_text("It costs $5 and $6.")
    expect(shown).to_contain_text("Wrong: $\\nothing{$ and $unclosed")
    assert shown.locator("h1, h2").count() == 0
    page.evaluate("document.fonts.ready")
    assert page.evaluate("[...document.fonts].some((font) => font.family === 'KaTeX_Main' && font.status === 'loaded')")
    picture(page, "formulas", tmp_path)
    assert violations(page) == []


# Formats texts that repeat a line 200 and 400 times before an end; returns the number of characters that String.indexOf
# searched in each.
SEARCHED = """async ([line, end]) => {
    const { blocks } = await import("./ui/markdown.js");
    const { indexOf } = String.prototype;
    let searched = 0;
    String.prototype.indexOf = function (text, begin = 0) {
        const found = indexOf.call(this, text, begin);
        searched += (found < 0 ? this.length : found) - begin;
        return found;
    };
    try {
        return [200, 400].map((times) => {
            searched = 0;
            blocks(line.repeat(times) + end);
            return searched;
        });
    } finally {
        String.prototype.indexOf = indexOf;
    }
}"""


@pytest.mark.parametrize("end", ["", "\n\\] \\) x"])
@pytest.mark.parametrize("line", ["\\(", "\\[", "\\[ a\n", "\\[\n\n", "- \\[ a\n", "> $$ a\n", "$$ a", "$1", "[\\("])
def test_search_for_formulas_grows_with_the_text_and_not_with_its_square(page: Page, line: str, end: str) -> None:
    once, twice = page.evaluate(SEARCHED, [line, end])
    assert 0 < once < twice < 2.2 * once


# How many formulas of a text are set, and how many are not, once the page has had time for them.
SET = """async (text) => {
    const { blocks } = await import("./ui/markdown.js");
    const { typeset } = await import("./ui/formulas.js");
    const { katex } = await import("./ui/libraries.js");
    await katex.load();
    const element = document.createElement("div");
    element.innerHTML = blocks(text).join("");
    typeset(element);
    while (element.querySelector(".formula:not([data-set])")) await new Promise(requestAnimationFrame);
    return [element.querySelectorAll("[role=math]").length, element.querySelectorAll(".formula:not([role])").length];
}"""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("$" + 20_000 * "{" + "x" + 20_000 * "}" + "$", [0, 1]),
        ("$" + 20_000 * "x+" + "x$", [0, 1]),
        ("$" + 1600 * "\\sqrt" + "x$", None),
        ("$" + 1200 * "x_{" + 1200 * "}" + "$", None),
        ("".join(f"$x_{{{number}}}$ " for number in range(3000)), [3000, 0]),
        (20_000 * "\\(" + "x" + 20_000 * "\\)", None),
    ],
    ids=["nested", "long", "roots", "indices", "many", "openers"],
)
def test_page_answers_whatever_formulas_an_answer_has(page: Page, text: str, number: list[int] | None) -> None:
    found = page.evaluate(SET, text)
    assert number in (None, found)
    expect(page.get_by_label("Message", exact=True)).to_be_visible()


def test_columns_of_tables_are_aligned_and_tasks_have_boxes(page: Page) -> None:
    ask(page, "say | a | b | c |⏎|:--|:-:|--:|⏎| 1 | 2 | 3 |⏎⏎- [x] read⏎- [ ] write⏎- [y] other")
    cells = page.locator(".markdown td")
    expect(cells).to_have_text(["1", "2", "3"])
    aligned = cells.evaluate_all("cells => cells.map((cell) => getComputedStyle(cell).textAlign)")
    assert aligned == ["left", "center", "right"]
    items = page.locator(".markdown li")
    expect(items).to_have_text(["read", "write", "[y] other"])
    expect(items.get_by_role("checkbox", name="done")).to_be_checked()
    expect(items.get_by_role("checkbox", name="to do")).not_to_be_checked()


NUM_LINES = """(cells) => cells.map((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getClientRects().length;
})"""


def test_wide_table_scrolls_on_a_phone_and_breaks_no_word(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    heads = "|".join(["algorithm", "complexity", "measurement", "remarks"] * 2)
    cells = "|".join(["mergesort", "logarithmic", "100.25", "stable"] * 2)
    ask(page, f"say |{heads}|⏎|{'---|' * 8}⏎|{cells}|")
    table = page.get_by_role("region", name="Table")
    assert table.evaluate("each => each.scrollWidth > each.clientWidth")
    assert table.locator("td, th").evaluate_all(NUM_LINES) == [1] * 16
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    picture(page, "table-phone", tmp_path)


def test_libraries_for_code_and_formulas_are_loaded_when_needed(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    ask(page, "say plain")
    assert not {"highlight.js", "katex.js", "uplot.js"} & set(asked)
    ask(page, "say $x$")
    expect(page.locator(".katex")).to_be_visible()
    assert "katex.js" in asked
    assert "highlight.js" not in asked
