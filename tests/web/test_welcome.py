"""What a reader sees first: examples, what a toy model is for, and what is known about the model."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.running_server import RunningServer
from tests.web.browser import answer, answered, expect, opened, picture, violations

EXAMPLES = {
    "What is the capital of France?": "Paris",
    "What is 7 plus 5?": "12",
    "Count from 1 to 10.": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
}


def test_the_demo_model_is_a_toy_that_answers_the_examples(
    browser: Browser, demo: RunningServer, tmp_path: Path
) -> None:
    with opened(browser, demo) as page:
        expect(page.locator(".examples button")).to_have_text(list(EXAMPLES))
        expect(page.locator(".notice")).to_contain_text("is a toy of 6.9 MB to try the server with.")
        picture(page, "welcome", tmp_path)
        assert violations(page) == []
        for example, expected in EXAMPLES.items():
            page.locator(".examples").get_by_role("button", name=example).click()
            answered(page)
            expect(answer(page)).to_contain_text(expected)
            page.keyboard.press("Alt+n")
            expect(page.locator(".examples")).to_be_visible()
        page.get_by_role("link", name="get a real model").click()
        expect(page.get_by_role("heading", name="Fetch a model from Hugging Face")).to_be_visible()


@pytest.mark.parametrize("status", [403, 200])
def test_visitor_without_the_right_to_load_sees_a_command(browser: Browser, demo: RunningServer, status: int) -> None:
    with opened(browser, demo) as page:
        refused = {"error": {"message": "admin key", "code": "admin_key_required"}}
        page.route("**/v1/requests", lambda route: route.fulfill(status=status, json=refused))
        page.reload()
        command = page.locator(".notice code")
        expect(command).to_have_count(1 if status == 403 else 0)
        expect(page.get_by_role("link", name="get a real model")).to_have_count(0 if status == 403 else 1)


def test_the_model_card_has_size_context_and_abilities(browser: Browser, demo: RunningServer, tmp_path: Path) -> None:
    with opened(browser, demo) as page:
        page.get_by_role("button", name="About this model").click()
        card = page.get_by_role("dialog", name="demo")
        for fact in ("ready", "llama", "6.9 MB, a toy", "2,048 tokens", "text, tool calls"):
            expect(card).to_contain_text(fact)
        picture(page, "model-card", tmp_path)
        assert violations(page) == []


def test_larger_models_have_other_examples(browser: Browser, own_scripted: RunningServer) -> None:
    with opened(browser, own_scripted) as page:
        details = {"models": [{"key": "demo", "size_bytes": 2_500_000_000, "architecture": "phi3"}]}
        page.route("**/api/v1/models", lambda route: route.fulfill(json=details))
        page.reload()
        expect(page.locator(".examples button")).to_have_count(3)
        expect(page.locator(".examples")).to_contain_text("Explain recursion")
        expect(page.locator(".notice")).to_have_count(0)
