"""Chats about images on the page, with a small model that reads them."""

from playwright.sync_api import Browser

from tests.media.images.pictures import encoded, picture
from tests.running_server import ROOT, RunningServer
from tests.server_here import module_server
from tests.web.browser import answer, ask, expect, opened

# It has a token for 32 by 32 pixels, and one before and after an image.
MODEL = ROOT / "tests" / "built_models" / "qwen-3-vl-images"


seeing = module_server("--model-dir", str(MODEL))


def test_an_image_is_read_and_stays_in_the_conversation(browser: Browser, seeing: RunningServer) -> None:
    red, blue = encoded(picture(256, 256)), encoded(picture(256, 128))

    def prompt_tokens(place: int) -> int:
        """Tokens of the prompt of an answer."""
        shown = answer(page).nth(place)
        if not shown.locator(".facts").count():
            shown.get_by_role("button", name="Figures").click()
        return int(shown.get_by_title("tokens of the prompt").inner_text().removeprefix("prompt "))

    with opened(browser, seeing) as page:
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Max tokens").first.fill("4")
        ask(page, "What is it?")
        without = prompt_tokens(0)
        page.get_by_role("button", name="New chat", exact=True).click()
        expect(answer(page)).to_have_count(0)
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Max tokens").first.fill("4")
        for name, content in (("red.png", red), ("blue.png", blue)):
            page.get_by_label("Files", exact=True).set_input_files({"name": name, "mimeType": "", "buffer": content})
            expect(page.get_by_role("button", name=f"Remove {name}")).to_be_visible()
            ask(page, "What is it?")
        assert prompt_tokens(0) - without == 8 * 8 + 2
        assert prompt_tokens(1) > prompt_tokens(0) + 8 * 4 + 2
        expect(page.get_by_text("Had no effect")).to_have_count(0)
